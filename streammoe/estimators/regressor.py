"""Regression with one output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from river import base

from streammoe.distributions import Mixture
from streammoe.estimators.base import MixtureOfExperts
from streammoe.estimators.frames import series_like, table_of
from streammoe.estimators.noise import family_of, noise_rules
from streammoe.model.learn_array import learn_array
from streammoe.model.parameters import continue_from, experts_in
from streammoe.model.tables import table_of_array
from streammoe.model.targets import Number
from streammoe.schedules import Schedule
from streammoe.types import AnyArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd


class MoERegressor(MixtureOfExperts, base.MiniBatchRegressor):
    """Mixture of linear experts with a learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), σ²_k) by incremental stochastic majorization-minimization: running
    sufficient statistics move a step γ_n for each event and the parameters follow in closed form. A bounded warm-up
    buffer is fitted in batch from several starts first; a one-expert recursive fit predicts meanwhile, or in a long
    warm-up a mixture fitted quickly to its first part.

    Bad values (NaN, infinities, wrong types, values far out of range) raise `InvalidEvent` and change nothing; a
    key that is absent is a missing value and takes the column's mean.

    Parameters
    ----------
    n_experts
        Number of experts K ≥ 1; 1 is recursive Bayesian-style linear regression.
        ``"auto"`` chooses it: several are fitted in the warm-up, and the best three learn side by side until their
        losses decide.
    degree
        Highest power of each input that experts see.
    gate_degree
        The same for the gate.
    expert
        The noise of each expert: ``"gaussian"``, or one that outliers do not pull away: ``"student_t"``, or
        ``"laplace"``, which follows the median.
    degrees_of_freedom
        ν above 2 of ``expert="student_t"``; the smaller, the less an event far out counts.
    schedule
        Step sizes γ_n, from `streammoe.schedules`; ``None`` is ``power(0.6)``. ``constant(gamma)`` tracks drift.
    bound
        Curvature bound of the gate: ``"adaptive"`` (follows each event's probabilities), ``"tight"`` or the papers'
        own ``"paper"``.
    prior_strength
        Pseudo-events that the prior is worth among those that a step size spans; 0 is the papers' plain algorithm.
    warmup
        Events buffered for the batch start; ``None`` grows with the number of parameters (at least 400), 0 starts at
        once from random experts.
    warmup_restarts
        Starts of each family that the batch fit tries.
    averaging
        What serves predictions: ``"polyak"`` (mean of all iterates since warm-up), ``"decay"`` (recent ones count
        more), ``"exponential"`` (each counts `averaging_rate`, or more at first), or ``None`` (the raw iterate).
    averaging_rate
        Least weight of the latest iterate in an exponential average: about the last 1/rate of them count. Of no effect
        with any other `averaging`.
    drift
        ``"page_hinkley"`` watches the prequential loss, and lets steps and average begin anew where it has risen for
        good; ``"off"`` does not.
    drift_restart
        Events that steps take for seen after a drift: the fewer, the larger the steps. Of no effect without `drift`.
    seed
        Of every random choice; equal seeds and events give equal models, bit for bit.
    standardize
        Centre and scale inputs and target by their warm-up moments, then frozen. In a pipeline behind a scaler, off.
    range_factor
        Refuse values beyond this many times the largest one accepted in their column (0: no such rule).
    categorical
        Names of the features that are categories: text, truth values or numbers. Each level is a column of 0 and 1.
    timestamps
        Names of the features that are times: seconds since 1970-01-01 UTC, datetimes, or ISO 8601 text. Each becomes
        sin and cos of the time of day, of the week and of the year.
    max_levels
        Most levels of one category that get a column; events with others are learned without theirs.
    max_experts
        Most experts that ``n_experts="auto"`` tries; of no effect where that is a number.
    top_k
        How many experts learn from an event: those with the largest responsibilities. ``None``: all; fewer make large
        K faster, and all still predict.
    batch_size
        Events of a step. More than 1 learns faster where there are many features: a group moves the model when it is
        full, by the mean of what its events say. Those that wait are part of the model.
    reseed
        ``"auto"``: an expert that is starved, or a duplicate, is tried as half of the one whose loss is worst, beside
        the model as it is, and takes its place where that predicts better; ``"off"``: a log line tells of it. A single
        expert is never idle, so with ``n_experts=1`` there is nothing to try.

    Examples:
    --------
    >>> from river import datasets, metrics, preprocessing
    >>> from streammoe import MoERegressor
    >>> model = preprocessing.StandardScaler() | MoERegressor(n_experts=2, warmup=200)
    >>> metric = metrics.RMSE()
    >>> for x, y in datasets.TrumpApproval():
    ...     metric.update(y, model.predict_one(x))
    ...     model.learn_one(x, y)
    >>> metric.get() < 2.5
    True

    References:
    ----------
    Tran, Nguyen, Fort et al., "Revisiting Incremental Stochastic Majorization-Minimization Algorithms with
    Applications to Mixture of Experts", arXiv 2601.19811, Algorithms 1 and 2.
    """

    def __init__(
        self,
        n_experts: int | str = 4,
        *,
        degree: int = 1,
        gate_degree: int = 1,
        covariance: str = "diagonal",
        expert: str = "gaussian",
        degrees_of_freedom: float = 4.0,
        schedule: Schedule | None = None,
        bound: str = "adaptive",
        prior_strength: float = 0.1,
        warmup: int | None = None,
        warmup_restarts: int = 5,
        averaging: str | None = "polyak",
        averaging_rate: float = 0.01,
        drift: str = "off",
        drift_restart: int = 200,
        seed: int = 0,
        standardize: bool = False,
        range_factor: float = 1e6,
        categorical: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        max_levels: int = 64,
        max_experts: int = 6,
        top_k: int | None = None,
        batch_size: int = 1,
        reseed: str = "off",
    ) -> None:
        super().__init__(
            n_experts=n_experts,
            degree=degree,
            gate_degree=gate_degree,
            covariance=covariance,
            expert=expert,
            degrees_of_freedom=degrees_of_freedom,
            schedule=schedule,
            bound=bound,
            prior_strength=prior_strength,
            warmup=warmup,
            warmup_restarts=warmup_restarts,
            averaging=averaging,
            averaging_rate=averaging_rate,
            drift=drift,
            drift_restart=drift_restart,
            seed=seed,
            standardize=standardize,
            range_factor=range_factor,
            categorical=categorical,
            timestamps=timestamps,
            max_levels=max_levels,
            max_experts=max_experts,
            top_k=top_k,
            batch_size=batch_size,
            reseed=reseed,
        )

    covariance: str
    expert: str
    degrees_of_freedom: float

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"n_experts": 2, "warmup": 60, "warmup_restarts": 1}
        yield {"n_experts": 3, "warmup": 0}
        yield {"n_experts": 2, "warmup": 60, "warmup_restarts": 1, "expert": "student_t"}
        yield {"n_experts": 2, "warmup": 0, "expert": "laplace"}

    def _rules(self) -> list[tuple[bool, str]]:
        noise = noise_rules(self.expert, self.covariance, self.degrees_of_freedom, several=False)
        return [*super()._rules(), *noise]

    def _new_targets(self) -> Number:
        return Number(family_of(self.expert, self.covariance, self.degrees_of_freedom))

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: float, w: float = 1.0) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value that would poison the model; nothing was changed.
        """
        self.learner.learn_one(x, y, w)

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The regression function at `x`, Σ_k g_k(x) Υ_k φ(x) ([MM] eq. 14); 0 before anything was learned."""
        prediction: float = self.learner.predict_one(x)
        return prediction

    def predict_distribution_one(self, x: Mapping[Any, Any]) -> Mixture:
        """What the model knows of y at `x`: a mixture of the experts' K distributions, of one during warm-up.

        Of normal ones, of Student-t or of Laplace ones, as `expert` says.
        """
        distribution: Mixture = self.learner.distribution(x)
        return distribution

    def responsibilities_one(self, x: Mapping[Any, Any], y: float) -> FloatArray:
        """(K,) how much each expert answers for an event, τ_k ([MM] eq. 15); NaN during warm-up."""
        return self.learner.responsibilities(x, y)

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """The regression function at each row of X (n, P), shape (n,); learns nothing."""
        predictions: FloatArray = self.learner.predict(table_of_array(X, feature_names, self.learner.encoder.fields))
        return predictions

    def learn_many(self, X: pd.DataFrame, y: pd.Series, w: AnyArray | None = None) -> None:
        """Learn the rows of a frame in order; equals a loop over `learn_one`, bit for bit.

        Raises:
            InvalidEvent: a row that would poison the model; its index is in ``row``.
        """
        learn_array(self.learner, table_of(self, X), np.asarray(y), None if w is None else np.asarray(w))

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The regression function at each row of a frame, under the frame's index."""
        return series_like(X, self.learner.predict(table_of(self, X)))

    # -- Going on from given statistics ----------------------------------------------------------------------------

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        feature_names: Sequence[Any],
        average: Mapping[str, AnyArray] | None = None,
        n_average: int | None = None,
        **arguments: Any,
    ) -> Self:
        """A model that goes on from exactly these statistics, without warm-up.

        Args:
            parameters: as `parameters` returns them; ``decay``, ``prior_weight``, ``prior`` and ``scale`` may be
                left out.
            feature_names: names of the columns, in the order of the parameters.
            average: ``gate``, ``experts`` and ``variances`` that serve; without it the average begins anew.
            n_average: iterates in `average`.
            **arguments: of the constructor; `n_experts` follows from the parameters.

        Raises:
            ConfigError: an entry is missing or has a shape that does not fit the others.
        """
        model = cls(**{"n_experts": len(experts_in(parameters)), **arguments})
        continue_from(model.learner, parameters, feature_names, average, n_average)
        return model
