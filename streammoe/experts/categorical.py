"""Categorical experts ([MM] Algorithm 3): P(y = m | x, k) = softmax_m(C_k φ_v(x)); the first class is the reference."""

from __future__ import annotations

from types import ModuleType

import numpy as np

from streammoe.experts.contract import Family, Parameters, squared_differences
from streammoe.experts.on_sums import SoftmaxPrior, Sums, softmax_step, sums_of_softmax
from streammoe.kernels import categorical
from streammoe.kernels.batch import (
    adaptive_weights,
    collect_gram,
    fit_softmax,
    majorize_softmax,
    prior_quadratic,
    softmax_gradient,
    softmax_rows,
)
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.schedules import Power
from streammoe.types import FloatArray

DRAWS = 64
"""Inputs over which the entropy of an expert is averaged."""
NARROW = 128
"""Features that a fit to a buffer can have without shrinkage."""
FEATURES_PER_EVENT = 4.0
"""Of the features beyond those, so many raise the prior by one event."""


class Categorical(Family):
    """Multinomial logistic regressions; an output is a class."""

    name = "categorical"
    warmup_schedule = Power(alpha=0.5)
    events_per_parameter = 18
    is_metric = False
    is_exact = False

    def compiled(self, experts: FloatArray) -> tuple[ModuleType, tuple[float, ...]]:
        return categorical, ()

    def n_rows(self, n_outputs: int) -> int:
        return max(n_outputs - 1, 0)

    def n_targets(self, n_outputs: int) -> int:
        return 1

    def n_variances(self, n_outputs: int) -> int:
        return 0

    def variances_of(self, variances: FloatArray, n_experts: int) -> FloatArray:
        return np.empty((n_experts, 0))

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
        for k, expert in enumerate(theta.experts):
            fit_softmax(expert, *_share(theta, prior, options), _soft(Y, tau[:, k], theta), R, 0, rounds)

    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        strength, gram, target, curvature = _share(theta, prior, options)
        return -0.5 * strength * sum(prior_quadratic(expert, target, gram, curvature) for expert in theta.experts)

    def step_sums(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> Sums:
        """Return what `sums_of_softmax` does, of each expert."""
        each = [sums_of_softmax(expert, _soft(Y, tau[:, k], theta), R, 0) for k, expert in enumerate(theta.experts)]
        return tuple(np.stack(parts) for parts in zip(*each, strict=True))

    def step_on_sums(self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums) -> None:
        for expert, *own in zip(theta.experts, *sums, strict=True):
            softmax_step(expert, _share(theta, prior, options), tuple(own))

    def settle_sums(
        self, theta: Parameters, options: LearningOptions, tau: FloatArray, R: FloatArray, Y: FloatArray
    ) -> Sums:
        """Return Σ v r rᵀ of each expert, v with the adaptive bound's weights, and the pushes of their logits."""
        n, p = R.shape
        grams, pushes = np.empty((len(theta.experts), p, p)), np.empty_like(theta.experts)
        probabilities, bends = np.empty((n, theta.experts.shape[1] + 1)), np.ones(n)
        none = _share(theta, self.unit_prior(0.0, 0, p, theta.experts.shape[1] + 1), options)
        for k, expert in enumerate(theta.experts):
            if options.adaptive:
                softmax_rows(expert, R, 0, probabilities)
                adaptive_weights(probabilities, bends)
            collect_gram(R, tau[:, k] * bends, 0.0, none.gram, 1.0, grams[k])
            softmax_gradient(expert, *none, _soft(Y, tau[:, k], theta), R, 0, pushes[k])
        return grams, -pushes

    def settle_on_sums(
        self, theta: Parameters, prior: Prior, options: LearningOptions, sums: Sums, n: int
    ) -> FloatArray:
        share, total = _share(theta, prior, options), n + prior.strength
        grams: FloatArray = (sums[0] + np.diag(share.strength * prior.expert_gram)) / total
        # The sums of pushes times features take the place of rows: each is a row of weight 1 of one logit.
        each = np.eye(theta.experts.shape[1])
        for expert, gram, pushes in zip(theta.experts, grams, sums[1], strict=True):
            majorize_softmax(expert, gram, *share, each, pushes, total)
        return grams

    def expert_losses(self, state: MMState) -> FloatArray:
        """Return the mean entropy of each expert over inputs with the mean and covariance of its own.

        That is its loss if its probabilities are right, and needs only the algorithm's own statistics.
        """
        draws = np.random.default_rng(0).normal(size=(DRAWS, state.experts.shape[2]))
        losses = np.empty(len(state.experts))
        for k, expert in enumerate(state.average_experts):
            losses[k] = categorical.expected_entropy(expert, state.expert_grams[k], draws)
        return losses

    def divergences(self, state: MMState, options: LearningOptions) -> FloatArray:
        """Return upper bounds: (p − q)ᵀ d ≤ dᵀ A d for logits that differ by d; A is the surrogate's curvature."""
        squares = squared_differences(state)
        a, b = options.expert_curvature
        c = b / (1.0 + b * squares.shape[2])
        bent = np.einsum("ijqq->ij", squares) - c * np.sum(squares, axis=(2, 3))
        found: FloatArray = 0.5 / a * bent
        return found

    def search_prior(self, prior: Prior, Y: FloatArray) -> Prior:
        """Return a strong prior around the frequencies of the classes where there are many features.

        With hardly more rows than features a weak one leaves experts that interpolate their rows, and the likelihood
        says nothing about starts. One expert fitted to all rows is no better center where the experts differ.
        """
        strength = _shrinkage(prior)
        if prior.strength >= strength:
            return prior
        counts = 1.0 + np.bincount(Y[:, 0].astype(np.int64), minlength=len(prior.experts) + 1)
        experts = np.zeros_like(prior.experts)
        experts[:, 0] = np.log(counts[1:] / counts[0])
        return prior._replace(strength=strength, experts=experts)

    def start_prior(self, prior: Prior) -> Prior:
        # Without a prior, coefficients diverge where classes are linearly separable.
        return prior._replace(strength=max(prior.strength, 1.0, _shrinkage(prior)))


def _shrinkage(prior: Prior) -> float:
    """Return the least strength of a prior, in events, in fits to a buffer: it grows with the number of features."""
    return max(len(prior.expert_gram) - NARROW, 0) / FEATURES_PER_EVENT


def _share(theta: Parameters, prior: Prior, options: LearningOptions) -> SoftmaxPrior:
    """Return each expert's share of the prior."""
    strength = prior.strength / len(theta.experts)
    return SoftmaxPrior(strength, prior.expert_gram, prior.experts, options.expert_curvature)


def _soft(Y: FloatArray, tau: FloatArray, theta: Parameters) -> FloatArray:
    """Return the targets of a softmax regression, (n, M): each row's weight (n,) at its class."""
    targets = np.zeros((len(Y), theta.experts.shape[1] + 1))
    targets[np.arange(len(Y)), Y[:, 0].astype(np.int64)] = tau
    return targets
