"""What a step of any family does besides its experts' own update: the gate, the prior, the average."""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import allocating, inline
from streammoe.kernels.linalg import add_outer, add_product, invert_spd
from streammoe.kernels.softmax import gate_bend, residual_of_softmax, shorten_step, step_softmax
from streammoe.kernels.state import LearningOptions, MMState, SingleExpert, Trace
from streammoe.types import FloatArray

REFRESH_BELOW = 0.5
"""A refresh is due when Π(1−γ) since the last one falls below this; a function of the event count alone."""
ALWAYS_ALLOWED = 5.0
"""A step that spans a fifth of the events since the start, or the restart, is never too long."""
LEAST_PART = 0.25
"""An expert that is all but unused shortens a step to no less than this part of it."""
RESIDUAL_EVERY = 64
"""Every so many events enter the convergence residual: it costs as much as an update, and a sample is as good."""


@inline
def mix(shares: FloatArray, means: FloatArray, out: FloatArray) -> None:
    """Write Σ_k g_k(x) means_k, the regression function ([MM] eq. 14) or the class probabilities, to `out`."""
    for q in range(out.shape[0]):
        total = 0.0
        for k in range(shares.shape[0]):
            total += shares[k] * means[k, q]
        out[q] = total


@inline
def variance_of(variances: FloatArray, k: int, q: int) -> float:
    """Return the variance of output q by expert k; all are (K, Q) or (K, Q, Q)."""
    if variances.ndim == 3:
        found: float = variances[k, q, q]
    else:
        found = variances[k, q]
    return found


@inline
def record_variances(variances: FloatArray, k: int, out: FloatArray) -> None:
    """Write the variances of expert k to `out`, (Q,); they are (K, Q), (K, Q, Q) or (K, 0)."""
    for q in range(variances.shape[1]):
        out[q] = variance_of(variances, k, q)


@inline
def record(trace: Trace, i: int, shares: FloatArray, means: FloatArray, variances: FloatArray) -> None:
    """Keep what each expert says about row i, if anybody asks; `variances` is (K, Q), (K, Q, Q) or (K, 0)."""
    if i >= trace.shares.shape[0]:
        return
    for k in range(shares.shape[0]):
        trace.shares[i, k] = shares[k]
        for m in range(means.shape[1]):
            trace.means[i, k, m] = means[k, m]
        record_variances(variances, k, trace.variances[i, k])


@inline
def route(tau: FloatArray, top_k: int) -> None:
    """Keep the `top_k` largest responsibilities, as shares of their sum; the others become 0. 0 keeps all.

    Nothing else minimises the Kullback-Leibler divergence from the posterior among so few experts, so that what a step
    lowers is still a majorizer, of a bound on the loss (docs/algorithm.md, "Sparse routing").
    """
    K = tau.shape[0]
    if not 0 < top_k < K:
        return
    total = 0.0
    for _ in range(top_k):
        best = 0
        for k in range(1, K):
            if tau[k] > tau[best]:
                best = k
        total += tau[best]
        tau[best] = -tau[best]  # marks what is kept
    for k in range(K):
        tau[k] = tau[k] / -total if tau[k] < 0.0 else 0.0 * total  # NaN stays NaN


@inline
def step_gate(
    state: MMState,
    options: LearningOptions,
    amount: float,
    shares: FloatArray,
    tau: FloatArray,
    push: FloatArray,
    w: FloatArray,
    gain: FloatArray,
) -> None:
    """Learn the gate's part of one event; `push` and `gain` are scratch.

    `amount` is γ times the event's weight, over the new decay.
    """
    K = shares.shape[0]
    if K == 1:
        add_outer(state.gate_gram, w, amount)
        return
    weight, limit = amount, math.inf
    if options.adaptive:
        bent, limit = gate_bend(shares, options.bound_share)
        weight *= bent
    for k in range(K - 1):
        push[k] = shares[k] - tau[k]
    step_softmax(state.gate, state.gate_gram, state.gate_inverse, w, push, gain, weight, amount, options.curvature)
    if options.bound_share < 1.0:
        shorten_step(state.gate, w, push, gain, weight, amount, limit, options.curvature)


@allocating
def refresh_gate(state: MMState, missing: float) -> None:
    """Rebuild the gate's inverse from its Gram matrix, after adding `missing` of the prior's statistics.

    Solving again moves the parameters by −missing · ω Λ G⁺⁻¹.
    """
    decay = state.decay[0]
    p = state.gate_gram.shape[0]
    for i in range(p):
        for j in range(p):
            state.gate_gram[i, j] *= decay
        state.gate_gram[i, i] += missing * state.prior_gate_gram[i]
    if state.gate.shape[0] == 0:
        return
    invert_spd(state.gate_gram, state.gate_inverse, np.empty((p, p)))
    pull = np.empty(p)
    for k in range(state.gate.shape[0]):
        for j in range(p):
            pull[j] = -missing * state.prior_gate_gram[j] * state.gate[k, j]
        add_product(state.gate_inverse, pull, state.gate[k])


@inline
def pull_to_prior(state: MMState | SingleExpert, q: int, share: float, theta: FloatArray, pull: FloatArray) -> None:
    """Write share · Λ (Υ_0 − Υ) of row q of an expert's coefficients, `theta`, to `pull`, (p,)."""
    for j in range(theta.shape[0]):
        pull[j] = share * state.prior_expert_gram[j] * (state.prior_experts[q, j] - theta[j])


@allocating
def refresh_expert(state: MMState | SingleExpert, k: int, share: float) -> None:
    """Rebuild an expert's inverse from its Gram matrix, after adding `share` of the prior's statistics.

    Solving again moves each row of coefficients by share · (Υ_0 − Υ) Λ R⁺⁻¹, whatever the curvature: it cancels.
    """
    decay = state.decay[0]
    gram = state.expert_grams[k]
    p = gram.shape[0]
    for i in range(p):
        for j in range(p):
            gram[i, j] *= decay
        gram[i, i] += share * state.prior_expert_gram[i]
    invert_spd(gram, state.expert_inverses[k], np.empty((p, p)))
    if share <= 0.0:
        return
    pull = np.empty(p)
    for q in range(state.experts.shape[1]):
        theta = state.experts[k, q]
        pull_to_prior(state, q, share, theta, pull)
        add_product(state.expert_inverses[k], pull, theta)


@inline
def residual_share(residual: FloatArray, options: LearningOptions) -> float:
    """Count one more event in the convergence residual, and say with what weight it enters."""
    last = residual.shape[0] - 1
    residual[last] += 1.0
    share: float = max(1.0 / residual[last], options.residual_weight)
    return share


@inline
def residual_of_gate(
    state: MMState,
    residual: FloatArray,
    options: LearningOptions,
    event_weight: float,
    shares: FloatArray,
    tau: FloatArray,
    w: FloatArray,
    push: FloatArray,
    linear: FloatArray,
    share: float,
) -> tuple[int, float]:
    """The gate's blocks of the convergence residual, which come first; `push` and `linear` are scratch."""
    for k in range(shares.shape[0]):
        push[k] = event_weight * (shares[k] - tau[k])
    bent = event_weight * gate_bend(shares, options.bound_share)[0] if options.adaptive else event_weight
    decay = state.decay[0]
    return residual_of_softmax(
        state.gate, state.gate_gram, decay, w, push, bent, options.curvature, linear, residual, 0, share
    )


def limited_step(gamma: float, masses: FloatArray, n: int, span: float, origin: int) -> float:
    """Return the step γ of the n-th event, shortened if it spans fewer than `span` events of the rarest expert.

    See docs/algorithm.md, "Steps that respect rare experts". The numbers are those of `LearningOptions`.
    """
    if span == 0.0:
        return gamma
    least = total = masses[0]
    for k in range(1, masses.shape[0]):
        least = min(least, masses[k])
        total += masses[k]
    limit = max(least / (total * span), ALWAYS_ALLOWED / max(n - origin, 1), LEAST_PART * gamma)
    return float(min(gamma, limit))


_limited_step = inline(limited_step)


@inline
def step_size(state: MMState, options: LearningOptions, gamma: float) -> float:
    """The step of the next event, where the schedule says γ; a function of state and count alone."""
    limited: float = _limited_step(gamma, state.masses, state.n[0] + 1, options.span, options.origin)
    return limited


@inline
def finish_step(state: MMState | SingleExpert, gamma: float, decay: float) -> None:
    """Count an event: the weight of all before it has shrunk by 1 − γ."""
    state.n[0] += 1
    state.decay[0] = decay
    state.prior_weight[0] *= 1.0 - gamma


@inline
def topped_up(state: MMState | SingleExpert, options: LearningOptions, gamma: float) -> float:
    """The weight of the prior after a refresh: s pseudo-events among the 1/γ that a step spans."""
    weight: float = max(state.prior_weight[0], options.prior_strength * gamma)
    return weight


def iterate_weight(m: int, options: LearningOptions, gamma: float) -> float:
    """Return how much the m-th iterate, made by a step γ, counts in the served average ([MM] §5.2.1)."""
    weight: float = options.averaging / (m + options.averaging - 1.0)
    if options.forgetting:
        weight = max(weight, gamma)
    return max(weight, options.least_weight)


_iterate_weight = inline(iterate_weight)


@inline
def average_weight(state: MMState, options: LearningOptions, gamma: float) -> float:
    """How far the served parameters move towards the raw iterate of this event."""
    if options.averaging == 0:
        return 1.0
    state.n_average[0] += 1
    return _iterate_weight(state.n_average[0], options, gamma)


@inline
def variance_weight(options: LearningOptions, weight: float, gamma: float) -> float:
    """The same for variances, given that weight and the step.

    A few targets far off make the variances of some hundred iterates large. In a mean of all iterates that would count
    for long, and cost more than the noise of recent ones.
    """
    return max(weight, gamma) if options.recent_variances else weight


@inline
def blend(average: FloatArray, raw: FloatArray, weight: float) -> None:
    """Move `average` towards `raw`, both (m, p) or (K, m, p)."""
    if raw.ndim == 3:
        for k in range(raw.shape[0]):
            _blend_rows(average[k], raw[k], weight)
    else:
        _blend_rows(average, raw, weight)


@inline
def _blend_rows(average: FloatArray, raw: FloatArray, weight: float) -> None:
    if weight >= 1.0:
        # θ̄ + 1 · (θ − θ̄) is not θ in floating point.
        for k in range(raw.shape[0]):
            for j in range(raw.shape[1]):
                average[k, j] = raw[k, j]
        return
    for k in range(raw.shape[0]):
        for j in range(raw.shape[1]):
            average[k, j] += weight * (raw[k, j] - average[k, j])
