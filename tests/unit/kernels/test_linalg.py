"""Inverses of symmetric matrices, sound and singular ones."""

import numpy as np
import pytest

from streammoe.kernels.linalg import invert_spd


def spd(p, seed=0, rows=None):
    points = np.random.default_rng(seed).normal(size=(rows or 3 * p, p))
    return points.T @ points / len(points)


def inverse_of(matrix):
    p = len(matrix)
    out = np.full((p, p), np.nan)
    sound = invert_spd(matrix, out, np.full((p, p), np.nan))
    assert (out == out.T).all()
    return out, sound


@pytest.mark.parametrize("p", [1, 3, 13, 60, 131])
def test_inverses_are_the_dense_ones(p):
    matrix = spd(p, p)
    inverse, sound = inverse_of(matrix)
    assert sound
    np.testing.assert_allclose(inverse @ matrix, np.eye(p), atol=1e-10)


def test_features_of_very_different_size_cost_no_accuracy():
    matrix, size = spd(5), np.array([1e-40, 1e-12, 1.0, 1e15, 1e60])
    inverse, sound = inverse_of(matrix * np.outer(size, size))
    assert sound
    np.testing.assert_allclose(inverse * np.outer(size, size), np.linalg.inv(matrix), rtol=1e-11)


def test_a_singular_matrix_is_damped_and_reported():
    badly_scaled = np.outer([1e-30, 1.0, 1e30], [1e-30, 1.0, 1e30])
    for matrix in (np.ones((4, 4)), spd(10, rows=4), badly_scaled):
        inverse, sound = inverse_of(matrix)
        assert not sound
        assert np.isfinite(inverse).all()
        # Positive in every direction, so that a filter that continues from it never steps uphill.
        scale = np.sqrt(np.diag(inverse))
        assert np.linalg.eigvalsh(inverse / np.outer(scale, scale)).min() > -1e-7
    # The least-norm solution of x1 + x2 = 2, as for two equal columns.
    inverse, _ = inverse_of(np.ones((2, 2)))
    np.testing.assert_allclose(inverse @ np.array([2.0, 2.0]), [1.0, 1.0], rtol=1e-2)


@pytest.mark.parametrize("absent", [[2, 5], [0, 1, 2, 3, 4, 5]])
def test_a_feature_that_has_always_been_zero_is_decoupled(absent):
    matrix = spd(6)
    matrix[absent] = matrix[:, absent] = 0.0
    inverse, sound = inverse_of(matrix)
    assert sound
    others = np.setdiff1d(np.arange(6), absent)
    present = np.ix_(others, others)
    np.testing.assert_allclose(inverse[present], np.linalg.inv(matrix[present]), rtol=1e-10, atol=1e-12)
    assert (inverse[absent][:, others] == 0).all()
    assert (inverse[absent, absent] == 1).all()
