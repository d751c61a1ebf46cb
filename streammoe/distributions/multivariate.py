"""Distributions of several targets at once: mixtures of components of the same kind."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from streammoe.distributions.parts import numbers
from streammoe.distributions.univariate import Mixture
from streammoe.errors import ConfigError
from streammoe.types import FloatArray


class MultivariateMixture(ABC):
    """A mixture of K distributions of Q numbers, of the same kind; arrays over outputs are in the order of `names`."""

    shares: FloatArray
    means: FloatArray
    names: Sequence[Hashable]

    @abstractmethod
    def _within(self) -> FloatArray:
        """Return the variances of each output in each component, (K, Q)."""

    @abstractmethod
    def _matrices(self) -> FloatArray:
        """Return the covariances of the components, (K, Q, Q)."""

    @abstractmethod
    def _log_densities(self, errors: FloatArray) -> FloatArray:
        """Return the logarithms of the components' densities, (…, K), at y − μ_k, (…, K, Q)."""

    @abstractmethod
    def _marginal(self, q: int) -> Mixture:
        """Return the distribution of output q."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """Draw one sample (Q,), or an array of shape `size`, with the outputs along an additional last axis."""

    def mean(self) -> FloatArray:
        """Return E[y] = Σ_k g_k μ_k, (Q,)."""
        return np.asarray(np.sum(self.shares[:, None] * self.means, axis=0))

    def variance(self) -> FloatArray:
        """Return Var[y_q], the diagonal of `covariance`, (Q,)."""
        return np.asarray(np.sum(self.shares[:, None] * (self._within() + (self.means - self.mean()) ** 2), axis=0))

    def covariance(self) -> FloatArray:
        """Return Cov[y] = Σ_k g_k (Σ_k + (μ_k − E[y]) (μ_k − E[y])ᵀ), (Q, Q); Σ_k are the components' covariances."""
        apart = self.means - self.mean()
        between = apart[:, :, None] * apart[:, None, :]
        return np.asarray(np.sum(self.shares[:, None, None] * (self._matrices() + between), axis=0))

    def pdf(self, y: ArrayLike) -> float | FloatArray:
        """Return the density at y (Q,), or at each row of an array (…, Q).

        Raises:
            ConfigError: rows have another length.
        """
        points = numbers("y", y)
        Q = self.means.shape[1]
        if points.ndim == 0 or points.shape[-1] != Q:
            raise ConfigError(f"y: got shape {points.shape}; its last axis must hold the {Q} outputs {self.names!r}")
        density = np.sum(self.shares * np.exp(self._log_densities(points[..., None, :] - self.means)), axis=-1)
        return float(density) if points.ndim == 1 else np.asarray(density)

    def marginal(self, name: Hashable) -> Mixture:
        """Return the distribution of one output.

        Raises:
            ConfigError: there is no output of this name.
        """
        if name not in self.names:
            raise ConfigError(f"marginal: there is no output {name!r}; the outputs are {list(self.names)!r}")
        return self._marginal(self.names.index(name))

    def interval(self, level: float = 0.9) -> dict[Hashable, tuple[float, float]]:
        """Return for each output separately the central interval that contains it with probability `level`.

        The probability that all intervals contain their output at once is smaller.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        return {name: self.marginal(name).interval(level) for name in self.names}
