"""Laplace noise with a rounded tip: experts follow the median rather than the mean."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from streammoe.distributions.contract import ExpertNoise
from streammoe.distributions.parts import keep_parts
from streammoe.distributions.univariate import Mixture
from streammoe.errors import ConfigError
from streammoe.fields import part, unchecked
from streammoe.noise import Noise, special
from streammoe.text import shown
from streammoe.types import FloatArray

TIP = 0.1
"""Half the width of the tip, at scale 1; that of `streammoe.kernels.laplace`, which says why there is one."""


@part
class Laplace(ExpertNoise):
    """Noise with heavier tails than a Gaussian's; experts follow the median of one output.

    Laplace's distribution, but Gaussian up to |z| = `tip`: the density is exp(−h(z)) / C, with h(z) = z²/(2 tip) +
    tip/2 in the tip, and |z| beyond. Without a tip the variance is 2.

    >>> noise = LaplaceMixture([1.0], [0.0], [1.0], tip=1e-9).noise
    >>> round(noise.variance, 6), round(noise.quantile_at(0.25) + math.log(2.0), 6) + 0.0
    (2.0, 0.0)
    """

    tip: float = field(default=TIP, init=False, repr=False)
    """No option of experts, whose kernels have a fixed one."""

    name = "laplace"

    @cached_property
    def _inside(self) -> float:
        """Factor of the Gaussian integral over all numbers in the area of the tip."""
        return math.exp(-0.5 * self.tip) * math.sqrt(2.0 * math.pi * self.tip)

    @cached_property
    def _inner_area(self) -> float:
        return self._inside * math.erf(math.sqrt(0.5 * self.tip))

    @cached_property
    def area(self) -> float:
        """C."""
        return 2.0 * math.exp(-self.tip) + self._inner_area

    @property
    def variance(self) -> float:
        """∫ z² exp(−h(z)) dz / C."""
        tip = self.tip
        outer = 2.0 * math.exp(-tip) * (tip * tip + 2.0 * tip + 2.0)
        inner = tip * (self._inner_area - 2.0 * tip * math.exp(-tip))
        return (outer + inner) / self.area

    @property
    def kink(self) -> float:
        """The end of the tip."""
        return self.tip

    def entropy(self, n_outputs: int) -> float:
        # log C + E[h(z)], and E[z h′(z)] = 1 by parts; z h′ is h outside the tip, 2 h − tip inside.
        inside = (self.tip - 1.0) * self._inner_area + 2.0 * self.tip * math.exp(-self.tip)
        return math.log(self.area) + 1.0 + 0.5 * inside / self.area

    def pdf(self, z: FloatArray) -> FloatArray:
        size = np.abs(z)
        inside = 0.5 * (np.minimum(size, self.tip) ** 2 / self.tip + self.tip)
        return np.asarray(np.exp(-np.where(size > self.tip, size, inside)) / self.area)

    def cdf(self, z: FloatArray) -> FloatArray:
        size = np.abs(z)
        tail = np.exp(-size) / self.area
        edge = np.minimum(size, self.tip) / math.sqrt(2.0 * self.tip)
        inside = 0.5 - 0.5 * self._inside / self.area * special().erf(edge)
        below = np.where(size > self.tip, tail, inside)
        return np.asarray(np.where(z <= 0.0, below, 1.0 - below))

    def quantile(self, q: FloatArray) -> FloatArray:
        lower = np.minimum(q, 1.0 - q)
        share = np.clip((0.5 - lower) * 2.0 * self.area / self._inside, 0.0, 1.0)
        inside = math.sqrt(2.0 * self.tip) * special().erfinv(share)
        # In the tail use the tail's own formula: the inverse error function may be infinite there.
        size = np.where(lower * self.area < math.exp(-self.tip), -np.log(lower * self.area), inside)
        return np.asarray(np.where(q < 0.5, -size, size))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        uniform = rng.random(size)
        return self.quantile(np.maximum(uniform, 2.0**-54))

    def mixture(self, shares: FloatArray, means: FloatArray, squares: FloatArray) -> LaplaceMixture:
        return LaplaceMixture(shares, means, np.sqrt(squares), self.tip)


NOISE = Laplace


@dataclass(frozen=True, eq=False)
class LaplaceMixture(Mixture):
    """A mixture of K Laplace distributions of one number, whose tips are rounded: see `Laplace`.

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K,) finite.
        scales: (K,) b above 0; outside the tip a density falls by a factor e over this distance.
        tip: half the width of the rounded tip, in units of the scale.

    Raises:
        ConfigError: arrays of other shapes or with other values, or a tip that is not above 0.

    >>> one = LaplaceMixture([1.0], [3.0], [2.0], tip=1e-9)
    >>> one.mean(), round(one.variance(), 6), round(one.cdf(5.0), 6) == round(1 - math.exp(-1.0) / 2, 6)
    (3.0, 8.0, True)
    """

    shares: FloatArray
    means: FloatArray
    scales: FloatArray
    tip: float

    def __post_init__(self) -> None:
        keep_parts(self, "scales")
        if not 0.0 < self.tip <= sys.float_info.max:
            raise ConfigError(f"tip: got {shown(self.tip)}; it must be a finite number above 0")

    @property
    def noise(self) -> Noise:
        """The rounded Laplace distribution around 0 at scale 1."""
        return unchecked(Laplace, tip=self.tip)

    @property
    def _squares(self) -> FloatArray:
        return np.asarray(self.scales**2)
