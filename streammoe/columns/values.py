"""Read a value of an event as a number, a category, a time or a name."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.notation import NUMBER, as_text, remedy_of, tidied
from streammoe.text import shown

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
ISO_8601 = re.compile(r"\d{4}-\d\d(?:-\d\d(?:[T ].+)?)?|\d{8}T.+", re.ASCII | re.IGNORECASE)
"""Texts to pass to `datetime.fromisoformat`, which alone would accept any letter between date and time."""


NO_VALUE = "leave the key out where a value is missing"
NO_TARGET = "an event without a target can be predicted, but not learned"


def is_missing(value: object) -> bool:
    """Return whether a feature has no value: None, NaN, NaT or pandas' NA, as if its key were left out.

    >>> [is_missing(value) for value in (None, float("nan"), Decimal("NaN"), np.datetime64("NaT"), 0.0, "")]
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


def quantity(value: object, name: object) -> float:
    """Convert the value of a numeric feature to a float: a number, or a datetime or date as seconds since 1970."""
    return seconds(value, name) if isinstance(value, date | np.datetime64) else number(value, name)


def number(value: object, name: object, advice: str = NO_VALUE) -> float:
    """Convert a number to a float; raise `InvalidEvent` if a model cannot learn it."""
    kinds = float | int | Decimal | np.floating | np.integer | np.bool_
    if isinstance(value, kinds) and not isinstance(value, np.timedelta64):
        try:
            result = float(value)
        except OverflowError:
            raise _invalid(name, value, f"does not fit into a 64-bit float; {advice}", "out_of_range") from None
        except ValueError:  # a signalling NaN
            result = math.nan
        if result - result == 0.0:
            return result
        raise _invalid(name, value, f"is not a finite number; {advice}", "not_finite")
    if isinstance(value, str):
        advice = conversion_of(value) or advice
    raise _invalid(name, value, f"is {type_in_words(value)}, not a number; {advice}", "wrong_type")


def conversion_of(text: str) -> str:
    """Return how to convert a text that was meant as a number; nothing if it was not.

    >>> [conversion_of(text) for text in ("12.5", "1'234.5", "0,5", "red")]  # doctest: +NORMALIZE_WHITESPACE
    ['convert it with float()', 'remove the separators of thousands and convert it with float()',
     'write the decimal mark as a point and convert it with float()', '']
    >>> conversion_of("$1,012.33")
    'remove the unit, remove the separators of thousands and convert it with float()'
    """
    if NUMBER.fullmatch(tidied(text)):
        return "convert it with float()"
    remedy = remedy_of(text)
    if remedy is None:
        return ""
    steps = ["remove the unit"] if remedy.units else []
    if remedy.thousands == "," and remedy.comma:
        steps.append("remove the comma if it separates thousands, write a point if it is the decimal mark")
    else:
        steps += ["remove the separators of thousands"] if remedy.thousands else []
        steps += ["write the decimal mark as a point"] if remedy.comma else []
    return f"{', '.join(steps)} and convert it with float()" if steps else ""


def level(value: object, name: object) -> str:
    """Convert a category to text; equal values give equal text, whether text, truth value or number.

    Raises:
        InvalidEvent: the value is of another type, or not finite.

    >>> level("red", "color"), level(True, "color"), level(7, "color"), level(7.0, "color"), level(0.5, "color")
    ('red', 'true', '7', '7', '0.5')
    """
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool | np.bool_):
        return as_text(bool(value))
    if isinstance(value, int | float | Decimal | np.integer | np.floating) and not isinstance(value, np.timedelta64):
        found = number(value, name, "give it as text" if isinstance(value, int) else NO_VALUE)
        return as_text(int(value) if isinstance(value, int | np.integer) else found)
    problem = f"is {type_in_words(value)}, not a category; give text, a truth value or a number"
    raise _invalid(name, value, f"{problem}, and leave the key out where it is missing", "wrong_type")


def seconds(value: object, name: object) -> float:
    """Convert a time to seconds since 1970-01-01 UTC: such a number, a datetime, a date, or ISO 8601 text.

    Times without a time zone are UTC. A number may lie outside the years 1 to 9999; learning rejects it.

    Raises:
        InvalidEvent: the value is of another type, or not finite.

    >>> seconds("1970-01-02T01:00:00+01:00", "t"), seconds(date(1970, 1, 3), "t"), seconds(0.5, "t")
    (86400.0, 172800.0, 0.5)
    """
    if isinstance(value, str):
        return _from_text(str(value), name)
    if isinstance(value, datetime):
        # `number` rejects pandas' NaT, which is a datetime and becomes NaN.
        return number(_since_1970(value), name)
    if isinstance(value, date):
        return _since_1970(datetime(value.year, value.month, value.day, tzinfo=UTC))
    if isinstance(value, np.datetime64) and not np.isnat(value):
        # As a datetime gives it: rounded once, from whole microseconds.
        return int(value.astype("datetime64[us]").astype(np.int64)) / 1_000_000
    if isinstance(value, bool | np.bool_) or not isinstance(value, float | int | Decimal | np.floating | np.integer):
        raise _not_a_time(name, value, f"is {type_in_words(value)}")
    return number(value, name)


def _since_1970(moment: datetime) -> float:
    if moment.tzinfo is None or moment.utcoffset() is None:
        moment = moment.replace(tzinfo=UTC)
    return (moment - EPOCH).total_seconds()


def _from_text(text: str, name: object) -> float:
    # Digits alone are ambiguous: a date without dashes, or seconds in quotes.
    if not ISO_8601.fullmatch(text):
        raise _not_a_time(name, text, "is not ISO 8601 text")
    try:
        return _since_1970(datetime.fromisoformat(f"{text}-01" if len(text) == len("2026-01") else text.upper()))
    except ValueError as error:
        raise _not_a_time(name, text, f"is not a time ({error})") from None


def _not_a_time(name: object, value: object, problem: str) -> InvalidEvent:
    advice = "give seconds since 1970-01-01 UTC as a number, a datetime, or text such as 2026-01-31T12:00:00Z"
    return _invalid(name, value, f"{problem}; {advice}", "wrong_type")


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


def _invalid(name: object, value: object, problem: str, reason: str) -> InvalidEvent:
    subject = "the value" if value is None else shown(value)
    return InvalidEvent(f"{name!s}: {subject} {problem}", reason=reason, feature=name)
