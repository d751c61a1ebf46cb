"""Learning an array or a frame: all of its rows, or none of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from streammoe.engine.state import UnsoundError
from streammoe.errors import InvalidEvent
from streammoe.estimators.coding import Coding
from streammoe.layout import News
from streammoe.model.checks import event_weights
from streammoe.model.tables import Events, Table, table_of_array
from streammoe.model.undo import poisonous
from streammoe.text import shown
from streammoe.types import AnyArray, BoolArray, FloatArray
from streammoe.values import a_kind


class LearningArray(Coding):
    """Many rows as a loop over `learn_one` would learn them, and much faster."""

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
        return self._learn_table(table_of_array(X, feature_names, self._encoder.fields), y, weights)

    def _learn_table(self, table: Table, y: AnyArray, weights: AnyArray | None) -> FloatArray:
        """Learn the rows of a table, some of which may have a weight of 0."""
        given: Any = y
        if isinstance(given, Mapping | str | bytes):
            msg = f"y: got {shown(given)}, {a_kind(given)}; it must be an array or a list, one target for each row"
            raise InvalidEvent(msg, reason="wrong_type", feature="target")
        n = len(table.rows)
        counts = event_weights(weights, n)
        if counts.all():
            return self._learn_or_refuse(table, y, counts)
        # As `learn_one` does: an event of weight 0 is looked at, and then nothing happens.
        self._read_or_raise(self._array_targets(y, n), n)
        used = np.flatnonzero(counts)
        losses = np.full(n, np.nan)
        if used.size:
            try:
                losses[used] = self._learn_or_refuse(table.chosen(used), _chosen(y, used), counts[used])
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

    def _learn_or_refuse(self, table: Table, y: AnyArray, weights: FloatArray) -> FloatArray:
        """Learn rows whose weights are all above 0, or none of them, with the error of the first that is poison."""

        def learn(piece: slice) -> FloatArray:
            # One number is refused by its shape.
            targets = y[piece] if getattr(y, "ndim", hasattr(y, "__getitem__")) else y
            part = table.part(piece)
            return self._guard.call(self, len(part.rows), LearningArray._learn_weighted, part, targets, weights[piece])

        try:
            return learn(slice(None))
        except UnsoundError as error:
            before, found = self.copied(), error
        start, stop = 0, len(table.rows)
        try:
            while stop - start > 1:
                middle = (start + stop) // 2
                try:
                    learn(slice(start, middle))
                except UnsoundError as error:
                    stop, found = middle, error
                else:
                    start = middle
        finally:
            self._guard.forget()
            self.go_back(before)
        raise poisonous(found, start)

    def _learn_weighted(self, table: Table, y: AnyArray, weights: FloatArray) -> FloatArray:
        """Learn rows whose weights are all above 0."""
        n = len(table.rows)
        given = self._array_targets(y, n)
        targets, novel = self._read_or_raise(given, n)
        if not n:
            return np.empty(0)
        encoder = self._encoder
        known = set(encoder.fields)
        unseen = sorted((name for name in table.names if name not in known), key=str)
        fields = [*encoder.fields, *unseen]
        rows, texts = self._ordered(table, fields)
        events = Events(rows, {name: texts[name] for name in fields if name in texts}, targets, weights)
        # The first event brings its levels together with its fields.
        arrivals = encoder.arrivals(events.part(slice(0, 1)).texts)
        try:
            self._check_labels(given, novel)
            self._take(rows, targets, News(tuple(unseen), arrivals[0][1] if arrivals else ()))
        except InvalidEvent as error:
            raise InvalidEvent(
                f"row {error.row}: {error}", reason=error.reason, feature=error.feature, row=error.row
            ) from None
        losses = np.empty(n)
        start = 0
        while start < n:
            # A new label makes the state grow at its own event, as it does in a loop over `learn_one`.
            if novel[start]:
                self._bring_levels(events.part(slice(start, start + 1)).texts)
                self._admit(given, start)
                targets[start:], novel[start:], _ = self._read_targets(given[start:], n - start)
            ahead = np.flatnonzero(novel[start:])
            piece = slice(start, start + int(ahead[0]) if ahead.size else n)
            losses[piece] = self._learn_coded(events.part(piece)).losses
            start = piece.stop
        return losses


def _chosen(y: Any, used: AnyArray) -> Any:
    """The targets of some rows; a list of labels keeps each one's type."""
    return y[used] if isinstance(y, np.ndarray) else [y[at] for at in used]
