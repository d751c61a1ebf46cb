"""Gaussian experts with a full covariance between their outputs: y | x, k ~ N(Υ_k φ_v(x), Σ_k)."""

from __future__ import annotations

import math
from types import ModuleType

import numpy as np

from streammoe.experts.contract import LONGEST_MOVE, Parameters, squared_differences
from streammoe.experts.gaussian import Gaussian, errors_under, masses_under
from streammoe.kernels import gaussian_full
from streammoe.kernels.batch import fit_covariances, fit_linear
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.types import FloatArray


class GaussianFull(Gaussian):
    """Linear regressions whose errors may be correlated."""

    name = "gaussian_full"
    kernels: ModuleType = gaussian_full

    def variances_of(self, variances: FloatArray, n_experts: int) -> FloatArray:
        return np.repeat(np.diag(variances)[None], n_experts, axis=0)

    def _fit(
        self, theta: Parameters, prior: Prior, tau: FloatArray, weights: FloatArray, R: FloatArray, Y: FloatArray
    ) -> None:
        fit_linear(theta.experts, prior.strength, prior.expert_gram, prior.experts, weights, R, Y)
        fit_covariances(
            theta.experts,
            theta.variances,
            prior.strength,
            prior.expert_gram,
            prior.experts,
            prior.variances,
            prior.variance_floor,
            tau,
            weights,
            R,
            Y,
        )

    def _variances_from(self, scatter: FloatArray, prior: Prior) -> FloatArray:
        """Return covariances whose diagonals are bounded as the variances of independent outputs are."""
        covariance = scatter.copy()
        np.fill_diagonal(covariance, super()._variances_from(scatter, prior))
        return covariance

    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        share = prior.strength / len(theta.experts)
        apart = theta.experts - prior.experts
        scatter = np.einsum("kqj,j,kcj->kqc", apart, prior.expert_gram, apart) + np.diag(prior.variances)
        covariances = _regular(theta.variances)
        _, log_determinants = np.linalg.slogdet(covariances)
        traces = np.einsum("kqq->k", np.linalg.solve(covariances, scatter))
        return float(-0.5 * share * np.sum(log_determinants + traces))

    def gradient(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        pulls, scatters = errors_under(theta, prior, self.irls_weights(theta, tau, R, Y), R, Y)
        covariances = _regular(theta.variances)
        factors = np.linalg.cholesky(covariances)
        half = np.linalg.solve(factors, scatters)
        white = np.linalg.solve(factors, half.transpose(0, 2, 1))
        by_variances = np.tril(
            np.asarray(white, np.float64) - masses_under(prior, tau)[:, None, None] * np.eye(len(prior.variances))
        )
        return np.asarray(np.linalg.solve(covariances, pulls), np.float64), by_variances

    def moved_variances(self, variances: FloatArray, moves: FloatArray) -> FloatArray:
        """Return (L T)(L T)ᵀ, L the Cholesky factor of Σ; `moves` are the log-diagonal and the rest of triangular T."""
        own = np.einsum("kqq->kq", moves)
        turned = np.tril(moves, -1)
        np.einsum("kqq->kq", turned)[...] = np.exp(np.clip(own, -LONGEST_MOVE, LONGEST_MOVE))
        # Not `@`: a multithreaded BLAS may sum in another order.
        factors = np.einsum("kqj,kjc->kqc", np.linalg.cholesky(_regular(variances)), turned)
        moved: FloatArray = np.einsum("kqj,kcj->kqc", factors, factors)
        return moved

    def expert_losses(self, state: MMState) -> FloatArray:
        """Return ½ log det 2πe Σ_k, as for normal distributions: tails change it by less than 1e-7 at κ = 6."""
        _, log_determinants = np.linalg.slogdet(_regular(state.variances))
        losses: FloatArray = 0.5 * (log_determinants + state.variances.shape[1] * math.log(2.0 * math.pi * math.e))
        return losses

    def divergences(self, state: MMState, options: LearningOptions) -> FloatArray:
        """Return the divergences of the experts' normal cores, as if there were no tails."""
        covariances = _regular(state.average_variances)
        inverses = np.linalg.inv(covariances)
        spread = np.einsum("iqc,jcq->ij", inverses, covariances)
        sharpness = inverses[:, None] + inverses[None]
        squares = np.einsum("ijqc,ijcq->ij", sharpness, squared_differences(state))
        found: FloatArray = 0.25 * (spread + spread.T + squares) - 0.5 * covariances.shape[1]
        return found

    def residual_size(self, n_outputs: int, p_v: int) -> int:
        return p_v * p_v + n_outputs * p_v + n_outputs * n_outputs + 1


def _regular(covariances: FloatArray) -> FloatArray:
    """Return Σ with the kernels' floor on pivots, relative to each variance: a singular one has no usable density."""
    regular: FloatArray = covariances + 1e-14 * np.einsum("kqq->kq", covariances)[:, :, None] * np.eye(
        covariances.shape[1]
    )
    return regular


FAMILY = GaussianFull()
