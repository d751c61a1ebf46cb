"""Gaussian experts with a full covariance between outputs.

As `streammoe.kernels.elliptical`, with Σ_k, (Q, Q), where that one has σ²_k. Q is small, so that a factor of each Σ_k
is formed for each event.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import hook, inline, jit
from streammoe.kernels.elliptical import NEGLIGIBLE
from streammoe.kernels.event import event
from streammoe.kernels.gaussian import energy, irls_weight, is_outlier, log_constant
from streammoe.kernels.linear import Spread, linear_noise, shares_and_means
from streammoe.kernels.noise import Shape, scoring
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray

SINGULAR = 1e-14
"""Smallest pivot, in units of the variance itself: outputs that depend on each other linearly stay finite."""


@inline
def log_density(shape: Shape, covariance: FloatArray, scratch: FloatArray, k: int) -> float:
    """½ log det Σ + E(δ²) with δ² = errorᵀ Σ⁻¹ error, negated.

    The error stands in row Q of `scratch` and is overwritten, as are the rows above, by a factor of Σ; δ² is left in
    column `k` of the row below.
    """
    Q = covariance.shape[0]
    square = total = 0.0
    for i in range(Q):
        for j in range(i + 1):
            value = covariance[i, j]
            for m in range(j):
                value -= scratch[i, m] * scratch[j, m]
            if i == j:
                scratch[i, i] = math.sqrt(max(value, SINGULAR * covariance[i, i]))
            else:
                scratch[i, j] = value / scratch[j, j]
        value = scratch[Q, i]
        for m in range(i):
            value -= scratch[i, m] * scratch[Q, m]
        error = value / scratch[i, i]
        scratch[Q, i] = error
        square += error * error
        total += 0.5 * error * error + math.log(scratch[i, i])
    scratch[Q + 1, k] = square
    if is_outlier(shape, square):
        total = energy(shape, square, Q)
        for i in range(Q):
            total += math.log(scratch[i, i])
    return -total


@inline
def scratch_rows(Q: int) -> int:
    """As `log_density` wants them."""
    return Q + 2


@hook
def evaluate(
    shape: Shape,
    constant: float,
    scratch: FloatArray,
    gate: FloatArray,
    experts: FloatArray,
    covariances: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    shares: FloatArray,
    means: FloatArray,
    tau: FloatArray,
) -> float:
    """As `streammoe.kernels.noise.Noise` asks."""
    K, Q = means.shape
    log_gate = shares_and_means(gate, experts, w, r, shares, means, tau)
    if math.isnan(y[0]):
        for k in range(K):
            tau[k] = shares[k]
        return np.nan
    largest: float = -np.inf
    for k in range(K):
        for q in range(Q):
            scratch[Q, q] = y[q] - means[k, q]
        tau[k] += log_density(shape, covariances[k], scratch, k)
        largest = max(largest, tau[k])
    total = 0.0
    for k in range(K):
        tau[k] = math.exp(tau[k] - largest)
        total += tau[k]
    inverse = 1.0 / total
    for k in range(K):
        tau[k] *= inverse
    loss: float = log_gate - largest - math.log(total) + constant
    return loss


@hook
def trust(shape: Shape, tau: FloatArray, scratch: FloatArray, trusted: FloatArray, Q: int) -> bool:
    """As `streammoe.kernels.noise.Noise` asks."""
    beyond = 0.0
    for k in range(tau.shape[0]):
        square = scratch[Q + 1, k]
        if is_outlier(shape, square):
            if tau[k] < NEGLIGIBLE:
                tau[k] = 0.0
            beyond += tau[k]
        trusted[k] = tau[k] * irls_weight(shape, square, Q)
    return beyond > 0.5


@inline
def _step(
    state: MMState,
    options: LearningOptions,
    k: int,
    q: int,
    old_mass: float,
    new: float,
    left: float,
    mass: float,
    means: FloatArray,
    y: FloatArray,
) -> None:
    error = y[q] - means[k, q]
    for c in range(q + 1):
        product = error * (y[c] - means[k, c])
        value = (old_mass * state.variances[k, q, c] + new * product * left) / mass
        if c == q:
            value = max(value, options.variance_floor * state.prior_variances[q])
        state.variances[k, q, c] = value
        state.variances[k, c, q] = value


@inline
def _top_up(state: MMState, k: int, q: int, share: float, old: FloatArray, mass: float) -> None:
    for c in range(q + 1):
        # The matrix of which independent outputs need the diagonal; symmetric but for rounding.
        spread = 0.0
        for j in range(old.shape[1]):
            here = state.prior_experts[q, j] - state.experts[k, q, j]
            there = state.prior_experts[c, j] - state.experts[k, c, j]
            here_old = state.prior_experts[q, j] - old[q, j]
            there_old = state.prior_experts[c, j] - old[c, j]
            spread += 0.5 * share * state.prior_expert_gram[j] * (here * there_old + there * here_old)
        total = state.masses[k] * state.variances[k, q, c] + spread
        if c == q:
            total = state.masses[k] * state.variances[k, q, q] + max(spread, 0.0)
            total += share * state.prior_variances[q]
        state.variances[k, q, c] = total / mass
        state.variances[k, c, q] = total / mass


@inline
def _residual(
    state: MMState,
    k: int,
    q: int,
    amount: float,
    y: FloatArray,
    linear: FloatArray,
    residual: FloatArray,
    at: int,
    square: float,
    share: float,
) -> tuple[int, float]:
    # The block is Σ τ y yᵀ, by rows.
    for c in range(y.shape[0]):
        explained = 0.0
        for i in range(state.experts.shape[2]):
            explained += linear[q, i] * state.experts[k, c, i]
        entry = amount * y[q] * y[c] - (state.masses[k] * state.variances[k, q, c] + explained)
        residual[at] += share * (entry - residual[at])
        square += entry * entry
        at += 1
    return at, square


NOISE = linear_noise(log_constant, scratch_rows, evaluate, trust, Spread(_step, _top_up, _residual))
score_rows = scoring(NOISE, __name__)
learn = event(NOISE, NOISE, __name__, 2, n_dim=3)


@jit
def trusted_rows(
    shape: Shape,
    experts: FloatArray,
    covariances: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    tau: FloatArray,
    trusted: FloatArray,
) -> None:
    """Write τ u of each row and expert to `trusted`, (n, K)."""
    K, Q, p = experts.shape
    scratch = np.empty((scratch_rows(Q), max(K, Q)))
    for i in range(R.shape[0]):
        for k in range(K):
            for q in range(Q):
                error = Y[i, q]
                for j in range(p):
                    error -= experts[k, q, j] * R[i, j]
                scratch[Q, q] = error
            log_density(shape, covariances[k], scratch, k)
            trusted[i, k] = tau[i, k] * irls_weight(shape, scratch[Q + 1, k], Q)
