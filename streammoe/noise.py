"""Noise: the distribution of one number around 0, at scale 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from types import ModuleType

import numpy as np

from streammoe.types import FloatArray


class Noise(ABC):
    """A symmetric distribution of one number around 0.

    Arrays go through SciPy's functions element by element; single numbers, of which a search for a quantile needs many,
    may have faster implementations.
    """

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance at scale 1."""

    @property
    def kink(self) -> float:
        """|z| at which the density is not smooth; infinite if it is everywhere."""
        return math.inf

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


@cache
def special() -> ModuleType:
    """Return `scipy.special`, imported at its first use: settings name a noise, and are read without SciPy."""
    import scipy.special

    return scipy.special  # type: ignore[no-any-return]  # SciPy has no types
