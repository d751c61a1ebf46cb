"""Fits to a buffer take four rows at a time, and are what they would be one by one."""

import numpy as np
import pytest

from streammoe.kernels.batch import fit_linear, fit_softmax, fit_variances, softmax_objective

P = 3


def rows(n, n_targets, blank):
    """Return features and targets of n rows, and of some more that count nothing."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, P)), rng.normal(size=(40, n_targets))
    weights = np.where(np.arange(40) < n, 1.0, 0.0)[:, None] * rng.dirichlet(np.ones(2), size=40)
    kept = n + blank
    return X[:kept], Y[:kept], weights[:kept]


@pytest.mark.parametrize("n", [17, 18, 20])
@pytest.mark.parametrize("blank", [1, 2, 3])
def test_a_linear_fit_does_not_depend_on_how_rows_fall_into_fours(n, blank):
    def fit(more):
        X, Y, tau = rows(n, 2, more)
        experts, variances, prior = np.zeros((2, 2, P)), np.ones((2, 2)), (0.1, np.ones(P), np.ones((2, P)))
        fit_linear(experts, *prior, tau, X, Y)
        fit_variances(experts, variances, *prior, np.ones(2), 1e-6, tau, tau, X, Y)
        return np.concatenate([experts, variances[:, :, None]], axis=2)

    assert (fit(0) == fit(blank)).all()


@pytest.mark.parametrize("n", [17, 18, 20])
@pytest.mark.parametrize("blank", [1, 2, 3])
@pytest.mark.parametrize("free", [2, 101])
def test_a_softmax_fit_does_not_depend_on_how_rows_fall_into_fours(n, blank, free):
    """By Newton steps, and by majorization steps where there are many parameters."""

    def fit(more):
        X, _, weights = rows(n, 1, more)
        targets = weights @ np.random.default_rng(1).dirichlet(np.ones(free + 1), size=2)
        coefficients, target = np.zeros((free, P)), np.zeros((free, P))
        prior = (0.1, np.ones(P), target, (2.0, 1.0), targets, X, 0)
        fit_softmax(coefficients, *prior, 3)
        assert softmax_objective(coefficients, *prior) > softmax_objective(target, *prior)
        return coefficients

    assert (fit(0) == fit(blank)).all()
