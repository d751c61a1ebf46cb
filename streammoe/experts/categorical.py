"""Categorical experts ([MM] Algorithm 3): P(y = m | x, k) = softmax_m(C_k φ_v(x)), the first class is the reference."""

from __future__ import annotations

import numpy as np

from streammoe.experts.contract import Family, Parameters
from streammoe.experts.gaussian import expert_grams
from streammoe.kernels import categorical
from streammoe.kernels.batch import adaptive_weights, bent_square, fit_softmax, majorize_softmax, softmax_rows
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.schedules import Power
from streammoe.types import FloatArray


class Categorical(Family):
    """Multinomial logistic regressions; an output is a class."""

    name = "categorical"
    learn_rows = staticmethod(categorical.learn_rows)
    score_rows = staticmethod(categorical.score_rows)
    warmup_schedule = Power(alpha=0.5)
    warmup_averaging = "decay"
    events_per_parameter = 18
    is_metric = False
    is_exact = False

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
        K = len(theta.experts)
        labels = Y[:, 0].astype(np.int64)
        rows = np.arange(len(labels))
        for k in range(K):
            targets = np.zeros((len(labels), theta.experts.shape[1] + 1))
            targets[rows, labels] = tau[:, k]
            fit_softmax(
                theta.experts[k],
                prior.strength / K,
                prior.expert_gram,
                prior.experts,
                options.expert_curvature,
                targets,
                R,
                0,
                rounds,
            )

    def log_prior(self, theta: Parameters, prior: Prior, options: LearningOptions) -> float:
        share = prior.strength / len(theta.experts)
        squares = [
            bent_square(expert, prior.experts, prior.expert_gram, options.expert_curvature) for expert in theta.experts
        ]
        return -0.5 * share * sum(squares)

    def settle(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
    ) -> FloatArray:
        n, K = tau.shape
        labels = Y[:, 0].astype(np.int64)
        probabilities = np.empty((n, theta.experts.shape[1] + 1))
        weights = tau.copy()
        pushes = []
        bends = np.empty(n)
        for k in range(K):
            softmax_rows(theta.experts[k], R, 0, probabilities)
            if options.adaptive:
                adaptive_weights(probabilities, bends)
                weights[:, k] *= bends
            push = probabilities.copy()
            push[np.arange(n), labels] -= 1.0
            pushes.append(np.ascontiguousarray(push[:, 1:] * tau[:, k, None]))
        grams = expert_grams(prior, weights, R)
        for k in range(K):
            majorize_softmax(
                theta.experts[k],
                grams[k],
                prior.strength / K,
                prior.expert_gram,
                prior.experts,
                options.expert_curvature,
                pushes[k],
                R,
                n + prior.strength,
            )
        return grams

    def residual_size(self, n_outputs: int, p_v: int) -> int:
        return p_v * p_v + self.n_rows(n_outputs) * p_v + 1

    def start_prior(self, prior: Prior) -> Prior:
        # Classes that a line separates would send the coefficients off without one.
        return prior._replace(strength=max(prior.strength, 1.0))


FAMILY = Categorical()
