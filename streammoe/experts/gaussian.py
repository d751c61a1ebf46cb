"""Gaussian experts with a diagonal covariance ([MM] Algorithm 2): y | x, k ~ N(Υ_k φ_v(x), diag σ²_k)."""

from __future__ import annotations

from functools import partial

import numpy as np

from streammoe.experts.contract import Family, Parameters
from streammoe.kernels import gaussian
from streammoe.kernels.batch import collect_errors, collect_gram, fit_linear, fit_variances
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.schedules import Power
from streammoe.types import FloatArray


class Gaussian(Family):
    """Linear regressions whose outputs are independent given the expert."""

    name = "gaussian"
    learn_rows = staticmethod(partial(gaussian.learn_rows, ()))
    score_rows = staticmethod(partial(gaussian.score_rows, ()))
    warmup_schedule = Power(alpha=1.0)
    warmup_averaging = None
    events_per_parameter = 12

    def n_rows(self, n_outputs: int) -> int:
        return n_outputs

    def variances_of(self, variances: FloatArray, n_experts: int) -> FloatArray:
        return np.repeat(variances[None], n_experts, axis=0)

    def fit_experts(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
        rounds: int,
    ) -> None:
        weights = self.irls_weights(theta, tau, R, Y)
        fit_linear(theta.experts, prior.strength, prior.expert_gram, prior.experts, weights, R, Y)
        fit_variances(
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

    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        share = prior.strength / len(theta.experts)
        squares = ((theta.experts - prior.experts) ** 2 * prior.expert_gram).sum(axis=2) + prior.variances
        return float(-0.5 * share * np.sum(np.log(theta.variances) + squares / theta.variances))

    def settle(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
    ) -> FloatArray:
        grams = expert_grams(prior, self.irls_weights(theta, tau, R, Y), R)
        self.fit_experts(theta, prior, options, tau, R, Y, 1)
        return grams

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
        squares = np.einsum("kqq->kq", scatters) / theta.variances
        return pulls / theta.variances[:, :, None], 0.5 * (squares - masses_under(prior, tau)[:, None])

    def irls_weights(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> FloatArray:
        """Return the weights of events in all statistics but the mass, (n, K): `tau`, unless tails are heavier."""
        return tau

    def residual_size(self, n_outputs: int, p_v: int) -> int:
        return p_v * p_v + n_outputs * p_v + n_outputs + 1


def expert_grams(prior: Prior, weights: FloatArray, R: FloatArray) -> FloatArray:
    """Return E[weight · r rᵀ] of each expert with its share of the prior; `weights` (n, K)."""
    n, K = weights.shape
    grams = np.empty((K, R.shape[1], R.shape[1]))
    for k in range(K):
        share = np.ascontiguousarray(weights[:, k])
        collect_gram(R, share, prior.strength / K, prior.expert_gram, n + prior.strength, grams[k])
    return grams


def errors_under(
    theta: Parameters, prior: Prior, weights: FloatArray, R: FloatArray, Y: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return Σ v ρ rᵀ (K, Q, p) and Σ v ρ ρᵀ (K, Q, Q) for errors ρ = y − Υ_k r, weights v (n, K) and the prior."""
    share = prior.strength / len(theta.experts)
    apart = prior.experts - theta.experts
    pulls = share * apart * prior.expert_gram
    scatters = share * (np.einsum("kqj,j,kcj->kqc", apart, prior.expert_gram, apart) + np.diag(prior.variances))
    collect_errors(theta.experts, weights, R, Y, pulls, scatters)
    return pulls, scatters


def masses_under(prior: Prior, tau: FloatArray) -> FloatArray:
    """Return Σ τ of each expert, (K,), prior included."""
    masses: FloatArray = tau.sum(axis=0) + prior.strength / tau.shape[1]
    return masses


FAMILY = Gaussian()
