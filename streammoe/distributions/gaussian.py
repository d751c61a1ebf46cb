"""Normal noise with logarithmic tails, of several outputs independent or correlated.

Up to κ deviations the density is that of N(0, 1); beyond, it falls like a power of the distance: like |z|^−κ² for one
output, and for Q outputs like δ^−κ² with the κ² that a χ² variable of Q degrees of freedom exceeds as rarely as one of
a single degree does the square of `tail`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from streammoe.distributions.contract import ExpertNoise, special
from streammoe.fields import option, part
from streammoe.types import FloatArray

ROOT_2PI = math.sqrt(2.0 * math.pi)
_ROOT_2 = math.sqrt(2.0)


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
    >>> round(float(np.divide(*noise.pdf(np.array([8.0, 4.0])))) * 2**16, 6), Gaussian(tail=math.inf).variance
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
        law, Q = law_of(self.tail, n_outputs), n_outputs
        if math.isinf(law.square):
            return 1.0
        far = law.tail * law.square * (law.square - Q) / (law.square - Q - 2.0)
        return (self._core(Q) + far / Q) / law.total

    def location_variance(self, n_outputs: int) -> float:
        """1 but for the tails."""
        return 1.0

    def _core(self, n_outputs: int) -> float:
        """Return the integral of δ²/Q over the core of Q outputs."""
        law = law_of(self.tail, n_outputs)
        return float(special().gammainc(0.5 * n_outputs + 1.0, 0.5 * law.square))

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
        shape = () if size is None else (size,) if isinstance(size, int) else size
        return np.asarray(self.joint_sample(rng, shape, 1)[..., 0])

    def joint_sample(self, rng: np.random.Generator, size: tuple[int, ...], n_outputs: int) -> FloatArray:
        drawn = np.asarray(rng.standard_normal((*size, n_outputs)))
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

    def log_density(self, squares: FloatArray, n_outputs: int) -> FloatArray:
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


NOISE = Gaussian
