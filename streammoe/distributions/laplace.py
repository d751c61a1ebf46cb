"""Laplace noise with a rounded tip: experts follow the median rather than the mean."""

from __future__ import annotations

import math
from functools import cached_property

import numpy as np

from streammoe.distributions.contract import ExpertNoise, special
from streammoe.fields import part
from streammoe.types import FloatArray

TIP = 0.1
"""Half the width of the tip, at scale 1; that of `streammoe.kernels.laplace`, which says why there is one."""


@part
class Laplace(ExpertNoise):
    """Noise with heavier tails than a Gaussian's; experts follow the median of one output.

    Laplace's distribution, but Gaussian up to |z| = `TIP`: the density is exp(−h(z)) / C, with h(z) = z²/(2 TIP) +
    TIP/2 in the tip, and |z| beyond. Without a tip the variance is 2.

    >>> noise = Laplace()
    >>> round(noise.variance, 3), noise.cdf(noise.quantile(np.array([0.25]))).round(12).tolist()
    (2.003, [0.25])
    """

    name = "laplace"

    @cached_property
    def _inside(self) -> float:
        """Factor of the Gaussian integral over all numbers in the area of the tip."""
        return math.exp(-0.5 * TIP) * math.sqrt(2.0 * math.pi * TIP)

    @cached_property
    def _inner_area(self) -> float:
        return self._inside * math.erf(math.sqrt(0.5 * TIP))

    @cached_property
    def area(self) -> float:
        """C."""
        return 2.0 * math.exp(-TIP) + self._inner_area

    @property
    def variance(self) -> float:
        """∫ z² exp(−h(z)) dz / C."""
        outer = 2.0 * math.exp(-TIP) * (TIP * TIP + 2.0 * TIP + 2.0)
        inner = TIP * (self._inner_area - 2.0 * TIP * math.exp(-TIP))
        return (outer + inner) / self.area

    @property
    def kink(self) -> float:
        """The end of the tip."""
        return TIP

    def entropy(self, n_outputs: int) -> float:
        # log C + E[h(z)], and E[z h′(z)] = 1 by parts; z h′ is h outside the tip, 2 h − tip inside.
        inside = (TIP - 1.0) * self._inner_area + 2.0 * TIP * math.exp(-TIP)
        return math.log(self.area) + 1.0 + 0.5 * inside / self.area

    def pdf(self, z: FloatArray) -> FloatArray:
        size = np.abs(z)
        inside = 0.5 * (np.minimum(size, TIP) ** 2 / TIP + TIP)
        return np.asarray(np.exp(-np.where(size > TIP, size, inside)) / self.area)

    def cdf(self, z: FloatArray) -> FloatArray:
        size = np.abs(z)
        tail = np.exp(-size) / self.area
        edge = np.minimum(size, TIP) / math.sqrt(2.0 * TIP)
        inside = 0.5 - 0.5 * self._inside / self.area * special().erf(edge)
        below = np.where(size > TIP, tail, inside)
        return np.asarray(np.where(z <= 0.0, below, 1.0 - below))

    def quantile(self, q: FloatArray) -> FloatArray:
        lower = np.minimum(q, 1.0 - q)
        share = np.clip((0.5 - lower) * 2.0 * self.area / self._inside, 0.0, 1.0)
        inside = math.sqrt(2.0 * TIP) * special().erfinv(share)
        # In the tail use the tail's own formula: the inverse error function may be infinite there.
        size = np.where(lower * self.area < math.exp(-TIP), -np.log(lower * self.area), inside)
        return np.asarray(np.where(q < 0.5, -size, size))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        uniform = rng.random(size)
        return self.quantile(np.maximum(uniform, 2.0**-54))


NOISE = Laplace
