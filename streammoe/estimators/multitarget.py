"""Regression with several outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from river import base

from streammoe.distributions import Gaussian, MultivariateMixture
from streammoe.errors import ConfigError
from streammoe.estimators.arguments import RegressorArguments, complete
from streammoe.estimators.frames import like, table_of
from streammoe.model import predicting
from streammoe.model.parameters import experts_in


@complete
class MoEMultiTargetRegressor(RegressorArguments, base.MultiTargetRegressor):
    """Mixture of linear experts with several outputs and one learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), Σ_k), with Σ_k diagonal or full. The outputs are those of the first event,
    ordered by name; every later event must have all of them.

    Examples:
    --------
    >>> from streammoe import MoEMultiTargetRegressor
    >>> model = MoEMultiTargetRegressor(n_experts=2)
    >>> for i in range(1_000):
    ...     x = i % 100 / 50
    ...     model.learn_one({"x": x}, {"height": 1 + x, "weight": 5 - 2 * x})
    >>> {name: round(value, 1) for name, value in model.predict_one({"x": 1.5}).items()}
    {'height': 2.5, 'weight': 2.0}

    References:
    ----------
    Tran, Nguyen, Fort et al., "Revisiting Incremental Stochastic Majorization-Minimization Algorithms with
    Applications to Mixture of Experts", arXiv 2601.19811, Algorithms 1 and 2.
    """

    several_outputs: ClassVar = True

    @classmethod
    def _blank(cls, parameters: Mapping[str, Any], arguments: Mapping[str, Any]) -> Self:
        covariance: Any = "full" if np.ndim(parameters.get("variances", 0.0)) == 3 else "diagonal"
        others = {name: value for name, value in arguments.items() if name != "target_names"}
        model = super()._blank(parameters, {"expert": Gaussian(covariance), **others})
        names = arguments.get("target_names")
        model.set_targets([f"y{q}" for q in range(experts_in(parameters).shape[1])] if names is None else names)
        return model

    def set_targets(self, names: Sequence[Any]) -> None:
        """Fix the outputs of a model that has none yet, in this order.

        Raises:
            ConfigError: it has outputs, or a name occurs twice.
            InvalidEvent: a name is neither a string nor an integer.
        """
        self.learner.set_targets(names)

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Mapping[Any, float], w: float = 1.0, **kwargs: Any) -> None:
        self.learner.learn_one(x, y, w)

    def predict_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """Predict each output at `x` by the regression function ([MM] eq. 14); empty before anything was learned."""
        predictions: dict[Any, float] = predicting.predict_one(self.learner, x)
        return predictions

    def predict_distribution_one(self, x: Mapping[Any, Any]) -> MultivariateMixture:
        """Predict the distribution of the outputs at `x`: a mixture of the experts of all members.

        Raises:
            ConfigError: no event has been learned, so the outputs are not known.
        """
        if not self.learner.targets.is_fixed:
            raise ConfigError("predict_distribution_one: the outputs are not known yet; learn an event first")
        distribution: MultivariateMixture = predicting.distribution_one(self.learner, x)
        return distribution

    def predict_interval_one(self, x: Mapping[Any, Any], level: float = 0.9) -> dict[Any, tuple[float, float]]:
        """Predict for each output the interval that holds it at `x` with probability `level`; see `MoERegressor`.

        Empty before anything was learned. The probability that all hold their output at once is smaller.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        found = predicting.interval_one(self.learner, x, level).tolist()
        return {name: (low, high) for name, (low, high) in zip(self.output_names, found, strict=True)}

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_many(self, X: Any) -> Any:
        """Predict each row of a frame by the regression function: one column per output, in a frame of its kind."""
        frame, table = table_of(self.learner.encoder, X)
        return like(frame, predicting.predict(self.learner, table), self.output_names)
