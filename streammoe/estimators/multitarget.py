"""Regression with several outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

import numpy as np
from river import base

from streammoe.checked import as_json, names_of
from streammoe.distributions import (
    MultivariateGaussianMixture,
    MultivariateMixture,
    MultivariateStudentTMixture,
)
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.estimators.base import MixtureOfExperts
from streammoe.estimators.checks import finite_array, names_in
from streammoe.estimators.frames import check_frame, frame_like, table_of
from streammoe.estimators.noise import family_of
from streammoe.estimators.parameters import experts_in
from streammoe.estimators.tables import table_of_array
from streammoe.experts import Family
from streammoe.options import (
    Auto,
    Averaging,
    Expert,
    FeatureOptions,
    Gaussian,
    PageHinkley,
    RegressorOptions,
    StudentT,
    WarmUp,
    documented,
)
from streammoe.schedules import Schedule
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray
from streammoe.values import a_kind, check_name, number

if TYPE_CHECKING:
    import pandas as pd


@documented(RegressorOptions, FeatureOptions)
class MoEMultiTargetRegressor(MixtureOfExperts, base.MultiTargetRegressor):
    """Mixture of linear experts with several outputs and one learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), Σ_k), with Σ_k diagonal or full. The outputs are those of the first event,
    ordered by name; every later event must bring all of them.

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

    options_type: ClassVar = RegressorOptions
    several_outputs: ClassVar = True

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
        self._targets: list[Any] = []
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
        yield {"n_experts": 2, "warmup": WarmUp(15, restarts=1)}
        yield {"n_experts": 3, "warmup": 0, "expert": Gaussian("full")}
        yield {"n_experts": 2, "warmup": WarmUp(15, restarts=1), "expert": "student_t"}

    @property
    def _family(self) -> Family:
        return family_of(self._noise)

    @property
    def _noise(self) -> Expert:
        return cast("RegressorOptions", self.options).expert

    @property
    def _n_outputs(self) -> int:
        return len(self._targets)

    @property
    def output_names(self) -> list[Any]:
        """Names of the outputs, in the order of the parameters; empty before the first event."""
        return list(self._targets)

    def set_targets(self, names: Sequence[Any]) -> None:
        """Fix the outputs of a model that has none yet, in this order.

        Raises:
            ConfigError: it has outputs, or a name stands twice.
            InvalidEvent: a name is neither text nor a whole number.
        """
        names = names_in(names, "set_targets")
        for name in names:
            check_name(name, "output name", "y")
        if self._targets:
            raise ConfigError(f"set_targets: the model has outputs already: {self._targets!r}")
        if not names or len(set(names)) != len(names):
            raise ConfigError(f"set_targets: got {list(names)!r}; name at least one output, and each once")
        self._targets = list(names)
        self._encoder = self._new_encoder(self._encoder.fields)
        self._options = self._new_options()
        self._guard.forget()

    def _read_targets(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        found = np.array(targets, dtype=np.float64)
        return found.reshape(n, found.size // max(n, 1)), np.zeros(n, np.bool_), {}

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Mapping[Any, float], w: float = 1.0, **kwargs: Any) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value that would poison the model, or another set of outputs; nothing was changed.
        """
        target = self._target_row(y)
        with self._outputs(sorted(y, key=str)):
            self._learn_event(x, target, w)

    @contextmanager
    def _outputs(self, names: Sequence[Any]) -> Iterator[None]:
        """Fix the outputs to `names`, unless they are fixed, and free them again where no event was learned."""
        if self._targets:
            yield
            return
        before = self._encoder
        self.set_targets(names)
        try:
            yield
        finally:
            if not self.n:
                self._targets, self._encoder = [], before
                self._options = self._new_options()
                self._guard.forget()

    def predict_one(self, x: Mapping[Any, Any]) -> dict[Any, float]:
        """The regression function at `x` for each output ([MM] eq. 14); empty before anything was learned."""
        scores, _ = self._score(self._encoder.row(x), None)
        return dict(zip(self._targets, scores.predictions[0].tolist(), strict=True))

    def predict_distribution_one(self, x: Mapping[Any, Any]) -> MultivariateMixture:
        """What the model knows of the outputs at `x`: a mixture of the experts' K distributions, of one during warm-up.

        Of normal or of Student-t ones, as `expert` says.

        Raises:
            ConfigError: no event has been learned, so the outputs are not known.
        """
        if not self._targets:
            raise ConfigError("predict_distribution_one: the outputs are not known yet; learn an event first")
        scores, _ = self._score(self._encoder.row(x), None, traced=True)
        shares, means, variances = scores.trace
        Q = len(self._targets)
        if not len(shares):
            return MultivariateGaussianMixture(np.ones(1), np.zeros((1, Q)), np.ones((1, Q)), tuple(self._targets))
        noise = self._noise
        if isinstance(noise, StudentT):
            scales, nu = np.sqrt(variances[0]), noise.df
            return MultivariateStudentTMixture(shares[0], means[0], scales, nu, tuple(self._targets))
        if noise == Gaussian("full"):
            variances = self._served_covariances()[None]
        return MultivariateGaussianMixture(shares[0], means[0], variances[0], tuple(self._targets))

    def _served_covariances(self) -> FloatArray:
        """(K, Q, Q) of the served model, in the targets' own units."""
        served, encoder = self._served()
        assert served is not None  # noqa: S101 - for the type checker; callers have looked
        scale = encoder.scaler.target_scale
        covariances: FloatArray = served.average_variances * np.outer(scale, scale)
        return covariances

    def responsibilities_one(self, x: Mapping[Any, Any], y: Mapping[Any, float]) -> FloatArray:
        """(K,) how much each expert answers for an event, τ_k ([MM] eq. 15); NaN during warm-up."""
        return self._responsibilities(x, self._target_row(y))

    # -- Many at once ----------------------------------------------------------------------------------------------

    def learn_array(
        self,
        X: AnyArray,
        y: AnyArray,
        *,
        weights: AnyArray | None = None,
        feature_names: Sequence[Any] | None = None,
    ) -> FloatArray:
        """Learn rows in order, as in `MixtureOfExperts.learn_array`; new outputs are called y0, y1 and so on."""
        if self._targets:
            return super().learn_array(X, y, weights=weights, feature_names=feature_names)
        n = len(table_of_array(X, feature_names, self._encoder.fields).rows)
        with self._outputs([f"y{q}" for q in range(self._array_targets(y, n).shape[1])]):
            return super().learn_array(X, y, weights=weights, feature_names=feature_names)

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """The regression function at each row of X (n, P), shape (n, Q); learns nothing."""
        return self._predict_rows(X, feature_names)

    def learn_many(self, X: pd.DataFrame, y: pd.DataFrame, w: AnyArray | None = None) -> None:
        """Learn the rows of a frame in order; equals a loop over `learn_one`, bit for bit.

        Raises:
            InvalidEvent: a row that would poison the model, whose index is in ``row``; or another set of outputs.
        """
        check_frame(y, "y")
        names = self._output_names(y.columns)
        with self._outputs(names):
            self._learn_table(table_of(self, X), y[names].to_numpy(), None if w is None else np.asarray(w))

    def predict_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The regression function at each row of a frame, one column for each output, under the frame's index."""
        return frame_like(X, self._predict_table(table_of(self, X)), self._targets)

    def _target_row(self, y: Mapping[Any, float]) -> FloatArray:
        given: Any = y
        if not isinstance(given, Mapping):
            msg = f"target: got {shown(given)}, {a_kind(given)}; it must be a mapping of outputs to numbers"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        return np.array([[number(y[name], name) for name in self._output_names(y)]])

    def _output_names(self, given: Iterable[Any]) -> list[Any]:
        """The outputs in the order of the parameters; `given` must be all of them, in any order."""
        found = sorted(given, key=str)
        names = self._targets or found
        if not names or len(found) != len(names) or set(found) != set(names):
            msg = f"target: got the outputs {found!r}; every event must bring exactly {names or 'some'}, each once"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        return names

    def _array_targets(self, y: AnyArray, n: int) -> FloatArray:
        found = finite_array(y, "target")
        width = found.shape[1] if found.ndim == 2 else 0
        if not width or len(found) != n or (self._targets and width != len(self._targets)):
            wanted = len(self._targets) or "Q"
            msg = f"y: got shape {found.shape} for {n} rows; it must be ({n}, {wanted}), one column for each output"
            raise InvalidEvent(msg, reason="wrong_shape", feature="target")
        return found

    # -- Keeping it, and going on from given statistics ------------------------------------------------------------

    def _output_arrays(self) -> dict[str, AnyArray]:
        return {"encoder.targets": as_json(self._targets)}

    def _restore_outputs(self, arrays: Mapping[str, AnyArray]) -> None:
        self._targets = names_of(arrays, "encoder.targets", (str, int, float, bool))

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
            **arguments: of the constructor; `n_experts`, and the covariance of `expert`, follow from the parameters.

        Raises:
            ConfigError: an entry is missing or has a shape that does not fit the others.
        """
        experts = experts_in(parameters)
        covariance: Any = "full" if np.ndim(parameters.get("variances", 0.0)) == 3 else "diagonal"
        model = cls(**{"n_experts": len(experts), "expert": Gaussian(covariance), **arguments})
        n_outputs = experts.shape[1]
        model.set_targets([f"y{q}" for q in range(n_outputs)] if target_names is None else target_names)
        model._continue_from(parameters, feature_names, average, n_average)
        return model
