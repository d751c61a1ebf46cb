"""Expert diagnostics, and the choice of the number of experts."""

import copy
import logging
import re
from functools import cache

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.options import Auto

NAMES = ["x0", "x1", "x2"]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(7_000, 3))
Y = np.where(RNG.random(7_000) < 1.0 / (1.0 + np.exp(-8.0 * X[:, 0])), X @ [0.5, 2.0, -1.0], X @ [-1.0, -2.0, 1.5])
Y += 0.1 * RNG.normal(size=7_000)


@cache
def parameters():
    model = MoERegressor(2, warmup=300)
    model.learn_array(X[:1_000], Y[:1_000])
    return model.parameters()


def starved():
    """A model of two experts, the first of which has a logit of −30 everywhere."""
    given = copy.deepcopy(parameters())
    given["gate"][0] = [-30.0, 0.0, 0.0, 0.0]
    given["masses"][0] = 1e-6
    given["experts"][0] = 0.0
    given["expert_grams"][0] *= 1e-6
    return MoERegressor.from_parameters(given, feature_names=NAMES)


def duplicate():
    """A model of twice the same expert."""
    given = copy.deepcopy(parameters())
    given["gate"][:] = 0.0
    for name in ("experts", "variances", "masses", "expert_grams"):
        given[name][1] = given[name][0]
    return MoERegressor.from_parameters(given, feature_names=NAMES)


def test_experts_are_listed_with_how_they_fare():
    idle, alive = starved().experts()
    assert list(idle) == ["share", "loss", "nearest", "divergence", "condition"]
    assert (idle["condition"], alive["condition"]) == ("starved", "alive")
    assert (idle["nearest"], alive["nearest"]) == (1, 0)
    assert idle["share"] + alive["share"] == pytest.approx(1.0)
    assert idle["share"] < 0.01


def test_idle_experts_are_logged_once(caplog):
    for model, n, text in (
        (starved(), 4_500, r"expert 0 is starved: .* \(event 2048\)"),
        (duplicate(), 2_100, r"expert (0 is a duplicate: .* expert 1|1 is a duplicate: .* expert 0) "),
    ):
        caplog.clear()
        with caplog.at_level(logging.WARNING, "streammoe.estimators"):
            model.learn_array(X[1_000:n], Y[1_000:n])
        (message,) = caplog.messages
        assert re.match(text, message)


AUTO = {"n_experts": Auto(3), "warmup": 400, "drift": None}


def test_the_chosen_mixture_is_that_of_so_many_experts_bit_for_bit(caplog):
    model = MoERegressor(**AUTO)
    assert (model.chosen_n_experts, len(model.masses)) == (None, 3)
    with caplog.at_level(logging.INFO, "streammoe.estimators"):
        model.learn_array(X[:1_000], Y[:1_000])
    assert model.chosen_n_experts == len(model.masses) == len(model.experts()) == 2
    said = r"the model has 2 experts; .* 1: [1-9].*, 2: 0\.0, 3: [1-9]"
    assert any(re.search(said, text) for text in caplog.messages)
    fixed = MoERegressor(2, warmup=400, drift=None)
    fixed.learn_array(X[:1_000], Y[:1_000])
    states = [
        {name: array.tobytes() for name, array in each.arrays().items() if name.startswith("state.")}
        for each in (model, fixed)
    ]
    assert states[0] == states[1]


LINE = X @ [1.0, 2.0, 3.0]
KINK = np.abs(X[:, 0])


@pytest.mark.parametrize(
    ("target", "n_experts"),
    [(LINE + 0.1 * RNG.normal(size=len(X)), 1), (LINE, 1), (KINK, 2), (KINK + 0.02 * RNG.normal(size=len(X)), 2)],
    ids=["noisy line", "line", "kink", "kink with as much noise as the prior leaves"],
)
def test_there_are_no_more_experts_than_it_takes(target, n_experts):
    model = MoERegressor(**AUTO)
    model.learn_array(X[:2_500], target[:2_500])
    assert model.chosen_n_experts == n_experts
