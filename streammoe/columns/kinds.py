"""Kinds of columns: numbers, truth values, categories or times, by the first value unless a setting says otherwise.

One value decides, so that nothing depends on how a stream is cut; what is decided is part of the model. In records of
files and topics, where a text could be a number, it is never a category: such a column is one of numbers, and the
record is accepted or rejected as a number is. In Python, where numbers have types of their own, any text is a category.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Mapping
from datetime import date
from typing import Any, Literal, NamedTuple

import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.notation import BOOLEANS, MISSING, MISSPELLED, NOT_FINITE, NUMBER, remedy_of, tidied
from streammoe.text import listed, shown, some_of

ColumnKind = Literal["number", "boolean", "category", "time"]
_TIME = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])|\d{4}-\d\d-\d\d(?:[Tt ]\d\d.*)?", re.ASCII)


def kind_of(value: object, *, text: bool = False) -> ColumnKind | None:
    """Return what a column holds whose first value is this one; None if a value is missing or an empty text.

    A value of any other type makes it a column of numbers, as which the value is rejected.

    Args:
        value: the value; not NaN.
        text: whether the format writes everything as text, as csv does. In others a text is never a truth value.

    >>> [kind_of(value, text=True) for value in ("3.5", "TRUE", "2026-01-31", "red", "")]
    ['number', 'boolean', 'time', 'category', None]
    >>> kind_of(True), kind_of(7), kind_of("red"), kind_of(date(2026, 1, 31)), kind_of(None), kind_of("true")
    ('boolean', 'number', 'category', 'time', None, 'category')
    >>> kind_of("12"), kind_of("1,5"), kind_of("NA"), kind_of("21 °C"), kind_of(b"red")  # to be rejected
    ('number', 'number', 'number', 'number', 'number')
    """
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, date | np.datetime64):
        return "time"
    if not isinstance(value, str):
        return None if value is None else "number"
    plain = tidied(str(value))
    if not plain or plain.isspace():
        return None
    without_value = NOT_FINITE.fullmatch(plain) or plain in MISSING or plain.lower() in MISSPELLED
    if NUMBER.fullmatch(plain) or without_value or remedy_of(plain):
        return "number"
    if text and plain.lower() in BOOLEANS:
        return "boolean"
    return "time" if _TIME.fullmatch(plain) else "category"


def kind_in_python(value: object) -> ColumnKind | None:
    """Return what a column holds whose first value is this one in Python, where a text is a category whatever it says.

    Only a time in full, as ISO 8601 has it, is a time.

    >>> [kind_in_python(value) for value in ("0", "10115", "NA", "1,5", "true", "2026-01-31", " ", 7)]
    ['category', 'category', 'category', 'category', 'category', 'time', None, 'number']
    """
    if not isinstance(value, str):
        return kind_of(value)
    plain = str(value).strip()
    return ("time" if _TIME.fullmatch(plain) else "category") if plain else None


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
    words_of = {"number": "numbers", "boolean": "truth values", "category": "categories", "time": "times"}
    for kind, words in words_of.items():
        names = [name if isinstance(name, str) else str(name) for name, held in found.items() if held == kind]
        if names:
            parts.append(f"{words} in {some_of(names, lambda name: shown(name)[1:-1])}")
    return "; ".join(parts)
