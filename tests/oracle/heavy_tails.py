"""Algorithm 2 to the letter for experts with heavy tails: Student-t, and Laplace with a rounded tip.

The area under Laplace's density comes from quadrature, and an event's weight from its derivation: as an expectation
(Student-t), and as a quotient of slopes (Laplace).
"""

from __future__ import annotations

import numpy as np
from scipy.integrate import quad
from scipy.special import gammaln

from tests.oracle.algorithm2 import Algorithm2

TIP = 0.1


def huber(z, tip=TIP):
    """|z|, and a parabola that joins it smoothly where |z| is below `tip`."""
    return np.where(np.abs(z) > tip, np.abs(z), z**2 / (2.0 * tip) + tip / 2.0)


AREA = 2.0 * (quad(lambda z: np.exp(-huber(z)), 0.0, TIP)[0] + quad(lambda z: np.exp(-huber(z)), TIP, 60.0)[0])


class StudentT(Algorithm2):
    """y = Υ_k r + diag(σ_k) x / √g with x ~ N(0, I) and g ~ Gamma(ν/2, ν/2); σ² are squared scales.

    Given g the event is Gaussian with the weight g, so that EM's surrogate has its expectation u = E[g | x, y, k] in
    place of 1: s3, s4 and s5 are weighted by v τ u, and s6 by v τ.
    """

    degrees = 4.0

    def log_experts(self, r, y):
        nu, Q = self.degrees, len(y)
        constant = gammaln(0.5 * (nu + Q)) - gammaln(0.5 * nu) - 0.5 * Q * np.log(np.pi * nu)
        squares = np.sum((y - self.upsilon @ r) ** 2 / self.sigma2, axis=1)
        scales = 0.5 * np.sum(np.log(self.sigma2), axis=1)
        return constant - scales - 0.5 * (nu + Q) * np.log1p(squares / nu)

    def trust(self, r, y):
        """(K,) u: g | x, y, k ~ Gamma((ν + Q)/2, (ν + δ²)/2)."""
        squares = np.sum((y - self.upsilon @ r) ** 2 / self.sigma2, axis=1)
        shape, rate = 0.5 * (self.degrees + len(y)), 0.5 * (self.degrees + squares)
        return shape / rate

    def expert_statistics(self, r, y, tau):
        return super().expert_statistics(r, y, tau * self.trust(r, y)) | {"s6": tau}


class Laplace(StudentT):
    """One output, −log e = h((y − Υ_k r)/b) + log b + log area, with b² for σ²."""

    def log_experts(self, r, y):
        scales = np.sqrt(self.sigma2[:, 0])
        z = (y[0] - (self.upsilon @ r)[:, 0]) / scales
        return -huber(z) - np.log(scales * AREA)

    def trust(self, r, y):
        """(K,) u = h′(z)/z."""
        z = (y[0] - (self.upsilon @ r)[:, 0]) / np.sqrt(self.sigma2[:, 0])
        return np.where(np.abs(z) > TIP, np.sign(z), z / TIP) / np.where(z == 0.0, 1.0, z) + (z == 0.0) / TIP


ALGORITHMS = {"gaussian": Algorithm2, "student_t": StudentT, "laplace": Laplace}
