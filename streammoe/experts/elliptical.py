"""What linear experts with heavy tails share: a Gaussian fit in which far events count less, round by round."""

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
    """Linear regressions whose density hangs on the distance from the mean alone; `variances` are squared scales."""

    is_exact = False

    def __init__(self, kernels: ModuleType, *shape: float) -> None:
        """Bind the kernels of the noise, and the numbers that it has."""
        self.learn_rows = partial(kernels.learn_rows, shape)
        self.score_rows = partial(kernels.score_rows, shape)
        self.trusted_rows = partial(kernels.trusted_rows, shape)

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
            super().fit_experts(theta, prior, options, tau, R, Y, 1)

    @abstractmethod
    def entropy(self, n_outputs: int) -> float:
        """Of the noise of Q outputs at scale 1, in nats."""

    def expert_losses(self, state: MMState) -> FloatArray:
        """The entropy of the noise: what an event costs where the noise is what it is taken for."""
        losses: FloatArray = 0.5 * np.sum(np.log(state.variances), axis=1) + self.entropy(state.variances.shape[1])
        return losses

    def trusted(self, theta: Parameters, tau: FloatArray, R: FloatArray, Y: FloatArray) -> FloatArray:
        trusted = np.empty_like(tau)
        self.trusted_rows(theta.experts, theta.variances, R, Y, tau, trusted)
        return trusted
