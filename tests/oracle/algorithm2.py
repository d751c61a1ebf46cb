"""[MM] Algorithm 2 to the letter: Gaussian experts, with a diagonal or a full covariance."""

from __future__ import annotations

import numpy as np

from tests.oracle.algorithm1 import Algorithm1


class Algorithm2(Algorithm1):
    """Experts N(y; Υ_k r, Σ_k) with Q outputs. What `variances` looks like tells one covariance from the other.

    Statistics beside the gate's, for an event of weight v:
        s3 (K, Q)          v τ_k y²           or, full, (K, Q, Q)    v τ_k y yᵀ
        s4 (K, Q, p_v)     −2 v τ_k y rᵀ
        s5 (K, p_v, p_v)   v τ_k r rᵀ
        s6 (K,)            v τ_k
    """

    def begin_experts(self, parameters):
        self.upsilon = np.array(parameters["experts"])
        self.sigma2 = np.array(parameters["variances"])
        self.full = self.sigma2.ndim == 3
        R = np.array(parameters["expert_grams"])
        m = np.array(parameters["masses"])
        masses = m[:, None, None] if self.full else m[:, None]
        explained = np.einsum("kqi,kij,klj->kql", self.upsilon, R, self.upsilon)
        return {
            "s3": masses * self.sigma2 + self.form(explained),
            "s4": -2.0 * self.upsilon @ R,
            "s5": R,
            "s6": m,
        }

    def form(self, matrices):
        """(…, Q, Q) as the covariance has them: themselves, or their diagonals."""
        return matrices if self.full else np.diagonal(matrices, axis1=-2, axis2=-1)

    def log_experts(self, r, y):
        errors = y - self.upsilon @ r
        covariances = self.sigma2 if self.full else np.stack([np.diag(row) for row in self.sigma2])
        squares = np.einsum("kq,kq->k", errors, np.linalg.solve(covariances, errors[:, :, None])[:, :, 0])
        return -0.5 * (squares + np.linalg.slogdet(2.0 * np.pi * covariances)[1])

    def expert_statistics(self, r, y, tau):
        return {
            "s3": np.multiply.outer(tau, self.form(np.outer(y, y))),
            "s4": np.multiply.outer(tau, -2.0 * np.outer(y, r)),
            "s5": np.multiply.outer(tau, np.outer(r, r)),
            "s6": tau,
        }

    def expert_prior(self):
        """Each of the K experts has a K-th: Gram matrix Λ, target Υ_0, and a diagonal covariance Σ_0 around it."""
        K = len(self.upsilon)
        Lambda = np.diag(self.prior["expert_gram"])
        upsilon0, sigma0 = self.prior["experts"], np.diag(self.prior["variances"])
        return {
            "s3": self.form(sigma0 + upsilon0 @ Lambda @ upsilon0.T) / K,
            "s4": -2.0 * upsilon0 @ Lambda / K,
            "s5": Lambda / K,
            "s6": 1.0 / K,
        }

    def minimise_experts(self):
        """Υ_k = −½ s4 s5⁻¹, Σ_k = (s3 + ½ (s4 Υᵀ + Υ s4ᵀ) + Υ s5 Υᵀ) / s6."""
        s3, s4, s5, s6 = (self.s[name] for name in ("s3", "s4", "s5", "s6"))
        self.upsilon = -0.5 * np.linalg.solve(s5, s4.transpose(0, 2, 1)).transpose(0, 2, 1)
        turned = self.upsilon.transpose(0, 2, 1)
        linear = s4 @ turned
        square = self.upsilon @ s5 @ turned
        masses = s6[:, None, None] if self.full else s6[:, None]
        self.sigma2 = (s3 + self.form(0.5 * (linear + linear.transpose(0, 2, 1)) + square)) / masses

    @property
    def expert_theta(self):
        return {
            "experts": self.upsilon.copy(),
            "variances": self.sigma2.copy(),
            "expert_grams": self.s["s5"].copy(),
        }
