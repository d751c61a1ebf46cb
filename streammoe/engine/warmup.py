"""The start: a bounded buffer, batch EM from several starts, and the statistics to stream on from.

Several families of starts are tried, since none wins everywhere: K-means on (x, y), which finds experts that live in
different regions; gate first, which finds experts that cross; and for classifiers annealing, which lets random experts
part slowly. Everything is a function of the buffer and the seed.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.engine.mm import no_trace
from streammoe.engine.state import MMState, UnsoundError, is_sound, state_at, unsound_parts
from streammoe.experts import Family, Parameters
from streammoe.kernels.batch import (
    NEWTON_LIMIT,
    adaptive_weights,
    bent_square,
    collect_gram,
    fit_softmax,
    kmeans,
    majorize_softmax,
    softmax_rows,
)
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.robust import winsorised
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.types import BoolArray, FloatArray

GATE_STARTS_PER_RESTART = 4
SHORT_ROUNDS = 8
LONG_ROUNDS = 200
FINALISTS = 3
TOLERANCE = 1e-7
STEEPNESS = 4.0
"""Logit at one standard deviation of a gate-first start; steep enough that the experts under it differ."""
ANNEALED_ROUNDS = 30
COLDEST = 0.3
"""Power of the responsibilities that an annealed start begins with; it rises to 1 over 60 % of its rounds."""
WORK_LIMIT = 2e10
"""Multiply-adds that a warm-up may cost; wide models get fewer starts and rounds rather than a stall of minutes."""
ROUND_LIMIT = 1e9
"""Multiply-adds of one round over a buffer of default size."""


class Buffer(NamedTuple):
    """The rows that a warm-up fits."""

    W: FloatArray
    """(n, p_w) gate features."""
    R: FloatArray
    """(n, p_v) expert features."""
    Y: FloatArray
    """(n, Q) targets, or (n, 1) class indexes."""
    weights: FloatArray
    """(n,)"""


class Shape(NamedTuple):
    """What a fit costs: K experts, N rows of coefficients each, p_w and p_v features."""

    n_experts: int
    n_rows: int
    p_w: int
    p_v: int


def default_size(family: Family, shape: Shape) -> int:
    """Events a warm-up buffer holds unless told: a dozen or more for each parameter, at least 400.

    Wide models get fewer, so that a round of EM stays below a second or so, but at least two for each feature.

    >>> from streammoe.experts import families
    >>> family = families()["gaussian"]
    >>> default_size(family, Shape(4, 1, 11, 11)), default_size(family, Shape(4, 1, 301, 301))
    (972, 1839)
    """
    K, N, p_w, p_v = shape
    variances = N if family.n_variances(1) else 0
    parameters = (K - 1) * p_w + K * (N * p_v + variances)
    affordable = ROUND_LIMIT / _row_cost(family, shape)
    return int(max(min(family.events_per_parameter * parameters, affordable), 2 * p_v, 400))


def _row_cost(family: Family, shape: Shape) -> float:
    """Multiply-adds of one row in one round of EM, to a factor."""
    K, N, p_w, p_v = shape
    experts = K * p_v**2 if family.n_variances(1) else K * _softmax_cost(N, p_v)
    return max(experts + _softmax_cost(K - 1, p_w), 1.0)


def _softmax_cost(free: int, p: int) -> float:
    size = free * p
    return size**2 if size <= NEWTON_LIMIT else 2 * p**2


def one_expert_prior(family: Family, buffer: Buffer, n_outputs: int, options: LearningOptions) -> Prior:
    """The prior that a buffer suggests: size of the features, and what one expert makes of the targets.

    The prior does not fade, so a single absurd value in the buffer must not shape it: columns are winsorised for it.
    """
    W, R, weights = winsorised(buffer.W), winsorised(buffer.R), buffer.weights
    Y = winsorised(buffer.Y) if family.is_metric else buffer.Y
    prior = family.unit_prior(options.prior_strength, W.shape[1], R.shape[1], n_outputs)
    squares = np.mean(R * R, axis=0)
    gate_squares = np.mean(W * W, axis=0)
    prior = prior._replace(
        gate_gram=np.where(gate_squares > VANISHED, gate_squares, 1.0),
        expert_gram=np.where(squares > VANISHED, squares, 1.0),
        variance_floor=options.variance_floor,
    )
    one = Parameters(
        np.zeros((0, W.shape[1])),
        np.zeros((1, *prior.experts.shape)),
        family.variances_of(prior.variances, 1),
    )
    family.fit_experts(one, family.start_prior(prior), options, np.ascontiguousarray(weights[:, None]), R, Y, 20)
    variances = one.variances[0]
    # Of a full covariance the prior keeps the diagonal: it must not vanish where outputs depend on each other.
    variances = np.diag(variances).copy() if variances.ndim == 2 else variances
    return prior._replace(experts=one.experts[0], variances=variances)


def fit(
    family: Family,
    buffer: Buffer,
    *,
    n_experts: int,
    n_outputs: int,
    restarts: int,
    seed: int,
    options: LearningOptions,
) -> MMState:
    """The state after a warm-up on these rows: the likeliest of several batch fits, and its statistics.

    Args:
        family: of the experts.
        buffer: the rows.
        n_experts: K.
        n_outputs: Q, or the number of classes.
        restarts: starts of each family (gate first: four times as many, since each is cheap and chancy).
        seed: of the random starts.
        options: bound and prior of the model.

    Raises:
        UnsoundError: the rows are such that nothing finite comes of them.
    """
    with np.errstate(all="ignore"):  # the result is judged instead
        prior = one_expert_prior(family, buffer, n_outputs, options)
        # Without a prior a degenerate expert has unbounded likelihood; a thousandth of an event bounds it unnoticeably.
        em = Em(family, buffer, prior._replace(strength=max(prior.strength, 1e-3)), options)
        theta = _search(em, n_experts, restarts, np.random.default_rng(seed))
        state = settled(em._replace(prior=prior), theta)
    if not is_sound(state):
        raise UnsoundError(unsound_parts(state))
    return state


class Em(NamedTuple):
    """EM ([MD] Algorithm 1) with a prior, on a buffer."""

    family: Family
    buffer: Buffer
    prior: Prior
    options: LearningOptions

    def expect(self, theta: Parameters) -> tuple[float, FloatArray]:
        """Penalised log-likelihood of an event, and responsibilities (n, K)."""
        W, R, Y, weights = self.buffer
        n = len(W)
        losses = np.empty(n)
        tau = np.empty((n, len(theta.experts)))
        predictions = np.empty((n, Y.shape[1] if self.family.is_metric else theta.experts.shape[1] + 1))
        trace = no_trace()
        self.family.score_rows(*theta, W, R, Y, losses, predictions, tau, trace)
        zeros = np.zeros_like(theta.gate)
        bent = bent_square(theta.gate, zeros, self.prior.gate_gram, self.options.curvature)
        total = self.family.log_prior(theta, self.prior, self.options) - 0.5 * self.prior.strength * bent
        return (total - float(np.sum(weights * losses))) / n, tau

    def maximise(self, theta: Parameters, tau: FloatArray, rounds: int = 1) -> None:
        """Fit experts and gate to responsibilities, in place."""
        tau = tau * self.buffer.weights[:, None]
        self.family.fit_experts(theta, self.prior, self.options, tau, self.buffer.R, self.buffer.Y, rounds)
        self.fit_gate(theta, tau, rounds)

    def fit_gate(self, theta: Parameters, tau: FloatArray, rounds: int) -> None:
        """Fit the gate alone to responsibilities times weights, in place."""
        fit_softmax(
            theta.gate,
            self.prior.strength,
            self.prior.gate_gram,
            np.zeros_like(theta.gate),
            self.options.curvature,
            tau,
            self.buffer.W,
            len(theta.gate),
            rounds,
        )

    def run(self, theta: Parameters, rounds: int) -> float:
        """Rounds in place until an event gains less than `TOLERANCE`; return its penalised log-likelihood."""
        best = -np.inf
        for _ in range(rounds):
            total, tau = self.expect(theta)
            if not total - best > TOLERANCE:
                return max(total, best)
            best = total
            self.maximise(theta, tau)
        return best

    def anneal(self, theta: Parameters, rounds: int) -> None:
        """Rounds in place with softened responsibilities, so that no expert is decided upon early."""
        for at in range(rounds):
            power = min(COLDEST + (1.0 - COLDEST) * at / (0.6 * rounds), 1.0)
            _, tau = self.expect(theta)
            tau **= power
            tau /= tau.sum(axis=1, keepdims=True)
            self.maximise(theta, tau)

    def under(self, tau: FloatArray) -> Parameters:
        """Experts fitted under responsibilities, and a gate of zeros."""
        K = tau.shape[1]
        prior = self.prior
        theta = Parameters(
            np.zeros((K - 1, self.buffer.W.shape[1])),
            np.repeat(prior.experts[None], K, axis=0),
            self.family.variances_of(prior.variances, K),
        )
        tau = tau * self.buffer.weights[:, None]
        self.family.fit_experts(theta, prior, self.options, tau, self.buffer.R, self.buffer.Y, 6)
        return theta


def settled(em: Em, theta: Parameters) -> MMState:
    """The state at s_0, the average of S̄ over the buffer at θ, with the prior as `prior.strength` more rows."""
    family, (W, R, Y, weights), prior, options = em
    n = len(W)
    total = n + prior.strength
    K = len(theta.experts)
    _, tau = em.expect(theta)
    tau *= weights[:, None]
    shares = np.empty((n, K))
    softmax_rows(theta.gate, W, K - 1, shares)
    bends = np.ones(n)
    if options.adaptive and K > 1:
        adaptive_weights(shares, bends)
    expert_grams = family.settle(theta, prior, options, tau, R, Y)
    gate_gram = np.empty((W.shape[1], W.shape[1]))
    collect_gram(W, bends * weights, prior.strength, prior.gate_gram, total, gate_gram)
    pushes = np.ascontiguousarray((shares * weights[:, None] - tau)[:, :-1])
    majorize_softmax(
        theta.gate,
        gate_gram,
        prior.strength,
        prior.gate_gram,
        np.zeros_like(theta.gate),
        options.curvature,
        pushes,
        W,
        total,
    )
    return state_at(
        gate=theta.gate,
        experts=theta.experts,
        variances=theta.variances,
        masses=(tau.sum(axis=0) + prior.strength / K) / total,
        gate_gram=gate_gram,
        expert_grams=expert_grams,
        prior=prior,
        n=n,
        prior_weight=prior.strength / total,
    )


def _search(em: Em, n_experts: int, restarts: int, rng: np.random.Generator) -> Parameters:
    """The likeliest fit: a few rounds from every start, then the best few run on."""
    buffer = em.buffer
    n, p_v = buffer.R.shape
    if n_experts == 1:
        theta = em.under(np.ones((n, 1)))
        em.run(theta, LONG_ROUNDS if not em.family.is_metric else 1)
        return theta
    shape = Shape(n_experts, len(em.prior.experts), buffer.W.shape[1], p_v)
    affordable_rounds = WORK_LIMIT / (n * _row_cost(em.family, shape))
    affordable = max(int(affordable_rounds / 2 / SHORT_ROUNDS), 2)
    starts = _gate_first_starts(em, n_experts, GATE_STARTS_PER_RESTART * restarts, rng)
    if em.family.is_metric:
        starts = [*_cluster_starts(em, n_experts, restarts, rng), *starts]
    # Both families keep a place where only a few starts are affordable.
    starts = starts[:: max(len(starts) // affordable, 1)]
    if not em.family.is_metric and affordable_rounds > 4 * ANNEALED_ROUNDS:
        annealed = _random_starts(em, n_experts, restarts + 1, rng)
        for theta in annealed:
            em.anneal(theta, ANNEALED_ROUNDS)
        starts = [*starts, *annealed]
    scored = [(em.run(theta, SHORT_ROUNDS), -at, theta) for at, theta in enumerate(starts)]
    if not any(np.isfinite(score) for score, *_ in scored):
        raise UnsoundError(["likelihood of every start"])
    n_finalists = FINALISTS if affordable_rounds > 4 * FINALISTS * SHORT_ROUNDS else 1
    finalists = sorted((entry for entry in scored if np.isfinite(entry[0])), reverse=True, key=lambda e: e[:2])
    rounds = int(np.clip(affordable_rounds / 2 / n_finalists, SHORT_ROUNDS, LONG_ROUNDS))
    ended = [(em.run(theta, rounds), at, theta) for _, at, theta in finalists[:n_finalists]]
    return max(ended, key=lambda e: e[:2])[2]


def _cluster_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> list[Parameters]:
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


def _gate_first_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> list[Parameters]:
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


def _random_starts(em: Em, K: int, count: int, rng: np.random.Generator) -> list[Parameters]:
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
