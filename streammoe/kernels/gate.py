"""The softmax gate ([MM] §4.1.2): probabilities, and one step of its recursive least-squares filter.

Shapes: K experts, p features; `gate` (K−1, p), the last expert is the reference with logit 0.
"""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline
from streammoe.types import FloatArray


@inline
def softmax(values: FloatArray) -> float:
    """Replace logits by their softmax, in place, and return log Σ exp of them."""
    largest: float = values[0]
    for k in range(1, values.shape[0]):
        largest = max(largest, values[k])
    total = 0.0
    for k in range(values.shape[0]):
        values[k] = math.exp(values[k] - largest)
        total += values[k]
    inverse = 1.0 / total
    for k in range(values.shape[0]):
        values[k] *= inverse
    return largest + math.log(total)


@inline
def bound_mix(curvature: tuple[float, float], free: int) -> float:
    """The c of A d = (d − c Σd) / a, the inverse of A⁻¹ d = a (d + b Σd) over `free` logits."""
    return curvature[1] / (1.0 + curvature[1] * free)


@inline
def step_gate(
    gate: FloatArray,
    shares: FloatArray,
    tau: FloatArray,
    gain: FloatArray,
    size: float,
    curvature: tuple[float, float],
) -> None:
    """ω ← ω − size · A⁻¹ (g − τ) gainᵀ over the free logits, where A⁻¹ d = a (d + b Σd)."""
    free = gate.shape[0]
    total = 0.0
    for k in range(free):
        total += shares[k] - tau[k]
    for k in range(free):
        step = size * curvature[0] * (shares[k] - tau[k] + curvature[1] * total)
        for j in range(gain.shape[0]):
            gate[k, j] -= step * gain[j]
