"""Regression with one output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from river import base

from streammoe.distributions import Mixture
from streammoe.estimators.arguments import RegressorArguments, complete
from streammoe.estimators.frames import like, table_of
from streammoe.model import predicting


@complete
class MoERegressor(RegressorArguments, base.MiniBatchRegressor):
    """Mixture of linear experts with a learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), σ²_k) by incremental stochastic majorization-minimization: running
    sufficient statistics move a step γ_n for each event and the parameters follow in closed form. The first events are
    fitted in batch from several starts, at counts that double; until the first fit, single experts predict.

    Invalid values (NaN, infinities, wrong types, values far out of range) raise `InvalidEvent` and change nothing; a
    missing key is a missing value and is replaced by the column's mean.

    Examples:
    --------
    >>> from river import datasets, metrics
    >>> from streammoe import MoERegressor
    >>> model = MoERegressor(n_experts=2, warmup=200)
    >>> metric = metrics.RMSE()
    >>> for x, y in datasets.TrumpApproval():
    ...     metric.update(y, model.predict_one(x))
    ...     model.learn_one(x, y)
    >>> metric.get() < 1.5
    True

    References:
    ----------
    Tran, Nguyen, Fort et al., "Revisiting Incremental Stochastic Majorization-Minimization Algorithms with
    Applications to Mixture of Experts", arXiv 2601.19811, Algorithms 1 and 2.
    """

    several_outputs: ClassVar = False

    # -- River's contract ------------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """Predict y at `x` by its mean, Σ_k g_k(x) Υ_k φ(x) of each member ([MM] eq. 14); 0 before learning.

        Members of a portfolio count by how small their errors were, so that the mean of the predicted distribution, in
        which they count by their likelihood, may be another one.
        """
        prediction: float = predicting.predict_one(self.learner, x)
        return prediction

    def predict_distribution_one(self, x: Mapping[Any, Any]) -> Mixture:
        """Predict the distribution of y at `x`: a mixture of the experts of all members, with the noise `expert`."""
        distribution: Mixture = predicting.distribution_one(self.learner, x)
        return distribution

    def predict_interval_one(self, x: Mapping[Any, Any], level: float = 0.9) -> tuple[float, float]:
        """Predict the interval that holds y at `x` with probability `level`; NaN before anything was learned.

        With `calibrate` its ends follow where targets fall, while `predict_distribution_one(x).interval(level)` has
        quantiles of the distribution.

        Raises:
            ConfigError: a level outside (0, 1).
        """
        low, high = predicting.interval_one(self.learner, x, level)[0].tolist()
        return low, high

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_many(self, X: Any) -> Any:
        """Predict each row of a frame by the regression function: a series of the frame's kind, with its index."""
        frame, table = table_of(self.learner.encoder, X)
        return like(frame, predicting.predict(self.learner, table))
