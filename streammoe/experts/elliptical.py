"""Linear experts with heavy tails: an iteratively reweighted Gaussian fit in which outliers count less."""

from __future__ import annotations

from importlib import import_module

import numpy as np

from streammoe.distributions import ExpertNoise
from streammoe.experts.contract import Parameters
from streammoe.experts.gaussian import Gaussian
from streammoe.kernels.linalg import VANISHED
from streammoe.kernels.state import LearningOptions, MMState, Prior
from streammoe.types import FloatArray


class Elliptical(Gaussian):
    """Linear regressions whose density depends only on the distance from the mean; `variances` are squared scales."""

    def __init__(self, noise: ExpertNoise) -> None:
        """Bind the kernels of the noise, which are compiled at the first event."""
        super().__init__(noise)
        self.kernels = import_module(f"streammoe.kernels.{noise.name}")
        self.name = noise.name
        self.most_outputs = noise.most_outputs

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
            self._fit(theta, prior, tau, self.irls_weights(theta, tau, R, Y), R, Y)

    def expert_losses(self, state: MMState) -> FloatArray:
        """Return the entropy of the noise: the mean loss if the noise is as assumed."""
        losses: FloatArray = 0.5 * np.sum(np.log(state.variances), axis=1) + self.noise.entropy(
            state.variances.shape[1]
        )
        return losses
