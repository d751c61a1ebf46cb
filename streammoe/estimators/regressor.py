"""Regression with one output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal, overload

from river import base

from streammoe.distributions import Mixture
from streammoe.errors import ConfigError
from streammoe.estimators.arguments import RegressorArguments, complete
from streammoe.estimators.frames import like, table_of
from streammoe.model import predicting

if TYPE_CHECKING:
    from river.conf import Interval

    from streammoe.estimators.river_mixture import RiverMixture


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

    @overload
    def predict_one(self, x: Mapping[Any, Any]) -> float: ...
    @overload
    def predict_one(self, x: Mapping[Any, Any], with_dist: Literal[True]) -> RiverMixture: ...
    @overload
    def predict_one(self, x: Mapping[Any, Any], *, with_interval: Literal[True]) -> Interval: ...
    def predict_one(self, x: Mapping[Any, Any], with_dist: bool = False, with_interval: bool = False) -> Any:
        """Predict y at `x` by its mean, Σ_k g_k(x) Υ_k φ(x) of each member ([MM] eq. 14); 0 before learning.

        Members of a portfolio count by how small their errors were, so that the mean of the predicted distribution, in
        which they count by their likelihood, may be another one.

        Args:
            x: the inputs.
            with_dist: return `predict_distribution_one(x)`, as one of River's `proba`.
            with_interval: return `predict_interval_one(x)`, as River's `conf.Interval`.

        Raises:
            ConfigError: both are asked for.
        """
        if with_dist and with_interval:
            raise ConfigError("predict_one: got both with_dist and with_interval; ask for one at a time")
        if with_dist:
            from streammoe.estimators.river_mixture import RiverMixture

            return RiverMixture(self.predict_distribution_one(x), self.n)
        if with_interval:
            from river.conf import Interval

            return Interval(*self.predict_interval_one(x))
        return predicting.predict_one(self.learner, x)

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
