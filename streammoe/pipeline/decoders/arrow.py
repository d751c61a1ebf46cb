"""Decode Arrow tables, such as those read from Parquet files, whose columns are typed and where null is missing.

Imported only where there are such tables: Arrow is large, and not always installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import LocalTime, Unsupported, seconds_of
from streammoe.notation import ISO, Notation
from streammoe.pipeline.decoders.columns import has_value, read_column, read_each, without_codes
from streammoe.pipeline.decoders.decoder import Decoder, Found
from streammoe.pipeline.decoders.rows import NewNames, Slot, Values
from streammoe.ports import Batch
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray


class ArrowDecoder(Decoder):
    """A decoder for batches whose ``table`` is a ``pyarrow.RecordBatch``."""

    def header(self, batch: Batch) -> tuple[str, ...]:
        return tuple(batch.table.schema.names)

    def names(self, batch: Batch, i: int) -> Values:
        return self.reader(batch, np.array([i]), self.header(batch))(0)

    def reader(self, batch: Batch, rows: IntArray, names: Collection[str]) -> Callable[[int], Values]:
        columns = {
            name: _to_python(_taken(column, rows))
            if _is_readable(column.type)
            else [Unsupported(str(column.type)) if valid else None for valid in _valid_of(column)[rows]]
            for name, column in _columns(batch).items()
            if name in names
        }
        return lambda at: {name: values[at] for name, values in columns.items()}

    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found:
        columns = {name: _Column(column.slice(start, stop - start)) for name, column in _columns(batch).items()}
        return Found(np.arange(start, stop), columns)


def _columns(batch: Batch) -> dict[str, Any]:
    """Return the columns by their names, views of strings as strings, since Arrow has few functions for views."""
    return {
        name: column.cast(pa.large_string()) if types.is_string_view(column.type) else column
        for name, column in zip(batch.table.schema.names, batch.table.columns, strict=True)
    }


class _Column:
    """A column of any type."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def read(self, kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
        column = self.values
        if types.is_dictionary(column.type) and kind != "category":
            column = column.dictionary_decode()
        dtype, valid = column.type, _valid_of(column)
        is_numeric = types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype)
        if kind == "category":
            return _distinct(column, kind, notation) if _is_scalar(dtype) else (np.full(len(column), None), valid)
        if _is_text(dtype):
            return read_column(_to_python(column), kind, notation)
        if kind == "time" and (types.is_timestamp(dtype) or types.is_date(dtype)):
            return _times(column, notation), np.zeros(len(column), np.bool_)
        if is_numeric and kind == "time" and notation.time != ISO:
            return _distinct(column, kind, notation)
        if is_numeric or (types.is_boolean(dtype) and kind == "number"):
            column = column.cast(pa.string()) if types.is_decimal(dtype) else column  # rounds only once
            values = _floats(column.cast(pa.float64(), safe=False))
            doubtful = np.isinf(values) if "NaN" in notation.missing else ~np.isfinite(values) & valid
            return without_codes(values, notation), doubtful
        return np.full(len(column), math.nan), valid

    def has_value(self, notation: Notation) -> BoolArray:
        return has_value(_to_python(self.values), notation) if _is_text(self.values.type) else _valid_of(self.values)


def _to_python(column: Any) -> list[object]:
    """Convert values of a type that can be read to those that are read alone."""
    dtype = column.type
    if types.is_dictionary(dtype):
        return _to_python(column.dictionary_decode())
    if types.is_timestamp(dtype) or types.is_date(dtype):
        # Python's own times have neither nanoseconds nor all time zones.
        ticks, unit = _ticks(column)
        times = ticks.view(f"datetime64[{unit}]")
        moments = map(LocalTime, times) if _is_local(dtype) else times
        return [moment if valid else None for moment, valid in zip(moments, _valid_of(column), strict=True)]
    if _is_text(dtype):
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:  # the file declares text that is not UTF-8
            raw = column.cast(pa.large_binary() if types.is_large_string(dtype) else pa.binary()).to_pylist()
            return [None if value is None else value.decode(errors="surrogateescape") for value in raw]
    return list(column.to_pylist())


def _distinct(column: Any, kind: ColumnKind, notation: Notation) -> tuple[AnyArray, BoolArray]:
    """Read each distinct value of a column."""
    if not types.is_dictionary(column.type):
        # Arrow cannot encode half floats as dictionaries.
        column = (column.cast(pa.float32()) if types.is_float16(column.type) else column).dictionary_encode()
    found, rejected = read_each([*_to_python(column.dictionary), None], kind, notation)
    codes = np.where(_valid_of(column.indices), _in_memory(column.indices), len(column.dictionary))
    return found[codes], rejected[codes]


def _valid_of(column: Any) -> BoolArray:
    """Return which values of a column are not null."""
    return _in_memory(column.is_valid().cast(pa.uint8())).view(np.bool_)


def _taken(column: Any, rows: IntArray) -> Any:
    """Return the values of these rows."""
    return column.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))]))


def _floats(column: Any) -> FloatArray:
    """Convert a column of 64-bit floats to an array, with NaN for null; it may be read-only."""
    values = _in_memory(column)
    return np.where(_valid_of(column), values, math.nan) if column.null_count else values


def _in_memory(column: Any) -> AnyArray:
    """View the numbers in a column's buffer as a read-only array; they are arbitrary for null.

    Arrow's own conversion imports pandas, which takes a quarter of a second in the first batch, and memory.
    """
    return np.from_dlpack(
        pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    )


def _times(column: Any, notation: Notation) -> FloatArray:
    """Convert a column of times or dates to seconds since 1970."""
    ticks, unit = _ticks(column)
    values = seconds_of(ticks, unit, notation, is_local=_is_local(column.type))
    values[~_valid_of(column)] = math.nan
    return values


def _ticks(column: Any) -> tuple[AnyArray, str]:
    """Convert times to counts of a unit since 1970, arbitrary for null, and return the unit."""
    if types.is_date32(column.type):
        return _in_memory(column.cast(pa.int32())).astype(np.int64), "D"
    unit = "ms" if types.is_date64(column.type) else column.type.unit
    return _in_memory(column.cast(pa.int64())), unit


# -- Types -------------------------------------------------------------------------------------------------------------


def _is_scalar(dtype: Any) -> bool:
    """Return whether values of this type can be read as categories."""
    if types.is_dictionary(dtype):
        return _is_scalar(dtype.value_type)
    is_number = types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype)
    return bool(is_number or _is_text(dtype) or types.is_boolean(dtype))


def _is_readable(dtype: Any) -> bool:
    """Return whether values of this type can be read at all."""
    if types.is_dictionary(dtype):
        return _is_readable(dtype.value_type)
    return bool(_is_scalar(dtype) or types.is_timestamp(dtype) or types.is_date(dtype) or types.is_null(dtype))


def _is_local(dtype: Any) -> bool:
    """Return whether times of this type name no time zone."""
    return bool(types.is_date(dtype) or dtype.tz is None)


def _is_text(dtype: Any) -> bool:
    return bool(types.is_string(dtype) or types.is_large_string(dtype))
