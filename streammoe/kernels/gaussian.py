"""Gaussian experts with a diagonal covariance: the hot loop of learning and scoring.

The state is a named tuple of arrays, updated in place. Gram matrices are kept as ``decay * stored``, where ``decay``
is Π(1−γ) since the last refresh: an event then costs a rank-1 update of each matrix and no rescaling. Everything on
the right-hand side of an update uses the old parameters and the new Gram matrices, exactly as in [MM] Algorithm 2
(docs/algorithm.md has the derivation).

Shapes: n events, K experts, Q outputs, p_w and p_v features of gate and experts.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit
from streammoe.kernels.groups import (
    Group,
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

LOG_2PI = math.log(2.0 * math.pi)
WIDE = 1e100
"""A product of variances beyond this, or below its inverse, is turned into its logarithm before it overflows."""


@inline
def evaluate(
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    shares: FloatArray,
    means: FloatArray,
    joint: FloatArray,
    roots: FloatArray,
) -> float:
    """Write g_k(x), Υ_k r and the responsibilities τ_k ([MM] eq. 15) and return −log s(y|x).

    Where y is NaN the responsibilities are the gate's shares and the result is NaN. `roots` is scratch, (K,).
    """
    K, Q = variances.shape
    log_gate = shares_and_means(gate, experts, w, r, shares, means, joint)
    if math.isnan(y[0]):
        for k in range(K):
            joint[k] = shares[k]
        return np.nan
    largest: float = -np.inf
    for k in range(K):
        square = 0.0
        for q in range(Q):
            error = y[q] - means[k, q]
            square += error * error / variances[k, q]
        if Q > 1:
            product = 1.0
            for q in range(Q):
                product *= variances[k, q]
                if not 1.0 / WIDE < product < WIDE:
                    square += math.log(product)
                    product = 1.0
            roots[k] = product
        joint[k] -= 0.5 * square
        largest = max(largest, joint[k])
    total = 0.0
    for k in range(K):
        # A division by the root of the determinant costs a third of a logarithm above.
        joint[k] = math.exp(joint[k] - largest) / math.sqrt(variances[k, 0] if Q == 1 else roots[k])
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
    K, Q = variances.shape
    shares = np.empty(K)
    means = np.empty((K, Q))
    roots = np.empty(K)
    for i in range(W.shape[0]):
        losses[i] = evaluate(gate, experts, variances, W[i], R[i], Y[i], shares, means, responsibilities[i], roots)
        mix(shares, means, predictions[i])
        record(trace, i, shares, means, variances)


@inline
def record(trace: Trace, i: int, shares: FloatArray, means: FloatArray, variances: FloatArray) -> None:
    """Keep what each expert said about row i, if somebody asks."""
    if i >= trace.shares.shape[0]:
        return
    K, Q = means.shape
    for k in range(K):
        trace.shares[i, k] = shares[k]
        for q in range(Q):
            trace.means[i, k, q] = means[k, q]
            trace.variances[i, k, q] = variances[k, q]


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

    Args:
        state: changed in place.
        residual: (size + 2,) running means of the convergence residual, changed in place.
        options: the hyper-parameters that steps need.
        gammas: step sizes of the rows that have a target, in order.
        weights: (n,) how much each row counts, 1 for a plain one.
        W, R, Y: (n, p_w), (n, p_v), (n, Q) gate features, expert features, targets.
        losses, predictions: (n,) and (n, Q), written: −log s(y|x) and the prediction, before the row is learned.
        trace: written where its arrays are not empty.

    Returns:
        Whether state, losses and predictions are sound; if they are not, the state is to be thrown away.
    """
    K, Q = state.variances.shape
    shares = np.empty(K)
    tau = np.empty(K)
    scratch = np.empty(K)
    means = np.empty((K, Q))
    gate_gain = np.empty(W.shape[1])
    gain = np.empty(R.shape[1])
    size = state.group.shape[0]
    waiting = n_waiting(state)
    limits = far_limits(state)
    learned = 0
    for i in range(W.shape[0]):
        w, r, y = W[i], R[i], Y[i]
        losses[i] = evaluate(
            state.average_gate, state.average_experts, state.average_variances, w, r, y, shares, means, tau, scratch
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
        evaluate(state.gate, state.experts, state.variances, w, r, y, shares, means, tau, scratch)
        route(tau, options.top_k)
        if state.n[0] % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, weights[i], shares, tau, tau, w, r, y)
        step(state, options, gamma, weights[i], shares, tau, tau, means, w, r, y, gate_gain, gain, scratch)
        weight = average_weight(state, options, gamma)
        blend(state.average_gate, state.gate, weight)
        blend_all(state.average_experts, state.experts, weight)
        blend(state.average_variances, state.variances, weight)
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
    trusted: FloatArray,
    means: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    gate_gain: FloatArray,
    gain: FloatArray,
    push: FloatArray,
) -> None:
    """One event of [MM] Algorithm 2 in O(K p²): statistics by a step γ, parameters in closed form.

    `trusted`, (K,), is what enters all but the mass: τ itself, or τ u for experts that trust far events less.
    """
    K, Q = state.variances.shape
    keep = 1.0 - gamma
    decay = state.decay[0] * keep
    amount = gamma * event_weight / decay
    # With stored matrices R̃ = R / decay and their inverses P̃ = decay · P, the update of R by (1−γ) and γ τ r rᵀ is a
    # rank-1 update of R̃ with weight γ τ / decay⁺, and R⁺⁻¹ r = P̃ r / (decay⁺ (1 + weight · rᵀ P̃ r)).
    step_gate(state, options, amount, shares, tau, push, w, gate_gain)
    for k in range(K):
        if tau[k] == 0.0:
            # Nothing of it moves but its mass: what it knows is worth as much less as `decay` says.
            state.masses[k] = max(keep * state.masses[k], VANISHED)
            continue
        weight = amount * trusted[k]
        quadratic = symmetric_product(state.expert_inverses[k], r, gain)
        shrink = 1.0 / (1.0 + weight * quadratic)
        old_mass = keep * state.masses[k]
        fresh = gamma * event_weight * trusted[k]
        # Without a prior a starved expert's mass would reach 0 and its variance 0/0; so it stays, dead but finite.
        mass = max(old_mass + gamma * event_weight * tau[k], VANISHED)
        for q in range(Q):
            error = y[q] - means[k, q]
            # 1 − γ τ rᵀ R⁺⁻¹ r, written so that it cannot become negative, is the factor `shrink`.
            variance = (old_mass * state.variances[k, q] + fresh * error * error * shrink) / mass
            state.variances[k, q] = max(variance, options.variance_floor * state.prior_variances[q])
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
    """Learn the B events that wait by one step."""
    K, Q = state.variances.shape
    group = group_of(state, B)
    shares, tau, means = np.empty((B, K)), np.empty((B, K)), np.empty((B, K, Q))
    scratch = np.empty(K)
    for i in range(B):
        evaluate(
            state.gate,
            state.experts,
            state.variances,
            group.W[i],
            group.R[i],
            group.Y[i],
            shares[i],
            means[i],
            tau[i],
            scratch,
        )
        route(tau[i], options.top_k)
    step_group(state, residual, options, group, shares, tau, tau, means)


@jit
def step_group(
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    group: Group,
    shares: FloatArray,
    tau: FloatArray,
    trusted: FloatArray,
    means: FloatArray,
) -> None:
    """The same, given what the parameters say of each event: (B, K), and means (B, K, Q); `trusted` as in `step`."""
    B, K, Q = means.shape
    for i in range(B):
        if (state.n[0] - B + i) % RESIDUAL_EVERY == 0:
            w, r, y = group.W[i], group.R[i], group.Y[i]
            track_residual(state, residual, options, group.weights[i], shares[i], tau[i], trusted[i], w, r, y)
    keep = kept_by(group.gammas)
    amounts = amounts_of(state, group, keep)
    settle_gate(state, options, group, amounts, shares, tau)
    weights, errors = np.empty(B), np.empty((B, Q))
    for k in range(K):
        mass = mass_after(state, k, keep, group, tau)
        if weigh(group, k, amounts, trusted, means, weights, errors):
            left = settle_linear(state, k, group.R, weights, errors)
            for q in range(Q):
                value = keep * (state.decay[0] * left[q, q] + state.masses[k] * state.variances[k, q]) / mass
                state.variances[k, q] = max(value, options.variance_floor * state.prior_variances[q])
        state.masses[k] = mass
    finish_group(state, keep)
    if state.decay[0] < REFRESH_BELOW:
        refresh(state, topped_up(state, options, group.gammas[B - 1]))
    weight = average_weight_of(state, options, group.gammas)
    blend(state.average_gate, state.gate, weight)
    blend_all(state.average_experts, state.experts, weight)
    blend(state.average_variances, state.variances, weight)


@jit
def refresh(state: MMState, prior_weight: float) -> None:
    """Rebuild the inverses from their Gram matrices, after topping the prior up to `prior_weight`.

    The variances follow as sums of non-negative terms.
    """
    K, Q = state.variances.shape
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
            # (Υ_old − Υ_new) R (Υ_old − Υ_new)ᵀ + share (Υ_0 − Υ_new) Λ (Υ_0 − Υ_new)ᵀ, what both parts leave
            # unexplained, reduces to this by the normal equations of Υ_new.
            spread = 0.0
            for j in range(old.shape[1]):
                spread += (
                    share
                    * state.prior_expert_gram[j]
                    * (state.prior_experts[q, j] - state.experts[k, q, j])
                    * (state.prior_experts[q, j] - old[q, j])
                )
            total = state.masses[k] * state.variances[k, q] + share * state.prior_variances[q] + max(spread, 0.0)
            state.variances[k, q] = total / mass
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
    trusted: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
) -> None:
    """Take S̄ − s of this event into the exponentially weighted mean of it and of its norm (math: the mean field).

    `residual` holds the mean vector, then the mean norm, then the count. Blocks: G, gate linear part, and for each
    expert R, linear part, Σ τ y², mass.
    """
    K, Q = state.variances.shape
    p_w, p_v = w.shape[0], r.shape[0]
    share = residual_share(residual, options)
    linear = np.zeros((max(K, Q), max(p_w, p_v)))
    push = np.empty(K)
    at, square = residual_of_gate(state, residual, options, event_weight, shares, tau, w, push, linear, share)
    for k in range(K):
        amount = event_weight * trusted[k]
        at, more = residual_of_linear(state, k, r, y, amount, linear, residual, at, share)
        square += more
        for q in range(Q):
            explained = 0.0
            for i in range(p_v):
                explained += linear[q, i] * state.experts[k, q, i]
            entry = amount * y[q] * y[q] - (state.masses[k] * state.variances[k, q] + explained)
            residual[at] += share * (entry - residual[at])
            square += entry * entry
            at += 1
        entry = event_weight * tau[k] - state.masses[k]
        residual[at] += share * (entry - residual[at])
        square += entry * entry
        at += 1
    residual[-2] += share * (math.sqrt(square) - residual[-2])
    keep_finite(residual)
