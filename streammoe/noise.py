"""Noise distributions of experts: one number around 0 at scale 1.

Arrays go through SciPy's functions element by element; single numbers, of which a search for a quantile needs many, may
have faster implementations.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
from scipy.special import betainc, betaincc, betainccinv, betaincinv, erf, erfinv, gammaln, ndtr, ndtri

from streammoe.types import FloatArray

_ROOT_2 = math.sqrt(2.0)
_ROOT_2PI = math.sqrt(2.0 * math.pi)
_STANDARD = NormalDist()
_FAR = 40.0
"""Deviations from its center at which a Gaussian density underflows."""


class Noise(ABC):
    """A symmetric distribution of one number around 0."""

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance at scale 1."""

    @abstractmethod
    def pdf(self, z: FloatArray) -> FloatArray:
        """Return the density."""

    @abstractmethod
    def cdf(self, z: FloatArray) -> FloatArray:
        """Return P(Z ≤ z); small probabilities have full relative precision."""

    @abstractmethod
    def quantile(self, q: FloatArray) -> FloatArray:
        """Return z with P(Z ≤ z) = q, for probabilities in (0, 1); small ones have full relative precision."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        """Draw random numbers."""

    def pdf_at(self, z: float) -> float:
        """Return `pdf` of a single number."""
        return float(self.pdf(np.asarray(z)))

    def cdf_at(self, z: float) -> float:
        """Return `cdf` of a single number."""
        return float(self.cdf(np.asarray(z)))

    def quantile_at(self, q: float) -> float:
        """Return `quantile` of a single probability."""
        return float(self.quantile(np.asarray(q)))


@dataclass(frozen=True)
class Normal(Noise):
    """N(0, 1)."""

    variance = 1.0

    def pdf(self, z: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * np.minimum(np.abs(z), _FAR) ** 2) / _ROOT_2PI)

    def cdf(self, z: FloatArray) -> FloatArray:
        return np.asarray(ndtr(z))

    def quantile(self, q: FloatArray) -> FloatArray:
        return np.asarray(ndtri(q))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        return np.asarray(rng.standard_normal(size))

    def pdf_at(self, z: float) -> float:
        return math.exp(-0.5 * z * z) / _ROOT_2PI

    def cdf_at(self, z: float) -> float:
        return 0.5 * math.erfc(-z / _ROOT_2)

    def quantile_at(self, q: float) -> float:
        return _STANDARD.inv_cdf(q)


@dataclass(frozen=True)
class StudentT(Noise):
    """Student's t, with ν degrees of freedom above 2.

    >>> noise = StudentT(4.0)
    >>> noise.variance, round(noise.quantile_at(0.975), 6)
    (2.0, 2.776445)
    """

    degrees: float

    @property
    def variance(self) -> float:
        """ν / (ν − 2)."""
        return self.degrees / (self.degrees - 2.0)

    @cached_property
    def _peak(self) -> float:
        half = 0.5 * self.degrees
        return float(np.exp(gammaln(half + 0.5) - gammaln(half))) / math.sqrt(self.degrees * math.pi)

    def pdf(self, z: FloatArray) -> FloatArray:
        nu = self.degrees
        return np.asarray(self._peak * np.exp(-0.5 * (nu + 1.0) * np.log1p((z / math.sqrt(nu)) ** 2)))

    def cdf(self, z: FloatArray) -> FloatArray:
        half = 0.5 * self.degrees
        part = z * z / self.degrees
        # Each form of the incomplete beta function is precise on its own side.
        near = np.minimum(part, 1.0)
        below = 0.5 * np.where(
            part < 1.0, betaincc(0.5, half, near / (1.0 + near)), betainc(half, 0.5, 1.0 / (1.0 + part))
        )
        return np.asarray(np.where(z <= 0.0, below, 1.0 - below))

    def quantile(self, q: FloatArray) -> FloatArray:
        half = 0.5 * self.degrees
        both = 2.0 * np.minimum(q, 1.0 - q)
        near = betainccinv(0.5, half, both)
        far = betaincinv(half, 0.5, both)
        inner = np.minimum(near, 0.5)
        part = np.where(near <= 0.5, inner / (1.0 - inner), (1.0 - far) / far)
        size = np.sqrt(self.degrees * part)
        return np.asarray(np.where(q < 0.5, -size, size))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        return np.asarray(rng.standard_t(self.degrees, size))


@dataclass(frozen=True)
class RoundedLaplace(Noise):
    """Laplace's distribution with a tip that is Gaussian up to |z| = `tip`: the density is exp(−h(z)) / C.

    h(z) = z²/(2 tip) + tip/2 in the tip, and |z| beyond. Without a tip the variance is 2.

    >>> noise = RoundedLaplace(1e-9)
    >>> round(noise.variance, 6), round(noise.quantile_at(0.25) + math.log(2.0), 6) + 0.0
    (2.0, 0.0)
    """

    tip: float

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
    def entropy(self) -> float:
        """Entropy in nats, log C + E[h(z)]; E[z h′(z)] = 1 by parts, z h′ being h outside the tip, 2 h − tip inside."""
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
        inside = 0.5 - 0.5 * self._inside / self.area * erf(edge)
        below = np.where(size > self.tip, tail, inside)
        return np.asarray(np.where(z <= 0.0, below, 1.0 - below))

    def quantile(self, q: FloatArray) -> FloatArray:
        lower = np.minimum(q, 1.0 - q)
        share = np.clip((0.5 - lower) * 2.0 * self.area / self._inside, 0.0, 1.0)
        inside = math.sqrt(2.0 * self.tip) * erfinv(share)
        # In the tail use the tail's own formula: the inverse error function may be infinite there.
        size = np.where(lower * self.area < math.exp(-self.tip), -np.log(lower * self.area), inside)
        return np.asarray(np.where(q < 0.5, -size, size))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        uniform = rng.random(size)
        return self.quantile(np.maximum(uniform, 2.0**-54))


NORMAL = Normal()
