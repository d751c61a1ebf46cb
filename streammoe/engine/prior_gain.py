"""What a mixture gains by having its prior divided among its experts alike, whatever they do."""

from __future__ import annotations

import numpy as np

from streammoe.engine.state import MMState
from streammoe.kernels.linalg import VANISHED
from streammoe.types import FloatArray

LEAST_EIGENVALUE = 1e-14
"""Of a matrix of correlations; a direction with less variance than that is rounding."""


def prior_gain(state: MMState) -> float:
    """Nats by which an event costs less than if each expert had as much of the prior as it has of the events.

    Every expert gets the K-th part of the prior. Where targets have (almost) no noise, what the prior leaves is all the
    variance of an expert that is at work; with idle ones beside it, that is the K-th part of what it would be alone.
    Each event then costs ½ log K less, which says nothing about targets, but lets many experts seem better than few.

    With π for the prior's part of a variance, and m for masses, an expert's share of the prior would be larger by the
    factor K m_k / Σ m, its variance by f = 1 + (K m_k / Σ m − 1) π, and its mean loss by
    ½ (log f + (1 − π) (1/f − 1)) for each output: ½ log K, or almost 0 where the noise is most of the variance.

    Args:
        state: one mixture; it is not changed. That of events with weights is per event of weight 1 on average.

    Returns:
        Never below 0: where the division has cost something, that is not refunded. 0 for one expert, without
        a prior, and for experts without variances.
    """
    K = len(state.masses)
    if K == 1 or not state.variances.size or not state.prior_weight[0]:
        return 0.0
    parts = _prior_parts(state)
    factors = 1.0 + (K * state.masses / state.masses.sum() - 1.0)[:, None] * parts
    factors = np.maximum(factors, VANISHED)  # it may be 0 to rounding where there is hardly any mass
    gains = 0.5 * (np.log(factors) + (1.0 - parts) * (1.0 / factors - 1.0))
    return max(float(state.masses @ gains.sum(axis=1)), 0.0)


def _prior_parts(state: MMState) -> FloatArray:
    """(K, Q) how much of each variance is the prior's, 0 to 1; of a covariance along Q directions that part them.

    m_k σ²_k is what the events leave unexplained, and ρ/K (σ²_0 + (Υ_k − Υ_0) Λ (Υ_k − Υ_0)ᵀ).
    """
    apart = state.experts - state.prior_experts
    amounts = state.prior_weight[0] / (len(state.masses) * state.masses)
    if state.variances.ndim == 2:
        spreads = state.prior_variances + (apart * apart) @ state.prior_expert_gram
        plain: FloatArray = np.clip(amounts[:, None] * spreads / state.variances, 0.0, 1.0)
        return plain
    scatters = np.diag(state.prior_variances) + (apart * state.prior_expert_gram) @ apart.transpose(0, 2, 1)
    deviations = np.sqrt(np.einsum("kqq->kq", state.variances))
    units = deviations[:, :, None] * deviations[:, None, :]
    # No entry of the prior's part is larger than the whole, but for rounding.
    parts = np.clip(amounts[:, None, None] * scatters / units, -1.0, 1.0)
    values, vectors = np.linalg.eigh(state.variances / units)
    whitening = vectors / np.sqrt(np.maximum(values, LEAST_EIGENVALUE))[:, None, :]
    return np.clip(np.linalg.eigvalsh(whitening.transpose(0, 2, 1) @ parts @ whitening), 0.0, 1.0)
