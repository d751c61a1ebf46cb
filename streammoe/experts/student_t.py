"""Student-t experts: y | x, k ~ t_ν(Υ_k φ_v(x), diag σ²_k), with ν fixed."""

from __future__ import annotations

from typing import cast

from scipy.special import digamma

from streammoe import noise
from streammoe.errors import ConfigError
from streammoe.experts.elliptical import Elliptical
from streammoe.kernels import student_t

DEGREES = 4.0
"""Default ν."""
LEAST_DEGREES, MOST_DEGREES = 2.0, 1e6
"""No variance exists up to the first, and there is no difference from a Gaussian beyond the second."""


class StudentT(Elliptical):
    """Linear regressions that are robust to outliers; several outputs share one t, and so one weight per event."""

    name = "student_t"

    def __init__(self, degrees_of_freedom: float = DEGREES) -> None:
        if not LEAST_DEGREES < degrees_of_freedom <= MOST_DEGREES:
            rule = f"it must be above {LEAST_DEGREES:g}, or there is no variance, and at most {MOST_DEGREES:g}"
            raise ConfigError(f"degrees_of_freedom: got {degrees_of_freedom!r}; {rule}")
        self.degrees = float(degrees_of_freedom)
        super().__init__(student_t, self.degrees)
        self.noise = noise.StudentT(self.degrees)

    def __reduce__(self) -> tuple[type[StudentT], tuple[float]]:
        return StudentT, (cast("noise.StudentT", self.noise).degrees,)

    def entropy(self, n_outputs: int) -> float:
        nu, Q = self.degrees, n_outputs
        energy = 0.5 * (nu + Q) * float(digamma(0.5 * (nu + Q)) - digamma(0.5 * nu))
        return energy + student_t.log_constant((nu,), Q)


FAMILY = StudentT()
