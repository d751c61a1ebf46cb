"""The likelihood that a mixture gains merely because its prior is divided equally among its experts."""

from __future__ import annotations

import numpy as np

from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import MMState
from streammoe.types import FloatArray

LEAST_EIGENVALUE = 1e-14
"""Smallest eigenvalue of a correlation matrix that is not rounding."""


def prior_gain(state: MMState) -> float:
    """Return the nats that an event costs less than if each expert's share of the prior were its share of the events.

    Every expert gets a K-th of the prior. Where targets have (almost) no noise, the variance of an active expert comes
    from the prior alone; with idle experts next to it, it is a K-th of what it would otherwise be. Each event then
    costs ½ log K less, which reveals nothing about targets but makes many experts seem better than few.

    With π for the prior's part of a variance, and m for masses, an expert's share of the prior would be larger by the
    factor K m_k / Σ m, its variance by f = 1 + (K m_k / Σ m − 1) π, and its mean loss by
    ½ (log f + (1 − π) (1/f − 1)) for each output: ½ log K, or almost 0 where the noise is most of the variance.

    Args:
        state: one mixture; it is not modified. With weighted events, the result is per event of weight 1 on average.

    Returns:
        At least 0: a loss caused by the division is not refunded. 0 for one expert, without a prior, and for experts
        without variances.
    """
    K = len(state.masses)
    if K == 1 or not state.variances.size or not state.prior_weight[0]:
        return 0.0
    parts = _prior_parts(state)
    factors = 1.0 + (K * state.masses / state.masses.sum() - 1.0)[:, None] * parts
    factors = np.maximum(factors, VANISHED)  # rounding may leave 0 where there is hardly any mass
    gains = 0.5 * (np.log(factors) + (1.0 - parts) * (1.0 / factors - 1.0))
    return max(float(state.masses @ gains.sum(axis=1)), 0.0)


def _prior_parts(state: MMState) -> FloatArray:
    """Return the prior's fraction of each variance, (K, Q), from 0 to 1; for covariances along Q separating directions.

    m_k σ²_k is the sum of what the events leave unexplained and ρ/K (σ²_0 + (Υ_k − Υ_0) Λ (Υ_k − Υ_0)ᵀ).
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
    # Only rounding can make an entry of the prior's part larger than the whole.
    parts = np.clip(amounts[:, None, None] * scatters / units, -1.0, 1.0)
    values, vectors = np.linalg.eigh(state.variances / units)
    whitening = vectors / np.sqrt(np.maximum(values, LEAST_EIGENVALUE))[:, None, :]
    return np.clip(np.linalg.eigvalsh(whitening.transpose(0, 2, 1) @ parts @ whitening), 0.0, 1.0)
