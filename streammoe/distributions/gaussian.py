"""Normal noise with logarithmic tails, of several outputs independent or correlated.

Up to κ deviations the density is that of N(0, 1); beyond, it falls like a power of the distance: like |z|^−κ² for one
output, and for Q outputs like δ^−κ² with the κ² that a χ² variable of Q degrees of freedom exceeds as rarely as one of
a single degree does the square of `tail`.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist
from typing import Literal, NamedTuple

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


class Law(NamedTuple):
    """The law of δ² for Q outputs. Masses are in units of the integral of N(0, I), so that they add up to `total`."""

    square: float
    """κ²."""
    edge: float
    """The mass of the normal law beyond κ, which the tail replaces."""
    tail: float
    """The mass of the tail."""

    @property
    def log_total(self) -> float:
        """Logarithm of the mass of core and tail."""
        return math.log1p(self.tail - self.edge)

    @property
    def total(self) -> float:
        """1 − edge + tail."""
        return 1.0 + (self.tail - self.edge)


@cache
def law_of(tail: float, n_outputs: int) -> Law:
    """Return the law of Q outputs, given the κ of one output.

    With the density exp(−E(δ²)) / (2π)^(Q/2) and the area 2 π^(Q/2) r^(Q−1) / Γ(Q/2) of a sphere, the tail has the mass
    2^(1−Q/2) / Γ(Q/2) · exp(−κ²/2) κ^Q / (κ² − Q).
    """
    half = 0.5 * n_outputs
    square = tail * tail
    if n_outputs > 1 and not math.isinf(square):
        square = float(special().chdtri(n_outputs, math.erfc(tail / _ROOT_2)))
    if math.isinf(square):
        return Law(math.inf, 0.0, 0.0)
    edge = float(special().gammaincc(half, 0.5 * square))
    log_density = (1.0 - half) * math.log(2.0) - math.lgamma(half) - 0.5 * square + half * math.log(square)
    return Law(square, edge, math.exp(log_density) / (square - n_outputs))


@part
class Gaussian(ExpertNoise):
    """Normal noise up to `tail` deviations, beyond which an event counts the less the farther out it is.

    Of several outputs it is independent, or correlated if `covariance` is "full"; they share one weight per event.

    >>> noise = Gaussian(tail=4.0)
    >>> round(noise.pdf_at(8.0) / noise.pdf_at(4.0) * 2**16, 6), Gaussian(tail=math.inf).variance
    (1.0, 1.0)
    """

    covariance: Literal["diagonal", "full"] = option(
        "diagonal", 'Noise of several outputs: independent; "full": correlated.'
    )
    tail: float = option(
        6.0,
        "Deviations beyond which an event is an outlier and counts less; `inf`: all count alike, as in the papers.",
        ge=2,
        allow_inf_nan=True,
    )

    name = "gaussian"
    most_outputs = None

    def shape(self, n_outputs: int) -> tuple[float, ...]:
        """Return κ², and the logarithm of the density's integral in units of that of N(0, I)."""
        law = law_of(self.tail, n_outputs)
        return law.square, law.log_total

    @property
    def variance(self) -> float:
        """1 but for the tails."""
        return self.spread(1)

    @property
    def family(self) -> str:
        """Name of the family of experts with this covariance."""
        return "gaussian_full" if self.covariance == "full" else "gaussian"

    @property
    def kink(self) -> float:
        """Where the tails begin."""
        return self.tail

    def spread(self, n_outputs: int) -> float:
        """Return the variance of each of Q outputs at scale 1."""
        law, Q = law_of(self.tail, n_outputs), n_outputs
        if math.isinf(law.square):
            return 1.0
        far = law.tail * law.square * (law.square - Q) / (law.square - Q - 2.0)
        return (self._core(Q) + far / Q) / law.total

    def _core(self, n_outputs: int) -> float:
        """Return the integral of δ²/Q over the core of Q outputs."""
        law = law_of(self.tail, n_outputs)
        return float(special().gammainc(0.5 * n_outputs + 1.0, 0.5 * law.square))

    def pdf(self, z: FloatArray) -> FloatArray:
        law, size = law_of(self.tail, 1), np.abs(z)
        found = np.asarray(np.exp(-0.5 * np.minimum(size, min(self.tail, _FAR)) ** 2) / ROOT_2PI)
        far = size > self.tail  # powers take long, and are 1 elsewhere
        found[far] *= (size[far] / self.tail) ** -law.square
        return found / law.total

    def cdf(self, z: FloatArray) -> FloatArray:
        if math.isinf(self.tail):
            return np.asarray(special().ndtr(z))
        law, size = law_of(self.tail, 1), np.abs(z)
        below = np.asarray(special().ndtr(-np.minimum(size, self.tail)) + 0.5 * (law.tail - law.edge))
        far = size > self.tail
        below[far] = 0.5 * law.tail * (size[far] / self.tail) ** (1.0 - law.square)
        below /= law.total
        return np.asarray(np.where(z <= 0.0, below, 1.0 - below))

    def quantile(self, q: FloatArray) -> FloatArray:
        if math.isinf(self.tail):
            return np.asarray(special().ndtri(q))
        law = law_of(self.tail, 1)
        mass = np.minimum(q, 1.0 - q) * law.total
        half = 0.5 * law.tail
        # Either is evaluated for all, so that each gets numbers that it can take; the median is exact.
        normal = np.where(np.abs(q - 0.5) < 0.25, 0.5 - np.abs(q - 0.5) * law.total, mass + 0.5 * (law.edge - law.tail))
        inside = special().ndtri(np.clip(normal, 0.5 * law.edge, 0.5))
        beyond = -self.tail * (np.minimum(mass, half) / half) ** (-1.0 / (law.square - 1.0))
        below = np.where(mass >= half, inside, beyond)
        return np.asarray(np.where(q <= 0.5, below, -below))

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> FloatArray:
        return np.asarray(self.joint_sample(rng, () if size is None else size, 1)[..., 0])

    def joint_sample(self, rng: np.random.Generator, size: int | tuple[int, ...], n_outputs: int) -> FloatArray:
        """Draw noise of Q outputs at scale 1, along an additional last axis."""
        shape = (size,) if isinstance(size, int) else size
        drawn = np.asarray(rng.standard_normal((*shape, n_outputs)))
        law = law_of(self.tail, n_outputs)
        if math.isinf(law.square):
            return drawn
        rows = drawn.reshape(-1, n_outputs)
        squares = np.sum(rows**2, axis=1)
        while len(far := np.flatnonzero(squares > law.square)):
            rows[far] = rng.standard_normal((len(far), n_outputs))
            squares[far] = np.sum(rows[far] ** 2, axis=1)
        far = np.flatnonzero(rng.random(len(rows)) < law.tail / law.total)
        lengths = math.sqrt(law.square) * (1.0 - rng.random(len(far))) ** (-1.0 / (law.square - n_outputs))
        rows[far] *= (lengths / np.sqrt(squares[far]))[:, None]
        return rows.reshape(drawn.shape)

    def pdf_at(self, z: float) -> float:
        if abs(z) > self.tail:
            law = law_of(self.tail, 1)
            return math.exp(-0.5 * law.square - law.square * math.log(abs(z) / self.tail)) / ROOT_2PI / law.total
        return math.exp(-0.5 * z * z) / ROOT_2PI / law_of(self.tail, 1).total

    def cdf_at(self, z: float) -> float:
        law = law_of(self.tail, 1)
        if z > 0.0 and self.tail < math.inf:
            return 1.0 - self.cdf_at(-z)
        if -z > self.tail:
            return 0.5 * law.tail * math.exp((1.0 - law.square) * math.log(-z / self.tail)) / law.total
        return (0.5 * math.erfc(-z / _ROOT_2) + 0.5 * (law.tail - law.edge)) / law.total

    def quantile_at(self, q: float) -> float:
        if math.isinf(self.tail):
            return _STANDARD.inv_cdf(q)
        if q > 0.5:
            return -self.quantile_at(1.0 - q)
        law = law_of(self.tail, 1)
        mass = q * law.total
        if mass < 0.5 * law.tail:
            return -self.tail * math.exp(math.log(0.5 * law.tail / mass) / (law.square - 1.0))
        return _STANDARD.inv_cdf(0.5 + (q - 0.5) * law.total if q > 0.25 else mass + 0.5 * (law.edge - law.tail))

    def log_density(self, squares: FloatArray, n_outputs: int) -> FloatArray:
        """Return the logarithm of the density of Q outputs at scale 1, given δ²."""
        law = law_of(self.tail, n_outputs)
        energy = 0.5 * squares
        if not math.isinf(law.square):
            beyond = 0.5 * law.square * (1.0 + np.log(np.maximum(squares, law.square) / law.square))
            energy = np.where(squares > law.square, beyond, energy)
        return np.asarray(-energy - n_outputs * math.log(ROOT_2PI) - law.log_total)

    def entropy(self, n_outputs: int) -> float:
        law, Q = law_of(self.tail, n_outputs), n_outputs
        if math.isinf(law.square):
            return 0.5 * Q * math.log(2.0 * math.pi * math.e)
        # The mean of E(δ²): in the tail log(δ²/κ²) has the mean 2 / (κ² − Q).
        far = 0.5 * law.square * law.tail * (1.0 + 2.0 / (law.square - Q))
        return (0.5 * Q * self._core(Q) + far) / law.total + Q * math.log(ROOT_2PI) + law.log_total

    def mixture(self, shares: FloatArray, means: FloatArray, squares: FloatArray) -> GaussianMixture:
        return GaussianMixture(shares, means, squares, self.tail)

    def joint_mixture(
        self, shares: FloatArray, means: FloatArray, squares: FloatArray, names: Sequence[Hashable]
    ) -> MultivariateGaussianMixture:
        """Return the mixture of K components of Q outputs; `squares` are variances (K, Q) or covariances (K, Q, Q)."""
        regular = squares if squares.ndim == 2 else _regular(squares)
        return MultivariateGaussianMixture(shares, means, regular, names, self.tail)


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


@cache
def _noise(tail: float) -> Gaussian:
    return Gaussian(tail=tail)


def _check_tail(tail: object) -> None:
    """Raise `ConfigError` unless experts may have this tail."""
    if isinstance(tail, float):
        _noise(tail)
    else:
        Gaussian(tail=tail)  # type: ignore[arg-type]  # which it checks


@dataclass(frozen=True, eq=False)
class GaussianMixture(Mixture):
    """A mixture of K normal distributions of one number: Σ_k shares_k N(means_k, variances_k).

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K,) finite.
        variances: (K,) above 0; those of the components but for their tails, whose part is 1e-8 at a tail of 6.
        tail: deviations beyond which components fall like a power, as those of `Gaussian` experts do; by default none.

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
    tail: float = math.inf

    def __post_init__(self) -> None:
        keep_parts(self, "variances")
        _check_tail(self.tail)

    @property
    def noise(self) -> Noise:
        """N(0, 1), up to the tail."""
        return _noise(self.tail)

    @property
    def _squares(self) -> FloatArray:
        return self.variances


@dataclass(frozen=True, eq=False)
class MultivariateGaussianMixture(MultivariateMixture):
    """A mixture of K normal distributions of Q numbers: Σ_k shares_k N(means_k, covariances_k).

    With tails the density of all outputs, its samples and its covariances are exact. The distribution of one output,
    and so its interval, is approximated by the law that a single output would have with this tail: the two differ by
    less than twice the mass beyond the tail, which is 2e-9 at 6.

    Args:
        shares: (K,) at least 0, adding up to 1.
        means: (K, Q) finite.
        covariances: (K, Q, Q) symmetric and positive definite, or (K, Q) above 0: the diagonals of such matrices.
        names: names of the Q outputs, all different; by default y0, y1, …
        tail: as in `GaussianMixture`; by default there are no tails.

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
    tail: float = math.inf

    def __post_init__(self) -> None:
        K, Q = keep_outputs(self)
        _check_tail(self.tail)
        if np.ndim(self.covariances) == 2:
            covariances = positive("covariances", finite("covariances", self.covariances, (K, Q)))
        else:
            covariances = finite("covariances", self.covariances, (K, Q, Q))
            lower_factors(covariances)
        keep(self, "covariances", covariances)

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """Draw one sample (Q,), or an array of shape `size`, with the outputs along an additional last axis."""
        chosen = choose(self.shares, rng, size)
        normal = _noise(self.tail).joint_sample(rng, np.shape(chosen), self.means.shape[1])
        if self._is_diagonal:
            return np.asarray(self.means[chosen] + np.sqrt(self.covariances)[chosen] * normal)
        factors = lower_factors(self.covariances)
        return np.asarray(self.means[chosen] + np.sum(factors[chosen] * normal[..., None, :], axis=-1))

    @property
    def _is_diagonal(self) -> bool:
        return self.covariances.ndim == 2

    @property
    def _spread(self) -> float:
        return _noise(self.tail).spread(self.means.shape[1])

    def _squares(self) -> FloatArray:
        return self.covariances if self._is_diagonal else np.diagonal(self.covariances, axis1=1, axis2=2)

    def _within(self) -> FloatArray:
        return np.asarray(self._spread * self._squares())

    def _matrices(self) -> FloatArray:
        matrices = diagonals(self.covariances) if self._is_diagonal else self.covariances
        return np.asarray(self._spread * matrices)

    def _log_densities(self, errors: FloatArray) -> FloatArray:
        if self._is_diagonal:
            deviations = np.sqrt(self.covariances)
            scores = errors / deviations
            log_scale = np.sum(np.log(deviations), axis=-1)
        else:
            factors = lower_factors(self.covariances)
            scores = np.asarray(np.linalg.solve(factors, errors[..., None])[..., 0], dtype=np.float64)
            log_scale = np.sum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=-1)
        squares = np.asarray(np.sum(scores**2, axis=-1))
        return np.asarray(_noise(self.tail).log_density(squares, errors.shape[-1]) - log_scale)

    def _marginal(self, q: int) -> GaussianMixture:
        return GaussianMixture(self.shares, self.means[:, q], self._squares()[:, q], self.tail)


NOISE = Gaussian
