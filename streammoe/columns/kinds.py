"""Kinds of columns: numbers, truth values, categories or times, by the first value unless a setting says otherwise."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any, Literal, NamedTuple

from streammoe.errors import InvalidEvent
from streammoe.text import listed, shown, some_of

ColumnKind = Literal["number", "boolean", "category", "time"]
"""What the first value of a column makes it hold; from then on truth values are numbers."""
WORDS: Mapping[ColumnKind, str] = {
    "number": "numbers",
    "boolean": "truth values",
    "category": "categories",
    "time": "times",
}
"""What logs call them."""


class GivenKinds(NamedTuple):
    """The columns whose kind settings give."""

    categorical: Collection[Any] = frozenset()
    timestamps: Collection[Any] = frozenset()
    numeric: Collection[Any] = frozenset()
    lagged: Collection[Any] = frozenset()
    """Inputs whose earlier values are features, and which are numbers therefore."""

    def kind(self, name: object) -> ColumnKind | None:
        """Return the kind that a column must have; None if its first value decides."""
        if name in self.categorical:
            return "category"
        if name in self.timestamps:
            return "time"
        return "number" if name in self.numeric or name in self.lagged else None

    def explained(self, error: InvalidEvent) -> InvalidEvent:
        """Return the error of a value that is no number with the reason why it must be one, if that is its lags."""
        if error.reason != "wrong_type" or error.feature not in self.lagged:
            return error
        return InvalidEvent(
            f"{error}; only numbers have lags, so take a column of anything else out of lags.inputs",
            reason=error.reason,
            feature=error.feature,
            row=error.row,
        )


def not_found(unseen: Mapping[str, Collection[Any]], columns: Collection[Any]) -> str:
    """Return a message about names in settings that are none of the columns.

    >>> print(not_found({"categorical": ["colour"]}, ["color", "y"]))
    categorical names 'colour' (did you mean 'color'?), which no event so far had; the columns are 'color' and 'y'
    """
    texts = {str(name).lower(): name for name in columns}
    parts = []

    def with_similar(name: object) -> str:
        near = [shown(texts[each]) for each in difflib.get_close_matches(str(name).lower(), texts, n=2)]
        return f"{shown(name)} (did you mean {listed(near, 'or')}?)" if near else shown(name)

    for setting, names in unseen.items():
        parts.append(f"{setting} names {some_of(sorted(names, key=str), with_similar)}")
    there = "there are no columns"
    if columns:
        there = f"the {'only column is' if len(columns) == 1 else 'columns are'} {some_of(columns)}"
    return f"{listed(parts, 'and')}, which no event so far had; {there}"


def described(found: Mapping[Any, ColumnKind]) -> str:
    """Describe what columns hold.

    >>> described({"a": "number", "c": "category", "d": "number"})
    'numbers in a and d; categories in c'
    """
    parts = []
    for kind, words in WORDS.items():
        names = [name if isinstance(name, str) else str(name) for name, held in found.items() if held == kind]
        if names:
            parts.append(f"{words} in {some_of(names, lambda name: shown(name)[1:-1])}")
    return "; ".join(parts)
