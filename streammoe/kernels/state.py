"""What the kernels of every family share: the state that a step changes in place, and what a step needs besides."""

from __future__ import annotations

from typing import NamedTuple

from streammoe.types import FloatArray, IntArray

VARIANCE_FLOOR = 1e-18
"""Smallest variance, in units of the prior's; keeps densities finite on data without noise."""


class MMState(NamedTuple):
    """All that the next step needs, as arrays that the kernels change in place; the same for every family.

    K experts, each with N rows of coefficients (one for each of Q outputs, or for each class but the first), p_w and
    p_v features of gate and experts. True Gram matrices are ``decay`` times the stored ones, the true inverses the
    stored ones divided by ``decay``.
    """

    n: IntArray
    """(1,) events learned."""
    n_average: IntArray
    """(1,) iterates in the average."""
    decay: FloatArray
    """(1,) Π(1−γ) since the inverses were last rebuilt."""
    prior_weight: FloatArray
    """(1,) weight ρ of the prior within the statistics."""
    gate: FloatArray
    """(K−1, p_w) ω; the last expert is the reference."""
    gate_gram: FloatArray
    """(p_w, p_w) G = E[a w wᵀ], a = 1 but for the adaptive bound."""
    gate_inverse: FloatArray
    experts: FloatArray
    """(K, N, p_v) Υ, or C without the reference class."""
    variances: FloatArray
    """(K, Q) σ², variances or squared scales, (K, Q, Q) Σ, or (K, 0) for experts without any."""
    masses: FloatArray
    """(K,) E[τ_k]."""
    expert_grams: FloatArray
    """(K, p_v, p_v) R_k = E[a τ_k r rᵀ]."""
    expert_inverses: FloatArray
    average_gate: FloatArray
    average_experts: FloatArray
    average_variances: FloatArray
    prior_gate_gram: FloatArray
    """(p_w,) diagonal Λ of the gate's prior, whose target is ω = 0."""
    prior_expert_gram: FloatArray
    """(p_v,) diagonal Λ of the experts' prior."""
    prior_experts: FloatArray
    """(N, p_v) its target."""
    prior_variances: FloatArray
    """(Q,) its variance σ²_0, or (0,)."""


class SingleExpert(NamedTuple):
    """The part of an `MMState` of one expert that a step needs where there is neither gate nor average."""

    n: IntArray
    decay: FloatArray
    prior_weight: FloatArray
    experts: FloatArray
    variances: FloatArray
    masses: FloatArray
    expert_grams: FloatArray
    expert_inverses: FloatArray
    prior_expert_gram: FloatArray
    prior_experts: FloatArray
    prior_variances: FloatArray


class Prior(NamedTuple):
    """What the model believes before any event, worth `strength` pseudo-events (docs/algorithm.md, "The prior")."""

    strength: float
    gate_gram: FloatArray
    """(p_w,) diagonal Λ of the gate's part, whose target is ω = 0."""
    expert_gram: FloatArray
    """(p_v,) diagonal Λ of the experts' part."""
    experts: FloatArray
    """(N, p_v) its target."""
    variances: FloatArray
    """(Q,) its variance σ²_0, or (0,)."""
    variance_floor: float


class LearningOptions(NamedTuple):
    """What a step needs besides the state and its step size."""

    prior_strength: float
    """Pseudo-events s that the prior is worth; 0 is the papers' plain algorithm."""
    curvature: tuple[float, float]
    """(a, b) with A⁻¹ d = a (d + b Σd) for the gate's bound A on the curvature of log-sum-exp."""
    expert_curvature: tuple[float, float]
    """The same for categorical experts."""
    adaptive: bool
    """Whether the curvature follows the probabilities of each event."""
    averaging: int
    """0 serves the raw iterate; c ≥ 1 weighs the m-th one c/(m + c − 1): 1 is Polyak's mean, 3 polynomial decay."""
    forgetting: bool
    """Constant steps: the average never weighs an iterate less than γ."""
    least_weight: float = 0.0
    """The average never weighs an iterate less than this."""
    recent_variances: bool = False
    """Whether the average never weighs the variances of an iterate less than γ."""
    bound_share: float = 1.0
    """Least part of the adaptive bound that an event's curvature in the gate is; 1 is the bound."""
    span: float = 0.0
    """Events of the rarest expert that a step has to span; 0 does not limit steps."""
    origin: int = 0
    """Events learned before steps last restarted."""
    top_k: int = 0
    """How many experts learn from an event, those of the largest responsibilities; 0: all."""
    variance_floor: float = VARIANCE_FLOOR
    residual_weight: float = 1e-3
    """Smallest weight in the running means of the convergence residual."""


class Trace(NamedTuple):
    """What each expert said about each row before it was learned; arrays of length 0 where nobody asks."""

    shares: FloatArray
    """(n, K) the gate's g."""
    means: FloatArray
    """(n, K, Q) means, or (n, K, M) probabilities."""
    variances: FloatArray
    """(n, K, Q) variances, or squared scales, of each output, or (n, K, 0)."""
    ranks: FloatArray
    """(n, Q, B) the probability of each of B equal parts of the distribution of all components; or (n, 0, 0)."""
    stretch: FloatArray
    """(n, Q, 2, L) factors of the log-odds of the ends of intervals, see `kernels.calibration`; or (n, 0, 2, 0)."""
