"""Softmax in log space, and the weights of the adaptive bound; whole steps are held to literal ones in tests/oracle."""

import numpy as np
import pytest
from scipy.special import softmax as reference_softmax

from streammoe.kernels.batch import adaptive_weights
from streammoe.kernels.softmax import adaptive_weight
from tests.oracle.literal import curvature_weight


def weight_of(probabilities):
    return adaptive_weight(np.array(probabilities, dtype=np.float64))


def test_the_adaptive_weight_is_the_literal_one():
    rng = np.random.default_rng(0)
    for _ in range(200):
        logits = rng.normal(size=rng.integers(2, 7)) * 10 ** rng.uniform(-2, 1.1)
        weight = weight_of(reference_softmax(logits))
        assert weight == pytest.approx(curvature_weight("adaptive", logits), rel=1e-6)
    rows = rng.dirichlet(np.full(4, 0.3), size=50)
    found = np.empty(50)
    adaptive_weights(rows, found)
    assert found.tolist() == [weight_of(row) for row in rows]


def test_the_adaptive_weight_falls_without_a_jump_as_one_class_becomes_more_certain():
    """The value is right even where the series that replaces 0/0 meets the quotient."""
    apart = np.concatenate([[0.0], np.logspace(-12, -1, 400)])
    found = np.array([weight_of([0.5 + a / 2, 0.5 - a / 2]) for a in apart])
    assert np.diff(found).max() <= 1e-9
    np.testing.assert_allclose(found, 1.0 - apart**2 / 3.0, atol=1e-4)
    around = [weight_of([0.5 + a / 2, 0.5 - a / 2]) for a in (0.99e-4, 1.01e-4)]
    assert around[0] == pytest.approx(around[1], abs=1e-9)
    for M in (2, 5):
        largest = 1.0 - np.logspace(np.log10(1.0 - 1.0 / M), -15, 300)
        found = np.array([weight_of([p, *[(1.0 - p) / (M - 1)] * (M - 1)]) for p in largest])
        assert np.diff(found).max() <= 1e-7
        assert found[0] == 1.0
