"""[MM]'s algorithm as the paper runs it: its two starts, its statistics, and its average.

The paper's majorizer, Gaussian tails, no prior; the average of iterates begins at iteration 100. Its steps are not
known here: n^(−0.6), counted on from the rows that the start has seen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression

from benchmarks.papers import baselines
from benchmarks.papers.baselines import features
from streammoe import Gaussian, MoERegressor, schedules
from tests.oracle.literal import Algorithm2

FIRST_ROWS = 85
"""Over these the paper averages the statistics that it starts from."""
AVERAGE_FROM = 100
"""Iteration."""
PERTURBATION = 0.005
KMEANS_TRIES = 10
LEAST_VARIANCE = 1e-3
"""Of a start, relative to the variance of the targets: a cluster may be fitted exactly."""
SETTINGS: dict[str, Any] = {
    "bound": "paper",
    "prior_strength": 0.0,
    "expert": Gaussian(tail=math.inf),
    "schedule": schedules.Power(0.6),
}
"""The paper's algorithm in terms of this package."""
NOTE = (
    f"Inc. MM: the paper's majorizer, Gaussian tails, no prior, average of iterates from iteration {AVERAGE_FROM} on. "
    "Its steps are not known here: n^-0.6, counted on from the rows of the start."
)


class Theta(NamedTuple):
    """Parameters of a mixture with one output; the last expert is the gate's reference."""

    gate: np.ndarray
    """(K−1, p_w)."""
    experts: np.ndarray
    """(K, p_v)."""
    variances: np.ndarray
    """(K,)."""

    @property
    def flat(self) -> np.ndarray:
        """One vector as `baselines` has it, for gates and experts of equal features."""
        return np.concatenate([self.gate.ravel(), self.experts.ravel(), np.log(self.variances)])


def powers(X: np.ndarray, degree: int) -> np.ndarray:
    """(n, 1 + degree · d) an intercept, the inputs, and their powers."""
    return features(np.column_stack([X**power for power in range(1, degree + 1)]))


def perturbed(truth: Theta, seed: int) -> Theta:
    """Return the true parameters plus normal numbers of deviation 0.005."""
    rng = np.random.default_rng(20_000 + seed)
    gate, experts, variances = (part + PERTURBATION * rng.normal(size=part.shape) for part in truth)
    return Theta(gate, experts, np.maximum(variances, PERTURBATION))


def data_driven(X: np.ndarray, y: np.ndarray, K: int, seed: int, *, degree: int = 1, gate: bool = False) -> Theta:
    """Start from K-means on standardized (x, y): least squares in each cluster, with a gate of zeros.

    Args:
        X: (n, d) the first inputs.
        y: (n,) the first targets.
        K: experts.
        seed: of the random centroids.
        degree: of the experts.
        gate: whether the gate is a logistic regression of the clusters, the paper's "*", instead of zeros.
    """
    points = np.column_stack([X, y])
    points = (points - points.mean(axis=0)) / np.maximum(points.std(axis=0), 1e-12)
    labels = KMeans(K, init="random", n_init=KMEANS_TRIES, random_state=seed).fit(points).labels_
    R = powers(X, degree)
    experts = np.zeros((K, R.shape[1]))
    variances = np.empty(K)
    for k in range(K):
        rows = labels == k
        experts[k] = np.linalg.lstsq(R[rows], y[rows], rcond=None)[0]
        variances[k] = max(np.mean((y[rows] - R[rows] @ experts[k]) ** 2), LEAST_VARIANCE * y.var())
    weights = np.zeros((K - 1, 1 + X.shape[1]))
    if gate:
        fitted = LogisticRegression().fit(X, labels)
        logits = np.column_stack([fitted.intercept_, fitted.coef_])
        # Of two clusters there is one row, for the second; the last expert is the reference.
        logits = np.vstack([-logits, np.zeros_like(logits)]) if K == 2 else logits
        weights = logits[:-1] - logits[-1]
    return Theta(weights, experts, variances)


def begun(theta: Theta, X: np.ndarray, y: np.ndarray, degree: int = 1) -> dict[str, Any]:
    """Return the state whose statistics s₀ are the means over the first rows under θ, as `parameters` has it."""
    p_w, p_v = theta.gate.shape[1], theta.experts.shape[1]
    K = len(theta.experts)
    algorithm = Algorithm2(
        {
            "gate": theta.gate,
            "experts": theta.experts[:, None],
            "variances": theta.variances[:, None],
            # These and the masses are replaced below; any will do.
            "gate_gram": np.eye(p_w),
            "expert_grams": np.stack([np.eye(p_v)] * K),
            "masses": np.full(K, 1.0 / K),
            "decay": 1.0,
            "prior_weight": 0.0,
            "prior": {},
        },
        bound=SETTINGS["bound"],
    )
    at = algorithm.mm.last_iterate
    each = [
        algorithm.event_statistics((w, r), target, at)
        for w, r, target in zip(features(X), powers(X, degree), y[:, None], strict=True)
    ]
    algorithm.mm.replace_statistics({name: np.mean([one[name] for one in each], axis=0) for name in each[0]})
    return {**algorithm.theta, "n": len(y)}


def theta_of(parameters: Mapping[str, Any]) -> Theta:
    """Return the parameters in a model's `parameters`."""
    return Theta(parameters["gate"], parameters["experts"][:, 0], parameters["variances"][:, 0])


def optimizer_start(begin: Mapping[str, Any], X: np.ndarray, y: np.ndarray) -> baselines.Start:
    """Let an optimizer begin there, and learn these events."""
    theta = theta_of(begin)
    return baselines.Start(theta.flat, len(theta.experts), features(X), np.ascontiguousarray(y))


def served(model: MoERegressor, averaged: bool = True) -> Theta:
    """Return the parameters that a model predicts with, or the last iterate."""
    return theta_of(model.parameters(averaged=averaged))


def one_pass(begin: dict[str, Any], X: np.ndarray, y: np.ndarray, *, degree: int = 1) -> MoERegressor:
    """Run one pass."""
    arguments = {**SETTINGS, "degree": degree, "feature_names": [f"x{i}" for i in range(X.shape[1])]}
    model = MoERegressor.from_parameters(begin, **arguments, averaging=None)
    model.learn_array(X[:AVERAGE_FROM], y[:AVERAGE_FROM])
    model = MoERegressor.from_parameters(model.parameters(), **arguments, averaging="polyak")
    model.learn_array(X[AVERAGE_FROM:], y[AVERAGE_FROM:])
    return model
