"""Gaussian experts with a diagonal covariance ([MM] Algorithm 2): y | x, k ~ N(Υ_k φ_v(x), diag σ²_k)."""

from __future__ import annotations

import numpy as np

from streammoe.kernels.gaussian import VARIANCE_FLOOR, GaussianState, LearningOptions, Prior
from streammoe.kernels.linalg import invert_spd
from streammoe.types import FloatArray

__all__ = ["GaussianState", "LearningOptions", "Prior", "residual_size", "state_at", "unit_prior"]


def unit_prior(strength: float, p_w: int, p_v: int, n_outputs: int) -> Prior:
    """The prior of a model that has seen nothing: Λ = I, Υ_0 = 0, σ²_0 = 1."""
    return Prior(strength, np.ones(p_w), np.ones(p_v), np.zeros((n_outputs, p_v)), np.ones(n_outputs), VARIANCE_FLOOR)


def state_at(
    *,
    gate: FloatArray,
    experts: FloatArray,
    variances: FloatArray,
    masses: FloatArray,
    gate_gram: FloatArray,
    expert_grams: FloatArray,
    prior: Prior,
    n: int,
    prior_weight: float,
    decay: float = 1.0,
) -> GaussianState:
    """A state that goes on from exactly these parameters and statistics; the average begins with them.

    Gram matrices are the true ones: E[w wᵀ] and E[τ_k r rᵀ].
    """
    K, _, p_v = experts.shape
    gate_inverse = np.empty_like(gate_gram)
    invert_spd(gate_gram, gate_inverse, np.empty_like(gate_gram))
    expert_inverses = np.empty_like(expert_grams)
    for k in range(K):
        invert_spd(expert_grams[k], expert_inverses[k], np.empty((p_v, p_v)))
    return GaussianState(
        n=np.array([n], dtype=np.int64),
        n_average=np.array([1 if n else 0], dtype=np.int64),
        decay=np.array([decay]),
        prior_weight=np.array([prior_weight]),
        gate=gate.copy(),
        gate_gram=gate_gram / decay,
        gate_inverse=gate_inverse * decay,
        experts=experts.copy(),
        variances=variances.copy(),
        masses=masses.copy(),
        expert_grams=expert_grams / decay,
        expert_inverses=expert_inverses * decay,
        average_gate=gate.copy(),
        average_experts=experts.copy(),
        average_variances=variances.copy(),
        prior_gate_gram=prior.gate_gram.copy(),
        prior_expert_gram=prior.expert_gram.copy(),
        prior_experts=prior.experts.copy(),
        prior_variances=prior.variances.copy(),
    )


def residual_size(state: GaussianState) -> int:
    """Length of the array that follows the convergence residual of this state."""
    K, Q, p_v = state.experts.shape
    p_w = state.gate_gram.shape[0]
    size: int = p_w * p_w + (K - 1) * p_w + K * (p_v * p_v + Q * p_v + Q + 1) + 2
    return size
