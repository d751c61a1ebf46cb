"""Student-t noise: what an event far from an expert costs, and how far it is trusted.

t_ν with Q outputs and a diagonal scale has the density Γ((ν+Q)/2) / (Γ(ν/2) (νπ)^(Q/2) Π_q σ_q) (1 + δ²/ν)^(−(ν+Q)/2)
at the squared distance δ² = Σ_q (y_q − μ_q)² / σ_q².
"""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline


@inline
def energy(square: float, degrees: float, Q: int) -> float:
    """−log of the density at δ², up to the scale and a constant: ½ (ν + Q) log(1 + δ²/ν)."""
    return 0.5 * (degrees + Q) * math.log(1.0 + square / degrees)


@inline
def irls_weight(square: float, degrees: float, Q: int) -> float:
    """The weight u = (ν + Q) / (ν + δ²), twice the slope of `energy` in δ²."""
    return (degrees + Q) / (degrees + square)


@inline
def log_constant(degrees: float, Q: int) -> float:
    """What −log of the density holds besides `energy` and Σ_q log σ_q."""
    peak = math.lgamma(0.5 * (degrees + Q)) - math.lgamma(0.5 * degrees)
    return 0.5 * Q * math.log(degrees * math.pi) - peak
