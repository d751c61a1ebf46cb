"""Starts of EM. No kind of start wins everywhere."""

from __future__ import annotations

import numpy as np
from threadpoolctl import threadpool_limits

from streammoe.columns.scaling import vary
from streammoe.engine.em import Em
from streammoe.engine.interruption import interruptible
from streammoe.engine.jobs import Job
from streammoe.engine.spectral import regressors
from streammoe.experts import Parameters
from streammoe.kernels.batch import softmax_rows
from streammoe.kernels.kmeans import kmeans
from streammoe.kernels.linalg import VANISHED
from streammoe.types import BoolArray, FloatArray

KMEANS_ROUNDS = 50
GATE_ROUNDS = 20
"""Rounds of EM on the gate alone, while experts obtained from moments are fixed."""
STEEPNESS = 4.0
"""Logit at one standard deviation of a gate-first start; steep enough that the experts fitted to it differ."""


def cluster_starts(em: Em, K: int, count: int, rng: np.random.Generator, kept: range) -> Job[list[Parameters]]:
    """Start from K-means on standardized (x, y), or x for classes; gates are zero or fitted in turn ([MM] §5.1, *).

    Of `count` starts only those of the indexes `kept` are fitted; which they are does not depend on the others.
    """
    points = _standardized(em.buffer.R[:, 1:])
    if em.family.is_metric:
        points = np.column_stack([points, _standardized(em.buffer.Y)])
    points = np.ascontiguousarray(points)
    starts = []
    for at in range(count):
        tau = np.empty((len(points), K))
        first, draws = int(rng.integers(len(points))), rng.random(K)
        if at not in kept:
            continue
        interruptible(KMEANS_ROUNDS * points.size * K, kmeans, points, first, draws, K, KMEANS_ROUNDS, tau)
        yield KMEANS_ROUNDS * points.size * K
        start = yield from em.fitted_to(tau)
        if at % 2:
            for _ in range(10):
                em.fit_gate(start, tau * em.buffer.weights[:, None], 1)
                yield em.work(K) / 2
        starts.append(start)
    return starts


def gate_first_starts(em: Em, K: int, count: int, rng: np.random.Generator, kept: range) -> Job[list[Parameters]]:
    """Start from random steep gates, along an axis and in any direction in turn, with experts fitted to them.

    `kept` as in `cluster_starts`.
    """
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
        if at not in kept:
            continue
        # The last expert is the reference: logits are differences from its own.
        slopes = (directions[:-1] - directions[-1]) / deviations
        gate = np.zeros((K - 1, W.shape[1]))
        gate[:, varying] = slopes
        gate[:, 0] = offsets[:-1] - offsets[-1] - (slopes * means).sum(axis=1)
        tau = np.empty((len(W), K))
        softmax_rows(gate, W, K - 1, tau)
        starts.append((yield from em.fitted_to(tau))._replace(gate=gate))
    return starts


def random_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> Job[list[Parameters]]:
    """Start from random experts around the one-expert fit, with a gate of zeros."""
    R = em.buffer.R
    varying = np.flatnonzero(_varies(R))
    starts = []
    for _ in range(count):
        start = yield from em.fitted_to(np.full((len(R), K), 1.0 / K))
        start.experts[:, :, varying] += (
            rng.normal(size=(*start.experts.shape[:2], len(varying))) / R.std(axis=0)[varying]
        )
        starts.append(start)
    return starts


def spectral_starts(em: Em, K: int, rng: np.random.Generator) -> Job[list[Parameters]]:
    """Start from experts obtained from moments, if possible, and the gate that EM fits to them ([CQT] Theorem 2).

    Returns at most one start, and only for one output: each of several outputs has its own directions. Inputs are
    whitened, and the output is scaled to the deviation that regressors of length 1 would give it.
    """
    with threadpool_limits(1):  # sums over several threads would round differently on another machine
        found = _moment_start(em, K, rng)
    if found is None:
        return []
    slopes, offsets, y = found
    yield em.work(K)
    R, weights = em.buffer.R, em.buffer.weights
    start = yield from em.fitted_to(np.full((len(R), K), 1.0 / K))
    start.experts[...] = 0.0
    start.experts[:, 0, 1:] = slopes
    start.experts[:, 0, 0] = offsets
    for _ in range(GATE_ROUNDS):
        _, tau = em.e_step(start)
        tau *= weights[:, None]
        errors = (y[:, None] - np.einsum("nj,kj->nk", R, start.experts[:, 0])) ** 2  # by one thread, unlike R @ …
        start.variances[...] = ((tau * errors).sum(axis=0) / (tau.sum(axis=0) + VANISHED)).reshape(
            start.variances.shape
        )
        em.fit_gate(start, tau, 1)
        yield em.work(K)
    return [start]


def _moment_start(em: Em, K: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray, FloatArray] | None:
    """Return slopes (K, p_v − 1) and intercepts (K,) obtained from moments, and the targets; None if there are none."""
    _, R, Y, _ = em.buffer
    varying = np.flatnonzero(_varies(R))
    if not em.family.is_metric or Y.shape[1] != 1 or len(varying) < K:
        return None
    X, y = R[:, varying], Y[:, 0]
    means = X.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(X, rowvar=False).reshape(len(varying), -1))
    kept = values > VANISHED + 1e-10 * values.max()
    whitening = vectors[:, kept] / np.sqrt(values[kept])
    deviation = y.std()
    if whitening.shape[1] < K or not deviation > 0.0:
        return None
    directions = regressors((X - means) @ whitening, (y - y.mean()) / deviation, K, rng)
    if directions is None:
        return None
    found = deviation * directions @ whitening.T
    slopes = np.zeros((K, R.shape[1]))
    slopes[:, varying] = found
    return slopes[:, 1:], y.mean() - found @ means, y


def _varies(values: FloatArray) -> BoolArray:
    """Return which columns vary beyond rounding."""
    return vary(values.std(axis=0), values.mean(axis=0))


def _standardized(values: FloatArray) -> FloatArray:
    deviations = np.where(_varies(values), values.std(axis=0), 1.0)
    standardized: FloatArray = (values - values.mean(axis=0)) / deviations
    return standardized
