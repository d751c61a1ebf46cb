"""Regression with several outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from river import base

from streammoe.distributions import MultivariateMixture
from streammoe.errors import ConfigError
from streammoe.estimators.base import MixtureOfExperts
from streammoe.estimators.frames import check_frame, frame_like, table_of
from streammoe.estimators.noise import family_of, noise_rules
from streammoe.model.learn_array import learn_array
from streammoe.model.parameters import continue_from, experts_in
from streammoe.model.tables import table_of_array
from streammoe.model.targets import Numbers
from streammoe.schedules import Schedule
from streammoe.types import AnyArray, FloatArray

if TYPE_CHECKING:
    import pandas as pd


class MoEMultiTargetRegressor(MixtureOfExperts, base.MultiTargetRegressor):
    """Mixture of linear experts with several outputs and one learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), Σ_k), with Σ_k diagonal or full. The outputs are those of the first event,
    ordered by name; every later event must bring all of them.

    Parameters
    ----------
    n_experts
        Number of experts K ≥ 1.
        ``"auto"`` chooses it: several are fitted in the warm-up, and the best three learn side by side until their
        losses decide.
    degree
        Highest power of each input that experts see.
    gate_degree
        The same for the gate.
    covariance
        Of the outputs, given the expert: ``"diagonal"``, or ``"full"``, which learns how their errors go together.
    expert
        The noise of each expert: ``"gaussian"``, or one that outliers do not pull away: ``"student_t"``; all
        outputs of an event count less together.
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
        Centre and scale inputs and targets by their warm-up moments, then frozen. In a pipeline behind a scaler, off.
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
    >>> from streammoe import MoEMultiTargetRegressor
    >>> model = MoEMultiTargetRegressor(n_experts=2)
    >>> for i in range(1_000):
    ...     model.learn_one({"x": i / 500}, {"height": 1 + i / 500, "weight": 5 - i / 250})
    >>> {name: round(value, 1) for name, value in model.predict_one({"x": 2.0}).items()}
    {'height': 3.0, 'weight': 1.0}

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
        yield {"n_experts": 2, "warmup": 15, "warmup_restarts": 1}
        yield {"n_experts": 3, "warmup": 0, "covariance": "full"}
        yield {"n_experts": 2, "warmup": 15, "warmup_restarts": 1, "expert": "student_t"}

    def _rules(self) -> list[tuple[bool, str]]:
        noise = noise_rules(self.expert, self.covariance, self.degrees_of_freedom, several=True)
        return [*super()._rules(), *noise]

    def _new_targets(self) -> Numbers:
        return Numbers(family_of(self.expert, self.covariance, self.degrees_of_freedom))

    def set_targets(self, names: Sequence[Any]) -> None:
        """Fix the outputs of a model that has none yet, in this order.

        Raises:
            ConfigError: it has outputs, or a name stands twice.
            InvalidEvent: a name is neither text nor a whole number.
        """
        self.learner.set_targets(names)

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Mapping[Any, float], w: float = 1.0, **kwargs: Any) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value that would poison the model, or another set of outputs; nothing was changed.
        """
        self.learner.learn_one(x, y, w)

    def predict_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """The regression function at `x` for each output ([MM] eq. 14); empty before anything was learned."""
        predictions: dict[Any, float] = self.learner.predict_one(x)
        return predictions

    def predict_distribution_one(self, x: Mapping[Any, Any]) -> MultivariateMixture:
        """What the model knows of the outputs at `x`: a mixture of the experts' K distributions, of one during warm-up.

        Of normal or of Student-t ones, as `expert` says.

        Raises:
            ConfigError: no event has been learned, so the outputs are not known.
        """
        if not self.learner.targets.is_fixed:
            raise ConfigError("predict_distribution_one: the outputs are not known yet; learn an event first")
        distribution: MultivariateMixture = self.learner.distribution(x)
        return distribution

    def responsibilities_one(self, x: Mapping[Any, Any], y: Mapping[Any, float]) -> FloatArray:
        """(K,) how much each expert answers for an event, τ_k ([MM] eq. 15); NaN during warm-up."""
        return self.learner.responsibilities(x, y)

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """The regression function at each row of X (n, P), shape (n, Q); learns nothing."""
        predictions: FloatArray = self.learner.predict(table_of_array(X, feature_names, self.learner.encoder.fields))
        return predictions

    def learn_many(self, X: pd.DataFrame, y: pd.DataFrame, w: AnyArray | None = None) -> None:
        """Learn the rows of a frame in order; equals a loop over `learn_one`, bit for bit.

        Raises:
            InvalidEvent: a row that would poison the model, whose index is in ``row``; or another set of outputs.
        """
        check_frame(y, "y")
        names = self.learner.targets.names_in(y.columns)
        weights = None if w is None else np.asarray(w)
        learn_array(self.learner, table_of(self, X), y[names].to_numpy(), weights, names)

    def predict_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The regression function at each row of a frame, one column for each output, under the frame's index."""
        return frame_like(X, self.learner.predict(table_of(self, X)), self.output_names)

    # -- Continuing from given statistics ------------------------------------------------------------------------------

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        feature_names: Sequence[Any],
        target_names: Sequence[Any] | None = None,
        average: Mapping[str, AnyArray] | None = None,
        n_average: int | None = None,
        **arguments: Any,
    ) -> Self:
        """A model that goes on from exactly these statistics, without warm-up.

        Args:
            parameters: as `parameters` returns them; ``decay``, ``prior_weight``, ``prior`` and ``scale`` may be
                left out.
            feature_names: names of the columns, in the order of the parameters.
            target_names: names of the outputs, in the order of the parameters; y0, y1, … without it.
            average: ``gate``, ``experts`` and ``variances`` that serve; without it the average begins anew.
            n_average: iterates in `average`.
            **arguments: of the constructor; `n_experts` and `covariance` follow from the parameters.

        Raises:
            ConfigError: an entry is missing or has a shape that does not fit the others.
        """
        experts = experts_in(parameters)
        covariance = "full" if np.ndim(parameters.get("variances", 0.0)) == 3 else "diagonal"
        model = cls(**{"n_experts": len(experts), "covariance": covariance, **arguments})
        n_outputs = experts.shape[1]
        model.set_targets([f"y{q}" for q in range(n_outputs)] if target_names is None else target_names)
        continue_from(model.learner, parameters, feature_names, average, n_average)
        return model
