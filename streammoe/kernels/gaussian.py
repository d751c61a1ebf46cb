"""Gaussian experts with a diagonal covariance: the hot loop of learning and scoring.

The state is a named tuple of arrays, updated in place. Gram matrices are kept as ``decay * stored``, where ``decay``
is Π(1−γ) since the last refresh: an event then costs a rank-1 update of each matrix and no rescaling. Everything on
the right-hand side of an update uses the old parameters and the new Gram matrices, exactly as in [MM] Algorithm 2
(docs/algorithm.md has the derivation).

Shapes: n events, K experts, Q outputs, p_w and p_v features of gate and experts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streammoe.kernels.compile import inline, jit
from streammoe.kernels.gate import bound_mix, softmax, step_gate
from streammoe.kernels.linalg import VANISHED, add_outer, add_product, dot, invert_spd, symmetric_product
from streammoe.types import FloatArray, IntArray

LOG_2PI = math.log(2.0 * math.pi)
REFRESH_BELOW = 0.5
"""A refresh is due when Π(1−γ) since the last one falls below this; a function of the event count alone."""
RESIDUAL_EVERY = 64
"""Every so many events enter the convergence residual: it costs as much as an update, and a sample is as good."""
VARIANCE_FLOOR = 1e-18
"""Smallest variance, in units of the prior's; keeps densities finite on data without noise."""


class GaussianState(NamedTuple):
    """All that the next step needs, as arrays that the kernels change in place.

    K experts, Q outputs, p_w and p_v features of gate and experts. True Gram matrices are ``decay`` times the stored
    ones, the true inverses the stored ones divided by ``decay``.
    """

    n: IntArray
    """(1,) events learned, warm-up included."""
    n_average: IntArray
    """(1,) iterates in the average."""
    decay: FloatArray
    """(1,) Π(1−γ) since the inverses were last rebuilt."""
    prior_weight: FloatArray
    """(1,) weight ρ of the prior within the statistics."""
    gate: FloatArray
    """(K−1, p_w) ω; the last expert is the reference."""
    gate_gram: FloatArray
    """(p_w, p_w) G = E[w wᵀ]."""
    gate_inverse: FloatArray
    experts: FloatArray
    """(K, Q, p_v) Υ."""
    variances: FloatArray
    """(K, Q) σ²."""
    masses: FloatArray
    """(K,) E[τ_k]."""
    expert_grams: FloatArray
    """(K, p_v, p_v) R_k = E[τ_k r rᵀ]."""
    expert_inverses: FloatArray
    average_gate: FloatArray
    average_experts: FloatArray
    average_variances: FloatArray
    prior_gate_gram: FloatArray
    """(p_w,) diagonal Λ of the gate's prior, whose target is ω = 0."""
    prior_expert_gram: FloatArray
    """(p_v,) diagonal Λ of the experts' prior."""
    prior_experts: FloatArray
    """(Q, p_v) its target Υ_0."""
    prior_variances: FloatArray
    """(Q,) its variance σ²_0."""


class Prior(NamedTuple):
    """What the model believes before any event, worth `strength` pseudo-events (docs/algorithm.md, "The prior")."""

    strength: float
    gate_gram: FloatArray
    """(p_w,) diagonal Λ of the gate's part, whose target is ω = 0."""
    expert_gram: FloatArray
    """(p_v,) diagonal Λ of the experts' part."""
    experts: FloatArray
    """(Q, p_v) its target Υ_0."""
    variances: FloatArray
    """(Q,) its variance σ²_0."""
    variance_floor: float


class LearningOptions(NamedTuple):
    """What a step needs besides the state and its step size."""

    prior_strength: float
    """Pseudo-events s that the prior is worth; 0 is the papers' plain algorithm."""
    curvature: tuple[float, float]
    """(a, b) with A⁻¹ d = a (d + b Σd) for the bound A on the curvature of log-sum-exp."""
    averaging: int
    """0 serves the raw iterate; c ≥ 1 weighs the m-th one c/(m + c − 1): 1 is Polyak's mean, 3 polynomial decay."""
    forgetting: bool
    """Constant steps: the average never weighs an iterate less than γ."""
    variance_floor: float = VARIANCE_FLOOR
    residual_weight: float = 1e-3
    """Smallest weight in the running means of the convergence residual."""


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
) -> float:
    """Write g_k(x), Υ_k r and the responsibilities τ_k ([MM] eq. 15) and return −log s(y|x).

    Where y is NaN the responsibilities are the gate's shares and the result is NaN.
    """
    K, Q = variances.shape
    for k in range(K - 1):
        joint[k] = dot(gate[k], w)
        shares[k] = joint[k]
    shares[K - 1] = 0.0
    joint[K - 1] = 0.0
    log_gate = softmax(shares)
    for k in range(K):
        for q in range(Q):
            means[k, q] = dot(experts[k, q], r)
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
                square += math.log(variances[k, q])
        joint[k] -= 0.5 * square
        largest = max(largest, joint[k])
    total = 0.0
    for k in range(K):
        joint[k] = math.exp(joint[k] - largest)
        # A division by the standard deviation costs a third of a logarithm; with many outputs it could overflow.
        if Q == 1:
            joint[k] /= math.sqrt(variances[k, 0])
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
) -> None:
    """Score rows without learning: −log s(y|x), the predicted mean, and τ (or the gate's g where y is NaN)."""
    K, Q = variances.shape
    shares = np.empty(K)
    means = np.empty((K, Q))
    for i in range(W.shape[0]):
        losses[i] = evaluate(gate, experts, variances, W[i], R[i], Y[i], shares, means, responsibilities[i])
        mix(shares, means, predictions[i])


@inline
def mix(shares: FloatArray, means: FloatArray, out: FloatArray) -> None:
    """Write the regression function Σ_k g_k(x) Υ_k r ([MM] eq. 14) to `out`, shape (Q,)."""
    for q in range(out.shape[0]):
        total = 0.0
        for k in range(shares.shape[0]):
            total += shares[k] * means[k, q]
        out[q] = total


@jit
def learn_rows(
    state: GaussianState,
    residual: FloatArray,
    options: LearningOptions,
    gammas: FloatArray,
    W: FloatArray,
    R: FloatArray,
    Y: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
) -> None:
    """Predict, score and learn each row in turn, in place; a row whose y is NaN is predicted only.

    Args:
        state: changed in place.
        residual: (size + 2,) running means of the convergence residual, changed in place.
        options: the hyper-parameters that steps need.
        gammas: step sizes of the rows that have a target, in order.
        W, R, Y: (n, p_w), (n, p_v), (n, Q) gate features, expert features, targets.
        losses, predictions: (n,) and (n, Q), written: −log s(y|x) and the prediction, before the row is learned.
    """
    K, Q = state.variances.shape
    shares = np.empty(K)
    tau = np.empty(K)
    means = np.empty((K, Q))
    gate_gain = np.empty(W.shape[1])
    gain = np.empty(R.shape[1])
    learned = 0
    for i in range(W.shape[0]):
        w, r, y = W[i], R[i], Y[i]
        losses[i] = evaluate(
            state.average_gate, state.average_experts, state.average_variances, w, r, y, shares, means, tau
        )
        mix(shares, means, predictions[i])
        if math.isnan(y[0]):
            continue
        gamma = gammas[learned]
        learned += 1
        evaluate(state.gate, state.experts, state.variances, w, r, y, shares, means, tau)
        if state.n[0] % RESIDUAL_EVERY == 0:
            track_residual(state, residual, options, shares, tau, w, r, y)
        step(state, options, gamma, shares, tau, means, w, r, y, gate_gain, gain)
        average(state, options, gamma)


@inline
def step(
    state: GaussianState,
    options: LearningOptions,
    gamma: float,
    shares: FloatArray,
    tau: FloatArray,
    means: FloatArray,
    w: FloatArray,
    r: FloatArray,
    y: FloatArray,
    gate_gain: FloatArray,
    gain: FloatArray,
) -> None:
    """One event of [MM] Algorithm 2 in O(K p²): statistics by a step γ, parameters in closed form."""
    K, Q = state.variances.shape
    keep = 1.0 - gamma
    old_decay = state.decay[0]
    decay = old_decay * keep
    # With stored matrices R̃ = R / decay and their inverses P̃ = decay · P, the update of R by (1−γ) and γ τ r rᵀ is a
    # rank-1 update of R̃ with weight γ τ / decay⁺, and R⁺⁻¹ r = P̃ r / (decay⁺ (1 + weight · rᵀ P̃ r)).
    if K > 1:
        weight = gamma / decay
        quadratic = symmetric_product(state.gate_inverse, w, gate_gain)
        shrink = 1.0 / (1.0 + weight * quadratic)
        add_outer(state.gate_inverse, gate_gain, -weight * shrink)
        step_gate(state.gate, shares, tau, gate_gain, gamma * shrink / decay, options.curvature)
    add_outer(state.gate_gram, w, gamma / decay)

    for k in range(K):
        weight = gamma * tau[k] / decay
        quadratic = symmetric_product(state.expert_inverses[k], r, gain)
        shrink = 1.0 / (1.0 + weight * quadratic)
        old_mass = keep * state.masses[k]
        # Without a prior a starved expert's mass would reach 0 and its variance 0/0; so it stays, dead but finite.
        mass = max(old_mass + gamma * tau[k], VANISHED)
        for q in range(Q):
            error = y[q] - means[k, q]
            # 1 − γ τ rᵀ R⁺⁻¹ r, written so that it cannot become negative, is the factor `shrink`.
            variance = (old_mass * state.variances[k, q] + gamma * tau[k] * error * error * shrink) / mass
            state.variances[k, q] = max(variance, options.variance_floor * state.prior_variances[q])
            push = weight * shrink * error
            for j in range(r.shape[0]):
                state.experts[k, q, j] += push * gain[j]
        state.masses[k] = mass
        add_outer(state.expert_inverses[k], gain, -weight * shrink)
        add_outer(state.expert_grams[k], r, weight)

    state.n[0] += 1
    state.decay[0] = decay
    state.prior_weight[0] *= keep
    if decay < REFRESH_BELOW:
        refresh(state, max(state.prior_weight[0], options.prior_strength * gamma))


@jit
def refresh(state: GaussianState, prior_weight: float) -> None:
    """Rebuild the inverses from their Gram matrices, after topping the prior up to `prior_weight`.

    Adding the missing share δ of the prior's statistics and solving again moves the parameters by
    −δ ω Λ G⁺⁻¹ and (δ/K)(Υ_0 − Υ) Λ R⁺⁻¹; the variances follow as sums of non-negative terms.
    """
    K, Q = state.variances.shape
    missing = prior_weight - state.prior_weight[0]
    decay = state.decay[0]
    p_w = state.gate_gram.shape[0]
    scratch = np.empty((p_w, p_w))
    for i in range(p_w):
        for j in range(p_w):
            state.gate_gram[i, j] *= decay
        state.gate_gram[i, i] += missing * state.prior_gate_gram[i]
    if K > 1:
        invert_spd(state.gate_gram, state.gate_inverse, scratch)
        pull = np.empty(p_w)
        for k in range(K - 1):
            for j in range(p_w):
                pull[j] = -missing * state.prior_gate_gram[j] * state.gate[k, j]
            add_product(state.gate_inverse, pull, state.gate[k])

    p_v = state.prior_expert_gram.shape[0]
    share = missing / K
    scratch = np.empty((p_v, p_v))
    pull = np.empty(p_v)
    old = np.empty(p_v)
    for k in range(K):
        gram = state.expert_grams[k]
        for i in range(p_v):
            for j in range(p_v):
                gram[i, j] *= decay
            gram[i, i] += share * state.prior_expert_gram[i]
        invert_spd(gram, state.expert_inverses[k], scratch)
        if share <= 0.0:
            continue
        mass = state.masses[k] + share
        for q in range(Q):
            theta = state.experts[k, q]
            for j in range(p_v):
                old[j] = theta[j]
                pull[j] = share * state.prior_expert_gram[j] * (state.prior_experts[q, j] - theta[j])
            add_product(state.expert_inverses[k], pull, theta)
            # (Υ_old − Υ_new) R (Υ_old − Υ_new)ᵀ + (δ/K) (Υ_0 − Υ_new) Λ (Υ_0 − Υ_new)ᵀ, what both parts leave
            # unexplained, reduces to this by the normal equations of Υ_new.
            spread = 0.0
            for j in range(p_v):
                spread += (
                    share
                    * state.prior_expert_gram[j]
                    * (state.prior_experts[q, j] - theta[j])
                    * (state.prior_experts[q, j] - old[j])
                )
            total = state.masses[k] * state.variances[k, q] + share * state.prior_variances[q] + max(spread, 0.0)
            state.variances[k, q] = total / mass
        state.masses[k] = mass
    state.prior_weight[0] = prior_weight
    state.decay[0] = 1.0


@inline
def average(state: GaussianState, options: LearningOptions, gamma: float) -> None:
    """Move the served parameters towards the raw iterate ([MM] §5.2.1)."""
    weight = 1.0
    if options.averaging > 0:
        state.n_average[0] += 1
        weight = options.averaging / (state.n_average[0] + options.averaging - 1.0)
        if options.forgetting:
            weight = max(weight, gamma)
    K, Q = state.variances.shape
    if weight >= 1.0:
        # θ̄ + 1 · (θ − θ̄) is not θ in floating point.
        for k in range(K - 1):
            for j in range(state.gate.shape[1]):
                state.average_gate[k, j] = state.gate[k, j]
        for k in range(K):
            for q in range(Q):
                state.average_variances[k, q] = state.variances[k, q]
                for j in range(state.experts.shape[2]):
                    state.average_experts[k, q, j] = state.experts[k, q, j]
        return
    for k in range(K - 1):
        for j in range(state.gate.shape[1]):
            state.average_gate[k, j] += weight * (state.gate[k, j] - state.average_gate[k, j])
    for k in range(K):
        for q in range(Q):
            state.average_variances[k, q] += weight * (state.variances[k, q] - state.average_variances[k, q])
            for j in range(state.experts.shape[2]):
                state.average_experts[k, q, j] += weight * (state.experts[k, q, j] - state.average_experts[k, q, j])


@jit
def track_residual(
    state: GaussianState,
    residual: FloatArray,
    options: LearningOptions,
    shares: FloatArray,
    tau: FloatArray,
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
    c = bound_mix(options.curvature, K - 1)
    size = residual.shape[0] - 2
    residual[size + 1] += 1.0
    weight = max(1.0 / residual[size + 1], options.residual_weight)
    decay = state.decay[0]
    square = 0.0
    at = 0
    linear = np.zeros((K, max(p_w, Q * p_v)))
    for i in range(p_w):
        for j in range(p_w):
            entry = w[i] * w[j] - decay * state.gate_gram[i, j]
            for k in range(K - 1):
                linear[k, i] += entry * state.gate[k, j]
            residual[at] += weight * (entry - residual[at])
            square += entry * entry
            at += 1
    for i in range(p_w):
        total = 0.0
        for k in range(K - 1):
            total += linear[k, i]
        for k in range(K - 1):
            bent = (linear[k, i] - c * total) / options.curvature[0]
            entry = (shares[k] - tau[k]) * w[i] - bent
            residual[at] += weight * (entry - residual[at])
            square += entry * entry
            at += 1
    for k in range(K):
        linear[:, :] = 0.0
        for i in range(p_v):
            for j in range(p_v):
                stored = decay * state.expert_grams[k, i, j]
                for q in range(Q):
                    linear[q, i] += stored * state.experts[k, q, j]
                entry = tau[k] * r[i] * r[j] - stored
                residual[at] += weight * (entry - residual[at])
                square += entry * entry
                at += 1
        for q in range(Q):
            explained = 0.0
            for i in range(p_v):
                explained += linear[q, i] * state.experts[k, q, i]
                entry = tau[k] * y[q] * r[i] - linear[q, i]
                residual[at] += weight * (entry - residual[at])
                square += entry * entry
                at += 1
            entry = tau[k] * y[q] * y[q] - (state.masses[k] * state.variances[k, q] + explained)
            residual[at] += weight * (entry - residual[at])
            square += entry * entry
            at += 1
        entry = tau[k] - state.masses[k]
        residual[at] += weight * (entry - residual[at])
        square += entry * entry
        at += 1
    residual[size] += weight * (math.sqrt(square) - residual[size])
