"""What one raw value means as a number, a time or a text: the exact judgement, the same for every format."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Decimal
from typing import Any, Literal, NoReturn

import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.text import shown
from streammoe.values import as_text

Kind = Literal["number", "time", "text"]

LONGEST_TEXT = 256
"""Characters of a label or level; they become columns and labels of metrics."""

SECOND_PARTS = {"D": 1, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""How many of a unit of time make a second; days are multiplied instead."""
DAY = 86_400


class TooLarge(str):
    """A number, as it was written, that no float can hold."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class Unreadable(str):
    """Stands in for a value that is of no use here; its text says what it is."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class CommaText(str):
    """A cell of csv in which a comma stands before the decimals, and a point nowhere in a number."""

    __slots__ = ()

    def with_point(self) -> str:
        """Return the text as a number is written elsewhere; one that has a point already becomes none."""
        return self.translate(_SWAPPED)

    def __repr__(self) -> str:
        return repr(str(self))


_SWAPPED = str.maketrans(",.", ".,")


def number(name: str, value: object, text: bool) -> float:
    """A finite number; NaN where missing. Booleans are 1 and 0.

    Args:
        name: of the field, for the message.
        value: raw.
        text: whether the format writes numbers as text, and missing values as empty text.

    Raises:
        InvalidEvent: it is something else.
    """
    if value is None or (text and value == ""):
        return math.nan
    if isinstance(value, str):
        if isinstance(value, TooLarge):
            _refuse(name, value, "number", "out_of_range")
        written = value.with_point() if isinstance(value, CommaText) else value
        if text and _NUMBER.fullmatch(written):
            read = float(written)
            if math.isinf(read):
                _refuse(name, TooLarge(value), "number", "out_of_range")
            return read
        if text and (truth := BOOLEANS.get(value.lower())) is not None:
            return truth
        _refuse(name, value, "number", "not_finite" if _NOT_FINITE.fullmatch(value) else "wrong_type")
    if not isinstance(value, bool | int | float | Decimal):
        _refuse(name, value, "number", "wrong_type")
    try:
        read = float(value)
    except OverflowError:
        _refuse(name, value, "number", "out_of_range")
    if not math.isfinite(read):
        _refuse(name, value, "number", "not_finite")
    return read


def seconds(name: str, value: object, text: bool) -> float:
    """Seconds since 1970 in UTC; NaN where missing.

    Numbers are such seconds already; texts are ISO 8601 in its extended form, in UTC unless they say otherwise.
    Arguments and errors as in `number`.

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
        _refuse(name, value, "time", "wrong_type")
    if text and (not value or _NUMBER.fullmatch(value.with_point() if isinstance(value, CommaText) else value)):
        return number(name, value, text)
    found = TIME.fullmatch(value.strip(" \t") if text else value)
    if found is None:
        _refuse(name, value, "time", "not_finite" if _NOT_FINITE.fullmatch(value) else "wrong_type")
    year, month, day, hour, minute, second, fraction, sign, hours, minutes = found.groups()
    try:
        days = date(int(year), int(month), int(day)).toordinal() - _EPOCH
    except ValueError:  # such as February 30
        _refuse(name, value, "time", "wrong_type")
    offset = int(f"{sign or '+'}1") * (int(hours or 0) * 3600 + int(minutes or 0) * 60)
    whole = days * DAY + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0) - offset
    return _joined(whole, int((fraction or "").ljust(9, "0")))


def label(name: str, value: Any, text: bool) -> str | None:  # noqa: ARG001 - called like the others
    """A text, as which equal values are equal in every format; ``None`` where missing or empty.

    Booleans are ``true`` and ``false``, whole numbers have no point, other numbers are written as Python does.
    Arguments and errors as in `number`.

    >>> [label("c", value, text=False) for value in ("01", True, 7, 7.0, 0.1, "", None)]
    ['01', 'true', '7', '7', '0.1', None, None]
    """
    if value.__class__ is str and value.isascii() and len(value) <= LONGEST_TEXT:
        return value or None
    match value:
        case None:
            return None
        case TooLarge():
            _refuse(name, value, "number", "out_of_range")
        case Unreadable():
            _refuse(name, value, "text", "wrong_type")
        case str():
            found = str(value)  # without a class of ours, which nothing that is learned should keep
        case float() | Decimal() if not math.isfinite(value):
            _refuse(name, value, "text", "not_finite")
        case bool() | int() | float() | Decimal():
            found = as_text(value)
        case _:
            _refuse(name, value, "text", "wrong_type")
    if len(found) > LONGEST_TEXT:
        _refuse(name, value, "text", "out_of_range")
    if not found.isascii():
        try:
            found.encode()
        except UnicodeEncodeError:  # half a surrogate pair, which JSON can write and nothing can store
            _refuse(name, value, "text", "wrong_type")
    return found or None


READERS: dict[Kind, Callable[[str, object, bool], float | str | None]] = {
    "number": number,
    "time": seconds,
    "text": label,
}

# What Arrow's csv reader takes for a finite number, and float() reads to the same bits.
_NUMBER = re.compile(r"[ \t]*[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[ \t]*")
_COMMA = re.compile(r"[ \t]*[+-]?[0-9]+,[0-9]+(?:[eE][+-]?[0-9]+)?[ \t]*")
_NOT_FINITE = re.compile(r"\s*[+-]?(?:nan(?:\(\w*\))?|inf(?:inity)?)\s*", re.IGNORECASE)
BOOLEANS = {"true": 1.0, "false": 0.0}
"""In lower case; text formats write them so."""
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
    ("text", "out_of_range"): f"must have at most {LONGEST_TEXT} characters",
}


def _joined(whole: int, nanoseconds: int) -> float:
    # In this order also for arrays, so that all formats round alike.
    return float(whole) + nanoseconds / 1e9


def _refuse(name: str, value: object, kind: Kind, reason: str) -> NoReturn:
    message = f"field {name!r} is {shown(value)}; it {_RULES[kind, reason]}"
    if kind == "number" and isinstance(value, CommaText) and "." in value:
        message += ' (no number holds a point where source.decimal is ",")'
    elif kind == "number" and isinstance(value, str) and _COMMA.fullmatch(value):
        message += ' (if the comma stands before decimals, set source.decimal to ",")'
    raise InvalidEvent(message, reason=reason, feature=name)


def some_of(names: Sequence[str]) -> str:
    """Names for a message, however many and however long.

    >>> some_of(["a", "b"]), some_of([str(i) for i in range(12)])
    ("'a', 'b'", "'0', '1', '2', '3', '4', '5', '6', '7', '8', '9' and 2 others")
    """
    some = ", ".join(map(shown, names[:10]))
    return some if len(names) <= 10 else f"{some} and {len(names) - 10} others"
