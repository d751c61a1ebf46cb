"""Normal noise: N(0, 1), of several outputs independent or correlated."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from streammoe.distributions.contract import ExpertNoise
from streammoe.distributions.multivariate import MultivariateMixture
from streammoe.distributions.parts import (
    ROOT_2PI,
    choose,
    diagonals,
    finite,
    keep,
    keep_outputs,
    keep_parts,
    lower_factors,
    positive,
)
from streammoe.distributions.univariate import Mixture
from streammoe.fields import option, part
from streammoe.noise import Noise, special
from streammoe.types import FloatArray

_ROOT_2 = math.sqrt(2.0)
_STANDARD = NormalDist()
_FAR = 40.0
"""Deviations from its centre at which a Gaussian density underflows."""


@part
class Gaussian(ExpertNoise):
    """Normal noise; of several outputs it is independent, or correlated if `covariance` is "full"."""

    covariance: Literal["diagonal", "full"] = option(
        "diagonal", 'Noise of several outputs: independent; "full": correlated.'
    )

    name = "gaussian"
    most_outputs = None
    variance = 1.0

    @property
    def family(self) -> str:
        """Name of the family of experts with this covariance."""
        return "gaussian_full" if self.covariance == "full" else "gaussian"

    def pdf(self, z: FloatArray) -> FloatArray:
        return np.asarray(np.exp(-0.5 * np.minimum(np.abs(z), _FAR) ** 2) / ROOT_2PI)

    def cdf(self, z: FloatArray) -> FloatArray:
        return np.asarray(special().ndtr(z))

    def quantile(self, q: FloatArray) -> FloatArray:
        return np.asarray(special().ndtri(q))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        return np.asarray(rng.standard_normal(size))

    def pdf_at(self, z: float) -> float:
        return math.exp(-0.5 * z * z) / ROOT_2PI

    def cdf_at(self, z: float) -> float:
        return 0.5 * math.erfc(-z / _ROOT_2)

    def quantile_at(self, q: float) -> float:
        return _STANDARD.inv_cdf(q)

    def entropy(self, n_outputs: int) -> float:
        return 0.5 * n_outputs * math.log(2.0 * math.pi * math.e)

    def mixture(self, shares: FloatArray, means: FloatArray, squares: FloatArray) -> GaussianMixture:
        return GaussianMixture(shares, means, squares)

    def joint_mixture(
        self, shares: FloatArray, means: FloatArray, squares: FloatArray, names: Sequence[Hashable]
    ) -> MultivariateGaussianMixture:
        """Return the mixture of K components of Q outputs; `squares` are variances (K, Q) or covariances (K, Q, Q)."""
        return MultivariateGaussianMixture(shares, means, squares if squares.ndim == 2 else _regular(squares), names)


def _regular(covariances: FloatArray) -> FloatArray:
    """Return Σ, (K, Q, Q), with the least multiple of its diagonal added that makes it positive definite.

    Outputs that depend on each other linearly have a singular one, which rounding may make indefinite.
    """
    diagonal = diagonals(np.diagonal(covariances, axis1=1, axis2=2))
    for exponent in (None, *range(-14, 0)):
        regular = covariances if exponent is None else covariances + 10.0**exponent * diagonal
        try:
            np.linalg.cholesky(regular)
        except np.linalg.LinAlgError:
            continue
        break
    return np.asarray(regular)


NORMAL = Gaussian()


@dataclass(frozen=True, eq=False)
class GaussianMixture(Mixture):
    """A mixture of K normal distributions of one number: Σ_k shares_k N(means_k, variances_k).

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K,) finite.
        variances: (K,) above 0.

    Raises:
        ConfigError: arrays of other shapes or with other values.

    >>> two = GaussianMixture([0.5, 0.5], [-1.0, 3.0], [1.0, 1.0])
    >>> two.mean(), two.variance()
    (1.0, 5.0)
    >>> low, high = two.interval(0.9)
    >>> round(low, 3), round(high, 3)
    (-2.282, 4.282)
    """

    shares: FloatArray
    means: FloatArray
    variances: FloatArray

    def __post_init__(self) -> None:
        keep_parts(self, "variances")

    @property
    def noise(self) -> Noise:
        """N(0, 1)."""
        return NORMAL

    @property
    def _squares(self) -> FloatArray:
        return self.variances


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


NOISE = Gaussian
