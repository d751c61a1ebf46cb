"""What the division of the prior gains: as much as losses say where there is no noise, next to nothing where there is,
never below 0."""

import math

import numpy as np
import pytest

from streammoe.engine import mm
from streammoe.engine.em import Buffer
from streammoe.engine.prior_gain import prior_gain
from streammoe.engine.warmup import fit
from tests.unit.cases import Case, options, random_state

RNG = np.random.default_rng(0)
N = 200
X = np.column_stack([np.ones(N), RNG.normal(size=(N, 3))])
LINE = X @ np.array([[3.0, -1.0], [2.0, 0.5], [-1.0, 0.0], [0.0, 1.0]])
NOISE = RNG.normal(size=(N, 2))


def fitted(n_experts, Y, *, family="gaussian", weight=1.0, prior_strength=0.1):
    case = Case(family, Y.shape[1])
    given = {"n_experts": n_experts, "n_outputs": case.n_outputs, "restarts": 1, "seed": 0}
    buffer = Buffer(X, X, np.ascontiguousarray(Y), np.full(N, weight))
    return fit(case.family, buffer, **given, options=options(case, n_experts, prior_strength))


def loss(family, state, Y):
    """Of the mean event."""
    return mm.score(Case(family, 1).family, state, X, X, np.ascontiguousarray(Y), n_outputs=Y.shape[1])[0].losses.mean()


@pytest.mark.parametrize(("family", "n_experts"), [("gaussian", 2), ("gaussian_full", 4), ("laplace", 2)])
def test_without_noise_it_is_all_by_which_more_experts_seem_better(family, n_experts):
    Y = LINE if family.startswith("gaussian") else LINE[:, :1]
    alone, many = fitted(1, Y, family=family), fitted(n_experts, Y, family=family)
    gain = prior_gain(many)
    assert gain == pytest.approx(0.5 * math.log(n_experts) * Y.shape[1], rel=0.02)
    assert loss(family, alone, Y) - loss(family, many, Y) == pytest.approx(gain, rel=0.05)


def test_with_noise_it_is_next_to_nothing():
    assert 0.0 <= prior_gain(fitted(3, LINE + 0.3 * NOISE)) < 3e-4


def test_what_the_division_has_cost_is_not_refunded():
    state = fitted(2, np.where(X[:, 1:2] > 0.0, LINE[:, :1], -LINE[:, :1]))
    state.variances[0] *= 1e6  # all noise, so that the prior weighs on the other alone,
    state.masses[:] = [0.8, 0.2]  # which has little to do
    assert prior_gain(state) == 0.0


def test_where_there_is_nothing_to_divide_there_is_no_gain():
    assert prior_gain(fitted(1, LINE)) == 0.0
    assert prior_gain(fitted(2, LINE, prior_strength=0.0)) == 0.0
    assert prior_gain(random_state(Case("categorical", 2), 3, 4)) == 0.0
