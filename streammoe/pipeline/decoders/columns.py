"""Columns of a batch as numbers, times and categories; each value as `streammoe.columns.values` reads it alone."""

from __future__ import annotations

import math
import re
import string
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import READERS, seconds_of
from streammoe.errors import InvalidEvent
from streammoe.notation import ISO, SWAPPED, Notation
from streammoe.types import AnyArray, BoolArray, FloatArray

_decode = msgspec.json.Decoder(list[float]).decode
_OF_NUMBERS = f"{string.digits}+-.eE \t".encode()
"""What `float` reads as `streammoe.notation.NUMBER` says, if there is nothing else."""
_AS_ZEROS = str.maketrans(string.digits, "0" * 10)
_TIME = re.compile(r"0000-00(?:-00(?:[T ]00(?::00(?::00(?:\.0{1,6})?)?)?(Z)?)?)?")
"""Times that NumPy reads as `seconds` does, with zeros for their digits; group: UTC."""
_YEAR_1 = np.datetime64("0001-01-01T00:00:00", "us")


def read_column(column: Any, kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
    """Read a column, and return which of its values have to be read alone, since they may be rejected.

    Args:
        column: an array of floats, NaN where missing; or a sequence of values of any types, None where missing; or an
            object that has this function as its ``read``.
        kind: what it holds; all but categories and times are read as numbers.
        notation: how that is written.
    """
    if isinstance(column, np.ndarray):
        return without_codes(column, notation), np.zeros(len(column), np.bool_)
    if not isinstance(column, list | tuple):
        values, doubtful = column.read(kind, notation)
        return values, doubtful
    if not _TEXTS.issuperset(map(type, column)):
        return read_each(column, kind, notation)
    found = None if kind == "category" else _quantities_in(column, kind, notation)
    return _distinct(column, kind, notation) if found is None else (found, np.zeros(len(column), np.bool_))


def has_value(column: Any, notation: Notation) -> BoolArray:
    """Return which values of a column of texts, or of an object with this as a method, may not be missing."""
    if isinstance(column, list | tuple):
        return np.array([text is not None and text not in notation.missing for text in column], np.bool_)
    found: BoolArray = column.has_value(notation)
    return found


# -- Value by value ----------------------------------------------------------------------------------------------------


def read_each(values: Iterable[object], kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
    """Read values one by one."""
    found: list[float | str | None] = []
    rejected = []
    nothing, read = None if kind == "category" else math.nan, READERS[kind]
    for value in values:
        try:
            found.append(nothing if value is None else read(value, "", notation=notation))
            rejected.append(False)
        except InvalidEvent:
            found.append(nothing)
            rejected.append(True)
    dtype = np.object_ if kind == "category" else np.float64
    return np.array(found, dtype), np.array(rejected, np.bool_)


def _distinct(texts: Sequence[str | None], kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
    """Read each distinct text of a column."""
    places = {text: at for at, text in enumerate(dict.fromkeys(texts))}
    found, rejected = read_each(places, kind, notation)
    codes = np.fromiter(map(places.__getitem__, texts), np.int64, len(texts))
    return found[codes], rejected[codes]


# -- Texts that are all numbers or times -------------------------------------------------------------------------------


_TEXTS = {str, type(None)}


def _quantities_in(texts: Sequence[Any], kind: ColumnKind, notation: Notation) -> FloatArray | None:
    """Convert texts to numbers or seconds; None if some of them have to be looked at one by one."""
    convert = _times_in if kind == "time" else _numbers_in
    if (found := convert(texts, notation)) is not None:
        return found
    is_given = has_value(texts, notation)
    if (found := convert([text for text, given in zip(texts, is_given, strict=True) if given], notation)) is None:
        return None
    values = np.full(len(texts), math.nan)
    values[is_given] = found
    return values


def _numbers_in(texts: Sequence[str], notation: Notation) -> FloatArray | None:
    """Convert texts to numbers where everything is a text; None if not all of them are finite ones."""
    if not notation.decimal:
        return None
    try:
        if notation.decimal == ",":  # a point then makes no number
            texts = [text.translate(SWAPPED) for text in texts]
        text = ",".join(texts).encode()
        if (values := numbers_in(text, len(texts))) is not None:
            return without_codes(values, notation)
        if text.replace(b",", b"").translate(None, _OF_NUMBERS):
            return None
        values = np.fromiter(map(float, texts), np.float64, len(texts))
    except ValueError:
        return None
    return without_codes(values, notation) if np.isfinite(values).all() else None


def numbers_in(text: bytes, n: int) -> FloatArray | None:
    """Convert n numbers between commas; None if it holds anything but finite ones as JSON has them.

    The parser of JSON takes a quarter of the time that `float` takes, for the same bits but those of -0.
    """
    try:
        values = np.array(_decode(b"[%b]" % text), np.float64)
    except ValueError:
        return None
    if len(values) != n or b"\n" in text or b"\r" in text:  # which are blanks to it
        return None
    is_unclear = not values.all() and (text.endswith(b"-0") or any(b"-0" + end in text for end in (b",", b" ", b"\t")))
    return None if is_unclear else values


def without_codes(values: FloatArray, notation: Notation) -> FloatArray:
    """Return numbers with NaN for those that stand for missing ones."""
    return np.where(np.isin(values, list(notation.codes)), math.nan, values) if notation.codes else values


def _times_in(texts: Sequence[str], notation: Notation) -> FloatArray | None:
    """Convert texts to seconds since 1970; None unless NumPy reads all of them, with the same zone or none."""
    if notation.time != ISO or None in texts:
        return None
    shapes = "\n".join(texts).translate(_AS_ZEROS).split("\n")
    zones = {"?" if match is None else match[1] for match in map(_TIME.fullmatch, set(shapes))}
    if len(shapes) != len(texts) or zones not in ({None}, {"Z"}):
        return None
    is_local = None in zones
    try:
        times = np.array(texts if is_local else [text[:-1] for text in texts], "datetime64[us]")
    except ValueError:
        return None
    return None if times.min() < _YEAR_1 else seconds_of(times.astype(np.int64), "us", notation, is_local=is_local)
