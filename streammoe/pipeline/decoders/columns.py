"""Columns of a batch as numbers, times and categories; each value as `streammoe.columns.values` reads it alone."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, types

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import READERS, SECOND_PARTS, LocalTime
from streammoe.errors import InvalidEvent
from streammoe.notation import DAY, ISO, Notation
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray

_FIRST = 32


def read_column(column: Any, kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
    """Read a column, and return which of its values have to be read alone, since they may be rejected.

    Args:
        column: of Arrow, of any type; or an array of floats, NaN where missing; or a list of values of several types.
        kind: what it holds; all but categories and times are read as numbers.
        notation: how that is written.
    """
    if isinstance(column, np.ndarray):
        return _without_codes(column, notation), np.zeros(len(column), np.bool_)
    if isinstance(column, list):
        return _each(column, kind, notation)
    if types.is_dictionary(column.type) and kind != "category":
        column = column.dictionary_decode()
    dtype, valid = column.type, valid_of(column)
    is_numeric = types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype)
    if kind == "category":
        return _distinct(column, kind, notation) if is_scalar(dtype) else (np.full(len(column), None), valid)
    if _is_text(dtype):
        for texts in _attempts(column, notation):
            found = _times_in(texts, notation) if kind == "time" else _numbers_in(texts, notation)
            if found is not None:
                return found, np.zeros(len(column), np.bool_)
        return _distinct(column, kind, notation)
    if kind == "time" and (types.is_timestamp(dtype) or types.is_date(dtype)):
        return _typed_times(column, notation), np.zeros(len(column), np.bool_)
    if is_numeric and kind == "time" and notation.time != ISO:
        return _distinct(column, kind, notation)
    if is_numeric or (types.is_boolean(dtype) and kind == "number"):
        column = column.cast(pa.string()) if types.is_decimal(dtype) else column  # rounds only once
        values = _floats(column.cast(pa.float64(), safe=False))
        doubtful = np.isinf(values) if "NaN" in notation.missing else ~np.isfinite(values) & valid
        return _without_codes(values, notation), doubtful
    return np.full(len(column), math.nan), valid


def to_python(column: Any) -> list[object]:
    """Convert values of a type that can be read to those that are read alone."""
    dtype = column.type
    if types.is_dictionary(dtype):
        return to_python(column.dictionary_decode())
    if types.is_timestamp(dtype) or types.is_date(dtype):
        # Python's own times have neither nanoseconds nor all time zones.
        ticks, unit = _ticks(column)
        times = ticks.view(f"datetime64[{unit}]")
        moments = map(LocalTime, times) if _is_local(dtype) else times
        return [moment if valid else None for moment, valid in zip(moments, valid_of(column), strict=True)]
    if _is_text(dtype):
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:  # the file declares text that is not UTF-8
            raw = column.cast(pa.large_binary() if types.is_large_string(dtype) else pa.binary()).to_pylist()
            return [None if value is None else value.decode(errors="surrogateescape") for value in raw]
    return list(column.to_pylist())


def has_value(column: Any, notation: Notation) -> BoolArray:
    """Return which values of a column of any kind may not be missing."""
    return valid_of(_without(column, notation) if _is_text(column.type) else column)


def valid_of(column: Any) -> BoolArray:
    """Return which values of a column are not null."""
    return _in_memory(column.is_valid().cast(pa.uint8())).view(np.bool_)


def texts_of(values: Iterable[object]) -> Any:
    """Return texts, and None, as a column, and raise `TypeError` for anything else; `pa.array` imports pandas."""
    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


def taken(column: Any, rows: IntArray) -> Any:
    """Return the values of these rows."""
    return column.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))]))


def is_scalar(dtype: Any) -> bool:
    """Return whether values of this type can be read as categories."""
    if types.is_dictionary(dtype):
        return is_scalar(dtype.value_type)
    is_number = types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype)
    return bool(is_number or _is_text(dtype) or types.is_boolean(dtype))


def is_readable(dtype: Any) -> bool:
    """Return whether values of this type can be read at all."""
    if types.is_dictionary(dtype):
        return is_readable(dtype.value_type)
    return bool(is_scalar(dtype) or types.is_timestamp(dtype) or types.is_date(dtype) or types.is_null(dtype))


# -- Value by value ----------------------------------------------------------------------------------------------------


def _each(values: Iterable[object], kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
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


def _distinct(column: Any, kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
    """Read each distinct value of a column."""
    if not types.is_dictionary(column.type):
        # Arrow cannot encode half floats as dictionaries.
        column = (column.cast(pa.float32()) if types.is_float16(column.type) else column).dictionary_encode()
    found, rejected = _each([*to_python(column.dictionary), None], kind, notation)
    codes = np.where(valid_of(column.indices), _in_memory(column.indices), len(column.dictionary))
    return found[codes], rejected[codes]


def _attempts(texts: Any, notation: Notation) -> Iterator[Any]:
    """Yield texts as they are, and without those that stand for a missing value, nor blanks around cells of csv."""
    yield texts
    yield _without(compute.ascii_trim(texts, " \t") if notation.decimal else texts, notation)


def _cast(texts: Any, dtype: Any) -> Any:
    """Convert texts to another type; None if one of them cannot be."""
    try:
        texts[:_FIRST].cast(dtype)  # an error takes long where all of them are such
        return texts.cast(dtype)
    except pa.ArrowInvalid:
        return None


# -- Numbers -----------------------------------------------------------------------------------------------------------


def _numbers_in(texts: Any, notation: Notation) -> FloatArray | None:
    """Convert texts to numbers where everything is a text; None if Arrow does not take all of them for finite ones."""
    if notation.decimal == ",":  # a point then makes no number
        texts = compute.replace_substring(compute.replace_substring(texts, ".", "?"), ",", ".")
    if not notation.decimal or (cast := _cast(texts, pa.float64())) is None:
        return None
    values = _floats(cast)
    is_sound = np.isfinite(values).sum() == len(values) - texts.null_count
    return _without_codes(values, notation) if is_sound else None


def _without_codes(values: FloatArray, notation: Notation) -> FloatArray:
    """Return numbers with NaN for those that stand for missing ones."""
    return np.where(np.isin(values, list(notation.codes)), math.nan, values) if notation.codes else values


def _floats(column: Any) -> FloatArray:
    """Convert a column of 64-bit floats to an array, with NaN for null; it may be read-only."""
    values = _in_memory(column)
    return np.where(valid_of(column), values, math.nan) if column.null_count else values


def _in_memory(column: Any) -> AnyArray:
    """View the numbers in a column's buffer as a read-only array; they are arbitrary for null.

    Arrow's own conversion imports pandas, which takes a quarter of a second in the first batch, and memory.
    """
    return np.from_dlpack(
        pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    )


# -- Times -------------------------------------------------------------------------------------------------------------


def _times_in(column: Any, notation: Notation) -> FloatArray | None:
    """Convert texts to seconds since 1970 if Arrow takes all of them for times, with an offset from UTC or without."""
    for zone in (None, "UTC") if notation.time == ISO else ():
        if (times := _cast(column, pa.timestamp("ns", zone))) is not None:
            return _typed_times(times, notation)
    return None


def _in_utc(seconds: IntArray, notation: Notation) -> IntArray:
    """Convert local times as `Notation.utc` does."""
    return np.fromiter(map(notation.utc, seconds.tolist()), np.int64, len(seconds)) if notation.zone else seconds


def _typed_times(column: Any, notation: Notation) -> FloatArray:
    """Convert a column of times or dates to seconds since 1970."""
    ticks, unit = _ticks(column)
    whole, parts = np.divmod(ticks, SECOND_PARTS[unit])
    whole = whole * DAY if unit == "D" else whole
    whole = _in_utc(whole, notation) if _is_local(column.type) else whole
    values = whole.astype(np.float64) + (parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit])) / 1e9
    values[~valid_of(column)] = math.nan
    return values


def _ticks(column: Any) -> tuple[AnyArray, str]:
    """Convert times to counts of a unit since 1970, arbitrary for null, and return the unit."""
    if types.is_date32(column.type):
        return _in_memory(column.cast(pa.int32())).astype(np.int64), "D"
    unit = "ms" if types.is_date64(column.type) else column.type.unit
    return _in_memory(column.cast(pa.int64())), unit


def _without(texts: Any, notation: Notation) -> Any:
    """Return a column of texts with null for those that stand for a missing value."""
    missing = compute.is_in(texts, texts_of(sorted(notation.missing)).cast(texts.type))
    return compute.if_else(missing, pa.nulls(1, texts.type)[0], texts)


def _is_local(dtype: Any) -> bool:
    """Return whether times of this type name no time zone."""
    return bool(types.is_date(dtype) or dtype.tz is None)


def _is_text(dtype: Any) -> bool:
    return bool(types.is_string(dtype) or types.is_large_string(dtype))
