"""Categorical experts (multinomial logistic regression): the hot loop of learning and scoring.

Each expert is the gate's own filter once more, with the classes in place of the experts and the responsibility as the
event's weight ([MM] Algorithm 3; docs/algorithm.md has the derivation). Targets are class indexes, as floats, so that
NaN can say that there is none; the first class is the reference.

Shapes: n events, K experts, M classes, p_w and p_v features of gate and experts; coefficients (K, M−1, p_v).
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit
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
    settle_softmax,
    stand_alone,
)
from streammoe.kernels.linalg import VANISHED, dot
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
from streammoe.kernels.softmax import adaptive_weight, residual_of_softmax, softmax, step_softmax
from streammoe.kernels.soundness import is_sound_after, keep_finite
from streammoe.kernels.state import LearningOptions, MMState, Trace
from streammoe.types import FloatArray

UNLIKELY = 1e-250
"""Below this the likelihood is computed again in log space, where it cannot vanish."""


@inline
def evaluate(
    gate: FloatArray,
    experts: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    shares: FloatArray,
    probabilities: FloatArray,
    joint: FloatArray,
) -> float:
    """Write g_k(x), e_k(m|x) and the responsibilities τ_k ([MM] eq. 15) and return −log s(y|x).

    Where y is NaN the responsibilities are the gate's shares and the result is NaN.
    """
    K, M = probabilities.shape
    for k in range(K - 1):
        shares[k] = dot(gate[k], w)
    shares[K - 1] = 0.0
    softmax(shares)
    for k in range(K):
        probabilities[k, 0] = 0.0
        for m in range(1, M):
            probabilities[k, m] = dot(experts[k, m - 1], r)
        softmax(probabilities[k])
    if math.isnan(y[0]):
        for k in range(K):
            joint[k] = shares[k]
        return np.nan
    label = int(y[0])
    total = 0.0
    for k in range(K):
        joint[k] = shares[k] * probabilities[k, label]
        total += joint[k]
    if total < UNLIKELY:
        return unlikely(gate, experts, w, r, label, joint)
    inverse = 1.0 / total
    for k in range(K):
        joint[k] *= inverse
    return -math.log(total)


@jit
def unlikely(
    gate: FloatArray, experts: FloatArray, w: FloatArray, r: FloatArray, label: int, joint: FloatArray
) -> float:
    """Write the responsibilities of an event that the model holds for next to impossible; return −log s(y|x)."""
    K, free = experts.shape[0], experts.shape[1]
    logits = np.zeros(free + 1)
    log_shares = np.zeros(K)
    for k in range(K - 1):
        log_shares[k] = dot(gate[k], w)
        joint[k] = log_shares[k]
    joint[K - 1] = 0.0
    log_gate = softmax(joint)
    largest: float = -np.inf
    for k in range(K):
        logits[0] = 0.0
        for m in range(free):
            logits[m + 1] = dot(experts[k, m], r)
        logit = logits[label]
        joint[k] = log_shares[k] - log_gate + logit - softmax(logits)
        largest = max(largest, joint[k])
    total = 0.0
    for k in range(K):
        joint[k] = math.exp(joint[k] - largest)
        total += joint[k]
    for k in range(K):
        joint[k] /= total
    return -largest - math.log(total)


@jit
def score_rows(
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,  # noqa: ARG001 - every family is called with the same arguments
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    responsibilities: FloatArray,
    trace: Trace,
) -> None:
    """Score rows without learning: −log s(y|x), class probabilities, and τ (or the gate's g where y is NaN)."""
    K = experts.shape[0]
    shares = np.empty(K)
    probabilities = np.empty((K, experts.shape[1] + 1))
    for i in range(W.shape[0]):
        losses[i] = evaluate(gate, experts, W[i], R[i], Y[i], shares, probabilities, responsibilities[i])
        mix(shares, probabilities, predictions[i])
        record(trace, i, shares, probabilities)


@inline
def record(trace: Trace, i: int, shares: FloatArray, probabilities: FloatArray) -> None:
    """Keep what each expert said about row i, if somebody asks."""
    if i >= trace.shares.shape[0]:
        return
    for k in range(shares.shape[0]):
        trace.shares[i, k] = shares[k]
        for m in range(probabilities.shape[1]):
            trace.means[i, k, m] = probabilities[k, m]


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
        W, R, Y: (n, p_w), (n, p_v), (n, 1) gate features, expert features, class indexes.
        losses, predictions: (n,) and (n, M), written: −log s(y|x) and the probabilities, before the row is learned.
        trace: written where its arrays are not empty.

    Returns:
        Whether state, losses and predictions are sound; if they are not, the state is to be thrown away.
    """
    K, free = state.experts.shape[0], state.experts.shape[1]
    shares = np.empty(K)
    tau = np.empty(K)
    push = np.empty(max(K, free + 1))
    probabilities = np.empty((K, free + 1))
    gate_gain = np.empty(W.shape[1])
    gain = np.empty(R.shape[1])
    size = state.group.shape[0]
    waiting = n_waiting(state)
    limits = far_limits(state)
    learned = 0
    for i in range(W.shape[0]):
        w, r, y = W[i], R[i], Y[i]
        losses[i] = evaluate(state.average_gate, state.average_experts, w, r, y, shares, probabilities, tau)
        mix(shares, probabilities, predictions[i])
        record(trace, i, shares, probabilities)
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
        evaluate(state.gate, state.experts, w, r, y, shares, probabilities, tau)
        route(tau, options.top_k)
        if state.n[0] % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, weights[i], shares, tau, probabilities, w, r, y)
        step(state, options, gamma, weights[i], shares, tau, probabilities, w, r, y, gate_gain, gain, push)
        weight = average_weight(state, options, gamma)
        blend(state.average_gate, state.gate, weight)
        blend_all(state.average_experts, state.experts, weight)
        if size > 0:
            limits = far_limits(state)
    return is_sound_after(state, Y, losses, predictions)


@jit
def expected_entropy(expert: FloatArray, gram: FloatArray, draws: FloatArray) -> float:
    """The mean entropy of softmax(0, C r) over normal r whose second moments are those of a Gram matrix.

    Args:
        expert: (M−1, p).
        gram: (p, p), any multiple of E[r rᵀ], the first entry of r being 1.
        draws: (S, p) standard normal.
    """
    p = gram.shape[0]
    factor = np.zeros((p, p))
    # The Cholesky factor of E[r rᵀ] has the mean in its first column, and the covariance's factor beside it.
    for i in range(p):
        for j in range(i + 1):
            left = gram[i, j] / gram[0, 0]
            for m in range(j):
                left -= factor[i, m] * factor[j, m]
            if i > j:
                factor[i, j] = left / factor[j, j] if factor[j, j] > 0.0 else 0.0
            elif left > VANISHED:
                factor[i, i] = math.sqrt(left)
    r = np.empty(p)
    probabilities = np.empty(expert.shape[0] + 1)
    total = 0.0
    for draw in draws:
        for i in range(p):
            r[i] = factor[i, 0]
            for j in range(1, i + 1):
                r[i] += factor[i, j] * draw[j]
        probabilities[0] = 0.0
        for m in range(expert.shape[0]):
            probabilities[m + 1] = dot(expert[m], r)
        softmax(probabilities)
        for probability in probabilities:
            if probability > 0.0:
                total -= probability * math.log(probability)
    mean: float = total / draws.shape[0]
    return mean


@inline
def step(
    state: MMState,
    options: LearningOptions,
    gamma: float,
    event_weight: float,
    shares: FloatArray,
    tau: FloatArray,
    probabilities: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    gate_gain: FloatArray,
    gain: FloatArray,
    push: FloatArray,
) -> None:
    """One event of [MM] Algorithm 3 in O(K p²): statistics by a step γ, parameters in closed form."""
    K, M = probabilities.shape
    keep = 1.0 - gamma
    decay = state.decay[0] * keep
    amount = gamma * event_weight / decay
    label = int(y[0])
    step_gate(state, options, amount, shares, tau, push, w, gate_gain)
    for k in range(K):
        if tau[k] == 0.0:
            state.masses[k] = max(keep * state.masses[k], VANISHED)
            continue
        size = amount * tau[k]
        weight = size
        if options.adaptive:
            weight *= adaptive_weight(probabilities[k])
        for m in range(1, M):
            push[m - 1] = probabilities[k, m]
        if label > 0:
            push[label - 1] -= 1.0
        step_softmax(
            state.experts[k],
            state.expert_grams[k],
            state.expert_inverses[k],
            r,
            push,
            gain,
            weight,
            size,
            options.expert_curvature,
        )
        state.masses[k] = max(keep * state.masses[k] + gamma * event_weight * tau[k], VANISHED)
    finish_step(state, gamma, decay)
    if decay < REFRESH_BELOW:
        refresh(state, topped_up(state, options, gamma))


@jit
def learn_group(state: MMState, residual: FloatArray, options: LearningOptions, B: int) -> None:
    """Learn the B events that wait by one step."""
    K, free = state.experts.shape[0], state.experts.shape[1]
    group = group_of(state, B)
    shares, tau, probabilities = np.empty((B, K)), np.empty((B, K)), np.empty((B, K, free + 1))
    for i in range(B):
        w, r, y = group.W[i], group.R[i], group.Y[i]
        evaluate(state.gate, state.experts, w, r, y, shares[i], probabilities[i], tau[i])
        route(tau[i], options.top_k)
        if (state.n[0] - B + i) % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, group.weights[i], shares[i], tau[i], probabilities[i], w, r, y)
    keep = kept_by(group.gammas)
    amounts = amounts_of(state, group, keep)
    settle_gate(state, options, group, amounts, shares, tau)
    sizes, weights, pushes = np.empty(B), np.empty(B), np.empty((B, free))
    for k in range(K):
        total = 0.0
        for i in range(B):
            sizes[i] = weights[i] = amounts[i] * tau[i, k]
            total += sizes[i]
            if options.adaptive:
                weights[i] *= adaptive_weight(probabilities[i, k])
            label = int(group.Y[i, 0])
            for m in range(free):
                pushes[i, m] = probabilities[i, k, m + 1] - (1.0 if m + 1 == label else 0.0)
        if total > 0.0:
            settle_softmax(
                state.experts[k],
                state.expert_grams[k],
                group.R,
                pushes,
                weights,
                sizes,
                options.expert_curvature,
            )
        state.masses[k] = mass_after(state, k, keep, group, tau)
    finish_group(state, keep)
    if state.decay[0] < REFRESH_BELOW:
        refresh(state, topped_up(state, options, group.gammas[B - 1]))
    weight = average_weight_of(state, options, group.gammas)
    blend(state.average_gate, state.gate, weight)
    blend_all(state.average_experts, state.experts, weight)


@jit
def refresh(state: MMState, prior_weight: float) -> None:
    """Rebuild the inverses from their Gram matrices, after topping the prior up to `prior_weight`."""
    K = state.experts.shape[0]
    missing = prior_weight - state.prior_weight[0]
    refresh_gate(state, missing)
    for k in range(K):
        refresh_expert(state, k, missing / K)
        state.masses[k] += missing / K
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
    probabilities: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
) -> None:
    """Take S̄ − s of this event into the exponentially weighted mean of it and of its norm (math: the mean field).

    `residual` holds the mean vector, then the mean norm, then the count. Blocks: G, gate linear part, and for each
    expert R, linear part, mass.
    """
    K, M = probabilities.shape
    share = residual_share(residual, options)
    decay = state.decay[0]
    label = int(y[0])
    linear = np.empty((max(K, M), max(w.shape[0], r.shape[0])))
    push = np.empty(max(K, M))
    at, square = residual_of_gate(state, residual, options, event_weight, shares, tau, w, push, linear, share)
    for k in range(K):
        amount = event_weight * tau[k]
        for m in range(1, M):
            push[m - 1] = amount * (probabilities[k, m] - (m == label))
        bent = amount * adaptive_weight(probabilities[k]) if options.adaptive else amount
        at, more = residual_of_softmax(
            state.experts[k],
            state.expert_grams[k],
            decay,
            r,
            push,
            bent,
            options.expert_curvature,
            linear,
            residual,
            at,
            share,
        )
        entry = amount - state.masses[k]
        residual[at] += share * (entry - residual[at])
        square += more + entry * entry
        at += 1
    residual[-2] += share * (math.sqrt(square) - residual[-2])
    keep_finite(residual)
