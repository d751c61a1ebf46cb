"""Gaussian noise of independent outputs, in the terms of `streammoe.kernels.elliptical`: every event counts alike."""

from __future__ import annotations

from streammoe.kernels.compile import inline
from streammoe.kernels.elliptical import elliptical
from streammoe.kernels.linear import LOG_2PI
from streammoe.kernels.loop import Shape, loop


@inline
def energy(shape: Shape, square: float, Q: int) -> float:  # noqa: ARG001 - every noise is called with the same arguments
    """½ δ²."""
    return 0.5 * square


@inline
def irls_weight(shape: Shape, square: float, Q: int) -> float:  # noqa: ARG001 - same
    """1, twice the slope of `energy` in δ²."""
    return 1.0


@inline
def log_constant(shape: Shape, Q: int) -> float:  # noqa: ARG001 - same
    """½ Q log 2π."""
    return 0.5 * Q * LOG_2PI


learn_rows, score_rows = loop(elliptical(energy, irls_weight, log_constant), __name__)
