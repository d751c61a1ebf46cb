"""The point prediction of a portfolio: whose means are trusted, and what checkpoints hold of it."""

import copy
import itertools

import numpy as np
import pytest

from streammoe import MoERegressor
from streammoe.engine.mean_trust import MeanTrust
from streammoe.kernels.portfolio import LEAST_WEIGHT
from streammoe.options import WarmUp

RNG = np.random.default_rng(5)
QUICK = {"n_experts": 2, "warmup": WarmUp(60, restarts=1)}
N = 5_000
X = RNG.normal(size=(N, 3))
TWO_STATES = np.where(np.arange(N) // 1_000 % 2, 1.0, -1.0) * (X @ [2.0, 1.0, -1.0]) + 0.3 * RNG.normal(size=N)
"""Targets of a relation that has one of two states for a while, which no input tells."""


def test_where_a_likely_density_has_a_poor_mean_errors_decide():
    """One expert for each state is likely, and the mean of both is wrong in either of them."""
    begun = 2_050
    model = MoERegressor(2, warmup=WarmUp(2_000, restarts=2), refits=False, drift=None, curved="off")
    model.learn_array(X[:begun], TWO_STATES[:begun])
    old = copy.deepcopy(model)
    old.learner.phase.portfolio.means = None  # which leaves the prediction to the density
    losses, errors = {}, {}
    for each in (model, old):
        found = each.learn_rows(X[begun:], TWO_STATES[begun:, None])
        losses[each] = found.losses
        errors[each] = np.sqrt(np.mean((found.predictions[:, 0] - TWO_STATES[begun:]) ** 2))
    assert errors[model] < 0.9 * errors[old]
    assert losses[model].tobytes() == losses[old].tobytes()
    row = dict(zip(model.fields, X[0], strict=True))
    assert model.predict_distribution_one(row).mean() == old.predict_distribution_one(row).mean()


def test_errors_without_measure_leave_finite_weights():
    """From none at all, in which nothing is learned, to those whose squares are infinite."""
    for size, first in itertools.product((0.0, 1e-200, 1e-160, 1e150, 1e200, 1e308), (0.0, 1.0)):
        trust = MeanTrust.of(2, 1, trusted=False)
        targets = np.array([first, size, 0.0, 1.0, -size])[:, None]
        predictions = np.stack([np.zeros((5, 1)), np.full((5, 1), size / 2)])
        found = predictions[0].copy()
        trust.combine(predictions, targets, np.full(5, 1e6), found)
        assert trust.is_finite()
        assert np.isfinite(found).all()
        assert (trust.weights >= LEAST_WEIGHT * (1.0 - 1e-6)).all()
        assert trust.weights.sum() == pytest.approx(1.0)


def test_of_a_member_that_comes_or_goes_the_others_keep_their_proportions():
    trust = MeanTrust(np.array([0.4, 0.3, 0.2, 0.1]), np.zeros(1), np.zeros(1), np.zeros(1, dtype=np.int64))
    trust.insert(1, 0.2)
    np.testing.assert_allclose(trust.weights, [0.32, 0.24, 0.2, 0.16, 0.08])
    np.testing.assert_allclose(trust.of_members(np.full(4, 0.25)), [0.32, 0.28, 0.24, 0.16])
    trust.remove(1)
    np.testing.assert_allclose(trust.weights, [0.4, 0.3, 0.2, 0.1])


def test_a_member_of_which_only_the_mean_is_trusted_stays():
    model = MoERegressor(**QUICK, drift=None, curved="off", refits=False)
    model.learn_array(X[:100], TWO_STATES[:100])
    portfolio = model.learner.phase.portfolio
    names = [member.name for member in portfolio.members]
    at = names.index("steady")
    portfolio.weights = np.full(len(names), (1.0 - LEAST_WEIGHT) / (len(names) - 1))
    portfolio.weights[at] = LEAST_WEIGHT
    for near, stays in ((0.5, True), (LEAST_WEIGHT, False)):
        portfolio.means.weights = np.full(1 + len(names), (1.0 - near) / len(names))
        portfolio.means.weights[1 + at] = near
        for n in (1_024, 2_048):
            portfolio.review(n)
        assert ("steady" in model.member_weights) == stays
    assert len(portfolio.means.weights) == 1 + len(portfolio.members)
