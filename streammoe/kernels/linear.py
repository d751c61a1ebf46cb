"""Linear experts: what families share whose experts are linear, whatever their noise.

Their step stands in each family's own loop: as a function of its own, between the covariance's updates, it cost 15 % of
the speed.

Shapes: K experts, Q outputs, p features.
"""

from __future__ import annotations

from streammoe.kernels.compile import inline
from streammoe.kernels.linalg import dot
from streammoe.kernels.softmax import softmax
from streammoe.kernels.state import MMState
from streammoe.types import FloatArray


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
    log_gate: float = softmax(shares)
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
