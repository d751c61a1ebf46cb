"""Many events at once: tables as users pass them, and events with features in the model's own order."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streammoe.columns.encoder import Encoder
from streammoe.columns.kinds import ColumnKind
from streammoe.columns.row_reader import NO_LAG
from streammoe.columns.values import check_name, level, type_in_words
from streammoe.errors import InvalidEvent
from streammoe.model.checks import finite_array, names_in, rectangle
from streammoe.text import counted, some_of
from streammoe.types import AnyArray, FloatArray, IntArray

Texts: TypeAlias = Mapping[Any, Sequence[str | None]]
"""(n,) levels of each category by its name, None where missing."""


class Table(NamedTuple):
    """Rows with columns in any order; the table owns its arrays and lists."""

    rows: FloatArray
    """(n, P) numbers; columns in `texts` are excluded."""
    names: Sequence[Any]
    """Names of the P columns."""
    texts: Texts
    """Levels of the columns that hold categories as such."""
    kinds: Mapping[Any, ColumnKind] = {}
    """What columns hold, where values or settings say so; those of an array are numbers otherwise."""
    stated: Collection[Any] = ()
    """Columns that have a type of categories."""

    def first_value(self, name: Any) -> int:
        """Return the index of the first row with a value in a column; n if there is none."""
        column = self.texts.get(name)
        if column is not None:
            return next((i for i, text in enumerate(column) if text is not None), len(column))
        present = ~np.isnan(self.rows[:, self.names.index(name)])
        return int(np.argmax(present)) if present.any() else len(present)

    def part(self, at: slice | IntArray) -> Table:
        """Return some of the rows."""
        return self._replace(rows=self.rows[at], texts=_texts_at(self.texts, at))

    def ordered(self, fields: Sequence[Any]) -> FloatArray:
        """Return rows in the order of `fields`; a field without column is NaN (missing), other columns are omitted."""
        if list(self.names) == list(fields):
            return self.rows
        at = {name: j for j, name in enumerate(self.names)}
        ordered = np.full((len(self.rows), len(fields)), np.nan)
        for j, field in enumerate(fields):
            if field in at:
                ordered[:, j] = self.rows[:, at[field]]
        return ordered


class Events(NamedTuple):
    """Events whose features are in the model's own order of fields."""

    X: FloatArray
    """(n, F) numbers, NaN where missing; fields in `texts` are excluded."""
    texts: Texts
    targets: Any
    """(n, Q) numbers or (n,) labels; once read, (n, Q) numbers or (n, 1) class indexes."""
    weights: FloatArray
    """(n,)."""

    def part(self, at: slice | IntArray) -> Events:
        """Return some of the events."""
        return Events(self.X[at], _texts_at(self.texts, at), taken(self.targets, at), self.weights[at])


def table_of_array(
    X: AnyArray, feature_names: Sequence[Any] | None, fields: Sequence[Any], *, known: bool = False
) -> Table:
    """Convert an array to a table; by default, as many columns as the model has fields are those fields.

    Args:
        X: the array.
        feature_names: names of its columns.
        fields: names of the model's fields.
        known: whether there may be no other columns than those, unless they have names.

    Raises:
        InvalidEvent: its shape is not (n, P), it holds anything but finite numbers, or the names do not fit.
    """
    given, X = X, rectangle(X, "X")
    if np.ndim(X) != 2:
        got = counted(np.ndim(X), "dimension") if np.ndim(X) else type_in_words(given)
        advice = "; of dicts, or of one column, make a frame: pandas.DataFrame(X)" if np.ndim(X) == 1 else ""
        msg = f"X: got {got}; it must be (n, P), one row for each event{advice}"
        raise InvalidEvent(msg, reason="wrong_shape")
    width = np.shape(X)[1]
    if known and feature_names is None and fields and width != len(fields):
        msg = (
            f"X: got {counted(width, 'column')}; the model has {counted(len(fields), 'field')}, {some_of(fields)}; "
            "give feature_names to predict from some of them"
        )
        raise InvalidEvent(msg, reason="wrong_shape")
    names = [f"x{j}" for j in range(width)] if feature_names is None else names_in(feature_names, "feature_names")
    if feature_names is None and len(fields) == width and set(names) != set(fields):
        names = list(fields)
    for name in names:
        check_name(name, place="feature_names")
    if len(names) != width or len(set(names)) != width:
        msg = f"feature_names: got {len(set(names))} different names for {width} columns; give each column one"
        raise InvalidEvent(msg, reason="wrong_shape")
    return Table(finite_array(X, "X", names), names, {})


def ordered_rows(
    table: Table, fields: Sequence[Any], encoder: Encoder
) -> tuple[FloatArray, dict[Any, Sequence[str | None]]]:
    """Return rows in the order of `fields`, and the levels of all categories, which a table may hold as numbers."""
    rows = table.ordered(fields)
    for at, name in enumerate(encoder.lagged):
        if name in table.names:
            rows[np.isnan(rows[:, at]), at] = NO_LAG
    levels = {
        name: [level(value, name) for value in rows[:, at].tolist()]
        for at, name in enumerate(fields)
        if name not in table.texts and encoder.columns.kind_of(name) == "category" and name in table.names
    }
    return rows, {**levels, **table.texts}


def raw_rows(table: Table, encoder: Encoder) -> FloatArray:
    """Return rows in the encoder's own order of fields, with categories as codes."""
    rows, texts = ordered_rows(table, encoder.fields, encoder)
    for name, column in texts.items():
        if name in encoder.levels:
            field = encoder.fields.index(name)
            rows[:, field] = encoder.columns.codes(name, column)
    return rows


def taken(values: Any, at: slice | IntArray) -> Any:
    """Return some entries of an array or of a list, in which labels keep their types."""
    return values[at] if isinstance(at, slice) or isinstance(values, np.ndarray) else [values[i] for i in at.tolist()]


def _texts_at(texts: Texts, at: slice | IntArray) -> Texts:
    return {name: taken(column, at) for name, column in texts.items()}
