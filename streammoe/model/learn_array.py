"""Learn the rows of an array or a data frame, all or none, with the same result as a loop over `learn_one`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from streammoe.columns.layout import Additions
from streammoe.columns.values import type_in_words
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.model.checks import event_weights
from streammoe.model.learner import SETTLED_AT, Learner
from streammoe.model.tables import Events, Table, ordered_rows
from streammoe.model.undo import poison_error
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray


def learn_array(
    learner: Learner, table: Table, y: Any, weights: AnyArray | None, names: Sequence[Any] | None = None
) -> FloatArray:
    """Learn the rows of a table in order, and return their prequential losses.

    Args:
        learner: the model.
        table: the rows.
        y: targets as passed by the user.
        weights: (n,) or None; a row of weight 0 is not learned.
        names: names of new outputs; by default y0, y1, …

    Raises:
        InvalidEvent: a row is invalid or would make a parameter non-finite; its index is in ``row`` and nothing was
            learned.
    """
    if isinstance(y, Mapping | str | bytes):
        msg = f"y: got {shown(y)}, {type_in_words(y)}; it must be an array or a list, one target for each row"
        raise InvalidEvent(msg, reason="wrong_type", feature="target")
    n = len(table.rows)
    targets = learner.targets
    if not targets.is_fixed:
        with learner.outputs(targets.default_names(y, n) if names is None else names):
            return learn_array(learner, table, y, weights)
    weights, before = event_weights(weights, n), learner.n
    losses = _learn_weighted(learner, table, y, weights)
    if before < SETTLED_AT <= learner.n:
        learner.warn_of_columns()
    return losses


def _learn_weighted(learner: Learner, table: Table, y: Any, weights: FloatArray) -> FloatArray:
    """Learn the rows of a table except those of weight 0."""
    n = len(table.rows)
    if weights.all():
        return _learn_all(learner, table, y, weights)
    # Like `learn_one`, validate events of weight 0, but do not learn them.
    _read_targets(learner, learner.targets.check_array(y, n), n)
    used = np.flatnonzero(weights)
    losses = np.full(n, np.nan)
    if used.size:
        try:
            losses[used] = _learn_all(learner, table.select(used), _select(y, used), weights[used])
        except InvalidEvent as error:
            error.row = None if error.row is None else int(used[error.row])
            raise
    return losses


def _read_targets(learner: Learner, targets: Any, n: int) -> tuple[FloatArray, BoolArray]:
    """Convert the targets of n rows to numbers, and return which of them are new labels.

    Raises:
        InvalidEvent: a target is invalid; the error names the first such row.
    """
    Y, novel, rejected = learner.targets.read(targets, n)
    if rejected:
        row, error = min(rejected.items())
        raise InvalidEvent(f"row {row}: {error}", reason=error.reason, feature=error.feature, row=row)
    return Y, novel


def _learn_all(learner: Learner, table: Table, y: Any, weights: FloatArray) -> FloatArray:
    """Learn rows of weights above 0, or none; raise the error of the first that would make a parameter non-finite."""

    def learn(piece: slice) -> FloatArray:
        # A single number cannot be sliced; its shape is rejected later.
        targets = y[piece] if getattr(y, "ndim", hasattr(y, "__getitem__")) else y
        part = table.part(piece)
        return learner.undo.call(learner, len(part.rows), _learn_rows, part, targets, weights[piece])

    if len(starts := _starts(learner, table)) > 1:
        return _learn_pieces(learner, table, y, weights, starts)
    try:
        return learn(slice(None))
    except UnsoundError as error:
        before, cause = learner.snapshot(), error
    start, stop = 0, len(table.rows)
    try:
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                learn(slice(start, middle))
            except UnsoundError as error:
                stop, cause = middle, error
            else:
                start = middle
    finally:
        learner.undo.forget()
        learner.restore(before)
    raise poison_error(cause, start)


def _starts(learner: Learner, table: Table) -> list[int]:
    """Return the rows at which a table is cut so that it equals a loop: the first, and those where columns join."""
    known = set(learner.encoder.fields)
    firsts = {table.first_value(name) for name in table.names if name not in known}
    return sorted({0, *firsts} - {len(table.rows)} if len(table.rows) else {0})


def _learn_pieces(learner: Learner, table: Table, y: Any, weights: FloatArray, starts: Sequence[int]) -> FloatArray:
    """Learn a table piece by piece, or nothing of it."""
    before = learner.snapshot()
    losses = []
    try:
        learner.targets.check_array(y, len(table.rows))
        for start, stop in pairwise([*starts, len(table.rows)]):
            piece = slice(start, stop)
            losses.append(_learn_all(learner, table.part(piece), y[piece], weights[piece]))
    except BaseException as error:
        learner.undo.forget()
        learner.restore(before)
        if isinstance(error, InvalidEvent) and error.row is not None:
            at = start + error.row
            msg = str(error).replace(f"row {error.row}", f"row {at}", 1)
            raise InvalidEvent(msg, reason=error.reason, feature=error.feature, row=at) from None
        raise
    return np.concatenate(losses)


def _learn_rows(learner: Learner, table: Table, y: Any, weights: FloatArray) -> FloatArray:
    """Learn rows of weights above 0."""
    n = len(table.rows)
    raw_targets = learner.targets.check_array(y, n)
    targets, novel = _read_targets(learner, raw_targets, n)
    if not n:
        return np.empty(0)
    encoder = learner.encoder
    known = set(encoder.fields)
    encoder.stated |= frozenset(table.stated)
    # Others have no value in these rows.
    unseen = sorted((name for name in table.names if name not in known and not table.first_value(name)), key=str)
    fields = [*encoder.fields, *unseen]
    rows, texts = ordered_rows(table, fields, encoder)
    events = Events(rows, {name: texts[name] for name in fields if name in texts}, targets, weights)
    # The levels of the first event are added together with its fields.
    arrivals = encoder.columns.arrivals(events.part(slice(0, 1)).texts)
    kinds = tuple(table.kinds.get(name) or encoder.columns.given.kind(name) or "number" for name in unseen)
    additions = Additions(tuple(unseen), arrivals[0][1] if arrivals else (), kinds)
    try:
        if novel.any():
            learner.targets.check_room(raw_targets, novel)
        learner.take(rows, targets, additions)
        learner.report(additions)
    except InvalidEvent as error:
        raise InvalidEvent(
            f"row {error.row}: {error}", reason=error.reason, feature=error.feature, row=error.row
        ) from None
    losses = np.empty(n)
    start = 0
    while start < n:
        # A new label enlarges the state at its own event, as in a loop over `learn_one`.
        if novel[start]:
            learner.add_levels(events.part(slice(start, start + 1)).texts)
            learner.admit(raw_targets[start])
            targets[start:], novel[start:], _ = learner.targets.read(raw_targets[start:], n - start)
        ahead = np.flatnonzero(novel[start:])
        piece = slice(start, start + int(ahead[0]) if ahead.size else n)
        losses[piece] = learner.learn_events(events.part(piece)).losses
        start = piece.stop
    return losses


def _select(y: Any, used: AnyArray) -> Any:
    """Return the targets of the selected rows; in a list, labels keep their types."""
    return y[used] if isinstance(y, np.ndarray) else [y[at] for at in used]
