"""Events that a model holds for next to impossible."""

import numpy as np
import pytest
from scipy.special import log_softmax

from streammoe.kernels import categorical
from streammoe.kernels.state import Trace
from tests.unit.cases import log_classes, log_gate

NOTHING = Trace(np.empty((0, 0)), np.empty((0, 0, 0)), np.empty((0, 0, 0)))


def mixture(size, K, M, p=3):
    rng = np.random.default_rng(0)
    return size * rng.normal(size=(K - 1, p)), size * rng.normal(size=(K, M - 1, p)), rng.normal(size=(40, p))


def reference(gate, experts, R, label):
    joint = log_gate(gate, R) + np.stack([log_classes(expert, R)[:, label] for expert in experts], axis=1)
    total = np.logaddexp.reduce(joint, axis=1)
    return -total, np.exp(joint - total[:, None])


@pytest.mark.parametrize(("K", "M", "size"), [(1, 2, 1e150), (2, 2, 30.0), (3, 5, 1.0), (3, 5, 1e3), (3, 5, 1e6)])
def test_unlikely_is_the_formula_in_log_space(K, M, size):
    gate, experts, R = mixture(size, K, M)
    for label in range(M):
        losses, tau = reference(gate, experts, R, label)
        for i, r in enumerate(R):
            joint = np.empty(K)
            assert categorical.unlikely(gate, experts, r, r, label, joint) == pytest.approx(losses[i], rel=1e-9)
            np.testing.assert_allclose(joint, tau[i], rtol=1e-6 if size < 1e6 else 1e-2, atol=1e-9)


@pytest.mark.parametrize("size", [1.0, 1e3, 1e8])
def test_scores_never_vanish(size):
    gate, experts, R = mixture(size, 3, 4)
    Y = np.random.default_rng(1).integers(4, size=(40, 1)).astype(float)
    losses, predictions, tau = np.empty(40), np.empty((40, 4)), np.empty((40, 3))
    categorical.score_rows(gate, experts, np.empty((3, 0)), R, R, Y, losses, predictions, tau, NOTHING)
    for i in range(40):
        expected, shares = reference(gate, experts, R[i : i + 1], int(Y[i, 0]))
        assert losses[i] == pytest.approx(expected[0], rel=1e-9, abs=1e-12)
        np.testing.assert_allclose(tau[i], shares[0], rtol=1e-5, atol=1e-9)
    assert np.isfinite(losses).all()
    if size > 1.0:
        assert losses.max() > -np.log(categorical.UNLIKELY)
    np.testing.assert_allclose(predictions.sum(axis=1), 1.0)


def test_both_ways_meet_where_one_hands_over_to_the_other():
    """One expert whose logit brings the likelihood to either side of the threshold."""
    threshold = -np.log(categorical.UNLIKELY)
    one = np.ones((1, 1))
    for logit in np.linspace(threshold - 1.0, threshold + 1.0, 21):
        losses, predictions, tau = np.empty(1), np.empty((1, 2)), np.empty((1, 1))
        experts = np.full((1, 1, 1), -logit)
        args = np.empty((0, 1)), experts, np.empty((1, 0)), one, one, one, losses, predictions, tau, NOTHING
        categorical.score_rows(*args)
        assert losses[0] == pytest.approx(-log_softmax([0.0, -logit])[1], rel=1e-13)
