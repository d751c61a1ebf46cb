"""Fits to a buffer take four rows at a time, and are what they would be one by one."""

import numpy as np

from streammoe.kernels.batch import (
    WIDE,
    fit_softmax,
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
