"""Gaussian experts with a diagonal covariance ([MM] Algorithm 2): y | x, k ~ N(Υ_k φ_v(x), diag σ²_k).

With tails a fit is an iteratively reweighted one, in which an event beyond κ counts less, as in one with heavy tails.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import numpy as np

from streammoe import distributions
from streammoe.distributions import ExpertNoise
from streammoe.experts.contract import Family, Parameters
from streammoe.experts.on_sums import Sums
from streammoe.kernels import gaussian
from streammoe.kernels.batch import collect_errors, collect_gram, fit_linear, fit_variances
from streammoe.kernels.linalg import VANISHED, invert_spd
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.schedules import Power
from streammoe.types import FloatArray


class Gaussian(Family):
    """Linear regressions whose outputs are independent given the expert."""

    name = "gaussian"
    kernels: ModuleType = gaussian
    warmup_schedule = Power(alpha=1.0)
    events_per_parameter = 12

    def __init__(self, noise: ExpertNoise | None = None) -> None:
        """Make experts with this noise, by default the family's own."""
        self.noise = distributions.Gaussian() if noise is None else noise
        tail = self.noise.tail if isinstance(self.noise, distributions.Gaussian) else None
        self.has_tails = tail is not None and tail < math.inf
        self.is_exact = tail == math.inf
        self._shapes: dict[int, tuple[float, ...]] = {}

    def __reduce__(self) -> tuple[type[Family], tuple[Any, ...]]:
        return type(self), (self.noise,)

    def _shape(self, experts: FloatArray) -> tuple[float, ...]:
        """Return the numbers of the noise that kernels get, given coefficients (K, Q, p_v)."""
        n_outputs = experts.shape[1]
        if n_outputs not in self._shapes:
            self._shapes[n_outputs] = self.noise.shape(n_outputs)
        return self._shapes[n_outputs]

    def score_rows(self, gate: FloatArray, experts: FloatArray, *others: Any) -> None:
        self.kernels.score_rows(self._shape(experts), gate, experts, *others)

    def compiled(self, experts: FloatArray) -> tuple[ModuleType, tuple[float, ...]]:
        return self.kernels, self._shape(experts)

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
        before: FloatArray | None = None
        for _ in range(rounds):
            weights = self.irls_weights(theta, tau, R, Y)
            # Another fit with equal weights would move nothing but rounding.
            if before is not None and np.array_equal(weights, before):
                return
            self._fit(theta, prior, tau, weights, R, Y)
            before = weights

    def _fit(
        self, theta: Parameters, prior: Prior, tau: FloatArray, weights: FloatArray, R: FloatArray, Y: FloatArray
    ) -> None:
        """Fit experts to responsibilities `tau` in place; `weights` are those in all statistics but the mass."""
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

    def step_sums(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> Sums:
        """Return Σ v r rᵀ, and of errors ρ = y − Υ_k r also Σ v ρ rᵀ and Σ v ρ ρᵀ, and Σ τ, of each expert.

        v is `irls_weights`.
        """
        K, Q, p = theta.experts.shape
        weights = self.irls_weights(theta, tau, R, Y)
        grams, pulls, scatters = np.empty((K, p, p)), np.zeros((K, Q, p)), np.zeros((K, Q, Q))
        for k in range(K):
            collect_gram(R, np.ascontiguousarray(weights[:, k]), 0.0, np.zeros(p), 1.0, grams[k])
        collect_errors(theta.experts, weights, R, Y, pulls, scatters)
        return grams, pulls, scatters, tau.sum(axis=0)

    def settle_sums(
        self, theta: Parameters, options: LearningOptions, tau: FloatArray, R: FloatArray, Y: FloatArray
    ) -> Sums:
        return self.step_sums(theta, tau, R, Y)

    def settle_on_sums(
        self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums, n: int
    ) -> FloatArray:
        share = prior.strength / len(theta.experts)
        grams: FloatArray = (sums[0] + np.diag(share * prior.expert_gram)) / (n + prior.strength)
        self.step_on_sums(theta, prior, options, sums)
        return grams

    def step_on_sums(self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums) -> None:
        """Take the step of `_fit` in place, from `step_sums` at θ.

        What is left unexplained follows from the errors before the step, without another pass over the rows.
        """
        share = prior.strength / len(theta.experts)
        by_prior = np.diag(share * prior.expert_gram)
        for k, (gram, pulls, squares, mass) in enumerate(zip(*sums, strict=True)):
            apart = prior.experts - theta.experts[k]
            penalized, pull = gram + by_prior, pulls + share * apart * prior.expert_gram
            inverse = np.empty_like(gram)
            invert_spd(penalized, inverse, np.empty_like(gram))
            # Not `@`: a multithreaded BLAS may sum in another order.
            move = np.einsum("ij,qj->qi", inverse, pull)
            theta.experts[k] += move
            before = squares + np.einsum("qj,j,cj->qc", apart, share * prior.expert_gram, apart)
            gained = np.einsum("qj,cj->qc", move, pull)
            bent = np.einsum("qj,cj->qc", np.einsum("qi,ij->qj", move, penalized), move)
            left = before + share * np.diag(prior.variances) - gained - gained.T + bent
            theta.variances[k] = self._variances_from(left / (mass + share), prior)

    def _variances_from(self, scatter: FloatArray, prior: Prior) -> FloatArray:
        """Return the variances of an expert that leaves this covariance (Q, Q) unexplained."""
        return np.maximum(np.diag(scatter), prior.variance_floor * prior.variances)

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
        if self.is_exact:
            return tau
        found = np.empty_like(tau)
        self.kernels.trusted_rows(self._shape(theta.experts), theta.experts, theta.variances, R, Y, tau, found)
        return found

    def first_variances(self, Y: FloatArray) -> FloatArray:
        if self.is_exact:
            return super().first_variances(Y)
        # So large that no event is beyond the tail: with far too small a scale, hardly any would count.
        squares = np.max(Y * Y, axis=0)
        return np.where(squares > VANISHED, squares, 1.0)

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
