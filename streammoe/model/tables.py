"""Many events at once: a table as users hand it over, and events as the model takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.features import Encoder
from streammoe.model.checks import finite_array, names_in, rectangle
from streammoe.text import counted
from streammoe.types import AnyArray, FloatArray, IntArray
from streammoe.values import a_kind, check_name, level

Texts: TypeAlias = Mapping[Any, Sequence[str | None]]
"""(n,) levels of each category by its name, None where missing."""


class Table(NamedTuple):
    """Rows whose columns are in any order; nobody but the table holds its arrays and lists."""

    rows: FloatArray
    """(n, P) numbers; nothing of the columns that `texts` holds."""
    names: Sequence[Any]
    """Of the P columns."""
    texts: Texts
    """Of the categories that came as such."""

    def part(self, piece: slice) -> Table:
        """Some rows that follow one another."""
        return Table(self.rows[piece], self.names, _part(self.texts, piece))

    def chosen(self, at: IntArray) -> Table:
        """The rows with these indexes."""
        return Table(self.rows[at], self.names, _chosen(self.texts, at))

    def ordered(self, fields: Sequence[Any]) -> FloatArray:
        """Rows in the order of `fields`; NaN (missing) where one has no column, other columns are left out."""
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
    """(n, F) numbers, NaN where missing; nothing of the fields that `texts` holds."""
    texts: Texts
    targets: Any
    """(n, Q) numbers or (n,) labels; once they were read, (n, Q) numbers or (n, 1) indexes of classes."""
    weights: FloatArray
    """(n,)."""

    def part(self, piece: slice) -> Events:
        """Some events that follow one another."""
        return Events(self.X[piece], _part(self.texts, piece), self.targets[piece], self.weights[piece])

    def chosen(self, at: IntArray) -> Events:
        """The events with these indexes, whose targets were read."""
        return Events(self.X[at], _chosen(self.texts, at), self.targets[at], self.weights[at])


def table_of_array(X: AnyArray, feature_names: Sequence[Any] | None, fields: Sequence[Any]) -> Table:
    """An array as a table; without `feature_names`, columns as many as the model's fields are those.

    Raises:
        InvalidEvent: it has another shape than (n, P), holds what is no finite number, or the names do not fit.
    """
    given, X = X, rectangle(X, "X")
    if np.ndim(X) != 2:
        got = counted(np.ndim(X), "dimension") if np.ndim(X) else a_kind(given)
        msg = f"X: got {got}; it must be (n, P), one row for each event"
        raise InvalidEvent(msg, reason="wrong_shape")
    width = np.shape(X)[1]
    names = _default_names(width, fields) if feature_names is None else names_in(feature_names, "feature_names")
    for name in names:
        check_name(name, place="feature_names")
    if len(names) != width or len(set(names)) != width:
        msg = f"feature_names: got {len(set(names))} different names for {width} columns; give each column one"
        raise InvalidEvent(msg, reason="wrong_shape")
    return Table(finite_array(X, "X", names), names, {})


def ordered_rows(
    table: Table, fields: Sequence[Any], encoder: Encoder
) -> tuple[FloatArray, dict[Any, Sequence[str | None]]]:
    """Return rows in the order of `fields`, and the levels of all categories: a table of numbers holds them as such."""
    rows = table.ordered(fields)
    levels = {
        name: [level(value, name) for value in rows[:, at].tolist()]
        for at, name in enumerate(fields)
        if name not in table.texts and name in encoder.categorical and name in table.names
    }
    return rows, {**levels, **table.texts}


def raw_rows(table: Table, encoder: Encoder) -> FloatArray:
    """Return rows in the encoder's own order of fields, with categories as codes."""
    rows, texts = ordered_rows(table, encoder.fields, encoder)
    for name, column in texts.items():
        if name in encoder.levels:
            field = encoder.fields.index(name)
            rows[:, field] = encoder.codes(field, column)
    return rows


def _default_names(width: int, fields: Sequence[Any]) -> list[Any]:
    """x0, x1, … where the model knows them or is of another width; else the model's own fields, in their order."""
    names: list[Any] = [f"x{j}" for j in range(width)]
    known = not fields or len(fields) != width or set(names) == set(fields)
    return names if known else list(fields)


def _part(texts: Texts, piece: slice) -> Texts:
    return {name: column[piece] for name, column in texts.items()}


def _chosen(texts: Texts, at: IntArray) -> Texts:
    indexes = at.tolist()
    return {name: [column[i] for i in indexes] for name, column in texts.items()}
