"""What all estimators share: each holds one state and passes events to the engine. No mathematics here."""

from __future__ import annotations

import json
import logging
import math
import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from river import base

from streammoe import schedules
from streammoe.engine import mm, warmup
from streammoe.engine.state import (
    MMState,
    UnsoundError,
    copy_array,
    copy_state,
    is_finite,
    restored_state,
    state_arrays,
    state_at,
    widen,
)
from streammoe.engine.warming import WarmUp
from streammoe.errors import CheckpointError, ConfigError, InvalidEvent, PoisonedModel
from streammoe.estimators.arguments import (
    are_names,
    event_weight,
    event_weights,
    finite_array,
    is_amount,
    is_whole,
    rectangle,
    reordered,
    shaped,
)
from streammoe.estimators.guard import Copied, PoisonGuard, poisonous
from streammoe.experts import Family
from streammoe.features import NO_NEWS, Encoder, Layout, News, Scaler, level, not_a_mapping
from streammoe.kernels.robust import winsorised
from streammoe.kernels.state import LearningOptions, Trace
from streammoe.persistence import durable, pieces, state_digest
from streammoe.restoring import array_of, must_be, shown
from streammoe.schedules import Schedule
from streammoe.types import AnyArray, BoolArray, FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
_OWN = ("encoder.", "state.", "warmup.")
"""How the names of arrays begin that are a model's and shape it."""


class Outcome(NamedTuple):
    """What became of rows given to `learn_rows`."""

    refused: dict[int, InvalidEvent]
    """Why a row was refused, by its index; it left no trace."""
    learned: BoolArray
    """(n,) which rows were learned: neither refused nor without target."""
    targets: FloatArray
    """(n, Q) targets, or (n, 1) class indexes; NaN where there is none."""
    losses: FloatArray
    """(n,) −log s(y|x) before learning, in the target's own units; NaN where refused or without target."""
    predictions: FloatArray
    """(n, Q) predicted before learning, or (n, M) class probabilities; NaN where refused."""
    trace: Trace
    """What each expert said about the rows that were not refused, in order; empty unless asked for."""


class MixtureOfExperts(base.Estimator):
    """One state, its warm-up and its encoder; the estimators add what their targets look like."""

    n_experts: int
    degree: int
    gate_degree: int
    schedule: Schedule | None
    bound: str
    prior_strength: float
    warmup: int | None
    warmup_restarts: int
    averaging: str | None
    seed: int
    standardize: bool
    range_factor: float
    categorical: Sequence[Any] | None
    timestamps: Sequence[Any] | None
    max_levels: int

    default_schedule: ClassVar[Schedule] = schedules.power(0.6)
    growing: ClassVar[tuple[str, ...]] = ()
    """Attributes with lists and dicts of its own that learning may lengthen."""

    def __init__(self, **arguments: Any) -> None:
        # River clones by the signatures of the estimators, which therefore spell out every argument.
        for name, value in arguments.items():
            # River's clone looks at the first entry of any tuple.
            empty = name in {"categorical", "timestamps"} and isinstance(value, tuple) and not value
            setattr(self, name, None if empty else value)
        problems = [problem for holds, problem in self._rules() if not holds]
        if problems:
            raise ConfigError(*problems)
        self._schedule = self.default_schedule if self.schedule is None else self.schedule
        self._encoder = self._new_encoder()
        self._state: MMState | None = None
        self._warm_up: WarmUp | None = None
        self._residual = np.zeros(0)
        self._options = self._new_options()
        self._guard = PoisonGuard()

    # -- What an estimator adds ------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def _family(self) -> Family:
        """Of the experts."""

    @property
    @abstractmethod
    def _n_outputs(self) -> int:
        """Q, or the number of classes met."""

    @abstractmethod
    def _array_targets(self, y: AnyArray, n: int) -> Any:
        """Targets of n rows as users give them, checked, in the form that `_read_targets` takes."""

    @abstractmethod
    def _read_targets(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray, dict[int, InvalidEvent]]:
        """Targets of n rows as numbers; which rows hold a label that is new; and why some are refused."""

    def _admit(self, targets: Any, at: int) -> float:
        """Make room for the new label of row `at` and return its index."""
        raise NotImplementedError

    def _rules(self) -> list[tuple[bool, str]]:
        """Rules for the arguments: whether each holds, and what to say if it does not."""
        whole = {"n_experts": 1, "degree": 1, "gate_degree": 1, "warmup_restarts": 1, "seed": 0, "warmup": 0}
        whole["max_levels"] = 1
        named = are_names(self.categorical) and are_names(self.timestamps)
        both = [name for name in self.categorical or () if name in (self.timestamps or ())] if named else []
        return [
            *(
                (
                    are_names(getattr(self, name)),
                    f"{name}: got {getattr(self, name)!r}; it must be a tuple of feature names",
                )
                for name in ("categorical", "timestamps")
            ),
            (not both, f"timestamps: {both!r} stands in categorical too; a feature can be one of them"),
            *(
                (
                    is_whole(getattr(self, name), least),
                    f"{name}: got {getattr(self, name)!r}; it must be a whole number ≥ {least}",
                )
                for name, least in whole.items()
                if not (name == "warmup" and self.warmup is None)
            ),
            *(
                (is_amount(getattr(self, name)), f"{name}: got {getattr(self, name)!r}; it must be a finite number ≥ 0")
                for name in ("prior_strength", "range_factor")
            ),
            (
                self.schedule is None or isinstance(self.schedule, Schedule),
                f"schedule: got {self.schedule!r}; make one with streammoe.schedules.power or .constant",
            ),
            (
                not (self.warmup == 0 and self.standardize),
                "standardize: needs a warm-up to take means and scales from; set warmup above 0",
            ),
            (
                not (self.warmup == 0 and self.prior_strength == 0.0),
                "prior_strength: 0 needs a warm-up or given Gram matrices to start from; set warmup or a prior above 0",
            ),
            (
                self.averaging in mm.AVERAGING,
                f"averaging: {self.averaging!r} is not known; choose one of 'polyak', 'decay', None",
            ),
            (self.bound in mm.BOUNDS, f"bound: {self.bound!r} is not known; choose one of {', '.join(mm.BOUNDS)}"),
        ]

    # -- The array path --------------------------------------------------------------------------------------------

    def learn_array(
        self,
        X: AnyArray,
        y: AnyArray,
        *,
        weights: AnyArray | None = None,
        feature_names: Sequence[Any] | None = None,
    ) -> FloatArray:
        """Learn rows in order; equals a loop over `learn_one`, bit for bit, wherever the array is cut.

        Args:
            X: (n, P) finite numbers.
            y: (n,) or (n, Q) finite numbers, or (n,) labels.
            weights: (n,) how much each event counts, in [0, 1e6]; 1 without it. One of 0 is not learned.
            feature_names: names of the columns; without them x0, x1, …

        Returns:
            (n,) prequential log-losses −log s(y|x) in the target's own units: each row is predicted, then learned.

        Raises:
            InvalidEvent: a row that would poison the model; its index is in ``row`` and nothing was learned.
        """
        rows, names = self._rows(X, feature_names)
        return self._learn_table(rows, names, {}, y, weights)

    def _learn_table(
        self,
        rows: FloatArray,
        names: Sequence[Any],
        texts: Mapping[Any, Sequence[str | None]],
        y: AnyArray,
        weights: AnyArray | None,
    ) -> FloatArray:
        """Learn rows whose columns have these names; `texts` has the levels of those that are not numbers."""
        counts = event_weights(weights, len(rows))
        if counts.all():
            return self._learn_or_refuse(rows, names, texts, y, counts)
        # As `learn_one` does: an event of weight 0 is looked at, and then nothing happens.
        self._read_or_raise(self._array_targets(y, len(rows)), len(rows))
        used = np.flatnonzero(counts)
        losses = np.full(len(rows), np.nan)
        if used.size:
            kept: dict[Any, Sequence[str | None]] = {
                name: [column[at] for at in used.tolist()] for name, column in texts.items()
            }
            try:
                losses[used] = self._learn_or_refuse(rows[used], names, kept, _at(y, used), counts[used])
            except InvalidEvent as error:
                error.row = None if error.row is None else int(used[error.row])
                raise
        return losses

    def _read_or_raise(self, targets: Any, n: int) -> tuple[FloatArray, BoolArray]:
        """Targets of n rows as numbers, and which hold a new label; `InvalidEvent` for the first that is no good."""
        Y, novel, refused = self._read_targets(targets, n)
        if refused:
            row, error = min(refused.items())
            raise InvalidEvent(f"row {row}: {error}", reason=error.reason, feature=error.feature, row=row)
        return Y, novel

    def _learn_or_refuse(
        self,
        rows: FloatArray,
        names: Sequence[Any],
        texts: Mapping[Any, Sequence[str | None]],
        y: AnyArray,
        weights: FloatArray,
    ) -> FloatArray:
        """Learn rows whose weights are all above 0, or none of them, with the error of the first that is poison."""

        def learn(piece: slice) -> FloatArray:
            targets = y[piece] if getattr(y, "ndim", 1) else y  # one number is refused by its shape
            part = (rows[piece], names, _sliced(texts, piece), targets, weights[piece])
            losses: FloatArray = self._guard.learn(self, len(part[0]), "_learn_weighted", *part)
            return losses

        try:
            return learn(slice(None))
        except UnsoundError as error:
            before, found = self.copied(), error
        start, stop = 0, len(rows)
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                learn(slice(start, middle))
            except UnsoundError as error:
                stop, found = middle, error
            else:
                start = middle
        self._guard.forget()
        self.go_back(before)
        raise poisonous(found, start)

    def _learn_weighted(
        self,
        rows: FloatArray,
        names: Sequence[Any],
        texts: Mapping[Any, Sequence[str | None]],
        y: AnyArray,
        weights: FloatArray,
    ) -> FloatArray:
        """Learn rows whose weights are all above 0."""
        given = self._array_targets(y, len(rows))
        targets, novel = self._read_or_raise(given, len(rows))
        if not len(rows):
            return np.empty(0)
        encoder = self._encoder
        known = set(encoder.fields)
        unseen = sorted((name for name in names if name not in known), key=str)
        fields = [*encoder.fields, *unseen]
        rows = reordered(rows, names, fields)
        texts = {**self._levels_of(rows, [name for name in fields if name not in texts], fields, names), **texts}
        texts = {name: texts[name] for name in fields if name in texts}
        # The first event brings its levels together with its fields.
        arrivals = encoder.arrivals({name: column[:1] for name, column in texts.items()})
        try:
            self._check_labels(given, novel)
            self._take(rows, targets, News(tuple(unseen), arrivals[0][1] if arrivals else ()))
        except InvalidEvent as error:
            raise InvalidEvent(
                f"row {error.row}: {error}", reason=error.reason, feature=error.feature, row=error.row
            ) from None
        losses = np.empty(len(rows))
        start = 0
        while start < len(rows):
            # A new label makes the state grow at its own event, as it does in a loop over `learn_one`.
            if novel[start]:
                self._bring_levels(_sliced(texts, slice(start, start + 1)))
                self._admit(given, start)
                targets[start:], novel[start:], _ = self._read_targets(given[start:], len(rows) - start)
            ahead = np.flatnonzero(novel[start:])
            piece = slice(start, start + int(ahead[0]) if ahead.size else len(rows))
            scores = self._learn_coded(rows[piece], _sliced(texts, piece), targets[piece], weights[piece])
            losses[piece] = scores.losses
            start = piece.stop
        return losses

    def _learn_coded(
        self,
        X: FloatArray,
        texts: Mapping[Any, Sequence[str | None]],
        Y: FloatArray,
        weights: FloatArray,
        *,
        traced: bool = False,
    ) -> mm.Scores:
        """Learn screened rows; a new level gets its column at its own event, as in a loop over `learn_one`."""
        if not texts:
            return self._learn(X, Y, weights, traced=traced)
        encoder = self._encoder
        X = X.copy()
        cuts = [(0, ()), *encoder.arrivals(texts, ~np.isnan(Y[:, 0]))]
        runs = []
        for at, (start, levels) in enumerate(cuts):
            piece = slice(start, cuts[at + 1][0] if at + 1 < len(cuts) else len(X))
            self._append(levels)
            if piece.start == piece.stop:
                continue
            for name, column in texts.items():
                field = encoder.fields.index(name)
                X[piece, field] = encoder.codes(field, column[piece])
            runs.append(self._learn(X[piece], Y[piece], weights[piece], traced=traced))
        return mm.joined(runs)

    def _bring_levels(self, texts: Mapping[Any, Sequence[str | None]]) -> None:
        """Give the new levels of one learned row their columns, which always come before a new label."""
        for _, levels in self._encoder.arrivals(texts):
            self._append(levels)

    def _append(self, levels: Sequence[tuple[Any, str]]) -> None:
        if levels:
            layout = self._encoder.layout
            self._encoder.append_levels(levels)
            self._widen(layout)

    def _check_labels(self, targets: Any, novel: BoolArray) -> None:
        """Raise `InvalidEvent` with its ``row`` if not every new label can be taken in."""

    def log_likelihood_array(
        self, X: AnyArray, y: AnyArray, *, feature_names: Sequence[Any] | None = None
    ) -> FloatArray:
        """Log s(y|x) of each row, shape (n,), in the target's own units; learns nothing."""
        rows, names = self._rows(X, feature_names)
        targets, novel, refused = self._read_targets(self._array_targets(y, len(rows)), len(rows))
        if refused:
            raise refused[min(refused)]
        targets[novel] = np.nan
        scores, _ = self._score(self._raw(rows, names, {}), targets)
        # A class that the model has never met has no probability.
        return np.where(novel, -np.inf, -scores.losses)

    def _predict_rows(self, X: AnyArray, feature_names: Sequence[Any] | None) -> FloatArray:
        """Predictions for rows of X (n, P), (n, Q) or (n, M); learns nothing."""
        rows, names = self._rows(X, feature_names)
        return self._predict_table(rows, names, {})

    def _predict_table(
        self, rows: FloatArray, names: Sequence[Any], texts: Mapping[Any, Sequence[str | None]]
    ) -> FloatArray:
        """Predictions for rows whose columns have these names; `texts` as in `_learn_table`."""
        scores, _ = self._score(self._raw(rows, names, texts), None)
        return scores.predictions

    def learn_rows(
        self,
        X: FloatArray,
        targets: Any,
        weights: FloatArray | None = None,
        *,
        texts: Mapping[Any, Sequence[str | None]] | None = None,
        traced: bool = False,
    ) -> Outcome:
        """Learn rows in the model's own field order, refusing those that are no good and going on.

        Args:
            X: (n, F) in the order of `fields`; NaN is a missing value, infinities are out of range.
            targets: (n, Q), NaN for an event without target, or (n,) labels and None; such an event is predicted and
                not learned.
            weights: (n,) in [0, 1e6]; an event of weight 0 is not learned.
            texts: (n,) levels of each categorical field by its name, None where missing; X holds nothing of them.
            traced: whether to keep what each expert said.
        """
        if X.shape[1] != len(self._encoder.fields):
            msg = f"X: got {X.shape[1]} columns; the model has {len(self._encoder.fields)} fields"
            raise InvalidEvent(msg, reason="wrong_shape")
        counts = np.ones(len(X)) if weights is None else weights
        pieces = self._learn_apart(X, targets, counts, texts or {}, 0, traced=traced)
        return _joined(pieces) if len(pieces) > 1 else pieces[0][1]

    def _learn_apart(
        self,
        X: FloatArray,
        targets: Any,
        counts: FloatArray,
        levels: Mapping[Any, Sequence[str | None]],
        first: int,
        *,
        traced: bool,
    ) -> list[tuple[int, Outcome]]:
        """Outcomes of runs of rows, from number `first` on: rows that are poison are each a run of their own."""
        try:
            return [(first, self._guard.learn(self, len(X), "_learn_run", X, targets, counts, levels, traced))]
        except UnsoundError as error:
            if len(X) == 1:
                target, _, _ = self._read_targets(targets, 1)
                return [(first, self._none_used(target, {0: poisonous(error)}))]
        middle = len(X) // 2
        pieces = []
        for piece in (slice(0, middle), slice(middle, len(X))):
            part = (X[piece], targets[piece], counts[piece], _sliced(levels, piece))
            pieces += self._learn_apart(*part, first + piece.start, traced=traced)
        return pieces

    def _learn_run(
        self,
        X: FloatArray,
        targets: Any,
        counts: FloatArray,
        levels: Mapping[Any, Sequence[str | None]],
        traced: bool,
    ) -> Outcome:
        """Learn rows as `learn_rows` does, unless one of them is poison."""
        pieces: list[tuple[int, Outcome]] = []
        start = 0
        while start < len(X) or not pieces:
            Y, novel, refused = self._read_targets(targets[start:], len(X) - start)
            Y[counts[start:] == 0.0] = np.nan
            ahead = np.flatnonzero(novel & (counts[start:] > 0.0))
            stop = int(ahead[0]) if ahead.size else len(Y)
            refused = {at: error for at, error in refused.items() if at < stop}
            piece = slice(start, start + stop)
            events = (X[piece], _sliced(levels, piece), Y[:stop], counts[piece])
            pieces.append((start, self._learn_screened(*events, refused, traced=traced)))
            start += stop
            if ahead.size:
                # A label is only taken in with an event that is.
                row = slice(start, start + 1)
                target = np.zeros((1, Y.shape[1]))
                verdict = int(self._encoder.screen(X[row], target)[0])
                if verdict < 0:
                    outcome = self._meet(X[row], _sliced(levels, row), targets[row], counts[row], traced=traced)
                else:
                    error = self._encoder.out_of_range(X[start], target[0], verdict)
                    outcome = self._none_used(target, {0: error})
                pieces.append((start, outcome))
                start += 1
        return _joined(pieces) if len(pieces) > 1 else pieces[0][1]

    def _meet(
        self,
        X: FloatArray,
        texts: Mapping[Any, Sequence[str | None]],
        targets: Any,
        weights: FloatArray,
        *,
        traced: bool,
    ) -> Outcome:
        """Make room for the new label of one screened row, and learn it."""
        # What was predicted knew nothing of the label, so it had no probability.
        before, _ = self._score(self._raw(X, self.fields, texts), None)
        self._bring_levels(texts)
        self._admit(targets, 0)
        target, _, _ = self._read_targets(targets, 1)
        scores = self._learn_coded(X, texts, target, weights, traced=traced)
        scores.predictions[:] = 0.0
        scores.predictions[:, : before.predictions.shape[1]] = before.predictions
        return _used(target, scores)

    def _learn_screened(
        self,
        X: FloatArray,
        texts: Mapping[Any, Sequence[str | None]],
        Y: FloatArray,
        weights: FloatArray,
        refused: dict[int, InvalidEvent],
        *,
        traced: bool,
    ) -> Outcome:
        """Rows whose labels are all known; `refused` holds those that are not to be looked at."""
        asked = np.ones(len(X), np.bool_)
        asked[list(refused)] = False
        verdicts = np.full(len(X), -1, dtype=np.int64)
        ranged = self._ranged(Y)
        verdicts[asked] = (
            self._encoder.screen(X, ranged) if asked.all() else self._encoder.screen(X[asked], ranged[asked])
        )
        used = asked & (verdicts < 0)
        for at in np.flatnonzero(verdicts >= 0):
            refused[int(at)] = self._encoder.out_of_range(X[at], Y[at], int(verdicts[at]))
        if not used.any():
            return self._none_used(Y, refused)
        if used.all():
            return _used(Y, self._learn_coded(X, texts, Y, weights, traced=traced))
        kept = {name: [text for text, use in zip(column, used, strict=True) if use] for name, column in texts.items()}
        scores = self._learn_coded(X[used], kept, Y[used], weights[used], traced=traced)
        losses = np.full(len(X), np.nan)
        predictions = np.full((len(X), scores.predictions.shape[1]), np.nan)
        losses[used], predictions[used] = scores.losses, scores.predictions
        return Outcome(refused, used & ~np.isnan(Y[:, 0]), Y, losses, predictions, scores.trace)

    def _none_used(self, Y: FloatArray, refused: dict[int, InvalidEvent]) -> Outcome:
        n = len(Y)
        nothing = np.full((n, self._n_outputs), np.nan)
        return Outcome(refused, np.zeros(n, np.bool_), Y, np.full(n, np.nan), nothing, mm.no_trace())

    def set_range_factor(self, range_factor: float) -> None:
        """Judge from now on by another `range_factor`; it says nothing about what was learned."""
        self.range_factor = self._encoder.range_factor = range_factor
        self._guard.forget()

    def set_max_levels(self, max_levels: int) -> None:
        """Let categories have more levels from now on; those that had no column until now have to come again."""
        self.max_levels = self._encoder.max_levels = max_levels

    def set_columns(self, names: Sequence[Any]) -> None:
        """Fix the columns of a model that has none yet, in this order."""
        if self._encoder.fields:
            raise ConfigError(f"set_columns: the model has columns already: {self._encoder.fields!r}")
        self._encoder.set_columns(names)
        self._guard.forget()

    def introduce(self, names: Sequence[Any], row: FloatArray, targets: Any) -> None:
        """Fix the fields to those of the first event, (1, F) with its target, unless it is no good; learn nothing.

        Raises:
            InvalidEvent: there is no field, a value is out of range, or the label is no good; nothing was changed.
        """
        if not names:
            raise InvalidEvent("the record has no feature beside its target", reason="no_features")
        target, _, refused = self._read_targets(targets, 1)
        if refused:
            raise refused[0]
        trial = self._new_encoder(names)
        trial.take(row, target)
        self.set_columns(names)

    def learn_wider(
        self,
        names: Sequence[Any],
        X: FloatArray,
        targets: Any,
        weights: FloatArray,
        *,
        texts: Mapping[Any, Sequence[str | None]],
        traced: bool = False,
    ) -> Outcome:
        """Learn one event that brings new fields; if it is not learned, they are not taken up.

        Args:
            names: of the new fields, in order.
            X: (1, F + new).
            targets, weights, texts, traced: as in `learn_rows`.
        """
        try:
            outcome: Outcome = self._guard.learn(self, 1, "_learn_wider", names, X, targets, weights, texts, traced)
        except UnsoundError as error:
            target, _, _ = self._read_targets(targets, 1)
            return self._none_used(target, {0: poisonous(error)})
        return outcome

    def _learn_wider(
        self,
        names: Sequence[Any],
        X: FloatArray,
        targets: Any,
        weights: FloatArray,
        texts: Mapping[Any, Sequence[str | None]],
        traced: bool,
    ) -> Outcome:
        """The same, unless it is poison."""
        encoder = self._encoder
        old = X[:, : len(encoder.fields)]
        known = {name: column for name, column in texts.items() if name not in names}
        Y, novel, refused = self._read_targets(targets, 1)
        if refused or weights[0] == 0.0 or np.isnan(Y[0, 0]):
            return self._learn_run(old, targets, weights, known, traced)
        arrivals = encoder.arrivals({name: texts[name] for name in (*encoder.fields, *names) if name in texts})
        try:
            self._take(X, Y, News(tuple(names), arrivals[0][1] if arrivals else ()))
        except InvalidEvent as error:
            return self._none_used(Y, {0: error})
        if novel[0]:
            return self._meet(X, texts, targets, weights, traced=traced)
        return _used(Y, self._learn_coded(X, texts, Y, weights, traced=traced))

    # -- Looking inside --------------------------------------------------------------------------------------------

    def gate_one(self, x: Mapping[Any, Any]) -> FloatArray:
        """(K,) the gate's shares g_k(x); NaN during warm-up, when there is no mixture yet."""
        _, shares = self._score(self._encoder.row(x), None)
        return self._of_mixture(shares)

    def _responsibilities(self, x: Mapping[Any, Any], target: FloatArray) -> FloatArray:
        """(K,) τ_k of an event ([MM] eq. 15); NaN during warm-up."""
        _, tau = self._score(self._encoder.row(x), target)
        return self._of_mixture(tau)

    def _of_mixture(self, values: FloatArray) -> FloatArray:
        return np.full(self.n_experts, np.nan) if self._state is None else values[0]

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
    def output_names(self) -> list[Any]:
        """Names of the outputs where there may be several, or the labels met so far, in the order of the parameters."""
        return []

    @property
    def n_expert_features(self) -> int:
        """p_v: features that the experts see, intercept and powers included."""
        return self._encoder.n_expert_features

    @property
    def is_warming_up(self) -> bool:
        """Whether events still go to the warm-up buffer."""
        return self._state is None

    @property
    def step_size(self) -> float:
        """γ of the next event."""
        return self._schedule(self.n + 1)

    def step_size_at(self, n: int) -> float:
        """γ of the n-th event, the first one being 1."""
        return self._schedule(n)

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
            ``gate`` (K−1, p_w); ``experts`` (K, Q, p_v), or (K, M−1, p_v) for a classifier, whose first class is the
            reference; ``variances`` (K, Q) or (K, Q, Q), not for a classifier; ``masses`` (K,); ``gate_gram``
            (p_w, p_w); ``expert_grams`` (K, p_v, p_v); ``n``; ``decay`` (Π(1−γ) since the last refresh),
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
            },
        }
        if self._family.n_variances(self._n_outputs):
            found["variances"] = (state.average_variances if averaged else state.variances).copy()
            found["prior"]["variances"] = state.prior_variances.copy()
        if self.standardize:
            found["scale"] = {name: array.copy() for name, array in self._encoder.scaler._asdict().items()}
        return found

    def _continue_from(
        self,
        parameters: Mapping[str, Any],
        feature_names: Sequence[Any],
        average: Mapping[str, AnyArray] | None,
        n_average: int | None,
    ) -> None:
        """Go on from these statistics; the model knows its outputs already."""
        encoder, family, Q = self._encoder, self._family, self._n_outputs
        encoder.set_features(feature_names)
        K, N, p_w, p_v = self.n_experts, family.n_rows(Q), encoder.n_gate_features, encoder.n_expert_features
        wide_w, wide_v = encoder.gate_width, encoder.expert_width
        n_variances = family.n_variances(Q)
        variances = family.variances_of(np.ones(n_variances), K)
        # Each entry has the first shape; the state wants it padded with zeros to the second.
        shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
            "gate": ((K - 1, p_w), (K - 1, wide_w)),
            "experts": ((K, N, p_v), (K, N, wide_v)),
            "variances": (variances.shape, variances.shape),
            "masses": ((K,), (K,)),
            "gate_gram": ((p_w, p_w), (wide_w, wide_w)),
            "expert_grams": ((K, p_v, p_v), (K, wide_v, wide_v)),
        }
        if not n_variances:
            parameters = {**parameters, "variances": variances}
        arrays = {name: shaped(parameters, name, *shape) for name, shape in shapes.items()}
        diagonal = arrays["variances"] if variances.ndim == 2 else np.einsum("kqq->kq", arrays["variances"])
        if not (diagonal > 0.0).all() or not (arrays["masses"] > 0.0).all():
            raise ConfigError("parameters: 'variances' and 'masses' must be above 0")
        n = int(parameters["n"])
        prior = family.unit_prior(self.prior_strength, wide_w, wide_v, Q)
        if "prior" in parameters:
            given = {"variances": np.ones(n_variances), **parameters["prior"]}
            prior = prior._replace(
                gate_gram=shaped(given, "gate_gram", (p_w,), (wide_w,)),
                expert_gram=shaped(given, "expert_gram", (p_v,), (wide_v,)),
                experts=shaped(given, "experts", (N, p_v), (N, wide_v)),
                variances=shaped(given, "variances", (n_variances,), (n_variances,)),
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
            served = average if n_variances else {**average, "variances": variances}
            state = state._replace(
                n_average=np.array([n if n_average is None else n_average], dtype=np.int64),
                average_gate=shaped(served, "gate", *shapes["gate"]),
                average_experts=shaped(served, "experts", *shapes["experts"]),
                average_variances=shaped(served, "variances", *shapes["variances"]),
            )
        self._start(state)

    # -- The way back ----------------------------------------------------------------------------------------------

    def copied(self, spare: Copied | None = None) -> Copied:
        """All that learning changes, as it is now; arrays of `spare` are taken for it where they fit."""
        return Copied(
            self._encoder.copy(),
            {name: getattr(self, name).copy() for name in self.growing},
            None if self._warm_up is None else self._warm_up.copy(),
            None if self._state is None else copy_state(self._state, spare and spare.state),
            copy_array(self._residual, spare and spare.residual),
            self._options,
        )

    def go_back(self, copied: Copied) -> None:
        """The inverse of `copied`, which is used up by it."""
        self._encoder, outputs, self._warm_up, self._state, self._residual, self._options = copied
        for name, value in outputs.items():
            setattr(self, name, value)

    # -- Keeping it ------------------------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one file, durably; `streammoe.load` reads it and goes on bit for bit.

        Raises:
            PoisonedModel: a number in it is not finite; nothing was written.
        """
        durable.replace(Path(path), *pieces(self.arrays(), self.describe()))

    def arrays(self) -> dict[str, AnyArray]:
        """All arrays of a checkpoint: what shapes what comes next, and ``diagnostics.*``.

        Raises:
            PoisonedModel: a number in them is not finite, so that they must not be kept.
        """
        arrays = {**self._shaping_arrays(), "diagnostics.residual": self._residual}
        poisoned = [name for name, array in arrays.items() if not _may_be_kept(name, array)]
        if poisoned:
            message = (
                f"the model holds numbers that are not finite ({', '.join(poisoned)}), and is not saved; go on from "
                "what was saved before, and report this, please: it is a bug"
            )
            raise PoisonedModel(message)
        return arrays

    def arguments(self) -> dict[str, Any]:
        """The arguments of the constructor, as a checkpoint holds them."""
        given = {**self._get_params(), "schedule": self.schedule and schedules.to_settings(self.schedule)}
        return {name: value.item() if isinstance(value, np.generic) else value for name, value in given.items()}

    def describe(self) -> dict[str, Any]:
        """The JSON part of a checkpoint: which model this is, and its fingerprint."""
        return {**self.identify(), "state_digest": self.state_digest()}

    def identify(self) -> dict[str, Any]:
        """`describe` without the fingerprint, which takes a while for a wide model."""
        return {
            "model": {"kind": type(self).__name__, "arguments": self.arguments()},
            "n": self.n,
        }

    def state_digest(self) -> str:
        """sha256 over everything that shapes what comes next; equal digests mean equal futures."""
        return state_digest(self._shaping_arrays())

    @classmethod
    def from_checkpoint(cls, arrays: dict[str, AnyArray], description: Mapping[str, Any]) -> Self:
        """The inverse of `arrays` and `describe`.

        Raises:
            CheckpointError: an array is missing, unknown, of another shape than the model asks for, or holds what no
                model can. `streammoe.restoring` says the same of other errors, which a description may cause.
        """
        arguments: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in description["arguments"].items()
        }
        if arguments["schedule"] is not None:
            arguments["schedule"] = schedules.from_settings(arguments["schedule"])
        model = cls(**arguments)
        model._restore_outputs(arrays)
        model._encoder = model._new_encoder()
        model._encoder.restore(arrays)
        model._restore_state(arrays)
        unknown = sorted({name for name in arrays if name.startswith(_OWN)} - model._shaping_arrays().keys())
        must_be(not unknown, f"there are arrays that belong to no such model: {shown(unknown)}")
        model._options = model._new_options()
        return model

    def _restore_state(self, arrays: Mapping[str, AnyArray]) -> None:
        """The state, or what there is before the warm-up is over; both do not go together."""
        family, Q, p_v = self._family, self._n_outputs, self._encoder.expert_width
        size = 0
        must_be(Q or not ("state.n" in arrays or "warmup.X" in arrays), "there is a state of a model without outputs")
        if "state.n" in arrays:
            p_w = self._encoder.gate_width
            self._state = restored_state(
                arrays, "state", family, n_experts=self.n_experts, n_outputs=Q, p_w=p_w, p_v=p_v
            )
            size = len(mm.new_residual(family, self._state, Q))
        elif "warmup.X" in arrays:
            n_fields = len(self._encoder.fields)
            self._warm_up = WarmUp.from_arrays(family, arrays, n_outputs=Q, n_fields=n_fields, p_v=p_v)
            self._encoder.check_rows(self._warm_up.X)
        self._residual = array_of(arrays, "diagnostics.residual", "float64", (size,))

    def _output_arrays(self) -> dict[str, AnyArray]:
        """What is known of the outputs, by name, for a checkpoint."""
        return {}

    def _restore_outputs(self, arrays: Mapping[str, AnyArray]) -> None:
        """The inverse of `_output_arrays`."""

    def _shaping_arrays(self) -> dict[str, AnyArray]:
        arrays = {**self._encoder.arrays(), **self._output_arrays()}
        if self._warm_up is not None:
            arrays |= self._warm_up.arrays()
        if self._state is not None:
            arrays |= state_arrays(self._state, "state")
        return arrays

    # -- Events to the engine --------------------------------------------------------------------------------------

    def _learn_event(self, x: Mapping[Any, Any], target: FloatArray, w: float, new_label: Any = None) -> None:
        """Learn one event; `new_label` is one that the model has yet to make room for."""
        weight = event_weight(w)
        if not isinstance(x, dict | Mapping):
            raise not_a_mapping(x)
        news = self._encoder.news(x)
        row = self._encoder.row(x, news)
        if weight == 0.0:
            return
        try:
            event = (row, target, news, np.array([weight]), new_label)
            self._guard.learn(self, 1, "_learn_coded_event", *event, shared=False)
        except InvalidEvent as error:
            error.row = None  # an event by itself has no index
            raise
        except UnsoundError as error:
            raise poisonous(error) from None

    def _learn_coded_event(
        self, row: FloatArray, target: FloatArray, news: News, weight: FloatArray, new_label: Any
    ) -> None:
        """Learn one event as a row, unless it is poison."""
        self._take(row, target, news)
        if new_label is not None:
            target = np.array([[self._admit([new_label], 0)]])
        self._learn(row, target, weight)

    def _learn(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool = False) -> mm.Scores:
        """Learn screened rows: through the warm-up while it lasts, then by steps."""
        self._encoder.notice_unplaced(X, Y)
        if self._state is None and self.warmup == 0 and self._n_outputs:
            self._start(self._random_start())
        if self._state is not None:
            return self._step(X, Y, weights, traced=traced)
        if self._warm_up is None:
            if not self._n_outputs:
                # No label has been met, so there is nothing to learn and nothing to say.
                nothing = np.full(len(X), np.nan)
                return mm.Scores(nothing, np.empty((len(X), 0)), mm.blank_trace(len(X) if traced else 0))
            self._warm_up = WarmUp(self._family, self._n_outputs, self._encoder.expert_width)
        room = self._warm_up_size() - self._warm_up.count
        targets = np.cumsum(~np.isnan(Y[:, 0]))
        cut = int(np.searchsorted(targets, room)) + 1
        _, R = self._encoder.design(X[:cut])
        first = self._warm_up.learn(X[:cut], R, Y[:cut], weights[:cut], traced=traced)
        if len(targets) == 0 or targets[-1] < room:
            return first
        self._end_warm_up(self._warm_up)
        rest = self._step(X[cut:], Y[cut:], weights[cut:], traced=traced)
        return mm.joined([first, rest])

    def _step(self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool) -> mm.Scores:
        assert self._state is not None  # noqa: S101 - for the type checker; callers have looked
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        scores = mm.learn(
            self._family,
            self._state,
            self._residual,
            self._options,
            self._schedule,
            W,
            R,
            (Y - scaler.target_center) / scaler.target_scale,
            weights=weights,
            n_outputs=self._n_outputs,
            traced=traced,
        )
        return self._in_own_units(scores)

    def _score(self, X: FloatArray, Y: FloatArray | None, *, traced: bool = False) -> tuple[mm.Scores, FloatArray]:
        state = self._state
        if state is None:
            if self._warm_up is None:
                losses = np.full(len(X), np.nan)
                empty = np.zeros((len(X), self._n_outputs))
                return mm.Scores(losses, empty, mm.no_trace()), np.empty((len(X), 0))
            state = self._warm_up.recursive
        # Predicting never raises on range: what is too large for the powers to hold counts as the largest that is not.
        W, R = self._encoder.design(self._encoder.bounded(X))
        if self._state is None:
            W = R
        scaler = self._encoder.scaler
        targets = None if Y is None else (Y - scaler.target_center) / scaler.target_scale
        scores, responsibilities = mm.score(
            self._family, state, W, R, targets, n_outputs=self._n_outputs, traced=traced
        )
        return self._in_own_units(scores), responsibilities

    def _in_own_units(self, scores: mm.Scores) -> mm.Scores:
        scaler = self._encoder.scaler
        center, scale = scaler.target_center, scaler.target_scale
        trace = scores.trace
        if len(trace.shares):
            trace = Trace(trace.shares, trace.means * scale + center, trace.variances * (scale * scale))
        return mm.Scores(scores.losses + sum(map(math.log, scale.tolist())), scores.predictions * scale + center, trace)

    def _new_encoder(self, columns: Sequence[Any] = ()) -> Encoder:
        encoder = Encoder(
            n_outputs=self._family.n_targets(self._n_outputs),
            degree=self.degree,
            gate_degree=self.gate_degree,
            range_factor=self.range_factor,
            categorical=self.categorical or (),
            timestamps=self.timestamps or (),
            max_levels=self.max_levels,
        )
        encoder.set_columns(columns)
        return encoder

    def _new_options(self) -> LearningOptions:
        return mm.learning_options(
            bound=self.bound,
            n_experts=self.n_experts,
            n_rows=self._family.n_rows(self._n_outputs),
            prior_strength=self.prior_strength,
            averaging=self.averaging,
            schedule=self._schedule,
        )

    def _warm_up_size(self) -> int:
        if self.warmup is not None:
            return self.warmup
        encoder = self._encoder
        n_rows = self._family.n_rows(self._n_outputs)
        shape = warmup.Shape(self.n_experts, n_rows, encoder.n_gate_features, encoder.n_expert_features)
        return warmup.default_size(self._family, shape)

    def _end_warm_up(self, warm_up: WarmUp) -> None:
        X, Y, weights = warm_up.rows()
        LOGGER.info(
            "warm-up: fitting %d experts with %d features to %d events",
            self.n_experts,
            self._encoder.n_expert_features,
            len(X),
        )
        try:
            state = self._fitted(X, Y, weights)
        except UnsoundError as error:
            LOGGER.warning(
                "warm-up: nothing finite comes of a fit (%s); fitting once more, to all events alike and with values "
                "that are far out moved to the edge of the others",
                error,
            )
            state = self._fitted_to_what_is_near(X, Y)
        self._warm_up = None
        self._start(state)

    def _fitted_to_what_is_near(self, X: FloatArray, Y: FloatArray) -> MMState:
        """The state after a warm-up on rows of which nothing finite comes; of random experts in the worst case."""
        try:
            return self._fitted(winsorised(X), winsorised(Y) if self._family.is_metric else Y, np.ones(len(X)))
        except UnsoundError as error:
            LOGGER.warning("warm-up: nothing finite comes of that either (%s); starting from random experts", error)
        return self._random_start()._replace(n=np.array([len(X)], dtype=np.int64))

    def _fitted(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> MMState:
        """The state after a warm-up on these rows, whose scales are taken.

        Raises:
            UnsoundError: nothing finite comes of them.
        """
        # Class indexes are not for scaling.
        self._encoder.fit_scaler(X, Y if self._family.is_metric else np.zeros_like(Y), standardize=self.standardize)
        scaler = self._encoder.scaler
        W, R = self._encoder.design(X)
        return warmup.fit(
            self._family,
            warmup.Buffer(W, R, (Y - scaler.target_center) / scaler.target_scale, np.ascontiguousarray(weights)),
            n_experts=self.n_experts,
            n_outputs=self._n_outputs,
            restarts=self.warmup_restarts,
            seed=self.seed,
            options=self._options,
        )

    def _random_start(self) -> MMState:
        return mm.random_start(
            self._family,
            n_experts=self.n_experts,
            p_w=self._encoder.gate_width,
            p_v=self._encoder.expert_width,
            n_outputs=self._n_outputs,
            prior_strength=self.prior_strength,
            seed=self.seed,
            n_features=self._encoder.n_expert_features,
        )

    def _start(self, state: MMState) -> None:
        self._state = state
        self._residual = mm.new_residual(self._family, state, self._n_outputs)

    def _take(self, rows: FloatArray, targets: FloatArray, news: News = NO_NEWS) -> None:
        """Let rows into the ranges, and the columns that they bring into the state."""
        layout = self._encoder.layout
        self._encoder.take(rows, self._ranged(targets), news)
        if news:
            self._widen(layout)

    def _ranged(self, targets: FloatArray) -> FloatArray:
        """Targets as the ranges are to see them: class indexes have none, but NaN stays "no target"."""
        return targets if self._family.is_metric else 0.0 * targets

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
        X = rectangle(X, "X")
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
        return finite_array(X, "X", names), names

    def _default_names(self, width: int) -> list[Any]:
        """x0, x1, … where the model knows them; else the model's own columns, in their order."""
        names: list[Any] = [f"x{j}" for j in range(width)]
        return names if set(names) == set(self._encoder.fields) else self.fields

    def _raw(self, rows: FloatArray, names: Sequence[Any], texts: Mapping[Any, Sequence[str | None]]) -> FloatArray:
        """Rows in the model's own order, with categories as codes."""
        encoder = self._encoder
        rows = reordered(rows, names, encoder.fields)
        numbers = [name for name in encoder.fields if name not in texts]
        for name, column in {**self._levels_of(rows, numbers, encoder.fields, names), **texts}.items():
            if name in encoder.levels:
                field = encoder.fields.index(name)
                rows[:, field] = encoder.codes(field, column)
        return rows

    def _levels_of(
        self, rows: FloatArray, wanted: Sequence[Any], fields: Sequence[Any], names: Sequence[Any]
    ) -> dict[Any, list[str]]:
        """The levels that an array of numbers holds under `names`; its columns are `fields`."""
        at = {name: j for j, name in enumerate(fields)}
        return {
            name: [level(value, name) for value in rows[:, at[name]].tolist()]
            for name in wanted
            if name in self._encoder.categorical and name in names
        }


def _at(y: Any, used: AnyArray) -> Any:
    """The targets of some rows; a list of labels keeps each one's type."""
    return y[used] if isinstance(y, np.ndarray) else [y[at] for at in used]


def _may_be_kept(name: str, array: AnyArray) -> bool:
    """Whether an array holds nothing that would spoil a model; NaN in the warm-up buffer is a missing value."""
    if array.dtype.kind != "f":
        return True
    spoilt = np.isinf(array) if name == "warmup.X" else ~np.isfinite(array)
    return not spoilt.any()


def _sliced(texts: Mapping[Any, Sequence[str | None]], piece: slice) -> dict[Any, Sequence[str | None]]:
    return {name: column[piece] for name, column in texts.items()}


def _used(Y: FloatArray, scores: mm.Scores) -> Outcome:
    return Outcome({}, ~np.isnan(Y[:, 0]), Y, *scores)


def names_array(names: Sequence[Any], what: str) -> AnyArray:
    """Names as JSON in an array of bytes.

    Raises:
        CheckpointError: one of them is no plain value.
    """
    if not all(isinstance(name, str | int | float | bool) for name in names):
        msg = f"{what} must be strings or numbers to be saved, got {names!r}; rename them"
        raise CheckpointError(msg)
    return np.frombuffer(json.dumps(list(names)).encode(), dtype=np.uint8)


def _joined(pieces: Sequence[tuple[int, Outcome]]) -> Outcome:
    """The outcome of consecutive runs of rows, each with the index of its first row."""
    outcomes = [outcome for _, outcome in pieces]
    scores = mm.joined([mm.Scores(*outcome[3:]) for outcome in outcomes])
    refused = {start + at: error for start, outcome in pieces for at, error in outcome.refused.items()}
    # Where a class was not known yet, joining has put a probability of 0.
    scores.predictions[list(refused)] = np.nan
    return Outcome(
        refused,
        np.concatenate([outcome.learned for outcome in outcomes]),
        np.concatenate([outcome.targets for outcome in outcomes]),
        *scores,
    )
