"""A portfolio: weights at their limits, what each member is for, and the one that rests and comes back."""

import itertools
import math

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.engine.members import GROWTH
from streammoe.engine.portfolio import MEMBERS, REVIEW_EVERY, Trust
from streammoe.kernels.portfolio import LEAST_WEIGHT, combine, combine_means

RNG = np.random.default_rng(2)
X = RNG.normal(size=(3 * REVIEW_EVERY, 3))
N = len(X)
NOISE = 0.3 * RNG.normal(size=N)

# --- weights --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("loss", [1e4, 1e199, -1e199])
def test_densities_that_vanish_or_are_endless_leave_finite_weights(loss):
    for row in ([loss, loss, loss], [loss, 0.0, 0.0], [0.0, loss, -loss]):
        for count in (1.0, 1e6):
            trust, losses = np.array([0.5, 0.3, 0.2]), np.array([row, [0.0, 0.0, 0.0]]).T.copy()
            found, said = np.empty((2, 2)), np.zeros((3, 2, 1))
            counts, shares, scratch = np.full(2, count), np.empty((2, 3)), np.empty((2, 3))
            combine(trust, np.zeros(1), counts, losses, said, found[0], found[1:].T.copy(), shares, scratch)
            assert np.isfinite(found[0]).all()
            assert (trust >= LEAST_WEIGHT * (1.0 - 1e-3)).all()
            assert trust.sum() == pytest.approx(1.0)


def test_errors_without_measure_leave_finite_weights():
    """From none at all, in which nothing is learned, to those whose squares are infinite."""
    for size, first in itertools.product((0.0, 1e-200, 1e-160, 1e150, 1e200, 1e308), (0.0, 1.0)):
        trust = Trust.beginning(2, 1, is_trusted=False)
        targets = np.array([first, size, 0.0, 1.0, -size])[:, None]
        predictions = np.stack([np.zeros((5, 1)), np.full((5, 1), size / 2)])
        found = predictions[0].copy()
        combine_means(*trust[2:6], np.full(5, 1e6), predictions, targets, found, np.empty((2, 3)))
        assert all(np.isfinite(array).all() for array in (*trust, found))
        assert (trust.mean_weights >= LEAST_WEIGHT * (1.0 - 1e-3)).all()
        assert trust.mean_weights.sum() == pytest.approx(1.0)


def test_of_a_member_that_comes_or_goes_the_others_keep_their_proportions():
    trust = Trust.beginning(3, 1, is_trusted=True)
    trust.weights[:], trust.mean_weights[:] = [0.5, 0.3, 0.2], [0.4, 0.3, 0.2, 0.1]
    more = trust.with_another(0.1, 3)
    np.testing.assert_allclose(more.weights, [0.45, 0.27, 0.18, 0.1])
    np.testing.assert_allclose(more.mean_weights, [0.36, 0.27, 0.18, 0.09, 0.1])
    less = more.without(1)
    np.testing.assert_allclose(less.weights, np.array([45, 18, 10]) / 73)
    np.testing.assert_allclose(less.mean_weights, np.array([36, 27, 9, 10]) / 82)
    np.testing.assert_allclose(trust.of_members, [0.5, 0.32, 0.2], err_msg="the mean of one is trusted, or its density")


# --- members --------------------------------------------------------------------------------------------------------

DISTANCE = (X**2).sum(axis=1)
PLANE = X @ [1.0, -1.0, 0.5]
STREAMS = {
    "quick": (MoERegressor, (X * np.cumsum(0.05 * RNG.normal(size=X.shape), axis=0)).sum(axis=1) + NOISE),
    "curved": (MoEClassifier, (DISTANCE > 2.4).astype(int)),
    "series": (MoERegressor, np.cumsum(RNG.normal(size=len(X)))),
    "average": (MoERegressor, np.where(X[:, 0] > 0.0, 3.0 * PLANE, X[:, 2]) + NOISE),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_member_is_trusted_where_it_is_right(name):
    kind, y = STREAMS[name]
    model = kind(2, drift=None)
    model.learn_array(X[:1_000], y[:1_000])
    weights = model.member_weights
    assert max(weights, key=weights.get) == name
    assert list(weights) == [*MEMBERS]


def test_the_member_of_products_rests_where_it_does_not_help_and_comes_back_where_the_average_is_not_trusted():
    y = STREAMS["average"][1]
    model, never = MoERegressor(2, drift=None), MoERegressor(2, drift=None, curved="off")
    losses = [each.learn_array(X[: 2 * REVIEW_EVERY], y[: 2 * REVIEW_EVERY])[1_000:] for each in (model, never)]
    assert not {"series", "curved"}.intersection(model.member_weights)
    assert losses[0].mean() == pytest.approx(losses[1].mean(), abs=5e-3)
    (curved,) = (one for one in model.learner.phase.portfolio.resting if one.name == "curved")
    rested_at = int(curved.notes[1])
    back_at = math.ceil(max(GROWTH * rested_at, model.n + 1) / REVIEW_EVERY) * REVIEW_EVERY
    while model.n < back_at + 2_048:
        model.learn_array(X[:512], DISTANCE[:512])
        assert ("curved" in model.member_weights) == (model.n >= back_at)
    assert model.member_weights["curved"] > 0.9


def test_it_comes_back_after_a_drift():
    y = STREAMS["average"][1]
    model = MoERegressor(2)
    model.learn_array(X[: 2 * REVIEW_EVERY], y[: 2 * REVIEW_EVERY])
    assert "curved" not in model.member_weights
    model.learn_array(X[:512], 20.0 * DISTANCE[:512])
    assert model.drifts
    assert "curved" in model.member_weights


def test_columns_that_have_not_varied_and_inputs_that_are_not_scaled_have_no_products():
    still = np.column_stack([X[:400, 0], np.ones(400)])
    for model, terms in (
        (MoERegressor(2), [[0, 0], [0, 1], [0, 2], [1, 1]]),
        (MoERegressor(2, standardize=False), None),
        (MoERegressor(1), None),
        (MoERegressor(2, curved="off"), None),
    ):
        model.learn_array(still, PLANE[:400])
        arrays = model.arrays()
        assert ("portfolio.curved_terms" in arrays) == (terms is not None)
        if terms is not None:
            assert arrays["portfolio.curved_terms"].tolist() == terms
