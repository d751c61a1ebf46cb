"""Student-t noise, whose tails are heavy: experts are robust to outliers.

t_ν of Q outputs with diagonal scales; it has a variance where ν is above 2.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.distributions.contract import ExpertNoise, special
from streammoe.fields import option, part
from streammoe.types import FloatArray


@part
class StudentT(ExpertNoise):
    """Noise with heavy tails: the smaller `df`, above 2, the less an event far out counts.

    Several outputs share one t, and so one weight per event.

    >>> noise = StudentT(df=4.0)
    >>> noise.variance, noise.quantile(np.array([0.975])).round(6).tolist()
    (2.0, [2.776445])
    """

    df: float = option(4.0, "Degrees of freedom, above 2: there the predictive variance is finite.", gt=2, le=1e6)

    name = "student_t"
    most_outputs = None

    def shape(self, n_outputs: int) -> tuple[float, ...]:
        """Return ν."""
        return (self.df,)

    @property
    def variance(self) -> float:
        """ν / (ν − 2)."""
        return self.df / (self.df - 2.0)

    def location_variance(self, n_outputs: int) -> float:
        """(ν + Q + 2) / (ν + Q); the mean weight is 1."""
        return (self.df + n_outputs + 2.0) / (self.df + n_outputs)

    def cdf(self, z: FloatArray) -> FloatArray:
        return np.asarray(special().stdtr(self.df, z))

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

    def _log_peak(self, n_outputs: int) -> float:
        """Return the logarithm of the density of Q outputs at 0 and scale 1."""
        nu, Q = self.df, n_outputs
        return math.lgamma(0.5 * (nu + Q)) - math.lgamma(0.5 * nu) - 0.5 * Q * math.log(nu * math.pi)

    def entropy(self, n_outputs: int) -> float:
        nu, Q = self.df, n_outputs
        energy = 0.5 * (nu + Q) * float(special().digamma(0.5 * (nu + Q)) - special().digamma(0.5 * nu))
        return energy - self._log_peak(Q)

    def log_density(self, squares: FloatArray, n_outputs: int) -> FloatArray:
        return np.asarray(self._log_peak(n_outputs) - 0.5 * (self.df + n_outputs) * np.log1p(squares / self.df))

    def joint_sample(self, rng: np.random.Generator, size: tuple[int, ...], n_outputs: int) -> FloatArray:
        stretch = np.sqrt(self.df / rng.chisquare(self.df, size))
        return np.asarray(rng.standard_normal((*size, n_outputs)) * np.asarray(stretch)[..., None])


NOISE = StudentT
