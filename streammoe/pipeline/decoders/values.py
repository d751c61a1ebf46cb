"""Exact reading of one raw value as a number, a time or a text, the same for every format."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Literal, NamedTuple, NoReturn

import numpy as np

from streammoe.columns.kinds import ColumnKind, kind_of
from streammoe.errors import InvalidEvent
from streammoe.notation import (
    BOOLEANS,
    DAY,
    NOT_FINITE,
    NUMBER,
    SWAPPED,
    TICKS,
    USUAL,
    CommaText,
    Notation,
    as_text,
    factor_of,
    formats_of,
    missing_advice,
    remedy_of,
    tidied,
    toml_key,
)
from streammoe.text import shown

Kind = Literal["number", "time", "text"]

MAX_TEXT_LENGTH = 256
"""Maximum number of characters of a label or level, which become columns and labels of metrics."""

SECOND_PARTS = {"D": 1, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second of each unit of time; days are handled separately."""


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


class LocalTime(NamedTuple):
    """A time of a typed column that has no time zone."""

    moment: np.datetime64

    def __repr__(self) -> str:
        return str(self.moment)


def number(name: str, value: object, text: bool, notation: Notation = USUAL) -> float:
    """Read a finite number; NaN if missing. Booleans are 1 and 0.

    Args:
        name: of the field, for the message.
        value: the raw value.
        text: whether the format writes numbers as text.
        notation: of the field.

    Raises:
        InvalidEvent: it is something else.
    """
    factor = 1.0
    if isinstance(value, str):
        if isinstance(value, TooLarge):
            _reject(name, value, "number", "out_of_range")
        numeral = notation.numeral(value, text)
        if numeral is None:
            if notation.is_missing(value):
                return math.nan
            if text and (truth := BOOLEANS.get(value.lower())) is not None:
                return truth
            _reject(name, value, "number", "not_finite" if NOT_FINITE.fullmatch(value) else "wrong_type", notation)
        read, factor = float(numeral[0]), numeral[1]
        if math.isinf(read * factor):
            _reject(name, TooLarge(value), "number", "out_of_range")
    elif isinstance(value, bool | int | float | Decimal):
        try:
            read = float(value)
        except OverflowError:
            _reject(name, value, "number", "out_of_range")
        if not math.isfinite(read):
            if notation.is_missing(value):
                return math.nan
            _reject(name, value, "number", "not_finite")
    elif value is None:
        return math.nan
    else:
        _reject(name, value, "number", "wrong_type")
    return math.nan if read in notation.codes else read * factor


def seconds(name: str, value: object, text: bool, notation: Notation = USUAL) -> float:
    """Read a time as seconds since 1970 in UTC; NaN if missing.

    Numbers are such seconds already, and texts are ISO 8601 in its extended form, unless the notation has another
    format; in UTC unless they name another offset, or the notation another time zone. Arguments and errors are those of
    `number`.

    >>> seconds("t", "1970-01-02T00:00:00.5+01:00", text=False)
    82800.5
    >>> seconds("t", "02.01.1970", text=True, notation=Notation(time="%d.%m.%Y", zone="Europe/Berlin"))
    82800.0
    """
    if isinstance(value, np.datetime64 | LocalTime):
        return _moment(value, notation)
    if notation.is_missing(value):
        return math.nan
    is_number = isinstance(value, int | float | Decimal | TooLarge) and not isinstance(value, bool)
    if "%" in notation.time:
        return _formatted(name, value, is_number, notation)
    plain = value.with_point() if isinstance(value, CommaText) else value
    if is_number or (isinstance(plain, str) and text and NUMBER.fullmatch(plain)):
        return number(name, value, text, notation) / TICKS[notation.time]
    if not isinstance(value, str):
        _reject(name, value, "time", "wrong_type")
    match = TIME.fullmatch(value.strip(" \t") if text else value)
    if match is None:
        _reject(name, value, "time", "not_finite" if NOT_FINITE.fullmatch(value) else "wrong_type")
    year, month, day, hour, minute, second, fraction, utc, sign, hours, minutes = match.groups()
    try:
        days = date(int(year), int(month), int(day or 1)).toordinal() - _EPOCH
    except ValueError:  # such as February 30
        _reject(name, value, "time", "wrong_type")
    whole = days * DAY + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    if utc or sign:
        whole -= int(f"{sign or '+'}1") * (int(hours or 0) * 3600 + int(minutes or 0) * 60)
    else:
        whole = notation.utc(whole)
    return _joined(whole, int((fraction or "").ljust(9, "0")))


def _moment(value: np.datetime64 | LocalTime, notation: Notation) -> float:
    moment = value.moment if isinstance(value, LocalTime) else value
    unit = np.datetime_data(moment.dtype)[0]
    whole, parts = divmod(int(moment.astype(np.int64)), SECOND_PARTS[unit])
    whole = whole * DAY if unit == "D" else whole
    return _joined(
        notation.utc(whole) if isinstance(value, LocalTime) else whole,
        parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit]),
    )


def _formatted(name: str, value: object, is_number: bool, notation: Notation) -> float:
    """Read a time in the format of `strptime`, also if it is a number, such as 20240501."""
    if is_number and not isinstance(value, str):
        found = number(name, value, text=False, notation=notation)
        written = as_text(found)
        value = int(found) if found == int(found) else value  # as it was written, whatever a parser made of it
    elif isinstance(value, str) and not isinstance(value, Unreadable):
        written = str(value)
    else:
        _reject(name, value, "time", "wrong_type")
    try:
        moment = datetime.strptime(tidied(written), notation.time)  # noqa: DTZ007 - see `Notation.utc`
    except ValueError:
        rule = f" in the format {notation.time!r} of schema.timestamps, or absent"
        _reject(name, value, "time", "wrong_type", rule=rule)
    local = moment.replace(tzinfo=None) - datetime(1970, 1, 1)  # noqa: DTZ001
    whole, offset = local.days * DAY + local.seconds, moment.utcoffset()
    whole = notation.utc(whole) if offset is None else whole - offset.days * DAY - offset.seconds
    return _joined(whole, local.microseconds * 1000)


def label(name: str, value: Any, text: bool, notation: Notation = USUAL) -> str | None:  # noqa: ARG001 - like the others
    """Read a text such that equal values are equal in every format; ``None`` if missing or empty.

    Booleans are ``true`` and ``false``, whole numbers have no point, other numbers are written as in Python.
    Arguments and errors are those of `number`.

    >>> [label("c", value, text=False) for value in ("01", True, 7, 7.0, 0.1, "", None)]
    ['01', 'true', '7', '7', '0.1', None, None]
    """
    if value.__class__ is str and value.isascii() and len(value) <= MAX_TEXT_LENGTH:
        return None if value.strip(" \t") in notation.missing else value
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
            if notation.is_missing(value):
                return None
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
    return None if tidied(result) in notation.missing else result


READERS: dict[Kind, Callable[[str, object, bool, Notation], float | str | None]] = {
    "number": number,
    "time": seconds,
    "text": label,
}
READ_AS: dict[ColumnKind, Kind] = {"number": "number", "boolean": "number", "time": "time", "category": "text"}
"""How the values of a column are read."""


def first_kind(value: object, text: bool, notation: Notation = USUAL) -> ColumnKind | None:
    """Return what a column holds whose first value is this raw one, see `kind_of`; None if it is missing.

    >>> first_kind("1.5", text=True), first_kind(CommaText("1,5"), text=True), first_kind(CommaText("1.5"), text=True)
    ('number', 'number', 'number')
    >>> first_kind("None", text=True), first_kind("5 stars", True, Notation(units=(("stars", 1.0),)))
    (None, 'number')
    """
    if isinstance(value, TooLarge | Unreadable):
        return "number"
    if isinstance(value, LocalTime):
        return "time"
    if notation.is_missing(value):
        return None
    if isinstance(value, str) and (numeral := notation.numeral(value, text)):
        return None if float(numeral[0]) in notation.codes else "number"
    found = kind_of(str(value) if isinstance(value, CommaText) else value, text=text)
    if found == "category" and isinstance(value, CommaText):
        return kind_of(value.with_point(), text=text)
    return found


TIME = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)"
    r"(?:[Tt ]([01]\d|2[0-3]):([0-5]\d)(?::([0-5]\d)(?:[.,](\d{1,9}))?)?"
    r" ?(?:([Zz])|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?)?)?",
    re.ASCII,
)
"""Groups: year, month, day, hour, minute, second, fraction; UTC; sign, hours, minutes of the offset from it."""
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


MAX_MARKER_LENGTH = 20
"""Maximum number of characters of a text that may stand for a missing number."""
OR_CATEGORY = ", or list the column in schema.categorical if it holds categories"
"""What a message suggests for a number in quotes, which is right for a feature only,"""
OR_IGNORE = ", or list the field in schema.ignore"
"""for an object or a list,"""
IF_CATEGORY = "; for categories, or truth values other than true and false, list the column in schema.categorical"
"""and for other texts."""


def _joined(whole: int, nanoseconds: int) -> float:
    # In the same order as for arrays, so that all formats round alike.
    return float(whole) + nanoseconds / 1e9


def _reject(
    name: str, value: object, kind: Kind, reason: str, notation: Notation = USUAL, *, rule: str = ""
) -> NoReturn:
    message = f"field {name!r} is {shown(value)}; it {_RULES[kind, reason]}"
    if rule:
        message = f"field {name!r} is {shown(value)}; it must be a time{rule}"
    elif kind == "number" and reason == "wrong_type" and isinstance(value, str):
        message += _advice(name, value, dict(notation.units))
    elif isinstance(value, dict | list):
        message += (
            f"; write what it holds as fields of their own{OR_IGNORE}; if the whole event is in it, name its path in "
            "source.record"
        )
    if kind == "time" and reason == "wrong_type" and isinstance(value, str) and (forms := formats_of(value)):
        message += f" ({time_advice(name, forms)})"
    raise InvalidEvent(message, reason=reason, feature=name)


def time_advice(name: str, forms: Collection[str]) -> str:
    """Return how to have a column of times in one of these formats read.

    >>> print(time_advice("when", ["%d/%m/%Y"]))
    set schema.timestamps.when = "%d/%m/%Y"
    """
    first, *others = map(json.dumps, forms)
    other = f", or {' or '.join(others)} if that is the format" if others else ""
    return f"set schema.timestamps.{toml_key(name)} = {first}{other}"


def _advice(name: str, value: str, known: Mapping[str, float]) -> str:
    """Return what to do about a text that is no number, but may have been meant as one, where these units are set."""
    has_comma = isinstance(value, CommaText)
    written = value.with_point() if isinstance(value, CommaText) else value
    if NUMBER.fullmatch(tidied(written)):
        return f" (write it without quotes{OR_CATEGORY})"
    remedy = remedy_of(written, any_word=True)
    if remedy is None:
        marker = tidied(value)
        is_odd = isinstance(value, Unreadable) or not (name + marker).isprintable()
        if is_odd or len(marker) > MAX_MARKER_LENGTH:
            return ""
        return f" (if it stands for a missing value, {missing_advice(name, marker)}){IF_CATEGORY}"
    if has_comma and remedy.comma:
        return (
            ' (numbers cannot contain a point while source.decimal is ",", unless it separates thousands: '
            'schema.thousands = ".")'
        )
    separator = remedy.thousands.translate(SWAPPED) if has_comma else remedy.thousands
    thousands, comma = f'schema.thousands = "{separator}"', 'source.decimal = "," (in csv)'
    steps = []
    if remedy.units:
        units = {unit: factor_of(unit, known) or factor for unit, factor in remedy.units.items()}
        steps += [f"schema.units.{toml_key(unit)} = {factor:g}" for unit, factor in units.items()]
    if remedy.thousands == "," and remedy.comma:
        steps.append(f"{thousands} if its comma separates thousands, or {comma} if that is the decimal mark")
    else:
        steps += [thousands] * bool(separator) + [comma] * remedy.comma
    return f" (set {' and '.join(steps)}{OR_CATEGORY if remedy.units else ''})"
