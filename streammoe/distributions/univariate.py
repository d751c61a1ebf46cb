"""Distributions of one target: mixtures of components that differ in location and scale."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import overload

import numpy as np

from streammoe.distributions.parts import choose, keep_parts, like, numbers, tail_of
from streammoe.errors import ConfigError
from streammoe.noise import Noise
from streammoe.quantiles import lower_quantile
from streammoe.text import shown
from streammoe.types import FloatArray


class Mixture(ABC):
    """A mixture of K distributions of one number that differ only in location and scale."""

    shares: FloatArray
    means: FloatArray

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """Distribution of each component at mean 0 and scale 1."""

    @property
    @abstractmethod
    def _squares(self) -> FloatArray:
        """Return squared scales (K,)."""

    def mean(self) -> float:
        """Return E[y] = Σ_k g_k μ_k."""
        return float(np.sum(self.shares * self.means))

    def variance(self) -> float:
        """Return Var[y] = Σ_k g_k (σ²_k + (μ_k − E[y])²) by the law of total variance; σ²_k are component variances."""
        within = self.noise.variance * self._squares
        return float(np.sum(self.shares * (within + (self.means - self.mean()) ** 2)))

    @overload
    def pdf(self, y: float) -> float: ...
    @overload
    def pdf(self, y: FloatArray) -> FloatArray: ...
    def pdf(self, y: float | FloatArray) -> float | FloatArray:
        """Return the density at a number, or at each number of an array."""
        scales = np.sqrt(self._squares)
        scores = (numbers("y", y)[..., None] - self.means) / scales
        return like(y, np.sum(self.shares * self.noise.pdf(scores) / scales, axis=-1))

    @overload
    def cdf(self, y: float) -> float: ...
    @overload
    def cdf(self, y: FloatArray) -> FloatArray: ...
    def cdf(self, y: float | FloatArray) -> float | FloatArray:
        """Return P(Y ≤ y) at a number, or at each of an array; small probabilities have full relative precision."""
        scores = (numbers("y", y)[..., None] - self.means) / np.sqrt(self._squares)
        return like(y, np.minimum(np.sum(self.shares * self.noise.cdf(scores), axis=-1), 1.0))

    @overload
    def quantile(self, q: float) -> float: ...
    @overload
    def quantile(self, q: FloatArray) -> FloatArray: ...
    def quantile(self, q: float | FloatArray) -> float | FloatArray:
        """Return the y with P(Y ≤ y) = q, for one probability or an array of them.

        It is accurate to 1e-13 of the smallest scale among the components, or to the last digits of y. If components
        are so far apart that P(Y ≤ y) equals q, in floating point, everywhere between them, it is a point in between.

        Raises:
            ConfigError: a probability is outside (0, 1).
        """
        probabilities = numbers("q", q)
        if not np.all((probabilities > 0.0) & (probabilities < 1.0)):
            raise ConfigError(f"q: got {shown(q)}; a probability must lie between 0 and 1, both excluded")
        alive = self.shares > 0.0
        shares = self.shares[alive].tolist()
        means = self.means[alive].tolist()
        scales = np.sqrt(self._squares[alive]).tolist()
        mirrored = [-mean for mean in means]

        def find(probability: float) -> float:
            # Compute upper quantiles as lower ones of −Y: 1 − q is exact there, and precision is not lost.
            if probability > 0.5:
                return -lower_quantile(1.0 - probability, shares, mirrored, scales, self.noise)
            return lower_quantile(probability, shares, means, scales, self.noise)

        found = np.array([find(each) for each in probabilities.ravel().tolist()])
        return like(q, found.reshape(probabilities.shape))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central interval that contains y with probability `level`; both tails have equal probability.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        # 1 − tail and not (1 + level)/2: the upper quantile then mirrors the lower one to the last digit.
        tail = tail_of(level)
        return self.quantile(tail), self.quantile(1.0 - tail)

    @overload
    def sample(self, rng: np.random.Generator, size: None = None) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> FloatArray: ...
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> float | FloatArray:
        """Draw one random number, or an array of shape `size`."""
        chosen = choose(self.shares, rng, size)
        drawn = self.means[chosen] + np.sqrt(self._squares[chosen]) * self.noise.sample(rng, size)
        return float(drawn) if size is None else np.asarray(drawn)


@dataclass(frozen=True, eq=False)
class ScaleMixture(Mixture):
    """A mixture of K distributions of one number that are a noise, scaled and moved.

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K,) finite.
        scales: (K,) above 0.
        component: the noise.

    Raises:
        ConfigError: arrays of other shapes or with other values.
    """

    shares: FloatArray
    means: FloatArray
    scales: FloatArray
    component: Noise

    def __post_init__(self) -> None:
        keep_parts(self, "scales")

    @property
    def noise(self) -> Noise:
        """Distribution of each component at mean 0 and scale 1."""
        return self.component

    @property
    def _squares(self) -> FloatArray:
        return np.asarray(self.scales**2)
