"""Gaussian experts with a full covariance between outputs: the hot loop of learning and scoring.

As `streammoe.kernels.gaussian`, with Σ_k, (Q, Q), where that one has σ²_k. Q is small, so that a factor of each Σ_k is
formed for each event.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit
from streammoe.kernels.gaussian import LOG_2PI
from streammoe.kernels.groups import (
    amounts_of,
    average_weight_of,
    far_limits,
    finish_group,
    gather,
    group_of,
    is_far,
    kept_by,
    mass_after,
    n_waiting,
    settle_gate,
    settle_linear,
    stand_alone,
    weigh,
)
from streammoe.kernels.linalg import VANISHED, add_outer, symmetric_product
from streammoe.kernels.linear import residual_of_linear, shares_and_means
from streammoe.kernels.shared import (
    REFRESH_BELOW,
    RESIDUAL_EVERY,
    average_weight,
    blend,
    blend_all,
    finish_step,
    mix,
    refresh_expert,
    refresh_gate,
    residual_of_gate,
    residual_share,
    route,
    step_gate,
    topped_up,
)
from streammoe.kernels.soundness import is_sound_after, keep_finite
from streammoe.kernels.state import LearningOptions, MMState, Trace
from streammoe.types import FloatArray

SINGULAR = 1e-14
"""Smallest pivot, in units of the variance itself: outputs that depend on each other linearly stay finite."""


@inline
def log_density(covariance: FloatArray, error: FloatArray, factor: FloatArray) -> float:
    """½ log det Σ + ½ errorᵀ Σ⁻¹ error, negated; `factor` (Q, Q) is scratch and `error` (Q,) is overwritten."""
    Q = error.shape[0]
    total = 0.0
    for i in range(Q):
        for j in range(i + 1):
            value = covariance[i, j]
            for m in range(j):
                value -= factor[i, m] * factor[j, m]
            if i == j:
                factor[i, i] = math.sqrt(max(value, SINGULAR * covariance[i, i]))
            else:
                factor[i, j] = value / factor[j, j]
        value = error[i]
        for m in range(i):
            value -= factor[i, m] * error[m]
        error[i] = value / factor[i, i]
        total += 0.5 * error[i] * error[i] + math.log(factor[i, i])
    return -total


@inline
def evaluate(
    gate: FloatArray,
    experts: FloatArray,
    covariances: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    shares: FloatArray,
    means: FloatArray,
    joint: FloatArray,
    error: FloatArray,
    factor: FloatArray,
) -> float:
    """Write g_k(x), Υ_k r and the responsibilities τ_k ([MM] eq. 15) and return −log s(y|x).

    Where y is NaN the responsibilities are the gate's shares and the result is NaN. `error` (Q,), `factor` (Q, Q):
    scratch.
    """
    K, Q = means.shape
    log_gate = shares_and_means(gate, experts, w, r, shares, means, joint)
    if math.isnan(y[0]):
        for k in range(K):
            joint[k] = shares[k]
        return np.nan
    largest: float = -np.inf
    for k in range(K):
        for q in range(Q):
            error[q] = y[q] - means[k, q]
        joint[k] += log_density(covariances[k], error, factor)
        largest = max(largest, joint[k])
    total = 0.0
    for k in range(K):
        joint[k] = math.exp(joint[k] - largest)
        total += joint[k]
    inverse = 1.0 / total
    for k in range(K):
        joint[k] *= inverse
    loss: float = log_gate - largest - math.log(total) + 0.5 * Q * LOG_2PI
    return loss


@jit
def score_rows(
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    responsibilities: FloatArray,
    trace: Trace,
) -> None:
    """Score rows without learning: −log s(y|x), the predicted mean, and τ (or the gate's g where y is NaN)."""
    K, Q = experts.shape[0], experts.shape[1]
    shares = np.empty(K)
    means = np.empty((K, Q))
    error = np.empty(Q)
    factor = np.empty((Q, Q))
    for i in range(W.shape[0]):
        losses[i] = evaluate(
            gate, experts, variances, W[i], R[i], Y[i], shares, means, responsibilities[i], error, factor
        )
        mix(shares, means, predictions[i])
        record(trace, i, shares, means, variances)


@inline
def record(trace: Trace, i: int, shares: FloatArray, means: FloatArray, covariances: FloatArray) -> None:
    """Keep what each expert said about row i, if somebody asks."""
    if i >= trace.shares.shape[0]:
        return
    K, Q = means.shape
    for k in range(K):
        trace.shares[i, k] = shares[k]
        for q in range(Q):
            trace.means[i, k, q] = means[k, q]
            trace.variances[i, k, q] = covariances[k, q, q]


@jit
def learn_rows(
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    gammas: FloatArray,
    weights: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    trace: Trace,
) -> bool:
    """Predict, score and learn each row in turn, in place; a row whose y is NaN is predicted only.

    Arguments and result are those of `streammoe.kernels.gaussian.learn_rows`.
    """
    K, Q = state.experts.shape[0], state.experts.shape[1]
    shares = np.empty(K)
    tau = np.empty(K)
    push = np.empty(K)
    means = np.empty((K, Q))
    error = np.empty(Q)
    factor = np.empty((Q, Q))
    gate_gain = np.empty(W.shape[1])
    gain = np.empty(R.shape[1])
    size = state.group.shape[0]
    waiting = n_waiting(state)
    limits = far_limits(state)
    learned = 0
    for i in range(W.shape[0]):
        w, r, y = W[i], R[i], Y[i]
        losses[i] = evaluate(
            state.average_gate,
            state.average_experts,
            state.average_variances,
            w,
            r,
            y,
            shares,
            means,
            tau,
            error,
            factor,
        )
        mix(shares, means, predictions[i])
        record(trace, i, shares, means, state.average_variances)
        if math.isnan(y[0]):
            continue
        gamma = gammas[learned]
        learned += 1
        if size > 0:
            far = is_far(limits, w, r, weights[i])
            if not far:
                if not gather(state, waiting, w, r, y, weights[i], gamma):
                    return False
                waiting += 1
            if waiting == size or (far and waiting > 0):
                learn_group(state, residual, options, waiting)
                waiting = 0
                limits = far_limits(state)
            if not far:
                continue
            stand_alone(state)
        evaluate(state.gate, state.experts, state.variances, w, r, y, shares, means, tau, error, factor)
        route(tau, options.top_k)
        if state.n[0] % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, weights[i], shares, tau, w, r, y)
        step(state, options, gamma, weights[i], shares, tau, means, w, r, y, gate_gain, gain, push)
        weight = average_weight(state, options, gamma)
        blend(state.average_gate, state.gate, weight)
        blend_all(state.average_experts, state.experts, weight)
        blend_all(state.average_variances, state.variances, weight)
        if size > 0:
            limits = far_limits(state)
    return is_sound_after(state, Y, losses, predictions)


@inline
def step(
    state: MMState,
    options: LearningOptions,
    gamma: float,
    event_weight: float,
    shares: FloatArray,
    tau: FloatArray,
    means: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    gate_gain: FloatArray,
    gain: FloatArray,
    push: FloatArray,
) -> None:
    """One event of [MM] Algorithm 2 with ρ ρᵀ in place of ρ²."""
    K, Q = means.shape
    keep = 1.0 - gamma
    decay = state.decay[0] * keep
    amount = gamma * event_weight / decay
    step_gate(state, options, amount, shares, tau, push, w, gate_gain)
    for k in range(K):
        if tau[k] == 0.0:
            state.masses[k] = max(keep * state.masses[k], VANISHED)
            continue
        weight = amount * tau[k]
        quadratic = symmetric_product(state.expert_inverses[k], r, gain)
        shrink = 1.0 / (1.0 + weight * quadratic)
        old_mass = keep * state.masses[k]
        fresh = gamma * event_weight * tau[k]
        mass = max(old_mass + fresh, VANISHED)
        for q in range(Q):
            error = y[q] - means[k, q]
            for c in range(q + 1):
                product = error * (y[c] - means[k, c])
                value = (old_mass * state.variances[k, q, c] + fresh * product * shrink) / mass
                if c == q:
                    value = max(value, options.variance_floor * state.prior_variances[q])
                state.variances[k, q, c] = value
                state.variances[k, c, q] = value
            push_size = weight * shrink * error
            for j in range(r.shape[0]):
                state.experts[k, q, j] += push_size * gain[j]
        state.masses[k] = mass
        add_outer(state.expert_inverses[k], gain, -weight * shrink)
        add_outer(state.expert_grams[k], r, weight)
    finish_step(state, gamma, decay)
    if decay < REFRESH_BELOW:
        refresh(state, topped_up(state, options, gamma))


@jit
def learn_group(state: MMState, residual: FloatArray, options: LearningOptions, B: int) -> None:
    """As in `streammoe.kernels.gaussian`, with ρ ρᵀ in place of ρ²."""
    K, Q = state.experts.shape[0], state.experts.shape[1]
    group = group_of(state, B)
    shares, tau, means = np.empty((B, K)), np.empty((B, K)), np.empty((B, K, Q))
    error, factor = np.empty(Q), np.empty((Q, Q))
    for i in range(B):
        w, r, y = group.W[i], group.R[i], group.Y[i]
        evaluate(state.gate, state.experts, state.variances, w, r, y, shares[i], means[i], tau[i], error, factor)
        route(tau[i], options.top_k)
        if (state.n[0] - B + i) % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, group.weights[i], shares[i], tau[i], w, r, y)
    keep = kept_by(group.gammas)
    amounts = amounts_of(state, group, keep)
    settle_gate(state, options, group, amounts, shares, tau)
    weights, errors = np.empty(B), np.empty((B, Q))
    for k in range(K):
        mass = mass_after(state, k, keep, group, tau)
        if weigh(group, k, amounts, tau, means, weights, errors):
            left = settle_linear(state, k, group.R, weights, errors)
            for q in range(Q):
                for c in range(q + 1):
                    value = keep * (state.decay[0] * left[q, c] + state.masses[k] * state.variances[k, q, c]) / mass
                    if c == q:
                        value = max(value, options.variance_floor * state.prior_variances[q])
                    state.variances[k, q, c] = value
                    state.variances[k, c, q] = value
        state.masses[k] = mass
    finish_group(state, keep)
    if state.decay[0] < REFRESH_BELOW:
        refresh(state, topped_up(state, options, group.gammas[B - 1]))
    weight = average_weight_of(state, options, group.gammas)
    blend(state.average_gate, state.gate, weight)
    blend_all(state.average_experts, state.experts, weight)
    blend_all(state.average_variances, state.variances, weight)


@jit
def refresh(state: MMState, prior_weight: float) -> None:
    """Rebuild the inverses from their Gram matrices, after topping the prior up to `prior_weight`."""
    K, Q, p = state.experts.shape
    missing = prior_weight - state.prior_weight[0]
    share = missing / K
    refresh_gate(state, missing)
    for k in range(K):
        old = state.experts[k].copy()
        refresh_expert(state, k, share)
        if share <= 0.0:
            continue
        mass = state.masses[k] + share
        for q in range(Q):
            for c in range(q + 1):
                # The matrix of which `streammoe.kernels.gaussian.refresh` needs the diagonal; symmetric but for
                # rounding.
                spread = 0.0
                for j in range(p):
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
        state.masses[k] = mass
    state.prior_weight[0] = prior_weight
    state.decay[0] = 1.0


@jit
def track_residual(
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    event_weight: float,
    shares: FloatArray,
    tau: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
) -> None:
    """As in `streammoe.kernels.gaussian`; the blocks of an expert are R, linear part, Σ τ y yᵀ by rows, mass."""
    K, Q, p = state.experts.shape
    share = residual_share(residual, options)
    linear = np.zeros((max(K, Q), max(w.shape[0], p)))
    push = np.empty(K)
    at, square = residual_of_gate(state, residual, options, event_weight, shares, tau, w, push, linear, share)
    for k in range(K):
        amount = event_weight * tau[k]
        at, more = residual_of_linear(state, k, r, y, amount, linear, residual, at, share)
        square += more
        for q in range(Q):
            for c in range(Q):
                explained = 0.0
                for i in range(p):
                    explained += linear[q, i] * state.experts[k, c, i]
                entry = amount * y[q] * y[c] - (state.masses[k] * state.variances[k, q, c] + explained)
                residual[at] += share * (entry - residual[at])
                square += entry * entry
                at += 1
        entry = amount - state.masses[k]
        residual[at] += share * (entry - residual[at])
        square += entry * entry
        at += 1
    residual[-2] += share * (math.sqrt(square) - residual[-2])
    keep_finite(residual)
