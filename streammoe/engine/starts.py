"""Where EM starts from. No family of starts wins everywhere."""

from __future__ import annotations

import numpy as np

from streammoe.engine.em import Em
from streammoe.experts import Parameters
from streammoe.kernels.batch import kmeans, softmax_rows
from streammoe.kernels.linalg import VANISHED
from streammoe.types import BoolArray, FloatArray

STEEPNESS = 4.0
"""Logit at one standard deviation of a gate-first start; steep enough that the experts under it differ."""


def cluster_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> list[Parameters]:
    """K-means on standardised (x, y); the gate is zero, or fitted to the labels, in turn ([MM] §5.1, plain and *)."""
    points = np.ascontiguousarray(np.column_stack([_standardised(em.buffer.R[:, 1:]), _standardised(em.buffer.Y)]))
    starts = []
    for at in range(count):
        tau = np.empty((len(points), K))
        kmeans(points, int(rng.integers(len(points))), rng.random(K), K, 50, tau)
        start = em.under(tau)
        if at % 2:
            em.fit_gate(start, tau * em.buffer.weights[:, None], 10)
        starts.append(start)
    return starts


def gate_first_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> list[Parameters]:
    """Random steep gates, along an axis and in any direction in turn; experts are fitted under them."""
    W = em.buffer.W
    varying = np.flatnonzero(_varies(W))
    means, deviations = W.mean(axis=0)[varying], W.std(axis=0)[varying]
    d = len(varying)
    starts = []
    for at in range(count):
        directions = rng.normal(size=(K, d))
        if at % 2 == 0 and d > 0:
            axes = rng.integers(d, size=K)
            directions = np.where(np.arange(d) == axes[:, None], directions, 0.0)
        directions *= STEEPNESS / np.maximum(np.sqrt((directions**2).sum(axis=1, keepdims=True)), 1e-12)
        offsets = STEEPNESS * 0.5 * rng.normal(size=K)
        # The last expert is the reference: logits are differences to its own.
        slopes = (directions[:-1] - directions[-1]) / deviations
        gate = np.zeros((K - 1, W.shape[1]))
        gate[:, varying] = slopes
        gate[:, 0] = offsets[:-1] - offsets[-1] - (slopes * means).sum(axis=1)
        tau = np.empty((len(W), K))
        softmax_rows(gate, W, K - 1, tau)
        starts.append(em.under(tau)._replace(gate=gate))
    return starts


def random_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> list[Parameters]:
    """Random experts around the one-expert fit, and a gate of zeros."""
    R = em.buffer.R
    varying = np.flatnonzero(_varies(R))
    starts = []
    for _ in range(count):
        start = em.under(np.full((len(R), K), 1.0 / K))
        start.experts[:, :, varying] += (
            rng.normal(size=(*start.experts.shape[:2], len(varying))) / R.std(axis=0)[varying]
        )
        starts.append(start)
    return starts


def _varies(values: FloatArray) -> BoolArray:
    """Which columns vary beyond their rounding."""
    varies: BoolArray = values.std(axis=0) > 1e-12 * np.abs(values.mean(axis=0)) + VANISHED
    return varies


def _standardised(values: FloatArray) -> FloatArray:
    deviations = np.where(_varies(values), values.std(axis=0), 1.0)
    standardised: FloatArray = (values - values.mean(axis=0)) / deviations
    return standardised
