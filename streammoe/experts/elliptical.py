"""What linear experts with heavy tails share: a Gaussian fit in which far events count less, round by round."""

from __future__ import annotations

from functools import partial

import numpy as np

from streammoe.experts.contract import Parameters
from streammoe.experts.gaussian import Gaussian, expert_grams
from streammoe.kernels import elliptical
from streammoe.kernels.batch import fit_linear, fit_variances
from streammoe.kernels.elliptical import Tails, trust_rows
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import LearningOptions, Prior
from streammoe.types import FloatArray


class Elliptical(Gaussian):
    """Linear regressions whose density hangs on the distance from the mean alone; `variances` are squared scales."""

    is_exact = False

    def __init__(self, tails: Tails) -> None:
        self.tails = tails
        self.learn_rows = partial(elliptical.learn_rows, tails)
        self.score_rows = partial(elliptical.score_rows, tails)

    def first_variances(self, Y: FloatArray) -> FloatArray:
        # With far too small a scale all events would be far, and hardly count.
        squares = np.mean(Y * Y, axis=0)
        return np.where(squares > VANISHED, squares, 1.0)

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
        for _ in range(rounds):
            trusted = self._trusted(theta, tau, R, Y)
            fit_linear(theta.experts, prior.strength, prior.expert_gram, prior.experts, trusted, R, Y)
            fit_variances(
                theta.experts,
                theta.variances,
                prior.strength,
                prior.expert_gram,
                prior.experts,
                prior.variances,
                prior.variance_floor,
                tau,
                trusted,
                R,
                Y,
            )

    def settle(
        self,
        theta: Parameters,
        prior: Prior,
        options: LearningOptions,
        tau: FloatArray,
        R: FloatArray,
        Y: FloatArray,
    ) -> FloatArray:
        grams = expert_grams(prior, self._trusted(theta, tau, R, Y), R)
        self.fit_experts(theta, prior, options, tau, R, Y, 1)
        return grams

    def _trusted(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> FloatArray:
        """(n, K) τ u at θ."""
        trusted = np.empty_like(tau)
        trust_rows(self.tails, theta.experts, theta.variances, R, Y, tau, trusted)
        return trusted
