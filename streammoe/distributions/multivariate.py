"""Distributions of several targets at once: mixtures of Gaussian or Student-t components."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from streammoe.distributions.parts import (
    ROOT_2PI,
    check_degrees,
    choose,
    diagonals,
    finite,
    keep,
    keep_outputs,
    lower_factors,
    numbers,
    positive,
)
from streammoe.distributions.univariate import GaussianMixture, Mixture, StudentTMixture
from streammoe.errors import ConfigError
from streammoe.noise import StudentT
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


@dataclass(frozen=True, eq=False)
class MultivariateGaussianMixture(MultivariateMixture):
    """A mixture of K normal distributions of Q numbers: Σ_k shares_k N(means_k, covariances_k).

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K, Q) finite.
        covariances: (K, Q, Q) symmetric and positive definite, or (K, Q) above 0: the diagonals of such matrices.
        names: names of the Q outputs, all different; by default y0, y1, …

    Raises:
        ConfigError: arrays of other shapes or with other values, or as many names as there are not outputs.

    >>> both = MultivariateGaussianMixture(
    ...     [0.5, 0.5], [[0.0, 1.0], [2.0, 1.0]], [[1.0, 4.0], [1.0, 4.0]], names=["height", "weight"]
    ... )
    >>> both.mean().tolist(), both.variance().tolist()
    ([1.0, 1.0], [2.0, 4.0])
    >>> round(both.marginal("weight").quantile(0.5), 6)
    1.0
    """

    shares: FloatArray
    means: FloatArray
    covariances: FloatArray
    names: Sequence[Hashable] = ()

    def __post_init__(self) -> None:
        K, Q = keep_outputs(self)
        if np.ndim(self.covariances) == 2:
            covariances = positive("covariances", finite("covariances", self.covariances, (K, Q)))
        else:
            covariances = finite("covariances", self.covariances, (K, Q, Q))
            lower_factors(covariances)
        keep(self, "covariances", covariances)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """Draw one sample (Q,), or an array of shape `size`, with the outputs along an additional last axis."""
        chosen = choose(self.shares, rng, size)
        normal = rng.standard_normal((*np.shape(chosen), self.means.shape[1]))
        if self._is_diagonal:
            return np.asarray(self.means[chosen] + np.sqrt(self.covariances)[chosen] * normal)
        factors = lower_factors(self.covariances)
        return np.asarray(self.means[chosen] + np.sum(factors[chosen] * normal[..., None, :], axis=-1))

    @property
    def _is_diagonal(self) -> bool:
        return self.covariances.ndim == 2

    def _within(self) -> FloatArray:
        return self.covariances if self._is_diagonal else np.diagonal(self.covariances, axis1=1, axis2=2)

    def _matrices(self) -> FloatArray:
        return diagonals(self.covariances) if self._is_diagonal else self.covariances

    def _log_densities(self, errors: FloatArray) -> FloatArray:
        if self._is_diagonal:
            deviations = np.sqrt(self.covariances)
            scores = errors / deviations
            log_scale = np.sum(np.log(deviations), axis=-1)
        else:
            factors = lower_factors(self.covariances)
            scores = np.asarray(np.linalg.solve(factors, errors[..., None])[..., 0], dtype=np.float64)
            log_scale = np.sum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=-1)
        return np.asarray(-0.5 * np.sum(scores**2, axis=-1) - log_scale - errors.shape[-1] * math.log(ROOT_2PI))

    def _marginal(self, q: int) -> GaussianMixture:
        return GaussianMixture(self.shares, self.means[:, q], self._within()[:, q])


@dataclass(frozen=True, eq=False)
class MultivariateStudentTMixture(MultivariateMixture):
    """A mixture of K multivariate Student-t distributions of Q numbers with diagonal scales.

    Within a component outputs are uncorrelated but not independent: they are outliers together.

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K, Q) finite.
        scales: (K, Q) above 0; a component's variances are ν/(ν − 2) times their squares.
        degrees_of_freedom: ν above 2.
        names: names of the Q outputs, all different; by default y0, y1, …

    Raises:
        ConfigError: arrays of other shapes or with other values, or as many names as there are not outputs.

    >>> one = MultivariateStudentTMixture([1.0], [[0.0, 1.0]], [[1.0, 2.0]], 4.0)
    >>> one.variance().tolist(), round(one.marginal("y1").quantile(0.975), 3)
    ([2.0, 8.0], 6.553)
    """

    shares: FloatArray
    means: FloatArray
    scales: FloatArray
    degrees_of_freedom: float
    names: Sequence[Hashable] = ()

    def __post_init__(self) -> None:
        keep(self, "scales", positive("scales", finite("scales", self.scales, keep_outputs(self))))
        check_degrees(self.degrees_of_freedom)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """Draw one sample (Q,), or an array of shape `size`, with the outputs along an additional last axis."""
        chosen = choose(self.shares, rng, size)
        normal = rng.standard_normal((*np.shape(chosen), self.means.shape[1]))
        stretch = np.sqrt(self.degrees_of_freedom / rng.chisquare(self.degrees_of_freedom, np.shape(chosen)))
        return np.asarray(self.means[chosen] + self.scales[chosen] * normal * np.asarray(stretch)[..., None])

    def _within(self) -> FloatArray:
        return np.asarray(StudentT(self.degrees_of_freedom).variance * self.scales**2)

    def _matrices(self) -> FloatArray:
        return diagonals(self._within())

    def _log_densities(self, errors: FloatArray) -> FloatArray:
        nu, Q = self.degrees_of_freedom, errors.shape[-1]
        squares = np.sum((errors / self.scales) ** 2, axis=-1)
        peak = math.lgamma(0.5 * (nu + Q)) - math.lgamma(0.5 * nu) - 0.5 * Q * math.log(nu * math.pi)
        return np.asarray(peak - np.sum(np.log(self.scales), axis=-1) - 0.5 * (nu + Q) * np.log1p(squares / nu))

    def _marginal(self, q: int) -> StudentTMixture:
        return StudentTMixture(self.shares, self.means[:, q], self.scales[:, q], self.degrees_of_freedom)
