"""Fits to a buffer take four rows at a time, and are what they would be one by one."""

import itertools

import numpy as np
import pytest

from streammoe.kernels.batch import (
    WIDE,
    fit_linear,
    fit_softmax,
    fit_variances,
    softmax_gradient,
    softmax_objective,
)

P = 3


def rows(n, n_targets, blank, p=P):
    """Return features and targets of n rows, and of some more that count nothing."""
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(40, p)), rng.normal(size=(40, n_targets))
    weights = np.where(np.arange(40) < n, 1.0, 0.0)[:, None] * rng.dirichlet(np.ones(2), size=40)
    kept = n + blank
    return X[:kept], Y[:kept], weights[:kept]


FOURS = list(itertools.product([17, 18, 20], [1, 2, 3]))
"""Rows, and more that count nothing."""


def test_a_linear_fit_does_not_depend_on_how_rows_fall_into_fours():
    def fit(n, more):
        X, Y, tau = rows(n, 2, more)
        experts, variances, prior = np.zeros((2, 2, P)), np.ones((2, 2)), (0.1, np.ones(P), np.ones((2, P)))
        fit_linear(experts, *prior, tau, X, Y)
        fit_variances(experts, variances, *prior, np.ones(2), 1e-6, tau, tau, X, Y)
        return np.concatenate([experts, variances[:, :, None]], axis=2)

    for n, blank in FOURS:
        assert (fit(n, 0) == fit(n, blank)).all()


@pytest.mark.parametrize(("free", "p"), [(2, P), (101, P), (3, WIDE)])
def test_a_softmax_fit_does_not_depend_on_how_rows_fall_into_fours(free, p):
    """By Newton steps, by majorization steps where there are many parameters, by conjugate gradients with features."""

    def fit(n, more):
        X, _, weights = rows(n, 1, more, p)
        targets = weights @ np.random.default_rng(1).dirichlet(np.ones(free + 1), size=2)
        coefficients, target = np.zeros((free, p)), np.zeros((free, p))
        prior = (0.1, np.ones(p), target, (2.0, 1.0), targets, X, 0)
        fit_softmax(coefficients, *prior, 3)
        assert softmax_objective(coefficients, *prior) > softmax_objective(target, *prior)
        return coefficients

    for n, blank in FOURS:
        assert (fit(n, 0) == fit(n, blank)).all()


def test_conjugate_gradients_rise_at_every_step_and_end_at_the_top():
    free = 3
    X, _, weights = rows(40, 1, 0, WIDE)
    X *= np.geomspace(0.1, 10.0, WIDE)
    targets = weights @ np.random.default_rng(1).dirichlet(np.ones(free + 1), size=2)
    target = 0.1 * np.random.default_rng(2).normal(size=(free, WIDE))
    given = (20.0, (X * X).mean(axis=0), target, (2.0, 1.0), targets, X, 1)
    coefficients, slope = np.zeros((free, WIDE)), np.empty((free, WIDE))
    heights = [softmax_objective(coefficients, *given)]
    for _ in range(40):
        fit_softmax(coefficients, *given, 1)
        heights.append(softmax_objective(coefficients, *given))
    assert (np.diff(heights) >= 0.0).all()
    softmax_gradient(coefficients, *given, slope)
    assert np.abs(slope).max() < 1e-5
