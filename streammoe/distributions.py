"""What a mixture predicts for one event: a distribution, with its moments, density, quantiles and samples.

No state and no learning. K components are the experts at one input: their shares are the gate's probabilities, their
means Υ_k φ(x), their scales what their noise has. All numbers are in the target's own units.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike

from streammoe.errors import ConfigError
from streammoe.noise import NORMAL, Noise, RoundedLaplace, StudentT
from streammoe.quantiles import lower_quantile
from streammoe.types import AnyArray, FloatArray

SHARES_OFF = 1e-6
"""How far shares may be from adding up to 1; they are rescaled, so that rounding does not matter."""

_ROOT_2PI = math.sqrt(2.0 * math.pi)


class Mixture(ABC):
    """A mixture of K distributions of one number, of the same kind but for place and scale."""

    shares: FloatArray
    means: FloatArray

    @property
    @abstractmethod
    def noise(self) -> Noise:
        """What each component is at mean 0 and scale 1."""

    @property
    @abstractmethod
    def _squares(self) -> FloatArray:
        """(K,) squared scales."""

    def mean(self) -> float:
        """E[y] = Σ_k g_k μ_k."""
        return float(np.sum(self.shares * self.means))

    def variance(self) -> float:
        """Var[y] = Σ_k g_k (σ²_k + (μ_k − E[y])²), the law of total variance; σ²_k are the components' variances."""
        within = self.noise.variance * self._squares
        return float(np.sum(self.shares * (within + (self.means - self.mean()) ** 2)))

    @overload
    def pdf(self, y: float) -> float: ...
    @overload
    def pdf(self, y: FloatArray) -> FloatArray: ...
    def pdf(self, y: float | FloatArray) -> float | FloatArray:
        """The density at a number, or at each number of an array."""
        scales = np.sqrt(self._squares)
        scores = (_numbers("y", y)[..., None] - self.means) / scales
        return _like(y, np.sum(self.shares * self.noise.pdf(scores) / scales, axis=-1))

    @overload
    def cdf(self, y: float) -> float: ...
    @overload
    def cdf(self, y: FloatArray) -> FloatArray: ...
    def cdf(self, y: float | FloatArray) -> float | FloatArray:
        """P(Y ≤ y) at a number, or at each number of an array; small probabilities keep their digits."""
        scores = (_numbers("y", y)[..., None] - self.means) / np.sqrt(self._squares)
        return _like(y, np.minimum(np.sum(self.shares * self.noise.cdf(scores), axis=-1), 1.0))

    @overload
    def quantile(self, q: float) -> float: ...
    @overload
    def quantile(self, q: FloatArray) -> FloatArray: ...
    def quantile(self, q: float | FloatArray) -> float | FloatArray:
        """The y with P(Y ≤ y) = q, for one probability or an array of them.

        It is found to 1e-13 of the smallest scale among the components, or to the last digits of y. Where components
        lie so far apart that P(Y ≤ y) is q, in floating point, all the way between them, it is a point in between.

        Raises:
            ConfigError: a probability outside (0, 1).
        """
        probabilities = _numbers("q", q)
        if not np.all((probabilities > 0.0) & (probabilities < 1.0)):
            raise ConfigError(f"q: got {q!r}; a probability must lie between 0 and 1, both excluded")
        alive = self.shares > 0.0
        shares = self.shares[alive].tolist()
        means = self.means[alive].tolist()
        scales = np.sqrt(self._squares[alive]).tolist()
        mirrored = [-mean for mean in means]

        def find(probability: float) -> float:
            # Upper quantiles as lower ones of −Y: 1 − q is exact there, and small probabilities keep their digits.
            if probability > 0.5:
                return -lower_quantile(1.0 - probability, shares, mirrored, scales, self.noise)
            return lower_quantile(probability, shares, means, scales, self.noise)

        found = np.array([find(each) for each in probabilities.ravel().tolist()])
        return _like(q, found.reshape(probabilities.shape))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """The central interval that holds y with probability `level`: as much is left out below it as above.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        # 1 − tail and not (1 + level)/2: the upper quantile then mirrors the lower one to the last digit.
        tail = _tail(level)
        return self.quantile(tail), self.quantile(1.0 - tail)

    @overload
    def sample(self, rng: np.random.Generator, size: None = None) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> FloatArray: ...
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> float | FloatArray:
        """One random draw, or an array of them of shape `size`."""
        chosen = _choose(self.shares, rng, size)
        drawn = self.means[chosen] + np.sqrt(self._squares[chosen]) * self.noise.sample(rng, size)
        return float(drawn) if size is None else np.asarray(drawn)


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
        _keep_parts(self, "variances")

    @property
    def noise(self) -> Noise:
        """N(0, 1)."""
        return NORMAL

    @property
    def _squares(self) -> FloatArray:
        return self.variances


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
        _keep_parts(self, "scales")
        _check_degrees(self.degrees_of_freedom)

    @property
    def noise(self) -> Noise:
        """Student's t around 0 at scale 1."""
        return StudentT(self.degrees_of_freedom)

    @property
    def _squares(self) -> FloatArray:
        return np.asarray(self.scales**2)


@dataclass(frozen=True, eq=False)
class LaplaceMixture(Mixture):
    """A mixture of K Laplace distributions of one number, whose tips are rounded: see `streammoe.noise.RoundedLaplace`.

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
        _keep_parts(self, "scales")
        if not 0.0 < self.tip < math.inf:
            raise ConfigError(f"tip: got {self.tip!r}; it must be above 0")

    @property
    def noise(self) -> Noise:
        """The rounded Laplace distribution around 0 at scale 1."""
        return RoundedLaplace(self.tip)

    @property
    def _squares(self) -> FloatArray:
        return np.asarray(self.scales**2)


def mixture_of(noise: Noise, shares: FloatArray, means: FloatArray, squares: FloatArray) -> Mixture:
    """The mixture of components of this noise with squared scales (K,)."""
    match noise:
        case StudentT(degrees):
            return StudentTMixture(shares, means, np.sqrt(squares), degrees)
        case RoundedLaplace(tip):
            return LaplaceMixture(shares, means, np.sqrt(squares), tip)
    return GaussianMixture(shares, means, squares)


class MultivariateMixture(ABC):
    """A mixture of K distributions of Q numbers, of the same kind; arrays over outputs are in the order of `names`."""

    shares: FloatArray
    means: FloatArray
    names: Sequence[Hashable]

    @abstractmethod
    def _within(self) -> FloatArray:
        """(K, Q) variances of each output in each component."""

    @abstractmethod
    def _matrices(self) -> FloatArray:
        """(K, Q, Q) covariances of the components."""

    @abstractmethod
    def _log_densities(self, errors: FloatArray) -> FloatArray:
        """(…, K) logarithms of the components' densities at y − μ_k, (…, K, Q)."""

    @abstractmethod
    def _marginal(self, q: int) -> Mixture:
        """The distribution of output q."""

    @abstractmethod
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """One random draw (Q,), or as many as `size` says, with the outputs along a last axis of their own."""

    def mean(self) -> FloatArray:
        """(Q,) E[y] = Σ_k g_k μ_k."""
        return np.asarray(np.sum(self.shares[:, None] * self.means, axis=0))

    def variance(self) -> FloatArray:
        """(Q,) Var[y_q], the diagonal of `covariance`."""
        return np.asarray(np.sum(self.shares[:, None] * (self._within() + (self.means - self.mean()) ** 2), axis=0))

    def covariance(self) -> FloatArray:
        """(Q, Q) Cov[y] = Σ_k g_k (Σ_k + (μ_k − E[y]) (μ_k − E[y])ᵀ), Σ_k the components' covariances."""
        apart = self.means - self.mean()
        between = apart[:, :, None] * apart[:, None, :]
        return np.asarray(np.sum(self.shares[:, None, None] * (self._matrices() + between), axis=0))

    def pdf(self, y: ArrayLike) -> float | FloatArray:
        """The density at y (Q,), or at each row of an array (…, Q).

        Raises:
            ConfigError: rows of another length.
        """
        points = _numbers("y", y)
        Q = self.means.shape[1]
        if points.ndim == 0 or points.shape[-1] != Q:
            raise ConfigError(f"y: got shape {points.shape}; its last axis must hold the {Q} outputs {self.names!r}")
        density = np.sum(self.shares * np.exp(self._log_densities(points[..., None, :] - self.means)), axis=-1)
        return float(density) if points.ndim == 1 else np.asarray(density)

    def marginal(self, name: Hashable) -> Mixture:
        """The distribution of one output.

        Raises:
            ConfigError: there is no output of this name.
        """
        if name not in self.names:
            raise ConfigError(f"marginal: there is no output {name!r}; the outputs are {list(self.names)!r}")
        return self._marginal(self.names.index(name))

    def interval(self, level: float = 0.9) -> dict[Hashable, tuple[float, float]]:
        """For each output by itself, the central interval that holds it with probability `level`.

        All of them together hold the whole event less often than that.

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
        names: of the Q outputs, all different; y0, y1, … unless told.

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
        K, Q = _keep_outputs(self)
        if np.ndim(self.covariances) == 2:
            covariances = _positive("covariances", _finite("covariances", self.covariances, (K, Q)))
        else:
            covariances = _finite("covariances", self.covariances, (K, Q, Q))
            _factors(covariances)
        _keep(self, "covariances", covariances)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """One random draw (Q,), or as many as `size` says, with the outputs along a last axis of their own."""
        chosen = _choose(self.shares, rng, size)
        normal = rng.standard_normal((*np.shape(chosen), self.means.shape[1]))
        if self._is_diagonal:
            return np.asarray(self.means[chosen] + np.sqrt(self.covariances)[chosen] * normal)
        factors = _factors(self.covariances)
        return np.asarray(self.means[chosen] + np.sum(factors[chosen] * normal[..., None, :], axis=-1))

    @property
    def _is_diagonal(self) -> bool:
        return self.covariances.ndim == 2

    def _within(self) -> FloatArray:
        return self.covariances if self._is_diagonal else np.diagonal(self.covariances, axis1=1, axis2=2)

    def _matrices(self) -> FloatArray:
        return _diagonals(self.covariances) if self._is_diagonal else self.covariances

    def _log_densities(self, errors: FloatArray) -> FloatArray:
        if self._is_diagonal:
            deviations = np.sqrt(self.covariances)
            scores = errors / deviations
            log_scale = np.sum(np.log(deviations), axis=-1)
        else:
            factors = _factors(self.covariances)
            scores = np.asarray(np.linalg.solve(factors, errors[..., None])[..., 0], dtype=np.float64)
            log_scale = np.sum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=-1)
        return np.asarray(-0.5 * np.sum(scores**2, axis=-1) - log_scale - errors.shape[-1] * math.log(_ROOT_2PI))

    def _marginal(self, q: int) -> GaussianMixture:
        return GaussianMixture(self.shares, self.means[:, q], self._within()[:, q])


@dataclass(frozen=True, eq=False)
class MultivariateStudentTMixture(MultivariateMixture):
    """A mixture of K multivariate Student-t distributions of Q numbers with diagonal scales.

    Within a component outputs are uncorrelated and yet depend on each other: they are far out together.

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K, Q) finite.
        scales: (K, Q) above 0; a component's variances are ν/(ν − 2) times their squares.
        degrees_of_freedom: ν above 2.
        names: of the Q outputs, all different; y0, y1, … unless told.

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
        _keep(self, "scales", _positive("scales", _finite("scales", self.scales, _keep_outputs(self))))
        _check_degrees(self.degrees_of_freedom)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """One random draw (Q,), or as many as `size` says, with the outputs along a last axis of their own."""
        chosen = _choose(self.shares, rng, size)
        normal = rng.standard_normal((*np.shape(chosen), self.means.shape[1]))
        stretch = np.sqrt(self.degrees_of_freedom / rng.chisquare(self.degrees_of_freedom, np.shape(chosen)))
        return np.asarray(self.means[chosen] + self.scales[chosen] * normal * np.asarray(stretch)[..., None])

    def _within(self) -> FloatArray:
        return np.asarray(StudentT(self.degrees_of_freedom).variance * self.scales**2)

    def _matrices(self) -> FloatArray:
        return _diagonals(self._within())

    def _log_densities(self, errors: FloatArray) -> FloatArray:
        nu, Q = self.degrees_of_freedom, errors.shape[-1]
        squares = np.sum((errors / self.scales) ** 2, axis=-1)
        peak = math.lgamma(0.5 * (nu + Q)) - math.lgamma(0.5 * nu) - 0.5 * Q * math.log(nu * math.pi)
        return np.asarray(peak - np.sum(np.log(self.scales), axis=-1) - 0.5 * (nu + Q) * np.log1p(squares / nu))

    def _marginal(self, q: int) -> StudentTMixture:
        return StudentTMixture(self.shares, self.means[:, q], self.scales[:, q], self.degrees_of_freedom)


def _keep_parts(mixture: Any, scales: str) -> None:
    """Check and keep shares, means and scales of a mixture of one number."""
    shares = _shares(mixture.shares)
    _keep(mixture, "shares", shares)
    _keep(mixture, "means", _finite("means", mixture.means, (len(shares),)))
    _keep(mixture, scales, _positive(scales, _finite(scales, getattr(mixture, scales), (len(shares),))))


def _keep_outputs(mixture: Any) -> tuple[int, int]:
    """Check and keep shares, means and names of a mixture of several; return K and Q."""
    shares = _shares(mixture.shares)
    _keep(mixture, "shares", shares)
    if np.ndim(mixture.means) != 2 or not np.shape(mixture.means)[1]:
        raise ConfigError(f"means: got shape {np.shape(mixture.means)}; it must be (K, Q) with K = {len(shares)}")
    K, Q = len(shares), np.shape(mixture.means)[1]
    _keep(mixture, "means", _finite("means", mixture.means, (K, Q)))
    names = tuple(mixture.names) or tuple(f"y{q}" for q in range(Q))
    if len(names) != Q or len(set(names)) != Q:
        raise ConfigError(f"names: got {names!r} for {Q} outputs; give each output a name of its own")
    object.__setattr__(mixture, "names", names)
    return K, Q


def _check_degrees(degrees: float) -> None:
    if not 2.0 < degrees < math.inf:
        raise ConfigError(f"degrees_of_freedom: got {degrees!r}; it must be above 2, where there is a variance")


def _diagonals(variances: FloatArray) -> FloatArray:
    """(K, Q, Q) matrices with these diagonals, (K, Q)."""
    return np.asarray(variances[:, :, None] * np.eye(variances.shape[1]))


def _choose(shares: FloatArray, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> AnyArray:
    """Random components, each as often as its share; one of share 0 never."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(f"rng: got {rng!r}; make one with numpy.random.default_rng(seed)")
    ends = np.cumsum(shares)
    return np.asarray(np.searchsorted(ends, rng.random(size) * ends[-1], side="right"))


def _tail(level: float) -> float:
    """The probability on each side of the central interval."""
    if not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise ConfigError(f"level: got {level!r}; a probability must lie between 0 and 1, both excluded")
    return 0.5 * (1.0 - level)


def _shares(values: ArrayLike) -> FloatArray:
    """(K,) shares as a copy that adds up to 1."""
    if np.ndim(values) != 1 or not np.shape(values)[0]:
        raise ConfigError(f"shares: got shape {np.shape(values)}; it must be (K,) with at least one component")
    shares = _finite("shares", values, np.shape(values))
    total = float(np.sum(shares))
    if not (shares >= 0.0).all() or abs(total - 1.0) > SHARES_OFF:
        raise ConfigError(f"shares: got {shares.tolist()}; they must be at least 0 and add up to 1")
    return np.asarray(shares / total)


def _finite(name: str, values: ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """A copy as finite floats of this shape."""
    found = np.array(values, dtype=np.float64)
    if found.shape != shape:
        raise ConfigError(f"{name}: got shape {found.shape}; it must be {shape}")
    if not np.isfinite(found).all():
        raise ConfigError(f"{name}: got {found.tolist()}; all of them must be finite")
    return found


def _positive(name: str, values: FloatArray) -> FloatArray:
    if not (values > 0.0).all():
        raise ConfigError(f"{name}: got {values.tolist()}; all of them must be above 0")
    return values


def _factors(matrices: FloatArray) -> FloatArray:
    """(K, Q, Q) lower triangular L with L Lᵀ = Σ."""
    scale = np.sqrt(np.abs(np.diagonal(matrices, axis1=1, axis2=2)))
    tolerance = 1e-9 * scale[:, :, None] * scale[:, None, :]
    if not (np.abs(matrices - matrices.transpose(0, 2, 1)) <= tolerance).all():
        raise ConfigError("covariances: got a matrix that is not symmetric; each must be a covariance matrix")
    try:
        return np.asarray(np.linalg.cholesky(matrices), dtype=np.float64)
    except np.linalg.LinAlgError:
        raise ConfigError(
            "covariances: got a matrix that is not positive definite; every variance must be above 0"
        ) from None


def _keep(mixture: object, name: str, values: FloatArray) -> None:
    """Set a field of a frozen mixture to an array that cannot be changed either."""
    values.flags.writeable = False
    object.__setattr__(mixture, name, values)


def _numbers(name: str, values: ArrayLike) -> FloatArray:
    found = np.asarray(values)
    if found.dtype.kind not in "fiu":
        raise ConfigError(f"{name}: got {values!r}; it must be a number or an array of numbers")
    return found.astype(np.float64)


def _like(given: float | FloatArray, found: FloatArray) -> float | FloatArray:
    """A float where a single number was given."""
    return float(found) if np.ndim(given) == 0 else np.asarray(found)
