"""Read a value as a number, a time or a category: one rule for each kind, whatever holds the value.

An event in Python, a cell of csv and a value of JSON or of a typed column differ only in their `Notation`. Where a
value is missing, it reads as NaN or None; `PYTHON` knows no such values, which `is_missing` finds before.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Collection, Mapping
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.errors import InvalidEvent
from streammoe.notation import (
    BOOLEANS,
    DAY,
    MISSING,
    MISSPELLED,
    NOT_FINITE,
    NUMBER,
    PYTHON,
    SWAPPED,
    TICKS,
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
from streammoe.types import FloatArray, IntArray

MAX_TEXT_LENGTH = 256
"""Maximum number of characters of a label or level in records, which become columns and labels of metrics."""
MAX_MARKER_LENGTH = 20
"""Maximum number of characters of a text that may stand for a missing number."""
SECOND_PARTS = {"D": 1, "s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
"""Ticks per second of each unit of time; days are handled separately."""
NUMBERS = float | int | Decimal | np.floating | np.integer | np.bool_
"""Types of numbers and truth values; a timedelta64 is an integer, too, and none of them."""
TIME = re.compile(
    r"(\d{4})-(\d\d)(?:-(\d\d)"
    r"(?:[Tt ]([01]\d|2[0-3])(?::([0-5]\d)(?::([0-5]\d)(?:[.,](\d{1,9}))?)?)?"
    r" ?(?:([Zz])|([+-])([01]\d|2[0-3])(?::?([0-5]\d))?)?)?)?",
    re.ASCII,
)
"""Groups: year, month, day, hour, minute, second, fraction; UTC; sign, hours, minutes of the offset from it."""
_LOOKS_LIKE_TIME = re.compile(r"\d{4}-(?:0[1-9]|1[0-2])|\d{4}-\d\d-\d\d(?:[Tt ]\d\d.*)?", re.ASCII)
_EPOCH = date(1970, 1, 1).toordinal()

NO_VALUE = "give None, or leave the key out, where a value is missing"
NO_TARGET = "an event without a target can be predicted, but not learned"
OR_CATEGORY = ", or list the column in schema.categorical if it holds categories"
"""What a message suggests for a number in quotes, which is right for a feature only,"""
OR_IGNORE = ", or list the field in schema.ignore"
"""for an object or a list,"""
IF_CATEGORY = "; for categories, or truth values other than true and false, list the column in schema.categorical"
"""and for other texts."""
_RULES = {
    ("number", "wrong_type"): "must be a number, such as -1.5e3, or absent",
    ("number", "not_finite"): "must be finite",
    ("number", "out_of_range"): "must fit into a 64-bit float, that is, lie within ±1.8e308",
    ("time", "wrong_type"): (
        "must be a time, such as 2024-05-01T12:30:00Z or 2024-05-01, or a number of seconds since 1970, or absent"
    ),
    ("time", "not_finite"): "must be finite",
    ("category", "wrong_type"): "must be a text (in UTF-8), a number or a boolean, or absent",
    ("category", "not_finite"): "must be finite where it is a number",
    ("category", "out_of_range"): f"must have at most {MAX_TEXT_LENGTH} characters",
}


class LocalTime(NamedTuple):
    """A time of a typed column that has no time zone."""

    moment: np.datetime64

    def __repr__(self) -> str:
        return str(self.moment)


class Unsupported(NamedTuple):
    """A value of a typed column that holds neither numbers, truth values, texts nor times."""

    dtype: str

    def __repr__(self) -> str:
        return f"a value of type {self.dtype}"


def is_missing(value: object) -> bool:
    """Return whether a feature has no value: None, NaN, NaT or pandas' NA, as if its key were left out.

    >>> [is_missing(value) for value in (None, float("nan"), Decimal("NaN"), np.datetime64("NaT", "s"), 0.0, "")]
    [True, True, True, True, False, False]
    """
    if value is None:
        return True
    if isinstance(value, float | np.floating | datetime):
        return value != value  # noqa: PLR0124 - of these, only NaN and NaT differ from themselves
    if isinstance(value, Decimal):
        return value.is_nan()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return bool(np.isnat(value))
    return type(value).__name__ == "NAType"  # comparing pandas' NA gives NA; importing it takes a second


# -- Kinds -------------------------------------------------------------------------------------------------------------


def kind_of(value: object, notation: Notation = PYTHON) -> ColumnKind | None:
    """Return what a column holds whose first value is this one; None if it is missing or an empty text.

    One value decides, so that nothing depends on how a stream is cut; what is decided is part of the model. A text in
    records is never a category if it was meant as a number: the column is one of numbers, and the record is accepted or
    rejected as a number is. In Python, where numbers have types of their own, any text is a category but a time in
    full. A value of any other type makes a column of numbers, as which it is rejected.

    >>> [kind_of(value) for value in ("0", "NA", "1,5", "true", "2026-01-31", " ", 7, True, date(2026, 1, 31), None)]
    ['category', 'category', 'category', 'category', 'time', None, 'number', 'boolean', 'time', None]
    >>> [kind_of(value, Notation(decimal=".")) for value in ("3.5", "TRUE", "2026-01-31", "red", "", "None", "1,5")]
    ['number', 'boolean', 'time', 'category', None, None, 'number']
    >>> kind_of("5 stars", Notation(units=(("stars", 1.0),))), kind_of("true", Notation()), kind_of("12", Notation())
    ('number', 'category', 'number')
    """
    if isinstance(value, bool | np.bool_):
        return "boolean"
    if isinstance(value, date | np.datetime64 | LocalTime):
        return "time"
    if value is None or notation.is_missing(value):
        return None
    if not isinstance(value, str):
        return "number"
    plain = tidied(str(value))
    if not plain or plain.isspace():
        return None
    if notation is not PYTHON:
        if numeral := notation.numeral(value):
            return None if float(numeral[0]) in notation.codes else "number"
        without_value = NOT_FINITE.fullmatch(plain) or plain in MISSING or plain.lower() in MISSPELLED
        forms = (plain, notation.with_point(plain))
        if without_value or any(map(NUMBER.fullmatch, forms)) or any(map(remedy_of, forms)):
            return "number"
        if notation.decimal and plain.lower() in BOOLEANS:
            return "boolean"
    return "time" if _LOOKS_LIKE_TIME.fullmatch(plain) else "category"


# -- One rule for each kind --------------------------------------------------------------------------------------------


def quantity(value: object, name: object) -> float:
    """Read the value of a numeric feature in Python: a number, or a datetime or date as seconds since 1970."""
    return seconds(value, name) if isinstance(value, date | np.datetime64) else number(value, name)


def number(value: object, name: object, advice: str = NO_VALUE, notation: Notation = PYTHON) -> float:
    """Read a finite number; NaN if missing. Truth values are 1 and 0.

    Args:
        value: the raw value.
        name: of the field, for the message.
        advice: what to do in Python about a value that is no number.
        notation: of the field.

    Raises:
        InvalidEvent: it is something else.
    """
    if type(value) is float and value - value == 0.0:
        return math.nan if value in notation.codes else value
    reason = "wrong_type"
    if isinstance(value, str) and (numeral := notation.numeral(value)):
        read, factor = float(numeral[0]), numeral[1]
        if not math.isinf(read * factor):
            return math.nan if read in notation.codes else read * factor
        reason = "out_of_range"
    elif isinstance(value, NUMBERS) and not isinstance(value, np.timedelta64):
        is_large = isinstance(value, Decimal) and value.is_finite()
        try:
            read = float(value)
        except OverflowError:
            read, is_large = math.inf, True
        except ValueError:  # a signalling NaN
            read = math.nan
        if read - read == 0.0:
            return math.nan if read in notation.codes else read
        if math.isnan(read) and "NaN" in notation.missing:
            return math.nan
        reason = "out_of_range" if is_large else "not_finite"
    elif notation.is_missing(value):
        return math.nan
    elif notation.decimal and isinstance(value, str) and (truth := BOOLEANS.get(value.lower())) is not None:
        return truth
    raise _invalid(name, value, "number", reason, notation, advice)


def seconds(value: object, name: object, notation: Notation = PYTHON) -> float:
    """Read a time as seconds since 1970 in UTC; NaN if missing.

    Numbers are such seconds already, and texts are ISO 8601 in its extended form, unless the notation has another
    format; in UTC unless they name another offset, or the notation another time zone. A number may lie outside the
    years 1 to 9999; learning rejects it. Arguments and errors are those of `number`.

    >>> seconds("1970-01-02T00:00:00.5+01:00", "t"), seconds(date(1970, 1, 3), "t"), seconds(0.5, "t")
    (82800.5, 172800.0, 0.5)
    >>> seconds("02.01.1970", "t", Notation(time="%d.%m.%Y", zone="Europe/Berlin"))
    82800.0
    """
    if isinstance(value, date):
        return _from_date(value, name, notation)
    if isinstance(value, np.datetime64 | LocalTime):
        return _from_moment(value, name, notation)
    if notation.is_missing(value):
        return math.nan
    is_number = isinstance(value, NUMBERS) and not isinstance(value, bool | np.bool_ | np.timedelta64)
    if "%" in notation.time:
        return _from_format(value, name, is_number, notation)
    if is_number or (notation.decimal and isinstance(value, str) and NUMBER.fullmatch(notation.with_point(value))):
        return number(value, name, notation=notation) / TICKS[notation.time]
    if not isinstance(value, str):
        raise _invalid(name, value, "time", "wrong_type", notation)
    match = TIME.fullmatch(value.strip(" \t") if notation.decimal else value)
    if match is None:
        raise _invalid(name, value, "time", "wrong_type", notation)
    year, month, day, hour, minute, second, fraction, utc, sign, hours, minutes = match.groups()
    try:
        days = date(int(year), int(month), int(day or 1)).toordinal() - _EPOCH
    except ValueError:  # such as February 30
        raise _invalid(name, value, "time", "wrong_type", notation) from None
    whole = days * DAY + int(hour or 0) * 3600 + int(minute or 0) * 60 + int(second or 0)
    if utc or sign:
        whole -= int(f"{sign or '+'}1") * (int(hours or 0) * 3600 + int(minutes or 0) * 60)
    else:
        whole = notation.utc(whole)
    return _joined(whole, int((fraction or "").ljust(9, "0")))


def seconds_of(ticks: IntArray, unit: str, notation: Notation = PYTHON, *, is_local: bool = False) -> FloatArray:
    """Convert counts of a unit since 1970 to seconds, in UTC if they are local times."""
    whole, parts = np.divmod(ticks, SECOND_PARTS[unit])
    whole = whole * DAY if unit == "D" else whole
    if is_local and notation.zone:
        whole = np.fromiter(map(notation.utc, whole.tolist()), np.int64, len(whole))
    seconds: FloatArray = whole.astype(np.float64) + (parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit])) / 1e9
    return seconds


def category(value: object, name: object, notation: Notation = PYTHON) -> str | None:
    """Read a text such that equal values are equal in every format; None if missing.

    Truth values are ``true`` and ``false``, whole numbers have no point, other numbers are written as in Python.
    Arguments and errors are those of `number`.

    >>> [category(value, "c", Notation()) for value in ("01", True, 7, 7.0, 0.1, "", None)]
    ['01', 'true', '7', '7', '0.1', None, None]
    """
    if isinstance(value, str):
        if notation.is_missing(value):
            return None
        result = str(value)  # not an instance of another class, since models keep it
        if notation is not PYTHON:
            if len(result) > MAX_TEXT_LENGTH:
                raise _invalid(name, value, "category", "out_of_range", notation)
            try:
                result.isascii() or result.encode()
            except UnicodeEncodeError:  # half a surrogate pair, valid in JSON but not in UTF-8
                raise _invalid(name, value, "category", "wrong_type", notation) from None
        return result
    if notation.is_missing(value):
        return None
    if isinstance(value, bool | np.bool_):
        return as_text(bool(value))
    if not isinstance(value, NUMBERS) or isinstance(value, np.timedelta64):
        raise _invalid(name, value, "category", "wrong_type", notation)
    if notation is not PYTHON and isinstance(value, float) and not math.isfinite(value):
        raise _invalid(name, value, "category", "not_finite", notation)
    advice = "give it as text" if isinstance(value, int) else NO_VALUE
    found = number(value, name, advice, notation)
    return as_text(int(value) if isinstance(value, int | np.integer) else found)


def level(value: object, name: object) -> str:
    """Read a category in Python; equal values give equal text, whether text, truth value or number.

    >>> level("red", "color"), level(True, "color"), level(7, "color"), level(7.0, "color"), level(0.5, "color")
    ('red', 'true', '7', '7', '0.5')
    """
    return str(value) if isinstance(value, str) else str(category(value, name))


READERS: Mapping[ColumnKind, Callable[..., float | str | None]] = {
    "number": number,
    "boolean": number,
    "time": seconds,
    "category": category,
}
"""How the values of each kind of column are read: from the value, the name and the ``notation``."""
READERS_IN_PYTHON: Mapping[ColumnKind, Callable[[Any, Any], float | str]] = {
    "number": quantity,
    "time": seconds,
    "category": level,
}
"""How those of events and data frames are read, in which truth values are numbers: from the value and the name."""


def _from_date(value: date, name: object, notation: Notation) -> float:
    if value != value:  # noqa: PLR0124 - pandas' NaT is a datetime
        raise _invalid(name, math.nan, "number", "not_finite", notation, NO_VALUE)
    moment = value if isinstance(value, datetime) else datetime(value.year, value.month, value.day)  # noqa: DTZ001
    offset = moment.utcoffset()
    since = moment.replace(tzinfo=None) - datetime(1970, 1, 1) - (offset or timedelta())  # noqa: DTZ001
    whole = since.days * DAY + since.seconds
    nanoseconds = since.microseconds * 1000 + getattr(value, "nanosecond", 0)  # pandas has them apart
    return _joined(notation.utc(whole) if offset is None else whole, nanoseconds)


def _from_moment(value: np.datetime64 | LocalTime, name: object, notation: Notation) -> float:
    moment = value.moment if isinstance(value, LocalTime) else value
    if np.isnat(moment):
        raise _invalid(name, value, "time", "wrong_type", notation)
    unit = np.datetime_data(moment.dtype)[0]
    if unit not in SECOND_PARTS:
        unit = "s" if unit in {"Y", "M", "W", "h", "m"} else "ns"
        moment = moment.astype(f"datetime64[{unit}]")
    whole, parts = divmod(int(moment.astype(np.int64)), SECOND_PARTS[unit])
    whole = whole * DAY if unit == "D" else whole
    whole = notation.utc(whole) if isinstance(value, LocalTime) else whole
    return _joined(whole, parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit]))


def _from_format(value: object, name: object, is_number: bool, notation: Notation) -> float:
    """Read a time in the format of `strptime`, also if it is a number, such as 20240501."""
    if is_number:
        found = number(value, name, notation=notation)
        written = as_text(found)
        value = int(found) if found == int(found) else value  # as it was written, whatever a parser made of it
    elif isinstance(value, str):
        written = str(value)
    else:
        raise _invalid(name, value, "time", "wrong_type", notation)
    try:
        moment = datetime.strptime(tidied(written), notation.time)  # noqa: DTZ007 - see `Notation.utc`
    except ValueError:
        raise _invalid(name, value, "time", "wrong_type", notation) from None
    return _from_date(moment, name, notation)


def _joined(whole: int, nanoseconds: int) -> float:
    # In the same order as for arrays, so that all formats round alike.
    return float(whole) + nanoseconds / 1e9


# -- Errors ------------------------------------------------------------------------------------------------------------


def _invalid(
    name: object, value: object, kind: ColumnKind, reason: str, notation: Notation, advice: str = NO_VALUE
) -> InvalidEvent:
    """Return the error for a value that breaks the rule of a kind, with what to do about it."""
    if notation is PYTHON:
        return _invalid_in_python(name, value, kind, reason, advice)
    if kind != "category" and reason == "wrong_type" and isinstance(value, str) and NOT_FINITE.fullmatch(value):
        reason = "not_finite"
    rule = _RULES[kind, reason]
    if kind == "time" and "%" in notation.time and reason == "wrong_type":
        rule = f"must be a time in the format {notation.time!r} of schema.timestamps, or absent"
    message = f"field {name!r} is {shown(value)}; it {rule}"
    if kind == "number" and reason == "wrong_type" and isinstance(value, str):
        message += _advice(str(name), value, notation)
    elif isinstance(value, Unsupported):
        message += OR_IGNORE
    elif isinstance(value, dict | list):
        message += (
            f"; write what it holds as fields of their own{OR_IGNORE}; if the whole event is in it, name its path in "
            "source.record"
        )
    if kind == "time" and reason == "wrong_type" and isinstance(value, str) and (forms := formats_of(value)):
        message += f" ({time_advice(str(name), forms)})"
    return InvalidEvent(message, reason=reason, feature=name)


def _invalid_in_python(name: object, value: object, kind: ColumnKind, reason: str, advice: str) -> InvalidEvent:
    if kind == "time":
        problem = "is no time in ISO 8601" if isinstance(value, str) else f"is {type_in_words(value)}"
        advice = "give seconds since 1970-01-01 UTC as a number, a datetime, or text such as 2026-01-31T12:00:00Z"
    elif kind == "category":
        problem = f"is {type_in_words(value)}, not a category"
        advice = "give text, a truth value or a number, and None, or no key, where it is missing"
    elif reason == "wrong_type":
        problem = f"is {type_in_words(value)}, not a number"
        advice = (_conversion_of(value) if isinstance(value, str) else "") or advice
    else:
        problem = "does not fit into a 64-bit float" if reason == "out_of_range" else "is not a finite number"
    subject = "the value" if value is None else shown(value)
    return InvalidEvent(f"{name!s}: {subject} {problem}; {advice}", reason=reason, feature=name)


def time_advice(name: str, forms: Collection[str]) -> str:
    """Return how to have a column of times in one of these formats read.

    >>> print(time_advice("when", ["%d/%m/%Y"]))
    set schema.timestamps.when = "%d/%m/%Y"
    """
    first, *others = map(json.dumps, forms)
    other = f", or {' or '.join(others)} if that is the format" if others else ""
    return f"set schema.timestamps.{toml_key(name)} = {first}{other}"


def _advice(name: str, value: str, notation: Notation) -> str:
    """Return what to do about a text that is no number, but may have been meant as one."""
    has_comma, written = notation.decimal == ",", notation.with_point(value)
    if NUMBER.fullmatch(tidied(written)):
        return f" (write it without quotes{OR_CATEGORY})"
    remedy = remedy_of(written, any_word=True)
    if remedy is None:
        marker = tidied(value)
        if not (name + marker).isprintable() or len(marker) > MAX_MARKER_LENGTH:
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
        known = dict(notation.units)
        units = {unit: factor_of(unit, known) or factor for unit, factor in remedy.units.items()}
        steps += [f"schema.units.{toml_key(unit)} = {factor:g}" for unit, factor in units.items()]
    if remedy.thousands == "," and remedy.comma:
        steps.append(f"{thousands} if its comma separates thousands, or {comma} if that is the decimal mark")
    else:
        steps += [thousands] * bool(separator) + [comma] * remedy.comma
    return f" (set {' and '.join(steps)}{OR_CATEGORY if remedy.units else ''})"


def _conversion_of(text: str) -> str:
    """Return how to convert a text that was meant as a number; nothing if it was not.

    >>> [_conversion_of(text) for text in ("12.5", "red")]
    ['convert it with float()', '']
    >>> _conversion_of("$1,012.33")
    'take out units and separators of thousands, with a point as decimal mark, and convert it with float()'
    """
    if NUMBER.fullmatch(tidied(text)):
        return "convert it with float()"
    cleaned = "take out units and separators of thousands, with a point as decimal mark, and convert it with float()"
    return cleaned if remedy_of(text) else ""


def not_a_mapping(event: object) -> InvalidEvent:
    """Return the error for an event that is not a mapping."""
    return InvalidEvent(f"x: got {shown(event)}; an event is a mapping of names to values", reason="wrong_type")


def check_name(name: object, what: str = "feature name", place: str = "x") -> None:
    """Require that a checkpoint can hold the name of a feature or output: text, or a whole number of 64 bits.

    Raises:
        InvalidEvent: it cannot.
    """
    if isinstance(name, str) or (type(name) is int and -(2**63) <= name < 2**63):
        return
    kind = "a NumPy integer" if isinstance(name, np.integer) else type_in_words(name)
    problem = "is beyond 64 bits" if type(name) is int else f"is {kind}"
    subject = f"one {what}" if name is None else f"the {what} {shown(name)}"
    rule = "checkpoints hold names that are text or Python's whole numbers of 64 bits; rename it"
    raise InvalidEvent(f"{place}: {subject} {problem}; {rule}", reason="wrong_type")


def type_in_words(value: object) -> str:
    """Describe the type of a value in words.

    >>> [type_in_words(value) for value in (None, b"x", True, (1, 2), 0.5, 1)]
    ['None', 'bytes', 'a truth value', 'a tuple', 'a decimal number', 'a whole number']
    >>> [type_in_words(type(name, (), {})()) for name in ("UUID", "Event", "UserDict", "HTTPError")]
    ['a UUID', 'an Event', 'a UserDict', 'an HTTPError']
    """
    kinds: tuple[tuple[Any, str], ...] = (
        (type(None), "None"),
        (bool | np.bool_, "a truth value"),
        (bytes, "bytes"),
        (str, "text"),
        (np.timedelta64, "a timedelta64"),
        (int | np.integer, "a whole number"),
        (float | Decimal | np.floating, "a decimal number"),
        (np.ndarray, "an array"),
        (Mapping, "a mapping"),
    )
    for kind, words in kinds:
        if isinstance(value, kind):
            return words
    name = type(value).__name__
    vowels = "AEFHILMNORSX" if name[:2].isupper() else "AEIOaeio"  # of letters that are spelled, and of words
    return f"{'an' if name[0] in vowels else 'a'} {name}"
