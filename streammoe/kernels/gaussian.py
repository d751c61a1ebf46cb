"""Gaussian noise of independent outputs, in the terms of `streammoe.kernels.elliptical`, with logarithmic tails.

Beyond κ deviations the energy ½ δ² continues as ½ κ² (1 + log(δ²/κ²)), so that an event far out counts as κ²/δ² of one
(docs/algorithm.md, "Logarithmic tails"). `shape` is (κ², the logarithm of the density's integral in units of a normal
one's); with κ = ∞ the noise is normal, and every event counts alike.
"""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline
from streammoe.kernels.elliptical import elliptical, irls_weight_rows
from streammoe.kernels.event import event
from streammoe.kernels.linear import LOG_2PI
from streammoe.kernels.noise import Shape, scoring


@inline
def energy(shape: Shape, square: float, Q: int) -> float:  # noqa: ARG001 - every noise is called with the same arguments
    """½ δ², and beyond κ ½ κ² (1 + log(δ²/κ²))."""
    if square > shape[0]:
        return 0.5 * shape[0] * (1.0 + math.log(square / shape[0]))
    return 0.5 * square


@inline
def irls_weight(shape: Shape, square: float, Q: int) -> float:  # noqa: ARG001 - same
    """The weight u = min(1, κ²/δ²), twice the slope of `energy` in δ²."""
    return shape[0] / square if square > shape[0] else 1.0


@inline
def is_outlier(shape: Shape, square: float) -> bool:
    """Whether u is below 1."""
    return square > shape[0]


@inline
def log_constant(shape: Shape, Q: int) -> float:
    """½ Q log 2π, and what the tails change."""
    return 0.5 * Q * LOG_2PI + shape[1]


NOISE = elliptical(energy, irls_weight, log_constant, is_outlier)
score_rows = scoring(NOISE, __name__)
learn = event(NOISE, NOISE, __name__, 2)
trusted_rows = irls_weight_rows(irls_weight, __name__)
