"""Learners shared by the tables: the library's in one pass and in batch, and baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streammoe import MoERegressor, batch, schedules

Predictor = Callable[[np.ndarray], np.ndarray]


def one_pass(X: np.ndarray, y: np.ndarray, n_experts: int = 2, **settings: Any) -> MoERegressor:
    """Run a mixture in one pass."""
    model = MoERegressor(n_experts=n_experts, **settings)
    model.learn_array(X, y)
    return model


def batch_em(X: np.ndarray, y: np.ndarray, n_experts: int = 2, **settings: Any) -> MoERegressor:
    """Run EM on all events to convergence, and return the likeliest of several starts."""
    model = MoERegressor(n_experts=n_experts, **settings)
    batch.fit(model, X, y)
    return model


def recursive_least_squares(X: np.ndarray, y: np.ndarray) -> Predictor:
    """Run one expert with steps 1/n: recursive least squares."""
    model = MoERegressor(n_experts=1, warmup=0, schedule=schedules.Power(1.0), averaging=None, serve="polyak")
    model.learn_array(X, y)
    return model.predict_array


def least_squares(X: np.ndarray, y: np.ndarray) -> Predictor:
    """Ordinary least squares with an intercept."""
    coefficients = np.linalg.lstsq(np.column_stack([np.ones(len(X)), X]), y, rcond=None)[0]
    return lambda new: coefficients[0] + new @ coefficients[1:]


def mean_of_targets(_: np.ndarray, y: np.ndarray) -> Predictor:
    """Predict without looking at the inputs."""
    return lambda new: np.full(len(new), y.mean())


def standardized(X: np.ndarray, *others: np.ndarray) -> list[np.ndarray]:
    """Standardize inputs, and others by the same center and scale; a constant column becomes 0."""
    center, scale = X.mean(axis=0), X.std(axis=0)
    scale = np.where(scale > 0.0, scale, 1.0)
    return [(inputs - center) / scale for inputs in (X, *others)]
