"""Student-t noise, whose tails are heavy: experts are robust to outliers.

t_ν of Q outputs with diagonal scales; it has a variance where ν is above 2.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from streammoe.distributions.contract import ExpertNoise
from streammoe.distributions.multivariate import MultivariateMixture
from streammoe.distributions.parts import (
    choose,
    diagonals,
    finite,
    keep,
    keep_outputs,
    keep_parts,
    positive,
)
from streammoe.distributions.univariate import Mixture
from streammoe.errors import ConfigError
from streammoe.fields import option, part, unchecked
from streammoe.noise import Noise, special
from streammoe.text import shown
from streammoe.types import FloatArray


@part
class StudentT(ExpertNoise):
    """Noise with heavy tails: the smaller `df`, above 2, the less an event far out counts.

    Several outputs share one t, and so one weight per event.

    >>> noise = StudentT(df=4.0)
    >>> noise.variance, round(noise.quantile_at(0.975), 6)
    (2.0, 2.776445)
    """

    df: float = option(4.0, "Degrees of freedom; predictions have no variance at 2 or below.", gt=2, le=1e6)

    name = "student_t"
    most_outputs = None

    def shape(self, n_outputs: int) -> tuple[float, ...]:
        """Return ν."""
        return (self.df,)

    @property
    def variance(self) -> float:
        """ν / (ν − 2)."""
        return self.df / (self.df - 2.0)

    @cached_property
    def _peak(self) -> float:
        half = 0.5 * self.df
        return float(np.exp(special().gammaln(half + 0.5) - special().gammaln(half))) / math.sqrt(self.df * math.pi)

    def pdf(self, z: FloatArray) -> FloatArray:
        return np.asarray(self._peak * np.exp(-0.5 * (self.df + 1.0) * np.log1p((z / math.sqrt(self.df)) ** 2)))

    def cdf(self, z: FloatArray) -> FloatArray:
        half = 0.5 * self.df
        ratio = z * z / self.df
        # Each form of the incomplete beta function is precise on its own side.
        near = np.minimum(ratio, 1.0)
        below = 0.5 * np.where(
            ratio < 1.0,
            special().betaincc(0.5, half, near / (1.0 + near)),
            special().betainc(half, 0.5, 1.0 / (1.0 + ratio)),
        )
        return np.asarray(np.where(z <= 0.0, below, 1.0 - below))

    def quantile(self, q: FloatArray) -> FloatArray:
        half = 0.5 * self.df
        both = 2.0 * np.minimum(q, 1.0 - q)
        near = special().betainccinv(0.5, half, both)
        far = special().betaincinv(half, 0.5, both)
        inner = np.minimum(near, 0.5)
        ratio = np.where(near <= 0.5, inner / (1.0 - inner), (1.0 - far) / far)
        size = np.sqrt(self.df * ratio)
        return np.asarray(np.where(q < 0.5, -size, size))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        return np.asarray(rng.standard_t(self.df, size))

    def log_peak(self, n_outputs: int) -> float:
        """Return the logarithm of the density of Q outputs at 0 and scale 1."""
        nu, Q = self.df, n_outputs
        return math.lgamma(0.5 * (nu + Q)) - math.lgamma(0.5 * nu) - 0.5 * Q * math.log(nu * math.pi)

    def entropy(self, n_outputs: int) -> float:
        nu, Q = self.df, n_outputs
        energy = 0.5 * (nu + Q) * float(special().digamma(0.5 * (nu + Q)) - special().digamma(0.5 * nu))
        return energy - self.log_peak(Q)

    def mixture(self, shares: FloatArray, means: FloatArray, squares: FloatArray) -> StudentTMixture:
        return StudentTMixture(shares, means, np.sqrt(squares), self.df)

    def joint_mixture(
        self, shares: FloatArray, means: FloatArray, squares: FloatArray, names: Sequence[Hashable]
    ) -> MultivariateStudentTMixture:
        return MultivariateStudentTMixture(shares, means, np.sqrt(squares), self.df, names)


NOISE = StudentT


@dataclass(frozen=True, eq=False)
class StudentTMixture(Mixture):
    """A mixture of K Student-t distributions of one number: Σ_k shares_k t_ν(means_k, scales_k).

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K,) finite.
        scales: (K,) above 0; a component's variance is ν/(ν − 2) times its square.
        degrees_of_freedom: ν above 2.

    Raises:
        ConfigError: arrays of other shapes or with other values, or fewer degrees of freedom.

    >>> two = StudentTMixture([0.5, 0.5], [-1.0, 3.0], [1.0, 1.0], 4.0)
    >>> two.mean(), two.variance()
    (1.0, 6.0)
    >>> low, high = two.interval(0.9)
    >>> round(low, 3), round(high, 3)
    (-2.555, 4.555)
    """

    shares: FloatArray
    means: FloatArray
    scales: FloatArray
    degrees_of_freedom: float

    def __post_init__(self) -> None:
        keep_parts(self, "scales")
        _check_degrees(self.degrees_of_freedom)

    @property
    def noise(self) -> Noise:
        """Student's t distribution around 0 at scale 1."""
        return _noise(self.degrees_of_freedom)

    @property
    def _squares(self) -> FloatArray:
        return np.asarray(self.scales**2)


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
        _check_degrees(self.degrees_of_freedom)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """Draw one sample (Q,), or an array of shape `size`, with the outputs along an additional last axis."""
        chosen = choose(self.shares, rng, size)
        normal = rng.standard_normal((*np.shape(chosen), self.means.shape[1]))
        stretch = np.sqrt(self.degrees_of_freedom / rng.chisquare(self.degrees_of_freedom, np.shape(chosen)))
        return np.asarray(self.means[chosen] + self.scales[chosen] * normal * np.asarray(stretch)[..., None])

    def _within(self) -> FloatArray:
        return np.asarray(_noise(self.degrees_of_freedom).variance * self.scales**2)

    def _matrices(self) -> FloatArray:
        return diagonals(self._within())

    def _log_densities(self, errors: FloatArray) -> FloatArray:
        nu, Q = self.degrees_of_freedom, errors.shape[-1]
        squares = np.sum((errors / self.scales) ** 2, axis=-1)
        peak = _noise(nu).log_peak(Q)
        return np.asarray(peak - np.sum(np.log(self.scales), axis=-1) - 0.5 * (nu + Q) * np.log1p(squares / nu))

    def _marginal(self, q: int) -> StudentTMixture:
        return StudentTMixture(self.shares, self.means[:, q], self.scales[:, q], self.degrees_of_freedom)


def _noise(degrees: float) -> StudentT:
    """Return the noise of a mixture, which may have more degrees of freedom than experts."""
    return unchecked(StudentT, df=degrees)


def _check_degrees(degrees: float) -> None:
    """Raise `ConfigError` unless a Student-t distribution of these degrees of freedom has a variance."""
    if not 2.0 < degrees <= sys.float_info.max:
        raise ConfigError(
            f"degrees_of_freedom: got {shown(degrees)}; it must be a finite number above 2, where there is a variance"
        )
