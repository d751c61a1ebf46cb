"""Linear experts: the weighted recursive least-squares filter that Gaussian families share, whatever their covariance.

Shapes: K experts, Q outputs, p features.
"""

from __future__ import annotations

from streammoe.kernels.compile import inline
from streammoe.kernels.linalg import add_outer, symmetric_product
from streammoe.kernels.state import MMState
from streammoe.types import FloatArray


@inline
def step_linear(
    state: MMState, k: int, r: FloatArray, y: FloatArray, mean: FloatArray, weight: float, gain: FloatArray
) -> float:
    """Υ_k ← Υ_k + weight (y − Υ_k r) (R_k⁺⁻¹ r)ᵀ, where R_k⁺ = R_k + weight · r rᵀ is updated first; in stored units.

    Args:
        state: changed in place.
        k: which expert.
        r: (p,) features.
        y: (Q,) targets, and `mean` (Q,) what the expert says.
        mean: of the old coefficients.
        weight: γ τ over the new decay.
        gain: (p,) scratch.

    Returns:
        1 − γ τ rᵀ R_k⁺⁻¹ r, written so that it cannot become negative: the part of y yᵀ that enters the variance.
    """
    # With stored matrices R̃ = R / decay and their inverses P̃ = decay · P, the update of R by (1−γ) and γ τ r rᵀ is a
    # rank-1 update of R̃ with weight γ τ / decay⁺, and R⁺⁻¹ r = P̃ r / (decay⁺ (1 + weight · rᵀ P̃ r)).
    quadratic = symmetric_product(state.expert_inverses[k], r, gain)
    shrink: float = 1.0 / (1.0 + weight * quadratic)
    for q in range(y.shape[0]):
        push = weight * shrink * (y[q] - mean[q])
        for j in range(r.shape[0]):
            state.experts[k, q, j] += push * gain[j]
    add_outer(state.expert_inverses[k], gain, -weight * shrink)
    add_outer(state.expert_grams[k], r, weight)
    return shrink


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
        linear: (Q, p) or larger, scratch.
        residual: running means, written from index `at` on.
        share: weight of this event in the running means.

    Returns:
        Where the next block begins, and ‖S̄ − s‖² of this one.
    """
    decay = state.decay[0]
    Q, p = y.shape[0], r.shape[0]
    square = 0.0
    for q in range(Q):
        for i in range(p):
            linear[q, i] = 0.0
    for i in range(p):
        for j in range(p):
            stored = decay * state.expert_grams[k, i, j]
            for q in range(Q):
                linear[q, i] += stored * state.experts[k, q, j]
            entry = amount * r[i] * r[j] - stored
            residual[at] += share * (entry - residual[at])
            square += entry * entry
            at += 1
    for q in range(Q):
        for i in range(p):
            entry = amount * y[q] * r[i] - linear[q, i]
            residual[at] += share * (entry - residual[at])
            square += entry * entry
            at += 1
    return at, square
