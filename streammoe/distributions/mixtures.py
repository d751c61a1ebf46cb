"""Predictive distributions: mixtures of components that have the same noise, each moved and scaled."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any, TypeVar, overload

import numpy as np
from numpy.typing import ArrayLike

from streammoe.distributions.contract import ExpertNoise
from streammoe.errors import ConfigError
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray

Numbers = TypeVar("Numbers", float, FloatArray)


UNCALIBRATED = np.ones(1)
"""One part, into which all targets fall."""


DRAWN, MOST_DRAWN = 16, 1_000_000
"""How many numbers are drawn at once, at least and at most, of which some are discarded."""
FULL = 3.0
"""Probability of a part, in units of what the mixture gives it, from which on intervals take all of it."""
LEVELS = (0.5, 0.8, 0.9, 0.95)
"""Levels of the intervals whose ends are moved until they hold as many targets as they should."""
LOG_ODDS = tuple(math.log((1.0 - level) / (1.0 + level)) for level in LEVELS)
"""Those of the probability beyond each end, (1 − level) / 2."""
MOST_STRETCH = 9.0
"""Largest factor of log-odds: at 95 % a tail of 5e-15, about the least that can be told from 0."""


def stretched_tails(stretch: FloatArray, tail: float) -> FloatArray:
    """Return the probability that intervals leave on each side, (..., 2), for one that should be left there.

    Between levels log-odds are linear, and beyond the outermost ones their factor stays.

    Args:
        stretch: (..., 2, L) factors of `LOG_ODDS`, for the lower and the upper end.
        tail: from above 0 to ½.

    >>> stretched_tails(np.ones((2, 4)), 0.05).round(6).tolist()
    [0.05, 0.05]
    """
    nominal, sought = np.array(LOG_ODDS), math.log(tail / (1.0 - tail))
    ends = np.minimum.accumulate(stretch * nominal, axis=-1)
    at = int(np.searchsorted(-nominal, -sought))
    if at in {0, len(nominal)}:
        last = min(at, len(nominal) - 1)
        odds = ends[..., last] * (sought / nominal[last])
    else:
        share = (sought - nominal[at - 1]) / (nominal[at] - nominal[at - 1])
        odds = (1.0 - share) * ends[..., at - 1] + share * ends[..., at]
    return np.asarray(1.0 / (1.0 + np.exp(-odds)))


def outer_tails(shares: FloatArray, tails: FloatArray) -> FloatArray:
    """Return what probabilities by the mixture the two tails of intervals have, (..., 2).

    Within a part it is not known where the targets are, of which all may be equal. So an interval takes the whole of a
    part that is `FULL` and holds one of its ends, but for the first and the last one.

    Args:
        shares: (..., B) the probability of each part, or its multiple; all 0 where the mixture is taken as it is.
        tails: (..., 2) the probability of the lower and the upper tail, above 0 and up to ½.

    >>> outer_tails(np.array([1.0, 1.0, 2.0, 1.0]), np.full(2, 0.1)).tolist()
    [0.125, 0.125]
    >>> outer_tails(np.array([1.0, 1.0, 1.0, 26.0, 1.0]), np.full(2, 0.25)).tolist()
    [0.6, 0.2]
    """
    known = np.where(shares.sum(axis=-1, keepdims=True) > 0.0, shares, 1.0)
    B = known.shape[-1]
    ends = np.cumsum(known, axis=-1)
    total = ends[..., -1:]
    found = []
    for sought, is_above in ((tails[..., :1] * total, False), ((1.0 - tails[..., 1:]) * total, True)):
        at = np.minimum((ends <= sought).sum(axis=-1, keepdims=True), B - 1)
        own = np.take_along_axis(known, at, -1)
        below = (sought - np.take_along_axis(ends, at, -1) + own) / own
        inside = np.clip(1.0 - below if is_above else below, 0.0, 1.0)
        outermost = B - 1 if is_above else 0
        inside = np.where((own * B > FULL * total) & (at != outermost), 0.0, inside)
        found.append(((B - 1 - at if is_above else at) + inside)[..., 0] / B)
    return np.stack(found, axis=-1)


def check_level(level: float) -> None:
    """Raise `ConfigError` unless this can be the probability of an interval."""
    if not isinstance(level, Real) or not 0.0 < level < 1.0:
        raise ConfigError(f"level: got {shown(level)}; a probability must lie between 0 and 1, both excluded")


@dataclass(frozen=True, eq=False)
class Mixture:
    """A distribution of one number: Σ_k shares_k · noise, moved by means_k and scaled by the root of squares_k.

    With `ranks` it is calibrated: probability is moved to those parts of the mixture where targets have been. Mean and
    variance are those of the mixture, before that.

    >>> from streammoe.distributions import Gaussian
    >>> two = Mixture(np.array([0.5, 0.5]), np.array([-1.0, 3.0]), np.ones(2), Gaussian(tail=math.inf))
    >>> two.mean(), two.variance()
    (1.0, 5.0)
    >>> low, high = two.interval(0.9)
    >>> round(low, 3), round(high, 3)
    (-2.282, 4.282)
    """

    shares: FloatArray
    """(K,) adding up to 1."""
    means: FloatArray
    """(K,)"""
    squares: FloatArray
    """(K,) squared scales; a component's variance is that of the noise times this."""
    noise: ExpertNoise
    ranks: FloatArray = field(default_factory=UNCALIBRATED.copy)
    """(B,) the probability of each of B parts of the mixture, from the left, that are equally likely by it."""

    @property
    def _ends(self) -> tuple[FloatArray, FloatArray]:
        """The ends of the parts, (B + 1,): their probabilities by the mixture, and calibrated."""
        counts = np.concatenate([[0.0], np.cumsum(self.ranks)])
        return np.linspace(0.0, 1.0, len(counts)), counts / counts[-1]

    def _density(self, below: FloatArray) -> FloatArray:
        """Return the factor of the density where this is the probability below, by the mixture."""
        B = len(self.ranks)
        at = np.clip((below * B).astype(np.int64), 0, B - 1)
        return np.asarray(self.ranks[at] * B / self.ranks.sum())

    def mean(self) -> float:
        """Return E[y] = Σ_k g_k μ_k."""
        return float(np.sum(self.shares * self.means))

    def variance(self) -> float:
        """Return Var[y] = Σ_k g_k (σ²_k + (μ_k − E[y])²) by the law of total variance; σ²_k are component variances."""
        within = self.noise.variance * self.squares
        return float(np.sum(self.shares * (within + (self.means - self.mean()) ** 2)))

    def pdf(self, y: Numbers) -> Numbers:
        """Return the density at a number, or at each number of an array."""
        scales = np.sqrt(self.squares)
        scores = (_numbers("y", y)[..., None] - self.means) / scales
        own = np.sum(self.shares * self.noise.pdf(scores) / scales, axis=-1)
        return _like(y, own * self._density(self._below(y)))

    def cdf(self, y: Numbers) -> Numbers:
        """Return P(Y ≤ y) at a number, or at each of an array; small probabilities have full relative precision."""
        return _like(y, np.interp(self._below(y), *self._ends))

    def _below(self, y: Numbers) -> FloatArray:
        """Return P(Y ≤ y) by the mixture."""
        scores = (_numbers("y", y)[..., None] - self.means) / np.sqrt(self.squares)
        return np.asarray(np.minimum(np.sum(self.shares * self.noise.cdf(scores), axis=-1), 1.0))

    def quantile(self, q: Numbers) -> Numbers:
        """Return the y with P(Y ≤ y) = q, for one probability or an array of them.

        It is accurate to 1e-13 of the smallest scale among the components, or to the last digits of y. If components
        are so far apart that P(Y ≤ y) equals q, in floating point, everywhere between them, it is a point in between.

        Raises:
            ConfigError: a probability is outside (0, 1).
        """
        probabilities = _numbers("q", q)
        if not np.all((probabilities > 0.0) & (probabilities < 1.0)):
            raise ConfigError(f"q: got {shown(q)}; a probability must lie between 0 and 1, both excluded")
        alive = self.shares > 0.0
        shares, means, scales = self.shares[alive], self.means[alive], np.sqrt(self.squares[alive])

        own, calibrated = self._ends

        def find(probability: float) -> float:
            # Compute upper quantiles as lower ones of −Y: 1 − q is exact there, and precision is not lost.
            if probability > 0.5:
                above = float(np.interp(1.0 - probability, 1.0 - calibrated[::-1], own))
                return -_lower_quantile(above, shares, -means, scales, self.noise)
            below = float(np.interp(probability, calibrated, own))
            return _lower_quantile(below, shares, means, scales, self.noise)

        found = np.array([find(each) for each in probabilities.ravel().tolist()])
        return _like(q, found.reshape(probabilities.shape))

    def interval(self, level: float = 0.9) -> tuple[float, float]:
        """Return the central interval that contains y with probability `level`; both tails have equal probability.

        It is larger where ranks say that many targets may be equal, see `outer_tails`.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        check_level(level)
        below, above = outer_tails(self.ranks, np.full(2, 0.5 * (1.0 - level))).tolist()
        own = replace(self, ranks=UNCALIBRATED)
        return own.quantile(below), own.quantile(1.0 - above)

    @overload
    def sample(self, rng: np.random.Generator, size: None = None) -> float: ...
    @overload
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...]) -> FloatArray: ...
    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> float | FloatArray:
        """Draw one random number, or an array of shape `size`."""
        found = np.empty(() if size is None else size)
        flat, done = found.reshape(-1), 0
        # The mixture's numbers are kept with the probability that their part has, over that of the likeliest part.
        accepted = float(self.ranks.sum() / (len(self.ranks) * self.ranks.max()))
        while done < flat.size:
            count = min(int((flat.size - done) / accepted) + DRAWN, MOST_DRAWN)
            chosen = _choose(self.shares, rng, count)
            drawn = self.means[chosen] + np.sqrt(self.squares[chosen]) * self.noise.sample(rng, count)
            if accepted < 1.0:
                drawn = drawn[rng.random(count) < accepted * self._density(self._below(drawn))]
            drawn = drawn[: flat.size - done]
            flat[done : done + len(drawn)] = drawn
            done += len(drawn)
        return float(found) if size is None else found


@dataclass(frozen=True, eq=False)
class MultivariateMixture:
    """A distribution of Q numbers: Σ_k shares_k · noise, moved and scaled; arrays are in the order of `names`.

    The outputs of a component share one noise: with heavy tails they are far out together. Density, samples and
    covariances are exact. With Gaussian tails the distribution of one output, and so its interval, is approximated by
    the law that a single output would have with this tail: the two differ by less than twice the mass beyond the tail,
    which is 2e-9 at 6.

    >>> from streammoe.distributions import StudentT
    >>> one = MultivariateMixture(np.ones(1), np.array([[0.0, 1.0]]), np.array([[1.0, 4.0]]), StudentT(4.0), ("a", "b"))
    >>> one.variance().tolist(), round(one.marginal("b").quantile(0.975), 3)
    ([2.0, 8.0], 6.553)
    """

    shares: FloatArray
    """(K,) adding up to 1."""
    means: FloatArray
    """(K, Q)"""
    squares: FloatArray
    """(K, Q) squared scales, or (K, Q, Q) matrices; covariances are `noise.spread` times these."""
    noise: ExpertNoise
    names: tuple[Hashable, ...]
    """Of the outputs."""
    ranks: FloatArray | None = None
    """(Q, B) of each output, see `Mixture`; they calibrate its own distribution, and what is said of several not."""

    @property
    def _n_outputs(self) -> int:
        return len(self.names)

    @property
    def _diagonals(self) -> FloatArray:
        """Squared scales of each output, (K, Q)."""
        return self.squares if self.squares.ndim == 2 else np.diagonal(self.squares, axis1=1, axis2=2)

    @property
    def _factors(self) -> FloatArray:
        """Lower triangular L, (K, Q, Q), with L Lᵀ = Σ.

        Outputs that depend on each other linearly have a singular Σ, which rounding may make indefinite: the least
        multiple of its diagonal that makes it positive definite is added.
        """
        diagonal = _matrices(self._diagonals)
        if self.squares.ndim == 2:
            return np.sqrt(diagonal)
        for exponent in (-math.inf, *range(-14, 0)):
            try:
                return np.asarray(np.linalg.cholesky(self.squares + 10.0**exponent * diagonal))
            except np.linalg.LinAlgError:
                continue
        raise ConfigError("covariances: got a matrix that is not positive definite")

    def mean(self) -> FloatArray:
        """Return E[y] = Σ_k g_k μ_k, (Q,)."""
        return np.asarray(np.sum(self.shares[:, None] * self.means, axis=0))

    def variance(self) -> FloatArray:
        """Return Var[y_q], the diagonal of `covariance`, (Q,)."""
        return np.diagonal(self.covariance()).copy()

    def covariance(self) -> FloatArray:
        """Return Cov[y] = Σ_k g_k (Σ_k + (μ_k − E[y]) (μ_k − E[y])ᵀ), (Q, Q); Σ_k are the components' covariances."""
        matrices = _matrices(self.squares) if self.squares.ndim == 2 else self.squares
        within = self.noise.spread(self._n_outputs) * matrices
        apart = self.means - self.mean()
        between = apart[:, :, None] * apart[:, None, :]
        return np.asarray(np.sum(self.shares[:, None, None] * (within + between), axis=0))

    def pdf(self, y: ArrayLike) -> float | FloatArray:
        """Return the density at y (Q,), or at each row of an array (…, Q).

        Raises:
            ConfigError: rows have another length.
        """
        points, Q = _numbers("y", y), self._n_outputs
        if Q == 1 and points.ndim and points.shape[-1] == 1:
            density = self.marginal(self.names[0]).pdf(points[..., 0])
            return float(density) if points.ndim == 1 else np.asarray(density)
        if points.ndim == 0 or points.shape[-1] != Q:
            raise ConfigError(f"y: got shape {points.shape}; its last axis must hold the {Q} outputs {self.names!r}")
        errors, factors = points[..., None, :] - self.means, self._factors
        scores = np.linalg.solve(factors, errors[..., None])[..., 0]
        log_scales = np.sum(np.log(np.diagonal(factors, axis1=1, axis2=2)), axis=-1)
        logarithms = self.noise.log_density(np.sum(scores**2, axis=-1), Q) - log_scales
        density = np.sum(self.shares * np.exp(logarithms), axis=-1)
        return float(density) if points.ndim == 1 else np.asarray(density)

    def marginal(self, name: Hashable) -> Mixture:
        """Return the distribution of one output.

        Raises:
            ConfigError: there is no output of this name.
        """
        if name not in self.names:
            raise ConfigError(f"marginal: there is no output {name!r}; the outputs are {list(self.names)!r}")
        q = self.names.index(name)
        ranks = UNCALIBRATED if self.ranks is None else self.ranks[q]
        return Mixture(self.shares, self.means[:, q], self._diagonals[:, q], self.noise, ranks)

    def interval(self, level: float = 0.9) -> dict[Hashable, tuple[float, float]]:
        """Return for each output separately the central interval that contains it with probability `level`.

        The probability that all intervals contain their output at once is smaller.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        return {name: self.marginal(name).interval(level) for name in self.names}

    def sample(self, rng: np.random.Generator, size: int | tuple[int, ...] | None = None) -> FloatArray:
        """Draw one sample (Q,), or an array of shape `size`, with the outputs along an additional last axis."""
        if self._n_outputs == 1:
            return np.asarray(self.marginal(self.names[0]).sample(rng, size))[..., None]
        chosen = _choose(self.shares, rng, size)
        drawn = self.noise.joint_sample(rng, np.shape(chosen), self._n_outputs)
        return np.asarray(self.means[chosen] + np.sum(self._factors[chosen] * drawn[..., None, :], axis=-1))


def _matrices(variances: FloatArray) -> FloatArray:
    """Return matrices (K, Q, Q) with these diagonals (K, Q)."""
    return np.asarray(variances[:, :, None] * np.eye(variances.shape[1]))


def _choose(shares: FloatArray, rng: np.random.Generator, size: int | tuple[int, ...] | None) -> AnyArray:
    """Draw random components, each with the probability of its share; one of share 0 is never drawn."""
    if not isinstance(rng, np.random.Generator):
        raise ConfigError(f"rng: got {shown(rng)}; make one with numpy.random.default_rng(seed)")
    ends = np.cumsum(shares)
    return np.asarray(np.searchsorted(ends, rng.random(size) * ends[-1], side="right"))


def _numbers(name: str, values: ArrayLike) -> FloatArray:
    """Convert values to an array of floats; raise `ConfigError` if they are not numbers."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiu":
        raise ConfigError(f"{name}: got {shown(values)}; it must be a number or an array of numbers")
    return found.astype(np.float64)


def _like(given: Numbers, found: FloatArray) -> Numbers:
    """Return a float if a single number was given."""
    like: Any = float(found) if np.ndim(given) == 0 else np.asarray(found)
    return like  # type: ignore[no-any-return]


def _lower_quantile(q: float, shares: FloatArray, means: FloatArray, scales: FloatArray, noise: ExpertNoise) -> float:
    """Return the y with P(Y ≤ y) = q ≤ ½, by Brent's method.

    All shares are above 0. Every component has less than q below the lowest of their quantiles, and more than q above
    the highest; these bracket y, up to rounding.
    """
    from scipy.optimize import brentq  # its import takes a while

    own = means + scales * noise.quantile(np.array(q))
    low, high = float(own.min()), float(own.max())
    low, high = low - 4.0 * math.ulp(low), high + 4.0 * math.ulp(high)

    def excess(y: float) -> float:
        # The logarithm is nearly linear in the tail, where the probability itself curves sharply.
        return math.log(max(float(shares @ noise.cdf((y - means) / scales)), math.ulp(0.0)) / q)

    if excess(low) >= 0.0 or excess(high) <= 0.0:
        return low if excess(low) >= 0.0 else high
    return float(brentq(excess, low, high, xtol=1e-13 * float(scales.min()), rtol=4.0 * np.finfo(float).eps))
