"""The properties that the derivation of the literal algorithms promises, before anything is held to them."""

import numpy as np
import pytest

from tests.oracle.literal import curvature_bound, curvature_weight, log_softmax

BOUNDS = ["tight", "paper", "adaptive"]


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
