"""Linear experts with heavy tails: an iteratively reweighted Gaussian fit in which outliers count less."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from types import ModuleType

import numpy as np

from streammoe.experts.contract import Parameters
from streammoe.experts.gaussian import Gaussian
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.types import FloatArray


class Elliptical(Gaussian):
    """Linear regressions whose density depends only on the distance from the mean; `variances` are squared scales."""

    is_exact = False

    def __init__(self, kernels: ModuleType, *shape: float) -> None:
        """Bind the kernels of the noise, and its shape parameters."""
        self.learn_rows = partial(kernels.learn_rows, shape)
        self.score_rows = partial(kernels.score_rows, shape)
        self.trusted_rows = partial(kernels.trusted_rows, shape)

    def first_variances(self, Y: FloatArray) -> FloatArray:
        # With far too small a scale, all events would be outliers and hardly count.
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
            super().fit_experts(theta, prior, options, tau, R, Y, 1)

    @abstractmethod
    def entropy(self, n_outputs: int) -> float:
        """Return the entropy of the noise of Q outputs at scale 1, in nats."""

    def expert_losses(self, state: MMState) -> FloatArray:
        """Return the entropy of the noise: the mean loss if the noise is as assumed."""
        losses: FloatArray = 0.5 * np.sum(np.log(state.variances), axis=1) + self.entropy(state.variances.shape[1])
        return losses

    def irls_weights(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> FloatArray:
        found = np.empty_like(tau)
        self.trusted_rows(theta.experts, theta.variances, R, Y, tau, found)
        return found
