"""Exact reading of one raw value as a number, a time or a text, the same for every format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from typing import Any, Literal, NoReturn

import numpy as np

from streammoe.columns import BOOLEANS, IN_QUOTES, NOT_FINITE, NUMBER, ColumnKind, has_decimal_comma, kind_of, repair_of
from streammoe.errors import InvalidEvent
from streammoe.text import shown
from streammoe.values import as_text

Kind = Literal["number", "time", "text"]

MAX_TEXT_LENGTH = 256
"""Maximum number of characters of a label or level, which become columns and labels of metrics."""

SECOND_PARTS = {"D": 1, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second of each unit of time; days are handled separately."""
DAY = 86_400


class TooLarge(str):
    """The text of a number that no float can hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Unreadable(str):
    """A description that replaces a value of an unsupported type."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class CommaText(str):
    """A cell of csv whose decimal mark is a comma, so that no number contains a point."""

    __slots__ = ()

    def with_point(self) -> str:
        """Return the text with comma and point swapped; one with a point becomes an invalid number."""
        return self.translate(_SWAPPED)

    def __repr__(self) -> str:
        return repr(str(self))


_SWAPPED = str.maketrans(",.", ".,")


def number(name: str, value: object, text: bool) -> float:
    """Read a finite number; NaN if missing. Booleans are 1 and 0.

    Args:
        name: of the field, for the message.
        value: the raw value.
        text: whether the format writes numbers as text, and missing values as empty text.

    Raises:
        InvalidEvent: it is something else.
    """
    if value is None or (text and value == ""):
        return math.nan
    if isinstance(value, str):
        if isinstance(value, TooLarge):
            _reject(name, value, "number", "out_of_range")
        written = value.with_point() if isinstance(value, CommaText) else value
        if text and NUMBER.fullmatch(written):
            read = float(written)
            if math.isinf(read):
                _reject(name, TooLarge(value), "number", "out_of_range")
            return read
        if text and (truth := BOOLEANS.get(value.lower())) is not None:
            return truth
        _reject(name, value, "number", "not_finite" if NOT_FINITE.fullmatch(value) else "wrong_type")
    if not isinstance(value, bool | int | float | Decimal):
        _reject(name, value, "number", "wrong_type")
    try:
        read = float(value)
    except OverflowError:
        _reject(name, value, "number", "out_of_range")
    if not math.isfinite(read):
        _reject(name, value, "number", "not_finite")
    return read


def seconds(name: str, value: object, text: bool) -> float:
    """Read a time as seconds since 1970 in UTC; NaN if missing.

    Numbers are such seconds already; texts are ISO 8601 in its extended form, in UTC unless they name another offset.
    Arguments and errors are those of `number`.

    >>> seconds("t", "1970-01-02T00:00:00.5+01:00", text=False)
    82800.5
    """
    if isinstance(value, np.datetime64):
        unit = np.datetime_data(value.dtype)[0]
        ticks = int(value.astype(np.int64))
        if unit == "D":
            return float(ticks * DAY)
        whole, parts = divmod(ticks, SECOND_PARTS[unit])
        return _joined(whole, parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit]))
    if value is None or (isinstance(value, int | float | Decimal | TooLarge) and not isinstance(value, bool)):
        return number(name, value, text)
    if not isinstance(value, str):
        _reject(name, value, "time", "wrong_type")
    if text and (not value or NUMBER.fullmatch(value.with_point() if isinstance(value, CommaText) else value)):
        return number(name, value, text)
    match = TIME.fullmatch(value.strip(" \t") if text else value)
    if match is None:
        _reject(name, value, "time", "not_finite" if NOT_FINITE.fullmatch(value) else "wrong_type")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = match.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:  # such as February 30
        _reject(name, value, "time", "wrong_type")
    offset = int(f"{sign or '+'}1") * (int(hours or 0) * 3600 + int(minutes or 0) * 60)
    whole = days * DAY + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0) - offset
    return _joined(whole, int((fraction or "").ljust(9, "0")))


def label(name: str, value: Any, text: bool) -> str | None:  # noqa: ARG001 - called like the others
    """Read a text such that equal values are equal in every format; ``None`` if missing or empty.

    Booleans are ``true`` and ``false``, whole numbers have no point, other numbers are written as in Python.
    Arguments and errors are those of `number`.

    >>> [label("c", value, text=False) for value in ("01", True, 7, 7.0, 0.1, "", None)]
    ['01', 'true', '7', '7', '0.1', None, None]
    """
    if value.__class__ is str and value.isascii() and len(value) <= MAX_TEXT_LENGTH:
        return value or None
    match value:
        case None:
            return None
        case TooLarge():
            _reject(name, value, "number", "out_of_range")
        case Unreadable():
            _reject(name, value, "text", "wrong_type")
        case str():
            result = str(value)  # not an instance of a class of ours, since models keep it
        case float() | Decimal() if not math.isfinite(value):
            _reject(name, value, "text", "not_finite")
        case bool() | int() | float() | Decimal():
            result = as_text(value)
        case _:
            _reject(name, value, "text", "wrong_type")
    if len(result) > MAX_TEXT_LENGTH:
        _reject(name, value, "text", "out_of_range")
    if not result.isascii():
        try:
            result.encode()
        except UnicodeEncodeError:  # half a surrogate pair, valid in JSON but not in UTF-8
            _reject(name, value, "text", "wrong_type")
    return result or None


READERS: dict[Kind, Callable[[str, object, bool], float | str | None]] = {
    "number": number,
    "time": seconds,
    "text": label,
}
READ_AS: dict[ColumnKind, Kind] = {"number": "number", "boolean": "number", "time": "time", "category": "text"}
"""How the values of a column are read."""


def first_kind(value: object, text: bool) -> ColumnKind | None:
    """Return what a column holds whose first value is this raw one, see `kind_of`; None if it is missing.

    >>> first_kind("1.5", text=True), first_kind(CommaText("1,5"), text=True), first_kind(CommaText("1.5"), text=True)
    ('number', 'number', 'number')
    """
    if isinstance(value, TooLarge | Unreadable):
        return "number"
    found = kind_of(str(value) if isinstance(value, CommaText) else value, text=text)
    if found == "category" and isinstance(value, CommaText):
        return kind_of(value.with_point(), text=text)
    return found


TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)"
    r"(?:[Tt ]([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:[.,](\d{1,9}))?)?"
    r" ?(?:[Zz]|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?)?",
    re.ASCII,
)
"""Groups: year, month, day, hour, minute, second, fraction; sign, hours, minutes of the offset from UTC."""
_EPOCH = date(1970, 1, 1).toordinal()

_RULES = {
    ("number", "wrong_type"): "must be a number, such as -1.5e3, or absent",
    ("number", "not_finite"): "must be finite",
    ("number", "out_of_range"): "must fit into a 64-bit float, that is, lie within ±1.8e308",
    ("time", "wrong_type"): (
        "must be a time, such as 2024-05-01T12:30:00Z or 2024-05-01, or a number of seconds since 1970, or absent"
    ),
    ("time", "not_finite"): "must be finite",
    ("text", "wrong_type"): "must be a text (in UTF-8), a number or a boolean, or absent",
    ("text", "not_finite"): "must be finite where it is a number",
    ("text", "out_of_range"): f"must have at most {MAX_TEXT_LENGTH} characters",
}


OR_CATEGORY = ", or list the column in schema.categorical if it holds categories"
"""What a message suggests for a number in quotes, which is right for a feature only."""


def _joined(whole: int, nanoseconds: int) -> float:
    # In the same order as for arrays, so that all formats round alike.
    return float(whole) + nanoseconds / 1e9


def _reject(name: str, value: object, kind: Kind, reason: str) -> NoReturn:
    message = f"field {name!r} is {shown(value)}; it {_RULES[kind, reason]}"
    if kind == "number" and isinstance(value, CommaText) and "." in value:
        message += ' (numbers cannot contain a point while source.decimal is ",")'
    elif kind == "number" and reason == "wrong_type" and isinstance(value, str) and (repair := repair_of(value)):
        where = OR_CATEGORY if repair == IN_QUOTES else ""
        if has_decimal_comma(value):
            where = '; in csv, source.decimal = "," (for streammoe evaluate and fit --decimal ,) reads decimal commas'
        message += f" ({repair}{where})"
    raise InvalidEvent(message, reason=reason, feature=name)
