"""A model that learns: its encoder, its targets, one phase, and an undo record for events that leave it unsound."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.kinds import ColumnKind, described, not_found
from streammoe.columns.layout import MOST_IDENTIFIERS, NO_ADDITIONS, Additions, Layout
from streammoe.columns.row_reader import FULL, IDENTIFIERS
from streammoe.columns.values import check_name, not_a_mapping
from streammoe.engine import mixture
from streammoe.engine.recent import Rows
from streammoe.engine.reservoir import Reservoir
from streammoe.engine.state import UnsoundError
from streammoe.errors import ConfigError, InvalidEvent
from streammoe.kernels.event import UNSOUND, UNUSUAL
from streammoe.kernels.shared import limited_step
from streammoe.kernels.state import MMState
from streammoe.model.bound import Bound, Row
from streammoe.model.checks import event_weight, names_in
from streammoe.model.context import Context
from streammoe.model.level_means import frequent
from streammoe.model.phase import Phase
from streammoe.model.size import excess
from streammoe.model.streaming import Empty, Streaming
from streammoe.model.tables import Events, Texts
from streammoe.model.targets import ClassTarget, Targets
from streammoe.model.undo import Notes, Undo, poison_error
from streammoe.options import ClassifierOptions, Options
from streammoe.text import shown, some_of
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.estimators")
SETTLED_AT = 30
"""Number of events after which columns are noticed that may not be what was meant."""
NOT_FOUND = (-1, "not found")
"""The entry of `Context.reported` that says so."""
MOST_REPORTED = 100
"""Number of columns after which new ones are not logged any more."""


class Snapshot(NamedTuple):
    """Everything in a model that learning changes."""

    context: Context
    phase: Phase


class Learner:
    """The model to which an estimator delegates.

    Attributes:
        context: everything except the phase.
        phase: the current phase.
        undo: calls every function that learns.
    """

    def __init__(self, context: Context, phase: Phase | None = None) -> None:
        self.context = context
        self.phase: Phase = phase or Empty()
        self.undo: Undo[Snapshot] = Undo()
        self._noting: Bound | None = None
        """What notes single events in `_notes`."""
        self._notes = Notes(0, 0, 0)

    @property
    def n(self) -> int:
        """Events learned."""
        return self.phase.n

    @property
    def encoder(self) -> Encoder:
        """The encoder of events."""
        return self.context.encoder

    @property
    def targets(self) -> Targets:
        """Format of the targets."""
        return self.context.targets

    @property
    def state(self) -> MMState | None:
        """The state of the mixture; None before its first fit."""
        leader = self.phase.leader
        return leader.state if leader is not None and self.phase.is_fitted else None

    @property
    def n_experts(self) -> int:
        """Number of experts of that mixture; the most that there may be before there is one."""
        return self.context.options.most_experts if self.state is None else len(self.state.masses)

    @property
    def step_size(self) -> float:
        """Step size γ of the mixture at the next event."""
        context, state = self.context, self.state
        gamma = context.steps(self.n + 1)
        if state is None:
            return gamma
        span = context.learning_options(len(state.masses)).span
        return limited_step(gamma, state.masses, self.n + 1, span, context.steps.origin)

    # -- Learning one event --------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float) -> None:
        """Learn one event that counts `w` times.

        Raises:
            InvalidEvent: a value is invalid or would make a parameter non-finite; nothing was changed.
        """
        context = self.context
        if type(w) is float and w == 1.0:
            row_read, targets = context.encoder.plain_row(x), context.targets
            target_read = (y,) if targets.is_number and type(y) is float else targets.plain(y)
            if row_read is not None and target_read is not None and self._learn_usual(row_read, target_read, 1.0):
                self._note_learned(row_read)
                return
        target, new_label = context.targets.read_one(y)
        if not context.targets.is_fixed:
            with self.outputs(sorted(y, key=str)):
                self.learn_one(x, y, w)
            return
        weight = 1.0 if type(w) is float and w == 1.0 else event_weight(w)
        if not isinstance(x, dict | Mapping):
            if not hasattr(x, "items"):
                raise not_a_mapping(x)
            x = dict(x.items())  # a row of a frame
        additions = context.encoder.columns.additions(x)
        row = context.encoder.row(x, additions)
        if weight == 0.0:
            return
        columns = context.encoder.columns
        is_unplaced = self.may_identify and any(row[0, at] < 0.0 for at in columns.identifiable.values())
        is_usual = not (additions or new_label is not None or is_unplaced)
        if not is_usual or not self._learn_usual(row[0].tolist(), target[0].tolist(), weight):
            self._learn_at_length(row, target, additions, weight, new_label)
        elif columns.with_columns and not (self.keeps_all and columns.identifiable):
            context.encoder.notice_unplaced(row, target)
        self._note_learned(row[0].tolist())
        if self.n == SETTLED_AT:
            warn_of_columns(self.context)

    def _note_learned(self, row: Row) -> None:
        if (past := self.context.past) is not None:
            past.learned(row)

    def _learn_at_length(
        self, row: FloatArray, target: FloatArray, additions: Additions, weight: float, new_label: Any
    ) -> None:
        """Learn an event that may need more than the usual."""
        try:
            self.undo.call(self, 1, Learner._learn_event, row, target, additions, weight, new_label)
        except InvalidEvent as error:
            error.row = None  # an event by itself has no index
            raise
        except UnsoundError as error:
            raise poison_error(error) from None
        self._noting = None  # what is due may have changed

    def _learn_usual(self, row: Row, target: Row, weight: float) -> bool:
        """Learn an event, unless it needs more than the usual; return whether it was learned."""
        bound = self._noting
        try:
            if bound is None or not bound.is_of(self.context, self.phase):
                bound = self._note()
            if bound is None:
                return False
            found = bound.learn_one(row, target, weight)
            if found & UNUSUAL and not self._notes.n_free:
                bound = self._note()
                found = UNUSUAL if bound is None else bound.learn_one(row, target, weight)
            if bound is None or found & UNUSUAL:
                return False
            if found & UNSOUND:
                raise UnsoundError(["state"])
            if found or bound.leaves_more:
                self._complete(bound, target, weight, found)
        except UnsoundError:
            self.undo.take_back(self)
            return False
        except BaseException:
            self.undo.take_back(self)
            raise
        return True

    def _note(self) -> Bound | None:
        """Let a kernel note single events that it learns; return it, or None if the next one needs more than that."""
        phase = self.phase
        if not isinstance(phase, Streaming):
            return None
        bound, due = phase.bound_to_learn(self.context), phase.next_due(self.context)
        if phase.n + 1 >= due:
            return None
        self._notes = self.undo.notes(self, Learner._learn_noted, bound.n_fields, bound.n_targets)
        bound.refresh()
        # Below this count columns may have to be warned of.
        bound.note_in(self._notes, due if phase.n >= SETTLED_AT else min(due, SETTLED_AT))
        self._noting = bound
        return bound

    def _complete(self, bound: Bound, target: Row, weight: float, found: int) -> None:
        """Do the part of learning an event that the kernel has left."""
        context, phase = self.context, self.phase
        try:
            if context.reservoir is not None:
                context.reservoir.add_one(bound.row, target, weight)
            if found and isinstance(phase, Streaming):
                phase.react(context, found, bound)
                self._noting = None
        except BaseException:
            self._notes.drop_last()
            raise

    def _learn_noted(self, notes: Notes) -> None:
        """Learn again the events that a kernel has learned."""
        for row, target, weight in notes.events():
            self.take(row, target)
            self.learn(row, target, weight)

    def _learn_event(
        self, row: FloatArray, target: FloatArray, additions: Additions, weight: float, new_label: Any
    ) -> None:
        """Learn one event as a row, unless that is undone."""
        self.take(row, target, additions)
        self.report(additions)
        if new_label is not None:
            target = np.array([[self.admit(new_label)]])
        self.learn(row, target, np.array([weight]))
        self.identify()

    # -- Learning rows -------------------------------------------------------------------------------------------------

    def learn(
        self, X: FloatArray, Y: FloatArray, weights: FloatArray, *, traced: bool = False, are_relative: bool = False
    ) -> mixture.Scores:
        """Learn raw rows that are in range; what is due at an event count is done right after that event.

        Args:
            X, Y: rows and targets.
            weights: as they were given, or as they count if they `are_relative`.
            traced: whether to record each expert's part.
            are_relative: see above.

        Raises:
            UnsoundError: some of them leave the model with NaN or infinity; it must be discarded.
        """
        context = self.context
        X = context.with_earlier(X, Y)
        if not (self.keeps_all and context.encoder.columns.identifiable):
            context.encoder.notice_unplaced(X, Y)
        if context.reservoir is not None:
            context.reservoir.add(X, Y, weights)
        phase = self.phase = self.phase.begin(context)
        if phase.weighs_events and not are_relative:
            weights = context.relative(Y, weights, phase.n)
        if len(X) < phase.next_due(context) - phase.n:
            return phase.learn(context, X, Y, weights, traced=traced)
        learned = np.cumsum(~np.isnan(Y[:, 0]))
        runs = []
        start = before = 0
        while True:
            phase = self.phase
            room = phase.next_due(context) - phase.n
            stop = min(int(np.searchsorted(learned, before + room)) + 1, len(X))
            rows = slice(start, stop)
            runs.append(phase.learn(context, X[rows], Y[rows], weights[rows], traced=traced))
            if stop > 0 and learned[stop - 1] >= before + room:
                was_fitted = phase.is_fitted
                phase.on_due(context)
                if phase.is_fitted and not was_fitted:
                    context.warmed_up_at = phase.n
                if phase.refits:
                    self.undo.expire()
                before = int(learned[stop - 1])
            if stop == len(X):
                return mixture.concatenated(runs)
            start = stop

    @property
    def keeps_all(self) -> bool:
        """Whether all events learned are kept, so that categories with many levels may become identifiers."""
        return self.context.recent.count == self.n

    @property
    def may_identify(self) -> bool:
        """Whether an event whose level gets no column makes its category an identifier."""
        return self.keeps_all and bool(self.encoder.columns.identifiable and self.context.level_values)

    def identify(self) -> None:
        """Learn all events again if the latest one has a level without a column, or a class that has no means yet.

        Its category is an identifier then. That needs all events, since no level had a mean before, and columns of
        levels may have learned what it tells.
        """
        context, columns, phase = self.context, self.encoder.columns, self.phase
        known, warned = context.level_means, context.encoder.warned_of
        if not self.n or not self.keeps_all or not context.level_values or not (columns.identifiable or known):
            return
        last, _, _ = context.recent.rows(len(columns.fields), 1)
        found = [name for name, at in columns.identifiable.items() if last[0, at] < 0.0 and (FULL, name) not in warned]
        found = found[: MOST_IDENTIFIERS - len(columns.identifiers)]
        if not found and (known is None or [*known.values] == context.level_values):
            return
        X, Y, weights = context.recent.rows(len(columns.fields))
        texts = {name: list(columns.levels[name]) for name in found}
        kept = {name: frequent(X[:, columns.index[name]], each) for name, each in texts.items()}
        self.context, self.phase = context.begun_again(kept), Empty()
        self.undo.expire()
        try:
            X = self.encoder.columns.translated(X, columns)
            self.encoder.screen(X, self.context.ranged(Y))
            self.learn(X, Y, weights, are_relative=True)
        except UnsoundError:
            self.context, self.phase = context, phase
            context.encoder.notice_unplaced(*context.recent.rows(len(columns.fields))[:2])
            return
        if found:
            LOGGER.warning(IDENTIFIERS, some_of(found), columns.max_levels, phase.n)
        self.context.take_over(context)

    def learn_events(self, events: Events, *, traced: bool = False) -> mixture.Scores:
        """Learn rows in range whose categories are strings; a new level gets its column at its own event."""
        X, texts, Y, weights = events
        if not texts:
            return self.learn(X, Y, weights, traced=traced)
        encoder = self.context.encoder
        X = X.copy()
        cuts = [(0, ()), *encoder.columns.arrivals(texts, ~np.isnan(Y[:, 0]))]
        runs = []
        for at, (start, levels) in enumerate(cuts):
            piece = slice(start, cuts[at + 1][0] if at + 1 < len(cuts) else len(X))
            self._append(levels)
            if piece.start == piece.stop:
                continue
            for name, column in texts.items():
                field = encoder.fields.index(name)
                X[piece, field] = encoder.columns.codes(name, column[piece])
            runs.append(self.learn(X[piece], Y[piece], weights[piece], traced=traced))
        return mixture.concatenated(runs)

    def take(self, rows: FloatArray, targets: FloatArray, additions: Additions = NO_ADDITIONS) -> None:
        """Widen the ranges by rows, and make room for the columns that they bring.

        Raises:
            InvalidEvent: a value is out of range, or the model would become too large.
        """
        context = self.context
        ranged = targets if context.family.is_metric else context.ranged(targets)
        if not additions:
            context.encoder.take(rows, ranged)
            return
        if problem := excess(context, additions):
            raise InvalidEvent(problem, reason="too_many_columns", row=0)
        layout = context.encoder.layout
        context.encoder.take(rows, ranged, additions)
        self._widen(layout)

    def report(self, additions: Additions) -> None:
        """Log what the first columns hold, or later ones; the first hundred columns, so that the log does not fill."""
        fields = self.encoder.own_fields
        if additions.fields and len(fields) - len(additions.fields) < MOST_REPORTED:
            before = len(fields) - len(additions.fields)
            LOGGER.info(
                "%s by their first values: %s",
                "more columns" if before else "columns",
                described(dict(zip(additions.fields, additions.kinds, strict=True))),
            )

    def admit(self, label: Any) -> float:
        """Add a new label and return its index."""
        context = self.context
        index = context.targets.add(label)
        self.phase.add_class(context, np.random.default_rng((context.options.seed, index)))
        return float(index)

    def add_levels(self, texts: Texts) -> None:
        """Add columns for the new levels of one learned row; this always precedes a new label."""
        for _, levels in self.context.encoder.columns.arrivals(texts):
            self._append(levels)

    def _append(self, levels: Sequence[tuple[Any, str]]) -> None:
        if levels:
            if problem := excess(self.context, Additions((), tuple(levels))):
                raise ConfigError(problem)
            layout = self.context.encoder.layout
            self.context.encoder.append_levels(levels)
            self._widen(layout)

    def _widen(self, layout: Layout) -> None:
        self.phase.widen(self.context, self.context.moves(layout))

    def reservoir_rows(self) -> Rows:
        """Return the sample of the events learned so far; without the option `reservoir` it has no rows."""
        return (self.context.reservoir or Reservoir(0, 0)).rows(len(self.encoder.fields))

    # -- External changes ----------------------------------------------------------------------------------------------

    def change(self, options: Options) -> None:
        """Apply other options; only those that may change over a checkpoint differ."""
        context = self.context
        context.options = options
        context.encoder.change(options.range_factor, options.max_levels)
        size = options.reservoir
        sample = context.reservoir or Reservoir(size, options.seed)
        context.reservoir = sample.resized(size) if size else None
        if isinstance(options, ClassifierOptions) and isinstance(context.targets, ClassTarget):
            context.targets.max_classes = options.max_classes
        self.undo.forget()

    def start(self, state: MMState) -> None:
        """Continue from a state that was fitted or given, which predicts as it is until events speak against it."""
        self.phase = Streaming.given(self.context, state)

    def set_columns(
        self, names: Sequence[Any], kinds: Sequence[ColumnKind] | None = None, awaited: Sequence[Any] = ()
    ) -> None:
        """Fix the columns of a model that has none yet, in this order; see `Encoder.set_columns`."""
        encoder = self.encoder
        if encoder.own_fields:
            raise ConfigError(f"set_columns: the model already has columns: {encoder.own_fields!r}")
        names = names_in(names, "set_columns")
        for name in names:
            check_name(name, place="set_columns")
        if problem := excess(self.context, Additions(tuple(names), kinds=() if kinds is None else tuple(kinds))):
            raise ConfigError(problem)
        encoder.set_columns(names, kinds, awaited)
        self.undo.forget()

    def set_targets(self, names: Sequence[Any]) -> None:
        """Fix the outputs of a model that has none yet, in the given order."""
        self.targets.fix(names)
        self.context.encoder = self.context.new_encoder(self.encoder.own_fields)
        self.undo.forget()

    @contextmanager
    def outputs(self, names: Sequence[Any]) -> Iterator[None]:
        """Fix the outputs to `names` unless they are fixed; free them on exit if no event was learned."""
        if self.targets.is_fixed:
            yield
            return
        before = self.encoder
        self.set_targets(names)
        try:
            yield
        finally:
            if not self.n:
                self.targets.set_names(())
                self.context.encoder = before
                self.undo.forget()

    # -- Snapshots -----------------------------------------------------------------------------------------------------

    def snapshot(self, spare: Snapshot | None = None) -> Snapshot:
        """Copy everything that learning changes; the arrays of `spare` may be reused."""
        return Snapshot(self.context.copy(), self.phase.copy(spare and spare.phase))

    def copy(self) -> Learner:
        """Return an independent learner, which goes on as this one would."""
        context, phase = self.snapshot()
        return Learner(context, phase)

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot, which must not be used afterwards."""
        self.context, self.phase = snapshot


def warn_of_columns(context: Context) -> None:
    """Warn once of numbers that came as text, and of names in the arguments that no event had a value of."""
    encoder = context.encoder
    if NOT_FOUND in context.reported:
        return
    for name in encoder.numbers_as_text:
        LOGGER.warning(
            "%s: came as text, which makes it a column of categories, but each value so far is a number, such as "
            "%s; if it is one, convert it with float() and start over; if it is a code, name it in categorical",
            name,
            shown(next(iter(encoder.levels[name]))),
        )
    columns = [*encoder.own_fields, *encoder.columns.awaited]
    named = encoder.columns.given._asdict()
    named["lags.inputs"] = named.pop("lagged")
    unseen = {name: set(given) - set(columns) for name, given in named.items()}
    if any(unseen.values()):
        context.reported.add(NOT_FOUND)
        LOGGER.warning("%s", not_found({name: names for name, names in unseen.items() if names}, columns))
