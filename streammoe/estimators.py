"""River models: each holds one state and passes events to the engine. No mathematics here."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from river import base

from streammoe import schedules
from streammoe.engine import mm, warmup
from streammoe.engine.state import MMState, is_finite, state_arrays, state_from_arrays, widen
from streammoe.engine.warming import WarmUp
from streammoe.errors import CheckpointError, ConfigError, InvalidEvent
from streammoe.experts.gaussian import state_at, unit_prior
from streammoe.features import NO_NEWS, Encoder, Layout, News, Scaler, level, number
from streammoe.persistence import durable, encode, read_checkpoint, state_digest
from streammoe.schedules import Schedule
from streammoe.types import AnyArray, FloatArray, IntArray

LOGGER = logging.getLogger("streammoe.estimators")
DEFAULT_SCHEDULE = schedules.power(0.6)


class Outcome(NamedTuple):
    """What became of rows given to `MoERegressor.learn_rows`."""

    verdicts: IntArray
    """(n,) −1 for a row that was used, else the column that was out of range (outputs after the features)."""
    losses: FloatArray
    """(n,) −log s(y|x) before learning, in the target's own units; NaN where refused or without target."""
    predictions: FloatArray
    """(n, Q) predicted before learning; NaN where refused."""


class MoERegressor(base.Regressor):
    """Mixture of linear experts with a learned softmax gate, trained one event at a time.

    Learns y | x as Σ_k g_k(x) N(y; Υ_k φ(x), σ²_k) by incremental stochastic majorization-minimization: running
    sufficient statistics move a step γ_n for each event and the parameters follow in closed form. A bounded warm-up
    buffer is fitted in batch from several starts first; a one-expert recursive fit predicts meanwhile.

    Bad values (NaN, infinities, wrong types, values far out of range) raise `InvalidEvent` and change nothing; a
    key that is absent is a missing value and takes the column's mean.

    Parameters
    ----------
    n_experts
        Number of experts K ≥ 1; 1 is recursive Bayesian-style linear regression.
    degree
        Highest power of each input that experts see.
    gate_degree
        The same for the gate.
    covariance
        ``"diagonal"``, the only choice for one output.
    schedule
        Step sizes γ_n, from `streammoe.schedules`; ``None`` is ``power(0.6)``. ``constant(gamma)`` tracks drift.
    bound
        Curvature bound of the gate: ``"tight"`` or the papers' own ``"paper"``.
    prior_strength
        Pseudo-events that the prior is worth among those that a step size spans; 0 is the papers' plain algorithm.
    warmup
        Events buffered for the batch start; ``None`` grows with the number of parameters (at least 400), 0 starts at
        once from random experts.
    warmup_restarts
        Starts of each family that the batch fit tries.
    averaging
        What serves predictions: ``"polyak"`` (mean of all iterates since warm-up), ``"decay"`` (recent ones count
        more), or ``None`` (the raw iterate).
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
        n_experts: int = 4,
        *,
        degree: int = 1,
        gate_degree: int = 1,
        covariance: str = "diagonal",
        schedule: Schedule | None = None,
        bound: str = "tight",
        prior_strength: float = 0.1,
        warmup: int | None = None,
        warmup_restarts: int = 5,
        averaging: str | None = "polyak",
        seed: int = 0,
        standardize: bool = False,
        range_factor: float = 1e6,
        categorical: Sequence[Any] | None = None,
        timestamps: Sequence[Any] | None = None,
        max_levels: int = 64,
    ) -> None:
        self.n_experts = n_experts
        self.degree = degree
        self.gate_degree = gate_degree
        self.covariance = covariance
        self.schedule = schedule
        self.bound = bound
        self.prior_strength = prior_strength
        self.warmup = warmup
        self.warmup_restarts = warmup_restarts
        self.averaging = averaging
        self.seed = seed
        self.standardize = standardize
        self.range_factor = range_factor
        # River's clone looks at the first entry of any tuple.
        self.categorical = None if categorical == () else categorical
        self.timestamps = None if timestamps == () else timestamps
        self.max_levels = max_levels
        self._check_arguments()
        self._schedule = DEFAULT_SCHEDULE if schedule is None else schedule
        self._options = mm.learning_options(
            bound=bound,
            n_experts=n_experts,
            prior_strength=prior_strength,
            averaging=averaging,
            schedule=self._schedule,
        )
        self._encoder = self._new_encoder()
        self._state: MMState | None = None
        self._warm_up: WarmUp | None = None
        self._residual = np.zeros(0)

    def _check_arguments(self) -> None:
        whole = {"n_experts": 1, "degree": 1, "gate_degree": 1, "warmup_restarts": 1, "seed": 0, "warmup": 0}
        whole["max_levels"] = 1
        rules = [
            (
                _is_whole(getattr(self, name), least),
                f"{name}: got {getattr(self, name)!r}; it must be a whole number ≥ {least}",
            )
            for name, least in whole.items()
            if not (name == "warmup" and self.warmup is None)
        ]
        rules += [
            (_is_amount(getattr(self, name)), f"{name}: got {getattr(self, name)!r}; it must be a finite number ≥ 0")
            for name in ("prior_strength", "range_factor")
        ]
        rules += [
            (
                _are_names(getattr(self, name)),
                f"{name}: got {getattr(self, name)!r}; it must be a tuple of feature names",
            )
            for name in ("categorical", "timestamps")
        ]
        named = _are_names(self.categorical) and _are_names(self.timestamps)
        both = [name for name in self.categorical or () if name in (self.timestamps or ())] if named else []
        rules += [
            (
                self.schedule is None or isinstance(self.schedule, Schedule),
                f"schedule: got {self.schedule!r}; make one with streammoe.schedules.power or .constant",
            ),
            (not both, f"timestamps: {both!r} stands in categorical too; a feature can be one of them"),
            (self.covariance == "diagonal", f"covariance: got {self.covariance!r}; one output knows only 'diagonal'"),
            (
                not (self.warmup == 0 and self.standardize),
                "standardize: needs a warm-up to take means and scales from; set warmup above 0",
            ),
            (
                not (self.warmup == 0 and self.prior_strength == 0.0),
                "prior_strength: 0 needs a warm-up or given Gram matrices to start from; set warmup or a prior above 0",
            ),
        ]
        problems = [problem for holds, problem in rules if not holds]
        if problems:
            raise ConfigError(*problems)

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {"n_experts": 2, "warmup": 60, "warmup_restarts": 1}
        yield {"n_experts": 3, "warmup": 0}

    # -- River's contract ------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: float) -> None:
        """Learn one event.

        Raises:
            InvalidEvent: a value that would poison the model; nothing was changed.
        """
        target = np.array([[number(y, "target")]])
        news = self._encoder.news(x)
        row = self._encoder.row(x, news)
        try:
            self._take(row, target, news)
        except InvalidEvent as error:
            error.row = None  # an event by itself has no index
            raise
        self._learn(row, target)

    def predict_one(self, x: Mapping[Any, Any]) -> float:
        """The regression function at `x`, Σ_k g_k(x) Υ_k φ(x) ([MM] eq. 14); 0 before anything was learned."""
        scores, _ = self._score(self._encoder.row(x), None)
        return float(scores.predictions[0, 0])

    # -- The array path --------------------------------------------------------------------------------------------

    def learn_array(self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """Learn rows in order; equals a loop over `learn_one`, bit for bit, wherever the array is cut.

        Args:
            X: (n, P) finite numbers.
            y: (n,) or (n, 1) finite numbers.
            feature_names: names of the columns; without them x0, x1, …

        Returns:
            (n,) prequential log-losses −log s(y|x) in the target's own units: each row is predicted, then learned.

        Raises:
            InvalidEvent: a row that would poison the model; its index is in ``row`` and nothing was learned.
        """
        rows, names = self._rows(X, feature_names)
        targets = self._targets(y, len(rows))
        if not len(rows):
            return np.empty(0)
        encoder = self._encoder
        known = set(encoder.fields)
        unseen = sorted((name for name in names if name not in known), key=str)
        fields = [*encoder.fields, *unseen]
        rows = _reordered(rows, names, fields)
        texts = self._levels_of(rows, fields, names)
        # The first row brings its levels together with the columns; each later one that brings any begins a piece.
        cuts = [(0, ()), *encoder.arrivals(texts)]
        if len(cuts) > 1 and cuts[1][0] == 0:
            del cuts[0]
        try:
            self._take(rows, targets, News(tuple(unseen), cuts[0][1]))
        except InvalidEvent as error:
            raise InvalidEvent(
                f"row {error.row}: {error}", reason=error.reason, feature=error.feature, row=error.row
            ) from None
        losses = []
        for at, (start, levels) in enumerate(cuts):
            stop = cuts[at + 1][0] if at + 1 < len(cuts) else len(rows)
            if start:
                layout = encoder.layout
                encoder.append_levels(levels)
                self._widen(layout)
            for name, column in texts.items():
                field = encoder.fields.index(name)
                rows[start:stop, field] = encoder.codes(field, column[start:stop])
            losses.append(self._learn(rows[start:stop], targets[start:stop]).losses)
        return np.concatenate(losses)

    def predict_array(self, X: AnyArray, *, feature_names: Sequence[Any] | None = None) -> FloatArray:
        """The regression function at each row of X (n, P), shape (n,); learns nothing."""
        rows, names = self._rows(X, feature_names)
        scores, _ = self._score(self._raw(rows, names), None)
        return scores.predictions[:, 0].copy()

    def log_likelihood_array(
        self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Log s(y|x) of each row, shape (n,), in the target's own units; learns nothing."""
        rows, names = self._rows(X, feature_names)
        targets = self._targets(y, len(rows))
        scores, _ = self._score(self._raw(rows, names), targets)
        return -scores.losses

    def learn_rows(self, X: FloatArray, Y: FloatArray) -> Outcome:
        """Learn rows in the model's own column order, refusing rows that are out of range and going on.

        Args:
            X: (n, F) raw fields in the order of `fields`, categories as the codes of their levels; NaN is a missing
                value, infinities are out of range.
            Y: (n, 1); NaN is an event without target, which is predicted and not learned.
        """
        if X.shape[1] != len(self._encoder.fields):
            msg = f"X: got {X.shape[1]} columns; the model has {len(self._encoder.fields)}"
            raise InvalidEvent(msg, reason="wrong_shape")
        if not len(X):
            return Outcome(np.empty(0, dtype=np.int64), np.empty(0), np.empty(Y.shape))
        verdicts = self._encoder.screen(X, Y)
        used = verdicts < 0
        if used.all():
            return Outcome(verdicts, *self._learn(X, Y))
        losses = np.full(len(X), np.nan)
        predictions = np.full(Y.shape, np.nan)
        losses[used], predictions[used] = self._learn(X[used], Y[used])
        return Outcome(verdicts, losses, predictions)

    def set_columns(self, names: Sequence[Any]) -> None:
        """Fix the columns of a model that has none yet, in this order."""
        if self._encoder.fields:
            raise ConfigError(f"set_columns: the model has columns already: {self._encoder.fields!r}")
        self._encoder.set_columns(names)

    def introduce(self, names: Sequence[Any], row: FloatArray, target: FloatArray) -> None:
        """Fix the columns to those of the first event, (1, P) and (1, Q), unless it is no good; learn nothing.

        Raises:
            InvalidEvent: there is no column, or a value is out of range; nothing was changed.
        """
        if not names:
            raise InvalidEvent("the record has no feature beside its target", reason="no_features")
        trial = self._new_encoder(names)
        trial.take(row, target)
        self.set_columns(names)

    def out_of_range(self, row: FloatArray, target: FloatArray, verdict: int) -> InvalidEvent:
        """The error that explains a verdict of `learn_rows`."""
        return self._encoder.out_of_range(row, target, verdict)

    # -- Looking inside --------------------------------------------------------------------------------------------

    @property
    def n(self) -> int:
        """Events learned, those in the warm-up buffer included."""
        if self._state is not None:
            return int(self._state.n[0])
        return 0 if self._warm_up is None else self._warm_up.count

    @property
    def feature_names(self) -> list[Any]:
        """Names of the columns, in the order of the parameters: a number's own, ``color=red``, ``t:day_sin``."""
        return list(self._encoder.feature_names)

    @property
    def fields(self) -> list[Any]:
        """Names of what events hold, in the order of raw rows; without categories and times, `feature_names`."""
        return list(self._encoder.fields)

    @property
    def is_warming_up(self) -> bool:
        """Whether events still go to the warm-up buffer."""
        return self._state is None

    @property
    def step_size(self) -> float:
        """γ of the next event."""
        return self._schedule(self.n + 1)

    @property
    def masses(self) -> FloatArray:
        """(K,) share of each expert, m_k / Σ m; NaN during warm-up."""
        if self._state is None:
            return np.full(self.n_experts, np.nan)
        shares: FloatArray = self._state.masses / self._state.masses.sum()
        return shares

    @property
    def convergence_residual(self) -> float:
        """‖E(S̄ − s)‖ / E‖S̄ − s‖, exponentially weighted: near 0 at a stationary point; NaN during warm-up."""
        return mm.convergence_residual(self._residual) if len(self._residual) else float("nan")

    def is_finite(self) -> bool:
        """Whether every number in the state is finite; anything else is a bug."""
        if self._state is not None:
            return is_finite(self._state)
        return self._warm_up is None or is_finite(self._warm_up.recursive)

    def parameters(self, *, averaged: bool = False) -> dict[str, Any]:
        """Copies of the parameters and statistics, in the model's own (standardised) coordinates.

        Args:
            averaged: the parameters that serve predictions instead of the raw iterate.

        Returns:
            ``gate`` (K−1, p_w), ``experts`` (K, 1, p_v), ``variances`` (K, 1), ``masses`` (K,), ``gate_gram``
            (p_w, p_w), ``expert_grams`` (K, p_v, p_v), ``n``; ``decay`` (Π(1−γ) since the last refresh),
            ``prior_weight`` and ``prior``, which the recursion needs too; ``scale`` where inputs are standardised.
            Feature order: intercept, degree 1 in the order of `feature_names`, degree 2, …

        Raises:
            ConfigError: the warm-up is not over, so there is no mixture yet.
        """
        state = self._state
        if state is None:
            msg = f"parameters: the warm-up is not over ({self.n} events so far); learn more events first"
            raise ConfigError(msg)
        decay = float(state.decay[0])
        p_w, p_v = self._encoder.n_gate_features, self._encoder.n_expert_features
        found: dict[str, Any] = {
            "gate": (state.average_gate if averaged else state.gate)[:, :p_w].copy(),
            "experts": (state.average_experts if averaged else state.experts)[:, :, :p_v].copy(),
            "variances": (state.average_variances if averaged else state.variances).copy(),
            "masses": state.masses.copy(),
            "gate_gram": decay * state.gate_gram[:p_w, :p_w],
            "expert_grams": decay * state.expert_grams[:, :p_v, :p_v],
            "n": int(state.n[0]),
            "decay": decay,
            "prior_weight": float(state.prior_weight[0]),
            "prior": {
                "gate_gram": state.prior_gate_gram[:p_w].copy(),
                "expert_gram": state.prior_expert_gram[:p_v].copy(),
                "experts": state.prior_experts[:, :p_v].copy(),
                "variances": state.prior_variances.copy(),
            },
        }
        if self.standardize:
            found["scale"] = {name: array.copy() for name, array in self._encoder.scaler._asdict().items()}
        return found

    @classmethod
    def from_parameters(
        cls,
        parameters: Mapping[str, Any],
        *,
        feature_names: Sequence[Any],
        average: Mapping[str, AnyArray] | None = None,
        n_average: int | None = None,
        **arguments: Any,
    ) -> MoERegressor:
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
        experts = np.array(parameters["experts"], dtype=np.float64)
        model = cls(**{"n_experts": len(experts), **arguments})
        encoder = model._encoder
        encoder.set_features(feature_names)
        K, p_w, p_v = model.n_experts, encoder.n_gate_features, encoder.n_expert_features
        wide_w, wide_v = encoder.gate_width, encoder.expert_width
        # Each entry has the first shape; the state wants it padded with zeros to the second.
        shapes = {
            "gate": ((K - 1, p_w), (K - 1, wide_w)),
            "experts": ((K, 1, p_v), (K, 1, wide_v)),
            "variances": ((K, 1), (K, 1)),
            "masses": ((K,), (K,)),
            "gate_gram": ((p_w, p_w), (wide_w, wide_w)),
            "expert_grams": ((K, p_v, p_v), (K, wide_v, wide_v)),
        }
        arrays = {name: _shaped(parameters, name, *shape) for name, shape in shapes.items()}
        if not (arrays["variances"] > 0.0).all() or not (arrays["masses"] > 0.0).all():
            raise ConfigError("parameters: 'variances' and 'masses' must be above 0")
        n = int(parameters["n"])
        prior = unit_prior(model.prior_strength, wide_w, wide_v, 1)
        if "prior" in parameters:
            given = parameters["prior"]
            prior = prior._replace(
                gate_gram=_shaped(given, "gate_gram", (p_w,), (wide_w,)),
                expert_gram=_shaped(given, "expert_gram", (p_v,), (wide_v,)),
                experts=_shaped(given, "experts", (1, p_v), (1, wide_v)),
                variances=_shaped(given, "variances", (1,), (1,)),
            )
        if "scale" in parameters:
            encoder.scaler = Scaler(**{k: np.array(v, dtype=np.float64) for k, v in parameters["scale"].items()})
        state = state_at(
            **arrays,
            prior=prior,
            n=n,
            prior_weight=float(parameters.get("prior_weight", prior.strength / max(prior.strength + n, 1.0))),
            decay=float(parameters.get("decay", 1.0)),
        )
        if average is not None:
            state = state._replace(
                n_average=np.array([n if n_average is None else n_average], dtype=np.int64),
                average_gate=_shaped(average, "gate", *shapes["gate"]),
                average_experts=_shaped(average, "experts", *shapes["experts"]),
                average_variances=_shaped(average, "variances", *shapes["variances"]),
            )
        model._start(state)
        return model

    # -- Keeping it ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, durably; `streammoe.load` reads it and goes on bit for bit."""
        durable.replace(Path(path), encode(self.arrays(), self.describe()))

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays of a checkpoint: what shapes what comes next, and ``diagnostics.*``."""
        return {**self._shaping_arrays(), "diagnostics.residual": self._residual}

    def describe(self) -> dict[str, Any]:
        """The JSON part of a checkpoint: which model this is."""
        arguments = {**self._get_params(), "schedule": self.schedule and schedules.to_settings(self.schedule)}
        return {
            "model": {"kind": type(self).__name__, "arguments": arguments},
            "n": self.n,
            "state_digest": self.state_digest(),
        }

    def state_digest(self) -> str:
        """sha256 over everything that shapes what comes next; equal digests mean equal futures."""
        return state_digest(self._shaping_arrays())

    @classmethod
    def from_checkpoint(cls, arrays: dict[str, AnyArray], description: Mapping[str, Any]) -> MoERegressor:
        """The inverse of `arrays` and `describe`."""
        arguments = dict(description["arguments"])
        if arguments["schedule"] is not None:
            arguments["schedule"] = schedules.from_settings(arguments["schedule"])
        # JSON knows no tuples; checkpoints of earlier versions have none of these.
        arguments |= {name: tuple(arguments.get(name) or ()) for name in ("categorical", "timestamps")}
        model = cls(**arguments)
        model._encoder.restore(arrays)
        if "warmup.X" in arrays:
            model._warm_up = WarmUp.from_arrays(arrays)
        if "state.n" in arrays:
            model._state = state_from_arrays(arrays, "state")
        model._residual = arrays["diagnostics.residual"]
        return model

    def _shaping_arrays(self) -> dict[str, AnyArray]:
        arrays = self._encoder.arrays()
        if self._warm_up is not None:
            arrays |= self._warm_up.arrays()
        if self._state is not None:
            arrays |= state_arrays(self._state, "state")
        return arrays

    # -- Events to the engine --------------------------------------------------------------------------------------

    def _learn(self, X: FloatArray, Y: FloatArray) -> mm.Scores:
        """Learn screened rows: through the warm-up while it lasts, then by steps."""
        self._encoder.notice_unplaced(X, Y)
        if self._state is None and self.warmup == 0:
            self._start(
                mm.random_start(
                    n_experts=self.n_experts,
                    p_w=self._encoder.gate_width,
                    p_v=self._encoder.expert_width,
                    n_outputs=self._encoder.n_outputs,
                    prior_strength=self.prior_strength,
                    seed=self.seed,
                    n_features=self._encoder.n_expert_features,
                )
            )
        if self._state is not None:
            return self._step(X, Y)
        if self._warm_up is None:
            self._warm_up = WarmUp(self._encoder.n_outputs, self._encoder.expert_width)
        room = self._warm_up_size() - self._warm_up.count
        targets = np.cumsum(~np.isnan(Y[:, 0]))
        cut = int(np.searchsorted(targets, room)) + 1
        _, R = self._encoder.design(X[:cut])
        first = self._warm_up.learn(X[:cut], R, Y[:cut])
        if len(targets) == 0 or targets[-1] < room:
            return first
        self._end_warm_up(self._warm_up)
        rest = self._step(X[cut:], Y[cut:])
        return mm.Scores(*(np.concatenate(pair) for pair in zip(first, rest, strict=True)))

    def _step(self, X: FloatArray, Y: FloatArray) -> mm.Scores:
        assert self._state is not None  # noqa: S101 - for the type checker; callers have looked
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        targets = (Y - scaler.target_center) / scaler.target_scale
        return self._in_own_units(mm.learn(self._state, self._residual, self._options, self._schedule, W, R, targets))

    def _score(self, X: FloatArray, Y: FloatArray | None) -> tuple[mm.Scores, FloatArray]:
        state = self._state
        if state is None:
            if self._warm_up is None:
                losses = np.full(len(X), np.nan)
                return mm.Scores(losses, np.zeros((len(X), self._encoder.n_outputs))), np.empty((len(X), 0))
            state = self._warm_up.recursive
        # Predicting never raises on range: what is too large for the powers to hold counts as the largest that is not.
        W, R = self._encoder.design(self._encoder.bounded(X))
        if self._state is None:
            W = R
        scaler = self._encoder.scaler
        targets = None if Y is None else (Y - scaler.target_center) / scaler.target_scale
        scores, responsibilities = mm.score(state, W, R, targets)
        return self._in_own_units(scores), responsibilities

    def _in_own_units(self, scores: mm.Scores) -> mm.Scores:
        scaler = self._encoder.scaler
        return mm.Scores(
            scores.losses + sum(map(math.log, scaler.target_scale.tolist())),
            scores.predictions * scaler.target_scale + scaler.target_center,
        )

    def _new_encoder(self, columns: Sequence[Any] = ()) -> Encoder:
        encoder = Encoder(
            n_outputs=1,
            degree=self.degree,
            gate_degree=self.gate_degree,
            range_factor=self.range_factor,
            categorical=self.categorical or (),
            timestamps=self.timestamps or (),
            max_levels=self.max_levels,
        )
        encoder.set_columns(columns)
        return encoder

    def _warm_up_size(self) -> int:
        if self.warmup is not None:
            return self.warmup
        encoder = self._encoder
        return warmup.default_size(
            self.n_experts, encoder.n_gate_features, encoder.n_expert_features, encoder.n_outputs
        )

    def _end_warm_up(self, warm_up: WarmUp) -> None:
        X, Y = warm_up.rows()
        LOGGER.info(
            "warm-up: fitting %d experts with %d features to %d events",
            self.n_experts,
            self._encoder.n_expert_features,
            len(X),
        )
        self._encoder.fit_scaler(X, Y, standardize=self.standardize)
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        state = warmup.fit(
            W,
            R,
            (Y - scaler.target_center) / scaler.target_scale,
            n_experts=self.n_experts,
            restarts=self.warmup_restarts,
            seed=self.seed,
            options=self._options,
        )
        self._warm_up = None
        self._start(state)

    def _start(self, state: MMState) -> None:
        self._state = state
        self._residual = mm.new_residual(state)

    def _take(self, rows: FloatArray, targets: FloatArray, news: News = NO_NEWS) -> None:
        """Let rows into the ranges, and the columns that they bring into the state."""
        layout = self._encoder.layout
        self._encoder.take(rows, targets, news)
        if news:
            self._widen(layout)

    def _widen(self, layout: Layout) -> None:
        """Follow the encoder after it grew from this layout."""
        encoder = self._encoder
        gate_at = encoder.moved(layout, self.gate_degree)
        expert_at = encoder.moved(layout, self.degree)
        if self._warm_up is not None:
            self._warm_up.widen(len(encoder.fields), expert_at, encoder.expert_width)
        if self._state is not None:
            self._start(widen(self._state, gate_at, encoder.gate_width, expert_at, encoder.expert_width))

    def _rows(self, X: AnyArray, feature_names: Sequence[Any] | None) -> tuple[FloatArray, list[Any]]:
        """X as finite floats, and the names of its columns."""
        if np.ndim(X) != 2:
            msg = f"X: got {np.ndim(X)} dimension(s); it must be (n, P), one row for each event"
            raise InvalidEvent(msg, reason="wrong_shape")
        width = np.shape(X)[1]
        if feature_names is not None:
            names = list(feature_names)
        elif self._encoder.fields and len(self._encoder.fields) == width:
            names = self._default_names(width)
        else:
            names = [f"x{j}" for j in range(width)]
        if len(names) != width or len(set(names)) != width:
            msg = f"feature_names: got {len(set(names))} different names for {width} columns; give each column one"
            raise InvalidEvent(msg, reason="wrong_shape")
        return _finite_array(X, "X", names), names

    def _targets(self, y: AnyArray, n: int) -> FloatArray:
        """Y as (n, Q) finite floats."""
        found = _finite_array(y, "target")
        if found.shape not in ((n,), (n, self._encoder.n_outputs)):
            msg = f"y: got shape {found.shape} for {n} rows; it must hold one number for each row of X"
            raise InvalidEvent(msg, reason="wrong_shape", feature="target")
        return found.reshape(n, self._encoder.n_outputs)

    def _default_names(self, width: int) -> list[Any]:
        """x0, x1, … where the model knows them; else the model's own columns, in their order."""
        names: list[Any] = [f"x{j}" for j in range(width)]
        return names if set(names) == set(self._encoder.fields) else self.fields

    def _raw(self, rows: FloatArray, names: Sequence[Any]) -> FloatArray:
        """Rows in the model's own order, with categories as codes."""
        encoder = self._encoder
        rows = _reordered(rows, names, encoder.fields)
        for name, column in self._levels_of(rows, encoder.fields, names).items():
            field = encoder.fields.index(name)
            rows[:, field] = encoder.codes(field, column)
        return rows

    def _levels_of(self, rows: FloatArray, fields: Sequence[Any], names: Sequence[Any]) -> dict[Any, list[str]]:
        """The levels that an array of numbers holds under `names`, by field in the order of `fields`."""
        return {
            name: [level(value, name) for value in rows[:, j].tolist()]
            for j, name in enumerate(fields)
            if name in self._encoder.categorical and name in names
        }


def load(path: str | os.PathLike[str]) -> MoERegressor:
    """Read a model from a file that `save` wrote, or the newest sound one in a daemon's checkpoint folder.

    Raises:
        CheckpointError: there is none, it is damaged, or it needs a newer version.
    """
    checkpoint = read_checkpoint(path)
    description = checkpoint.metadata["model"]
    kinds = {kind.__name__: kind for kind in (MoERegressor,)}
    if description["kind"] not in kinds:
        msg = f"{path}: holds a {description['kind']!r}, which this version does not know; upgrade streammoe"
        raise CheckpointError(msg)
    return kinds[description["kind"]].from_checkpoint(dict(checkpoint.arrays), description)


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def _is_amount(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(0.0 <= value < math.inf)


def _are_names(value: object) -> bool:
    return value is None or (isinstance(value, tuple | list) and all(isinstance(name, str | int) for name in value))


def _finite_array(values: AnyArray, what: str, names: Sequence[Any] | None = None) -> FloatArray:
    """A float64 copy in C order, or `InvalidEvent` with the first row that holds something else."""
    found = np.asarray(values)
    if found.dtype.kind not in "fiub":
        msg = f"{what}: got values of type {found.dtype}; they must be numbers"
        raise InvalidEvent(msg, reason="wrong_type", feature=what)
    numbers = np.array(found, dtype=np.float64, order="C")
    finite = np.isfinite(numbers)
    if not finite.all():
        place = np.argwhere(~finite)[0]
        row = int(place[0])
        feature = names[int(place[1])] if names is not None else what
        msg = f"row {row}: {feature!s} is {numbers[tuple(place)]}, not a finite number; drop or mend the row"
        raise InvalidEvent(msg, reason="not_finite", feature=feature, row=row)
    return numbers


def _reordered(rows: FloatArray, names: Sequence[Any], columns: Sequence[Any]) -> FloatArray:
    """Rows in the order of `columns`; NaN (missing) where a column has no name, other names are left out."""
    if list(names) == list(columns):
        return rows
    at = {name: j for j, name in enumerate(names)}
    ordered = np.full((len(rows), len(columns)), np.nan)
    for j, column in enumerate(columns):
        if column in at:
            ordered[:, j] = rows[:, at[column]]
    return ordered


def _shaped(values: Mapping[str, Any], name: str, shape: tuple[int, ...], padded: tuple[int, ...]) -> FloatArray:
    """An entry of the right shape, padded with zeros."""
    if name not in values:
        msg = f"parameters: {name!r} is missing; it must have shape {shape}"
        raise ConfigError(msg)
    array = np.array(values[name], dtype=np.float64)
    if array.shape != shape:
        msg = f"parameters: {name!r} has shape {array.shape}; with these feature names it must have {shape}"
        raise ConfigError(msg)
    if not np.isfinite(array).all():
        msg = f"parameters: {name!r} holds NaN or infinity; every entry must be finite"
        raise ConfigError(msg)
    return np.pad(array, [(0, wide - size) for size, wide in zip(shape, padded, strict=True)])
