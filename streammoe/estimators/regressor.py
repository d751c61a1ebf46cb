"""Regression with one output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from river import base

from streammoe.distributions import GaussianMixture, Mixture, mixture_of
from streammoe.errors import InvalidEvent
from streammoe.estimators.base import MixtureOfExperts
from streammoe.estimators.checks import finite_array
from streammoe.estimators.frames import series_like, table_of
from streammoe.estimators.noise import family_of
from streammoe.estimators.parameters import experts_in
from streammoe.experts import Family
from streammoe.options import (
    Auto,
    Averaging,
    Expert,
    FeatureOptions,
    PageHinkley,
    RegressorOptions,
    WarmUp,
    documented,
)
from streammoe.schedules import Schedule
from streammoe.types import AnyArray, BoolArray, FloatArray
from streammoe.values import number

if TYPE_CHECKING:
    import pandas as pd


@documented(RegressorOptions, FeatureOptions)
class MoERegressor(MixtureOfExperts, base.MiniBatchRegressor):
    """Mixture of linear experts with a learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), σ²_k) by incremental stochastic majorization-minimization: running
    sufficient statistics move a step γ_n for each event and the parameters follow in closed form. A bounded warm-up
    buffer is fitted in batch from several starts first; a one-expert recursive fit predicts meanwhile, or in a long
    warm-up a mixture fitted quickly to its first part.

    Bad values (NaN, infinities, wrong types, values far out of range) raise `InvalidEvent` and change nothing; a
    key that is absent is a missing value and takes the column's mean.

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

    options_type: ClassVar = RegressorOptions
    several_outputs: ClassVar = False

    def __init__(
        self,
        n_experts: int | str | Auto = 4,
        *,
        degree: int = 1,
        gate_degree: int = 1,
        expert: str | Expert = "gaussian",
        schedule: str | Schedule | None = None,
        bound: str = "adaptive",
        prior_strength: float = 0.1,
        warmup: int | WarmUp | None = None,
        averaging: str | Averaging | None = "polyak",
        drift: str | PageHinkley | None = None,
        seed: int = 0,
        standardize: bool = False,
        range_factor: float = 1e6,
        categorical: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        max_levels: int = 64,
        top_k: int | None = None,
        batch_size: int = 1,
        reseed: str = "off",
    ) -> None:
        super().__init__(
            n_experts=n_experts,
            degree=degree,
            gate_degree=gate_degree,
            expert=expert,
            schedule=schedule,
            bound=bound,
            prior_strength=prior_strength,
            warmup=warmup,
            averaging=averaging,
            drift=drift,
            seed=seed,
            standardize=standardize,
            range_factor=range_factor,
            categorical=categorical,
            timestamps=timestamps,
            max_levels=max_levels,
            top_k=top_k,
            batch_size=batch_size,
            reseed=reseed,
        )

    expert: str | Expert

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"n_experts": 2, "warmup": WarmUp(60, restarts=1)}
        yield {"n_experts": 3, "warmup": 0}
        yield {"n_experts": 2, "warmup": WarmUp(60, restarts=1), "expert": "student_t"}
        yield {"n_experts": 2, "warmup": 0, "expert": "laplace"}

    @property
    def _family(self) -> Family:
        return family_of(self._noise)

    @property
    def _noise(self) -> Expert:
        return cast("RegressorOptions", self.options).expert

    @property
    def _n_outputs(self) -> int:
        return 1

    def _read_targets(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        return np.array(targets, dtype=np.float64).reshape(n, 1), np.zeros(n, np.bool_), {}

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: float, w: float = 1.0) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value that would poison the model; nothing was changed.
        """
        self._learn_event(x, np.array([[number(y, "target")]]), w)

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The regression function at `x`, Σ_k g_k(x) Υ_k φ(x) ([MM] eq. 14); 0 before anything was learned."""
        scores, _ = self._score(self._encoder.row(x), None)
        return float(scores.predictions[0, 0])

    def predict_distribution_one(self, x: Mapping[Any, Any]) -> Mixture:
        """What the model knows of y at `x`: a mixture of the experts' K distributions, of one during warm-up.

        Of normal ones, of Student-t or of Laplace ones, as `expert` says.
        """
        scores, _ = self._score(self._encoder.row(x), None, traced=True)
        shares, means, variances = scores.trace
        if not len(shares):  # before anything was learned
            return GaussianMixture(np.ones(1), np.zeros(1), np.ones(1))
        return mixture_of(self._family.noise, shares[0], means[0, :, 0], variances[0, :, 0])

    def responsibilities_one(self, x: Mapping[Any, Any], y: float) -> FloatArray:
        """(K,) how much each expert answers for an event, τ_k ([MM] eq. 15); NaN during warm-up."""
        return self._responsibilities(x, np.array([[number(y, "target")]]))

    # -- Many at once ----------------------------------------------------------------------------------------------

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """The regression function at each row of X (n, P), shape (n,); learns nothing."""
        return self._predict_rows(X, feature_names)[:, 0].copy()

    def learn_many(self, X: pd.DataFrame, y: pd.Series, w: AnyArray | None = None) -> None:
        """Learn the rows of a frame in order; equals a loop over `learn_one`, bit for bit.

        Raises:
            InvalidEvent: a row that would poison the model; its index is in ``row``.
        """
        self._learn_table(table_of(self, X), np.asarray(y), None if w is None else np.asarray(w))

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The regression function at each row of a frame, under the frame's index."""
        return series_like(X, self._predict_table(table_of(self, X))[:, 0])

    def _array_targets(self, y: AnyArray, n: int) -> FloatArray:
        found = finite_array(y, "target")
        if found.shape not in {(n,), (n, 1)}:
            msg = f"y: got shape {found.shape} for {n} rows; it must hold one number for each row of X"
            raise InvalidEvent(msg, reason="wrong_shape", feature="target")
        return found.reshape(n, 1)

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
        model._continue_from(parameters, feature_names, average, n_average)
        return model
