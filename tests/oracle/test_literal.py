"""The properties that the derivation of the literal algorithms promises, before anything is held to them."""

import numpy as np
import pytest

from tests.oracle.literal import curvature_bound, curvature_weight, log_softmax

BOUNDS = ["tight", "paper", "adaptive"]
# --- curvature ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", BOUNDS)
def test_a_bound_majorizes_log_sum_exp_everywhere(bound):
    rng = np.random.default_rng(0)
    for N in (1, 2, 4, 7):
        A = curvature_bound(bound, N)
        for _ in range(400):
            logits = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 1.5), 0.0)
            rng.shuffle(logits)
            logits -= logits[-1]
            move = np.append(rng.normal(size=N) * 10 ** rng.uniform(-2, 2), 0.0)
            quadratic = 0.5 * curvature_weight(bound, logits) * (move[:-1] @ A @ move[:-1])
            above = np.logaddexp.reduce(logits) + np.exp(log_softmax(logits)) @ move + quadratic
            below = np.logaddexp.reduce(logits + move)
            assert below <= above + 1e-12 * max(abs(below), quadratic, 1.0), N


def test_the_sharp_curvature_is_the_local_one_unless_that_is_far_below_the_bound():
    for xi in (0.0, 0.5, 2.0, 4.0, 30.0):
        adaptive, local = curvature_weight("adaptive", np.array([xi, 0.0])), 1.0 / np.cosh(xi / 2.0) ** 2
        sharp = curvature_weight("sharp", np.array([xi, 0.0]))
        assert sharp == pytest.approx(max(local, 0.1 * adaptive), rel=1e-12)
        assert sharp <= adaptive + 1e-15
    assert curvature_weight("sharp", np.array([0.3, 0.1, 0.0])) == 1.0


def test_the_adaptive_bound_is_as_low_as_it_can_be():
    """For two classes it touches again at the mirrored logit; without a majority it is the tight one."""
    for xi in (0.1, 1.0, 7.0):
        quadratic = 0.5 * curvature_weight("adaptive", np.array([xi, 0.0])) * 0.25 * (2.0 * xi) ** 2
        slope = np.exp(log_softmax(np.array([xi, 0.0])))[0]
        above = np.logaddexp(xi, 0.0) - 2.0 * xi * slope + quadratic
        assert above == pytest.approx(np.logaddexp(-xi, 0.0), rel=1e-12)
    assert curvature_weight("adaptive", np.array([0.3, 0.1, 0.0])) == 1.0
    assert curvature_weight("tight", np.array([0.0, 9.0])) == curvature_weight("paper", np.array([0.0, 9.0])) == 1.0


# --- the surrogate --------------------------------------------------------------------------------------------------
