"""Weights of a portfolio at their limits, and members that become unsound."""

import sys

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine.members import one_expert
from streammoe.engine.portfolio import Portfolio
from streammoe.errors import InvalidEvent
from streammoe.kernels.loop import UNSOUND
from streammoe.kernels.portfolio import LEAST_WEIGHT, combine
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


def test_equal_members_share_equally_in_the_end_and_one_that_was_wrong_for_long_comes_back():
    _, _, trust = combined(np.zeros((5_000, 3)), np.ones(5_000))
    np.testing.assert_allclose(trust, 1 / 3, atol=1e-3)
    long = np.zeros((3_000, 3))
    long[:2_950, 0], long[2_950:, 1:] = 1.0, 1.0
    _, _, trust = combined(long, np.ones(3_000))
    assert trust[0] > 0.99


def test_one_event_counts_for_so_much_only_and_those_like_it_soon_after_in_full():
    calm, wrong, floored = [0.0, 0.1, 0.1], [20.0, 0.0, 0.0], (1.0 - 2e-8, 1e-8, 1e-8)
    for rows, stays in (([wrong], True), ([wrong, *[calm] * 500, wrong], True), ([wrong, *[calm] * 3, wrong], False)):
        _, _, trust = combined(rows, np.ones(len(rows)), floored)
        assert (trust[0] > 0.99) == stays, len(rows)


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_an_event_that_spoils_a_member_is_rejected_and_leaves_no_trace(kind, monkeypatch):
    targets = Y if kind is MoERegressor else (Y > 0.0).astype(int)
    model, twin = (kind(**QUICK, standardize=False) for _ in range(2))
    bad = 150
    for each in (model, twin):
        each.learn_array(X[:100], targets[:100])
    learn = one_expert.OneExpert.learn

    def failing(self, rows, scores, **more):
        if self.name == "one_expert" and (rows.R[:, 1] == X[bad, 0]).any():
            monkeypatch.setattr(type(self._family), "learn_single", lambda *arguments: UNSOUND)
        try:
            return learn(self, rows, scores, **more)
        finally:
            monkeypatch.undo()
            monkeypatch.setattr(one_expert.OneExpert, "learn", failing)

    monkeypatch.setattr(one_expert.OneExpert, "learn", failing)
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


def test_reviews_become_rarer_once_a_stream_is_long():
    model = MoERegressor(**QUICK)
    model.learn_array(X[:100], Y[:100])
    portfolio = model.learner.phase.portfolio
    found = [portfolio.next_review(n, awaits_another=True) for n in (0, 1_023, 1_024, 15_360, 16_384, 20_479, 20_480)]
    assert found == [1_024, 1_024, 2_048, 16_384, 20_480, 20_480, 24_576]
    calm = Portfolio.of(model.learner.context.family, "adaptive", model.learner.state)  # nobody is on probation
    assert [calm.next_review(n) for n in (0, 20_480)] == [sys.maxsize] * 2
