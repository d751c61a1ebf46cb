"""Laplace noise with a rounded tip: what an event far from an expert costs, and how far it is trusted.

The density is exp(−h(z)) / (C b) at z = (y − μ)/b, with h(z) = z²/(2δ) + δ/2 for |z| ≤ δ and |z| beyond: Laplace's but
for the tip, where that has a kink. There the weight 1/|z| would be unbounded, and cutting it off without changing the
density would leave no majorizer.
"""

from __future__ import annotations

import math

from streammoe.kernels.compile import inline
from streammoe.kernels.elliptical import elliptical, irls_weight_rows
from streammoe.kernels.event import event
from streammoe.kernels.noise import Shape, scoring

TIP = 0.1
"""δ, half the width of the tip in units of b. The density at 0 is 5 % lower than Laplace's, outside 0.2 % higher."""
AREA = 2.0 * math.exp(-TIP) + math.exp(-0.5 * TIP) * math.sqrt(2.0 * math.pi * TIP) * math.erf(math.sqrt(0.5 * TIP))
"""C, the integral of exp(−h)."""
LOG_AREA = math.log(AREA)


@inline
def energy(shape: Shape, square: float, Q: int) -> float:  # noqa: ARG001 - every noise is called with the same arguments
    """h(z) at z²."""
    z = math.sqrt(square)
    tip = 0.5 * (square / TIP + TIP)  # before the choice, which then needs no jump
    return z if z > TIP else tip


@inline
def irls_weight(shape: Shape, square: float, Q: int) -> float:  # noqa: ARG001 - same
    """The weight u = 1 / max(|z|, δ), twice the slope of `energy` in z²."""
    return 1.0 / max(math.sqrt(square), TIP)


@inline
def log_constant(shape: Shape, Q: int) -> float:  # noqa: ARG001 - same
    """Log of the density's integral at b = 1."""
    return LOG_AREA


NOISE = elliptical(energy, irls_weight, log_constant)
score_rows = scoring(NOISE, __name__)
learn = event(NOISE, NOISE, __name__, 0)
trusted_rows = irls_weight_rows(irls_weight, __name__)
