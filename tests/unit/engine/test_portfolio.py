"""Weights of a portfolio at their limits, and members that become unsound."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.errors import InvalidEvent
from streammoe.kernels.event import UNSOUND
from streammoe.kernels.portfolio import LEAST_WEIGHT, combine
from streammoe.model.bound import Bound
from streammoe.options import WarmUp

QUICK = {"n_experts": 2, "warmup": WarmUp(60, restarts=1)}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 2))
Y = np.where(X[:, 0] > 0.0, X[:, 1], -X[:, 1]) + 0.1 * RNG.normal(size=200)


def combined(losses, counts, weights=(0.5, 0.3, 0.2)):
    """Losses and weights after rows of which each member said so much, (n, 3)."""
    trust, rows = np.array(weights), np.array(losses, dtype=float)
    n = len(rows)
    found, predictions, shares = np.empty(n), np.empty((n, 1)), np.empty((n, 3))
    combine(
        trust,
        np.zeros(1),
        np.array(counts, dtype=float),
        np.ascontiguousarray(rows.T),
        np.stack([np.full((n, 1), i) for i in (1.0, 2.0, 3.0)]),
        found,
        predictions,
        shares,
        np.empty((2, 3)),
    )
    return found, predictions[:, 0], trust


@pytest.mark.parametrize("loss", [1e4, 1e199, -1e199])
def test_densities_that_vanish_or_are_endless_leave_finite_weights(loss):
    for row in ([loss, loss, loss], [loss, 0.0, 0.0], [0.0, loss, -loss]):
        for count in (1.0, 1e6):
            found, _, trust = combined([row, [0.0, 0.0, 0.0]], [count, count])
            assert np.isfinite(found).all()
            assert (trust >= LEAST_WEIGHT * (1.0 - 1e-7)).all()
            assert trust.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_an_event_that_spoils_a_member_is_rejected_and_leaves_no_trace(kind, monkeypatch):
    targets = Y if kind is MoERegressor else (Y > 0.0).astype(int)
    model, twin = (kind(**QUICK, standardize=False) for _ in range(2))
    bad = 150
    for each in (model, twin):
        each.learn_array(X[:100], targets[:100])
    learn = Bound.learn

    def failing(self, rows, *others, **more):
        found, out = learn(self, rows, *others, **more)
        if not (rows[:, 0] == X[bad, 0]).any():
            return found, out
        model.learner.phase.portfolio.members[2].expert.experts[...] = np.nan
        return UNSOUND, out

    monkeypatch.setattr(Bound, "learn", failing)
    with pytest.raises(InvalidEvent) as rejected:
        model.learn_array(X[100:], targets[100:])
    assert (rejected.value.reason, rejected.value.row) == ("poison", bad - 100)
    assert model.state_digest() == twin.state_digest()
    outcome = model.learn_rows(X[100:], targets[100:, None] if kind is MoERegressor else targets[100:].tolist())
    assert list(outcome.rejected) == [bad - 100]
    rest = np.delete(np.arange(100, 200), bad - 100)
    twin.learn_array(X[rest], targets[rest])
    assert model.state_digest() == twin.state_digest()
    assert model.is_finite()
