"""Noise that experts may have: the distribution of what they leave unexplained, around 0 and at scale 1."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import cache
from types import ModuleType
from typing import ClassVar

import numpy as np

from streammoe.types import FloatArray


class ExpertNoise(ABC):
    """Noise of experts: the object that users pass as `expert`, a symmetric distribution around 0 at scale 1.

    A subclass is made a frozen object of options by `streammoe.fields.part`; all options have defaults. Its docstring
    begins with the sentence that the reference shows. Settings are read without SciPy, whose import takes a while:
    methods get its functions from `special`.

    Arrays go through SciPy's functions element by element.
    """

    name: ClassVar[str]
    """Its kind in settings, which is short for the object with its defaults, and the name of its file of kernels."""
    most_outputs: ClassVar[int | None] = 1
    """Largest number of outputs; None sets no limit, which takes `log_density` and `joint_sample`."""

    @property
    def family(self) -> str:
        """Name of the family of experts with this noise."""
        return self.name

    def shape(self, n_outputs: int) -> tuple[float, ...]:
        """Return the numbers that its kernels get at run time."""
        return ()

    @property
    def kink(self) -> float:
        """|z| at which the density is not smooth; infinite if it is everywhere."""
        return math.inf

    @property
    @abstractmethod
    def variance(self) -> float:
        """Variance at scale 1."""

    @abstractmethod
    def entropy(self, n_outputs: int) -> float:
        """Return the entropy of the noise of Q outputs at scale 1, in nats."""

    def location_variance(self, n_outputs: int) -> float:
        """Return the variance of an efficient estimate of where Q outputs are, from one event at scale 1.

        That is the inverse of the Fisher information, times the mean weight of events in Gram matrices; NaN where such
        weights have no mean that says anything.
        """
        return math.nan

    # -- One output ----------------------------------------------------------------------------------------------------

    def pdf(self, z: FloatArray) -> FloatArray:
        """Return the density."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(self.log_density(z * z, 1)))

    @abstractmethod
    def cdf(self, z: FloatArray) -> FloatArray:
        """Return P(Z ≤ z); small probabilities have full relative precision."""

    @abstractmethod
    def quantile(self, q: FloatArray) -> FloatArray:
        """Return z with P(Z ≤ z) = q, for probabilities in (0, 1); small ones have full relative precision."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        """Draw random numbers."""

    # -- Several outputs -----------------------------------------------------------------------------------------------

    def spread(self, n_outputs: int) -> float:
        """Return the variance of each of Q outputs at scale 1."""
        return self.variance

    def log_density(self, squares: FloatArray, n_outputs: int) -> FloatArray:
        """Return the logarithm of the density of Q outputs at scale 1, given squared distances δ² from 0."""
        raise NotImplementedError

    def joint_sample(self, rng: np.random.Generator, size: tuple[int, ...], n_outputs: int) -> FloatArray:
        """Draw noise of Q outputs at scale 1, along an additional last axis."""
        raise NotImplementedError


@cache
def special() -> ModuleType:
    """Return `scipy.special`, imported at its first use: settings name a noise, and are read without SciPy."""
    import scipy.special

    return scipy.special  # type: ignore[no-any-return]  # SciPy has no types
