"""Mixtures fitted to part of a long warm-up's buffer: when, what they bring, and that they leave no trace behind it."""

import logging
import sys

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, schedules
from streammoe.distributions import Gaussian
from streammoe.engine import warmup
from streammoe.engine.state import UnsoundError
from streammoe.model.phases import provisional
from tests.unit.estimators.models import QUICK, STREAMS, classes, numbers, trained

FIRST, WARM_UP = 40, 170
BRIEF = {**QUICK, "warmup": WARM_UP}
X, Y = numbers(200)


@pytest.fixture(autouse=True)
def early(monkeypatch, caplog):
    """Fits at 40 and 80 of the 170 events that a buffer here holds."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(provisional, "FIRST_FIT", FIRST)


@pytest.fixture
def never(monkeypatch):
    """Call something without any such fit."""

    def call(function):
        with monkeypatch.context() as patched:
            patched.setattr(provisional, "FIRST_FIT", sys.maxsize)
            return function()

    return call


@pytest.mark.parametrize(
    ("kind", "more"),
    [
        (MoERegressor, {"gate_degree": 2, "expert": "student_t"}),
        (MoEMultiTargetRegressor, {"expert": Gaussian("full"), "standardize": True}),
        (MoEClassifier, {}),
    ],
)
def test_the_mixture_predicts_better_than_one_expert_and_leaves_no_trace(kind, more, never):
    rows, targets = STREAMS[kind](200)
    if kind is MoEClassifier:
        targets = np.where(np.abs(rows[:, 0]) > 0.7, "far", "near")  # not linearly separable

    def learn():
        model, last = kind(**BRIEF, **more), WARM_UP - 1
        losses = model.learn_array(rows[:last], targets[:last])
        assert model.is_warming_up
        model.learn_array(rows[last:], targets[last:])
        return model, losses

    model, losses = learn()
    plain, alone = never(learn)
    assert losses[:FIRST].tobytes() == alone[:FIRST].tobytes()
    assert losses[80:].mean() < alone[80:].mean() - 0.1
    assert model.state_digest() == plain.state_digest()
    np.testing.assert_equal(model.parameters(), plain.parameters())


def test_whose_errors_were_smaller_is_counted_event_by_event(never):
    def learn(prepare=lambda errors: None):
        model = trained(n=100, **BRIEF, standardize=True)
        prepare(model)
        return model.learn_rows(X[100:150], Y[100:150, None]).predictions

    def let_one_expert_predict_at_first(model):
        errors = model.learner.phase.provisional.errors
        errors[:] = errors.sum(), 0.0

    near = (learn(let_one_expert_predict_at_first) == never(learn)).all(axis=1)
    assert near[0]
    assert not near[-1]
    assert (np.diff(near.astype(int)) != 0).sum() == 1


def test_an_event_that_only_the_mixture_cannot_learn_is_learned_and_ends_it(never, caplog):
    inputs, labels = classes(75)
    inputs[60] = 9e49
    wide = {
        "degree": 3,
        "hold": False,
        "range_factor": 0.0,
        "prior_strength": 0.0,
        "schedule": schedules.Constant(0.999999),
    }

    def learn():
        model = MoEClassifier(**BRIEF, **wide)
        return model, model.learn_array(inputs, labels)

    model, losses = learn()
    assert any("makes the mixture infinite" in record.msg for record in caplog.records)
    plain, alone = never(learn)
    assert model.state_digest() == plain.state_digest()
    assert losses[60:].tobytes() == alone[60:].tobytes()


def test_if_a_fit_is_not_finite_the_one_expert_continues(never, monkeypatch, caplog):
    def unsound(family, buffer, *, brief, fit=warmup.fit, **arguments):
        if brief:
            raise UnsoundError(["masses"])
        return fit(family, buffer, **arguments)

    monkeypatch.setattr(warmup, "fit", unsound)
    model = trained(n=200, **BRIEF)
    assert [record.args[0] for record in caplog.records if "the fit to" in record.msg] == [FIRST, 2 * FIRST]
    assert model.state_digest() == never(lambda: trained(n=200, **BRIEF)).state_digest()
