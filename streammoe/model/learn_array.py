"""Learn the rows of an array or a data frame, all or none, with the same result as a loop over `learn_one`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from streammoe.columns.layout import Additions
from streammoe.columns.values import type_in_words
from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.model.checks import event_weights
from streammoe.model.learn_rows import Outcome, learn_run, learn_wider_run
from streammoe.model.learner import SETTLED_AT, Learner, warn_of_columns
from streammoe.model.tables import Events, Table, ordered_rows, taken
from streammoe.model.undo import poison_error
from streammoe.text import shown
from streammoe.types import AnyArray, FloatArray, IntArray


def learn_array(
    learner: Learner,
    table: Table,
    y: Any,
    weights: AnyArray | None,
    names: Sequence[Any] | None = None,
    on_rows: Callable[[Outcome], None] | None = None,
) -> FloatArray:
    """Learn the rows of a table in order, and return their prequential losses.

    Args:
        learner: the model.
        table: the rows.
        y: targets as passed by the user.
        weights: (n,) or None; a row of weight 0 is not learned.
        names: names of new outputs; by default y0, y1, …
        on_rows: called, piece by piece, with what was predicted of the rows that are learned, and each expert's part.

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
        with learner.outputs(names or [f"y{q}" for q in range(targets.check_array(y, n).shape[1])]):
            return learn_array(learner, table, y, weights, on_rows=on_rows)
    weights, before = event_weights(weights, n), learner.n
    losses = _learn_weighted(learner, table, y, weights, on_rows)
    if before < SETTLED_AT <= learner.n:
        warn_of_columns(learner.context)
    return losses


class _Refused(Exception):  # noqa: N818 - it is not an error of its own: who catches it raises that of the row
    """A row that cannot be learned; not an `InvalidEvent`, so that `Undo.call` takes back the rows before it."""

    def __init__(self, row: int, error: InvalidEvent) -> None:
        self.row = row
        self.error = error


def _learn_weighted(
    learner: Learner, table: Table, y: Any, weights: FloatArray, on_rows: Callable[[Outcome], None] | None
) -> FloatArray:
    """Learn the rows of a table except those of weight 0."""
    targets = learner.targets.check_array(y, len(table.rows))
    if weights.all():
        return _learn_all(learner, table, targets, weights, np.arange(len(weights)), on_rows)
    # Like `learn_one`, validate events of weight 0, but do not learn them.
    _, _, rejected = learner.targets.read(targets, len(weights))
    if rejected:
        row = min(rejected)
        raise rejected[row].at_row(row)
    used = np.flatnonzero(weights)
    losses = np.full(len(weights), np.nan)
    if used.size:
        losses[used] = _learn_all(learner, table.part(used), taken(targets, used), weights[used], used, on_rows)
    return losses


def _learn_all(
    learner: Learner,
    table: Table,
    targets: Any,
    weights: FloatArray,
    numbers: IntArray,
    on_rows: Callable[[Outcome], None] | None,
) -> FloatArray:
    """Learn rows of weights above 0, or none; raise the error of the first that cannot be learned.

    Args:
        numbers: (n,) the number of each row in errors.
    """

    def learn(piece: slice) -> FloatArray:
        part, run = table.part(piece), partial(_learn_part, on_rows=on_rows)
        return learner.undo.call(learner, len(part.rows), run, part, targets[piece], weights[piece])

    try:
        return learn(slice(None))
    except _Refused as refused:
        raise refused.error.at_row(int(numbers[refused.row])) from None
    except UnsoundError as error:
        before, cause = learner.snapshot(), error
    start, stop = 0, len(table.rows)
    try:
        while stop - start > 1:
            middle = (start + stop) // 2
            try:
                learn(slice(start, middle))
            except _Refused as refused:
                raise refused.error.at_row(int(numbers[start + refused.row])) from None
            except UnsoundError as error:
                stop, cause = middle, error
            else:
                start = middle
    finally:
        learner.undo.forget()
        learner.restore(before)
    raise poison_error(cause, int(numbers[start]))


def _learn_part(
    learner: Learner, table: Table, targets: Any, weights: FloatArray, on_rows: Callable[[Outcome], None] | None
) -> FloatArray:
    """Learn rows of weights above 0, up to the first that cannot be learned; columns join at their first value."""
    learner.encoder.stated |= frozenset(table.stated)
    known, n = set(learner.encoder.fields), len(table.rows)
    firsts = {name: table.first_value(name) for name in table.names if name not in known}
    losses, traced = np.empty(n), on_rows is not None
    for start, stop in pairwise([*sorted({0, *firsts.values()} - {n}), n]):
        joining = sorted((name for name, first in firsts.items() if first == start < n), key=str)
        encoder = learner.encoder  # another one where categories became identifiers
        fields, rows = [*encoder.fields, *joining], table.part(slice(start, stop))
        X, texts = ordered_rows(rows, fields, encoder)
        texts = {name: texts[name] for name in fields if name in texts}
        events = Events(X, texts, targets[start:stop], weights[start:stop])
        at = start
        if joining:
            kinds = tuple(table.kinds.get(name) or encoder.columns.given.kind(name) or "number" for name in joining)
            additions = Additions(tuple(joining), kinds=kinds)
            first = events.part(slice(0, 1))
            losses[at] = _accepted(learn_wider_run(learner, first, traced=traced, additions=additions), at, on_rows)[0]
            learner.report(additions)
            at += 1
        if at < stop:
            rest = events.part(slice(at - start, None))
            losses[at:stop] = _accepted(learn_run(learner, rest, traced=traced), at, on_rows)
    return losses


def _accepted(outcome: Outcome, start: int, on_rows: Callable[[Outcome], None] | None) -> FloatArray:
    """Return the losses of rows from number `start` on, of which none may have been rejected."""
    if outcome.rejected:
        row = min(outcome.rejected)
        raise _Refused(start + row, outcome.rejected[row])
    if on_rows is not None:
        on_rows(outcome)
    return outcome.losses
