"""Linear experts: what families share whose experts are linear, whatever their noise.

Shapes: K experts, Q outputs, p features.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

from streammoe.kernels.compile import hook, inline
from streammoe.kernels.linalg import VANISHED, add_outer, dot, symmetric_product
from streammoe.kernels.noise import Kernel, Noise
from streammoe.kernels.softmax import multiply_gram, residual_of_gram, softmax
from streammoe.kernels.state import LearningOptions, MMState
from streammoe.types import FloatArray

LOG_2PI = math.log(2.0 * math.pi)


class Spread(NamedTuple):
    """What there is to do about the variances of linear experts; each is made by `inline`, for output q of expert k."""

    step: Kernel
    """``(state, options, k, q, old_mass, new, left, mass, means, y)``: one event of weight `new`, of the square of
    whose errors the step leaves so much unexplained."""
    top_up: Kernel
    """``(state, k, q, share, old, mass)``: `share` of the prior, given the coefficients before."""
    residual: Kernel
    """``(state, k, q, amount, y, linear, residual, at, square, share)`` → ``(at, square)``: blocks of the convergence
    residual, where `linear` is Υ_k R_k and `amount` weighs the event."""


def linear_noise(log_constant: Kernel, scratch_rows: Kernel, evaluate: Kernel, trust: Kernel, spread: Spread) -> Noise:
    """Describe linear experts to the loop."""
    return Noise(log_constant, scratch_rows, evaluate, trust, *_experts(spread))


@cache
def _experts(spread: Spread) -> tuple[Kernel, ...]:
    """Make what linear experts of any noise share, once for each kind of spread."""
    step_spread, top_up_spread, residual_of_spread = spread

    @hook
    def step_experts(
        state: MMState,
        options: LearningOptions,
        keep: float,
        fresh: float,
        amount: float,
        tau: FloatArray,
        trusted: FloatArray,
        means: FloatArray,
        r: FloatArray,
        y: FloatArray,
        gain: FloatArray,
        push: FloatArray,  # noqa: ARG001 - other experts need it
    ) -> None:
        # With stored matrices R̃ = R / decay and their inverses P̃ = decay · P, the update of R by (1−γ) and γ τ r rᵀ is
        # a rank-1 update of R̃ with weight γ τ / decay⁺, and R⁺⁻¹ r = P̃ r / (decay⁺ (1 + weight · rᵀ P̃ r)).
        for k in range(tau.shape[0]):
            if tau[k] == 0.0:
                # Nothing of it moves but its mass: what it knows is worth as much less as `decay` says.
                state.masses[k] = max(keep * state.masses[k], VANISHED)
                continue
            weight = amount * trusted[k]
            quadratic = symmetric_product(state.expert_inverses[k], r, gain)
            # 1 − γ τ rᵀ R⁺⁻¹ r, written so that it cannot become negative.
            shrink = 1.0 / (1.0 + weight * quadratic)
            old_mass = keep * state.masses[k]
            # Without a prior a starved expert's mass would reach 0 and its variance 0/0; so it stays, dead but finite.
            mass = max(old_mass + fresh * tau[k], VANISHED)
            for q in range(y.shape[0]):
                step_spread(state, options, k, q, old_mass, fresh * trusted[k], shrink, mass, means, y)
                push_size = weight * shrink * (y[q] - means[k, q])
                for j in range(r.shape[0]):
                    state.experts[k, q, j] += push_size * gain[j]
            state.masses[k] = mass
            add_outer(state.expert_inverses[k], gain, -weight * shrink)
            add_outer(state.expert_grams[k], r, weight)

    @inline
    def top_up(state: MMState, k: int, share: float, old: FloatArray) -> None:
        for q in range(old.shape[0]):
            top_up_spread(state, k, q, share, old, state.masses[k] + share)

    @inline
    def residual_of_expert(
        state: MMState,
        options: LearningOptions,  # noqa: ARG001 - same
        k: int,
        event_weight: float,
        tau: FloatArray,
        trusted: FloatArray,
        means: FloatArray,  # noqa: ARG001 - same
        r: FloatArray,
        y: FloatArray,
        linear: FloatArray,
        push: FloatArray,  # noqa: ARG001 - same
        residual: FloatArray,
        at: int,
        square: float,
        share: float,
    ) -> tuple[int, float]:
        # Blocks: R, linear part, those of the variances, mass.
        amount = event_weight * trusted[k]
        at, more = residual_of_linear(state, k, r, y, amount, linear, residual, at, share)
        square += more
        for q in range(y.shape[0]):
            at, square = residual_of_spread(state, k, q, amount, y, linear, residual, at, square, share)
        entry = event_weight * tau[k] - state.masses[k]
        residual[at] += share * (entry - residual[at])
        return at + 1, square + entry * entry

    return step_experts, top_up, residual_of_expert


@inline
def shares_and_means(
    gate: FloatArray,
    experts: FloatArray,
    w: FloatArray,
    r: FloatArray,
    shares: FloatArray,
    means: FloatArray,
    logits: FloatArray,
) -> float:
    """Write g_k(x), Υ_k r and the gate's logits, and return the logarithm of the sum of their exponentials."""
    K, Q = means.shape
    for k in range(K - 1):
        logits[k] = dot(gate[k], w)
        shares[k] = logits[k]
    shares[K - 1] = 0.0
    logits[K - 1] = 0.0
    log_gate = 0.0
    if K > 1:
        log_gate = softmax(shares)
    else:
        shares[0] = 1.0  # as softmax would say, which takes as long as a tenth of an event of one expert
    for k in range(K):
        for q in range(Q):
            means[k, q] = dot(experts[k, q], r)
    return log_gate


@inline
def residual_of_linear(
    state: MMState,
    k: int,
    r: FloatArray,
    y: FloatArray,
    amount: float,
    linear: FloatArray,
    residual: FloatArray,
    at: int,
    share: float,
) -> tuple[int, float]:
    """Take S̄ − s of R_k and E[τ y rᵀ] into running means, and leave Υ_k R_k in `linear`.

    Args:
        amount: τ_k times the weight of the event.
        linear: (Q + 1, p) or larger, scratch.
        residual: running means, written from index `at` on.
        share: weight of this event in the running means.

    Returns:
        Where the next block begins, and ‖S̄ − s‖² of this one.
    """
    decay = state.decay[0]
    Q, p = y.shape[0], r.shape[0]
    gram = state.expert_grams[k]
    at, square = residual_of_gram(gram, decay, r, amount, linear[Q], residual, at, share)
    for q in range(Q):
        multiply_gram(gram, decay, state.experts[k, q], linear[q])
    for q in range(Q):
        for i in range(p):
            entry = amount * y[q] * r[i] - linear[q, i]
            residual[at] += share * (entry - residual[at])
            square += entry * entry
            at += 1
    return at, square
