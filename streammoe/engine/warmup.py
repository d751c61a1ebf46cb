"""The start: a bounded buffer, batch EM from several starts, and the statistics to stream on from.

Two families of starts are tried, since neither wins everywhere: K-means on (x, y), which finds experts that live in
different regions, and gate first, which finds experts that cross. Everything is a function of the buffer and the seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.engine.state import MMState
from streammoe.experts.gaussian import LearningOptions, Prior, state_at, unit_prior
from streammoe.kernels.batch import NEWTON_LIMIT, collect_statistics, fit_experts, fit_gate, kmeans, run_em
from streammoe.kernels.linalg import VANISHED
from streammoe.types import BoolArray, FloatArray

GATE_STARTS_PER_RESTART = 4
SHORT_ROUNDS = 8
LONG_ROUNDS = 200
FINALISTS = 3
TOLERANCE = 1e-7
STEEPNESS = 4.0
"""Logit at one standard deviation of a gate-first start; steep enough that the experts under it differ."""
WORK_LIMIT = 2e10
"""Multiply-adds that a warm-up may cost; wide models get fewer starts and rounds rather than a stall of minutes."""
ROUND_LIMIT = 1e9
"""Multiply-adds of one round over a buffer of default size."""


class Parameters(NamedTuple):
    """θ of a mixture of Gaussian experts."""

    gate: FloatArray
    experts: FloatArray
    variances: FloatArray


def default_size(n_experts: int, p_w: int, p_v: int, n_outputs: int) -> int:
    """Events a warm-up buffer holds unless told: a dozen for each parameter, at least 400.

    Wide models get fewer, so that a round of EM stays below a second or so, but at least two for each feature.

    >>> default_size(4, 11, 11, 1), default_size(4, 301, 301, 1)
    (972, 1839)
    """
    parameters = (n_experts - 1) * p_w + n_experts * n_outputs * (p_v + 1)
    affordable = ROUND_LIMIT / _row_cost(n_experts, p_w, p_v)
    return int(max(min(12 * parameters, affordable), 2 * p_v, 400))


def _row_cost(n_experts: int, p_w: int, p_v: int) -> float:
    """Multiply-adds of one row in one round of EM, to a factor."""
    free = (n_experts - 1) * p_w
    return n_experts * p_v**2 + (free**2 if free <= NEWTON_LIMIT else 2 * p_w**2)


def one_expert_prior(R: FloatArray, Y: FloatArray, W: FloatArray, options: LearningOptions) -> Prior:
    """The prior that a buffer suggests: size of the features, and what one expert makes of the targets."""
    n, n_outputs = Y.shape
    prior = unit_prior(max(options.prior_strength, 1e-3), W.shape[1], R.shape[1], n_outputs)
    squares = np.mean(R * R, axis=0)
    gate_squares = np.mean(W * W, axis=0)
    prior = prior._replace(
        strength=options.prior_strength,
        gate_gram=np.where(gate_squares > VANISHED, gate_squares, 1.0),
        expert_gram=np.where(squares > VANISHED, squares, 1.0),
        variance_floor=options.variance_floor,
    )
    experts = np.zeros((1, n_outputs, R.shape[1]))
    variances = np.ones((1, n_outputs))
    fit_experts(experts, variances, prior._replace(strength=1e-3), np.ones((n, 1)), R, Y)
    return prior._replace(experts=experts[0], variances=variances[0])


def fit(
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    *,
    n_experts: int,
    restarts: int,
    seed: int,
    options: LearningOptions,
) -> MMState:
    """The state after a warm-up on these rows: the likeliest of several batch fits, and its statistics.

    Args:
        W, R, Y: (n, p_w), (n, p_v), (n, Q) the buffer's gate features, expert features and targets.
        n_experts: K.
        restarts: starts of each family (gate first: four times as many, since each is cheap and chancy).
        seed: of the random starts.
        options: bound and prior of the model.
    """
    prior = one_expert_prior(R, Y, W, options)
    # Without a prior a degenerate expert has unbounded likelihood; a thousandth of an event bounds it unnoticeably.
    search_prior = prior._replace(strength=max(prior.strength, 1e-3))
    best = _search(W, R, Y, n_experts, restarts, seed, search_prior, options)
    K, _, p_v = best.experts.shape
    p_w = W.shape[1]
    masses = np.empty(K)
    gate_gram = np.empty((p_w, p_w))
    expert_grams = np.empty((K, p_v, p_v))
    collect_statistics(
        best.gate, best.experts, best.variances, prior, options.curvature, W, R, Y, masses, gate_gram, expert_grams
    )
    return state_at(
        gate=best.gate,
        experts=best.experts,
        variances=best.variances,
        masses=masses,
        gate_gram=gate_gram,
        expert_grams=expert_grams,
        prior=prior,
        n=len(Y),
        prior_weight=prior.strength / (prior.strength + len(Y)),
    )


def _search(
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    n_experts: int,
    restarts: int,
    seed: int,
    prior: Prior,
    options: LearningOptions,
) -> Parameters:
    """The likeliest fit: short EM from every start, then the best few run on."""
    n, p_v = R.shape
    if n_experts == 1:
        return _under_responsibilities(np.ones((n, 1)), R, Y, W.shape[1], prior)
    rng = np.random.default_rng(seed)
    affordable_rounds = WORK_LIMIT / (n * _row_cost(n_experts, W.shape[1], p_v))
    affordable = max(int(affordable_rounds / 2 / SHORT_ROUNDS), 2)
    starts = [
        *_cluster_starts(W, R, Y, n_experts, restarts, rng, prior, options),
        *_gate_first_starts(W, R, Y, n_experts, GATE_STARTS_PER_RESTART * restarts, rng, prior),
    ]
    # Both families keep a place where only a few starts are affordable.
    starts = starts[:: max(len(starts) // affordable, 1)]
    scored = [
        (run_em(*start, prior, options.curvature, W, R, Y, SHORT_ROUNDS, TOLERANCE), -at, start)
        for at, start in enumerate(starts)
    ]
    n_finalists = FINALISTS if affordable_rounds > 4 * FINALISTS * SHORT_ROUNDS else 1
    finalists = sorted((entry for entry in scored if np.isfinite(entry[0])), reverse=True, key=lambda e: e[:2])
    rounds = int(np.clip(affordable_rounds / 2 / n_finalists, SHORT_ROUNDS, LONG_ROUNDS))
    ended = [
        (run_em(*start, prior, options.curvature, W, R, Y, rounds, TOLERANCE), at, start)
        for _, at, start in finalists[:n_finalists]
    ]
    return max(ended, key=lambda e: e[:2])[2]


def _under_responsibilities(tau: FloatArray, R: FloatArray, Y: FloatArray, p_w: int, prior: Prior) -> Parameters:
    """Experts fitted by weighted least squares under `tau`, and a gate of zeros."""
    K, Q = tau.shape[1], Y.shape[1]
    experts = np.repeat(prior.experts[None], K, axis=0)
    variances = np.empty((K, Q))
    fit_experts(experts, variances, prior, tau, R, Y)
    return Parameters(np.zeros((K - 1, p_w)), experts, variances)


def _cluster_starts(
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    K: int,
    count: int,
    rng: np.random.Generator,
    prior: Prior,
    options: LearningOptions,
) -> list[Parameters]:
    """K-means on standardised (x, y); the gate is zero, or fitted to the labels, in turn ([MM] §5.1, plain and *)."""
    points = np.ascontiguousarray(np.column_stack([_standardised(R[:, 1:]), _standardised(Y)]))
    starts = []
    for at in range(count):
        tau = np.empty((len(points), K))
        kmeans(points, int(rng.integers(len(points))), rng.random(K), K, 50, tau)
        start = _under_responsibilities(tau, R, Y, W.shape[1], prior)
        if at % 2:
            fit_gate(start.gate, prior, options.curvature, tau, W, 10)
        starts.append(start)
    return starts


def _gate_first_starts(
    W: FloatArray, R: FloatArray, Y: FloatArray, K: int, count: int, rng: np.random.Generator, prior: Prior
) -> list[Parameters]:
    """Random steep gates, along an axis and in any direction in turn; experts are fitted under them."""
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
        logits = np.zeros((len(W), K))
        for j in range(W.shape[1]):
            logits[:, :-1] += np.outer(W[:, j], gate[:, j])
        logits -= logits.max(axis=1, keepdims=True)
        tau = np.exp(logits)
        tau /= tau.sum(axis=1, keepdims=True)
        start = _under_responsibilities(tau, R, Y, W.shape[1], prior)
        starts.append(start._replace(gate=gate))
    return starts


def _varies(values: FloatArray) -> BoolArray:
    """Which columns vary beyond their rounding."""
    varies: BoolArray = values.std(axis=0) > 1e-12 * np.abs(values.mean(axis=0)) + VANISHED
    return varies


def _standardised(values: FloatArray) -> FloatArray:
    deviations = np.where(_varies(values), values.std(axis=0), 1.0)
    standardised: FloatArray = (values - values.mean(axis=0)) / deviations
    return standardised
