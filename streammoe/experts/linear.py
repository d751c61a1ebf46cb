"""Linear experts ([MM] Algorithm 2): y | x, k = Υ_k φ_v(x) + noise of squared scales σ²_k, or of a covariance Σ_k.

Unless the noise is normal without tails, a fit is an iteratively reweighted one, in which an event counts the less the
farther out it is.
"""

from __future__ import annotations

import math
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np

from streammoe.distributions import ExpertNoise, Gaussian
from streammoe.experts.contract import Family, Parameters, squared_differences
from streammoe.experts.on_sums import Sums
from streammoe.kernels.batch import linear_step, linear_sums
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.schedules import Power
from streammoe.types import FloatArray

LEAST_PIVOT = 1e-14
"""The kernels' floor on the pivots of Σ, relative to each variance: a singular one has no usable density."""


class Linear(Family):
    """Linear regressions whose outputs are independent given the expert, or correlated."""

    warmup_schedule = Power(alpha=1.0)
    events_per_parameter = 12

    def __init__(self, noise: ExpertNoise) -> None:
        """Bind the kernels of the noise, which are compiled at the first event."""
        self.noise = noise
        self.name = noise.family
        self.most_outputs = noise.most_outputs
        tail = noise.tail if isinstance(noise, Gaussian) else None
        self.has_tails = tail is not None and tail < math.inf
        self.is_exact = tail == math.inf
        self.is_full = isinstance(noise, Gaussian) and noise.covariance == "full"
        self.kernels: ModuleType = import_module(f"streammoe.kernels.{self.name}")
        self._shape = cache(noise.shape)

    def __reduce__(self) -> tuple[type[Family], tuple[Any, ...]]:
        return type(self), (self.noise,)

    def compiled(self, experts: FloatArray) -> tuple[ModuleType, tuple[float, ...]]:
        return self.kernels, self._shape(experts.shape[1])

    def n_rows(self, n_outputs: int) -> int:
        return n_outputs

    def variances_of(self, variances: FloatArray, n_experts: int) -> FloatArray:
        return np.repeat((np.diag(variances) if self.is_full else variances)[None], n_experts, axis=0)

    # -- Fits --------------------------------------------------------------------------------------------------------

    def irls_weights(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> FloatArray:
        """Return the weights of events in all statistics but the mass, (n, K): `tau`, unless tails are heavier."""
        if self.is_exact:
            return tau
        found = np.empty_like(tau)
        self.kernels.trusted_rows(self._shape(theta.experts.shape[1]), theta.experts, theta.variances, R, Y, tau, found)
        return found

    def step_sums(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> Sums:
        """Return what `linear_sums` does under `irls_weights`, and Σ τ of each expert."""
        K, Q, p = theta.experts.shape
        grams, pulls, scatters = np.zeros((K, p, p)), np.zeros((K, Q, p)), np.zeros((K, Q, Q))
        linear_sums(theta.experts, self.irls_weights(theta, tau, R, Y), R, Y, grams, pulls, scatters)
        return grams, pulls, scatters, tau.sum(axis=0)

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
            sums = self.step_sums(theta, tau, R, Y)
            # Equal weights have equal Gram matrices: this step mends the rounding of the one before, and is the last.
            is_last = before is not None and np.array_equal(sums[0], before)
            before = sums[0]
            self.step_on_sums(theta, prior, options, sums)
            if is_last:
                return

    def settle_sums(
        self, theta: Parameters, options: LearningOptions, tau: FloatArray, R: FloatArray, Y: FloatArray
    ) -> Sums:
        return self.step_sums(theta, tau, R, Y)

    def settle_on_sums(
        self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums, n: int
    ) -> FloatArray:
        share = prior.strength / len(theta.experts)
        grams = sums[0] + np.tril(sums[0], -1).transpose(0, 2, 1) + np.diag(share * prior.expert_gram)
        self.step_on_sums(theta, prior, options, sums)
        found: FloatArray = grams / (n + prior.strength)
        return found

    def step_on_sums(self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums) -> None:
        grams, pulls, scatters, masses = sums
        share = prior.strength / len(theta.experts)
        left = scatters.copy()
        linear_step(theta.experts, share, prior.expert_gram, prior.experts, grams, pulls, left)
        left = (left + share * np.diag(prior.variances)) / (masses + share)[:, None, None]
        own = np.maximum(np.einsum("kqq->kq", left), prior.variance_floor * prior.variances)
        if self.is_full:
            np.einsum("kqq->kq", left)[...] = own
        theta.variances[...] = left if self.is_full else own

    def first_variances(self, Y: FloatArray) -> FloatArray:
        if self.is_exact:
            return super().first_variances(Y)
        # So large that no event is far out: with far too small a scale, hardly any would count.
        squares = np.max(Y * Y, axis=0)
        return np.where(squares > VANISHED, squares, 1.0)

    # -- The likelihood ----------------------------------------------------------------------------------------------

    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        share = prior.strength / len(theta.experts)
        apart = theta.experts - prior.experts
        if not self.is_full:
            squares = (apart**2 * prior.expert_gram).sum(axis=2) + prior.variances
            return float(-0.5 * share * np.sum(np.log(theta.variances) + squares / theta.variances))
        scatter = np.einsum("kqj,j,kcj->kqc", apart, prior.expert_gram, apart) + np.diag(prior.variances)
        covariances = self._covariances(theta.variances)
        traces = np.einsum("kqq->k", np.linalg.solve(covariances, scatter))
        return float(-0.5 * share * np.sum(np.linalg.slogdet(covariances)[1] + traces))

    # -- Diagnostics -------------------------------------------------------------------------------------------------

    def expert_losses(self, state: MMState) -> FloatArray:
        """Return the entropy of each expert's noise: the mean loss if the noise is as assumed."""
        log_determinants = np.linalg.slogdet(self._covariances(state.variances))[1]
        losses: FloatArray = 0.5 * log_determinants + self.noise.entropy(state.variances.shape[1])
        return losses

    def divergences(self, state: MMState, options: LearningOptions) -> FloatArray:
        """Return the divergences of normal distributions, which are the cores of those with tails."""
        covariances = self._covariances(state.average_variances)
        inverses = np.linalg.inv(covariances)
        spread = np.einsum("iqc,jcq->ij", inverses, covariances)
        squares = np.einsum("ijqc,ijcq->ij", inverses[:, None] + inverses[None], squared_differences(state))
        found: FloatArray = 0.25 * (spread + spread.T + squares) - 0.5 * covariances.shape[1]
        return found

    def _covariances(self, variances: FloatArray) -> FloatArray:
        """Return Σ of each expert, (K, Q, Q), with pivots that are not 0."""
        own = variances if variances.ndim == 2 else np.einsum("kqq->kq", variances)
        diagonal = own[:, :, None] * np.eye(own.shape[1])
        regular: FloatArray = diagonal if variances.ndim == 2 else variances + LEAST_PIVOT * diagonal
        return regular
