"""Student-t noise: what an event far from an expert costs, and how far it is trusted.

t_ν with Q outputs and a diagonal scale has the density Γ((ν+Q)/2) / (Γ(ν/2) (νπ)^(Q/2) Π_q σ_q) (1 + δ²/ν)^(−(ν+Q)/2)
at the squared distance δ² = Σ_q (y_q − μ_q)² / σ_q². `shape` is (ν,).
"""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline
from streammoe.kernels.elliptical import elliptical, irls_weight_rows
from streammoe.kernels.event import event
from streammoe.kernels.noise import Shape, scoring


@inline
def energy(shape: Shape, square: float, Q: int) -> float:
    """−log of the density at δ², up to the scale and a constant: ½ (ν + Q) log(1 + δ²/ν)."""
    return 0.5 * (shape[0] + Q) * math.log(1.0 + square / shape[0])


@inline
def irls_weight(shape: Shape, square: float, Q: int) -> float:
    """The weight u = (ν + Q) / (ν + δ²), twice the slope of `energy` in δ²."""
    return (shape[0] + Q) / (shape[0] + square)


@inline
def log_constant(shape: Shape, Q: int) -> float:
    """What −log of the density holds besides `energy` and Σ_q log σ_q."""
    peak = math.lgamma(0.5 * (shape[0] + Q)) - math.lgamma(0.5 * shape[0])
    return 0.5 * Q * math.log(shape[0] * math.pi) - peak


NOISE = elliptical(energy, irls_weight, log_constant)
score_rows = scoring(NOISE, __name__)
learn = event(NOISE, NOISE, __name__, 1)
trusted_rows = irls_weight_rows(irls_weight, __name__)
