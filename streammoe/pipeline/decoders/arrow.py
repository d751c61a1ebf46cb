"""Decode Arrow tables, such as those read from Parquet files, whose columns are typed and where null is missing."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from streammoe.errors import InvalidEvent
from streammoe.notation import DAY, ISO, USUAL, Notation
from streammoe.pipeline.decoders.rows import DecodedBatch, FieldRoles, Sheet, Values, growing_runs, require_targets
from streammoe.pipeline.decoders.values import SECOND_PARTS, TIME, Kind, LocalTime, Unreadable, label
from streammoe.ports import Batch
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray


class ArrowDecoder:
    """A decoder for batches whose ``table`` is a ``pyarrow.RecordBatch``.

    A value of an unsupported type (list, structure, bytes, duration) becomes an `Unreadable` that names the type.
    """

    def names(self, batch: Batch, i: int) -> Values:
        return {name: _to_python(column.slice(i, 1))[0] for name, column in _columns(batch).items()}

    def names_beyond(self, batch: Batch, known: Collection[str], most: int) -> set[str]:
        return set(sorted(_columns(batch).keys() - known)[:most])

    def unsupported(self, batch: Batch) -> dict[str, str]:
        types_of = ((name, column.type) for name, column in _columns(batch).items())
        return {name: str(dtype) for name, dtype in types_of if not _is_readable(dtype)}

    def decode(
        self,
        batch: Batch,
        roles: FieldRoles,
        ignore: Collection[str] | None = None,
        awaited: Collection[str] = (),
    ) -> DecodedBatch:
        columns = _columns(batch)
        require_targets(batch.origin, tuple(columns), roles)
        sheet = Sheet(len(batch), roles)
        candidates = sheet.candidates(columns, ignore, awaited)
        new = [name for name in candidates if columns[name].null_count < len(batch)]
        for start, stop in growing_runs(len(batch)) if new else [(0, len(batch))]:
            n = stop - start
            run = {name: column.slice(start, n) for name, column in columns.items()}
            _fill(sheet, start, n, run)
            has_new = np.zeros(n, np.bool_)
            for name in new:
                has_new |= valid_of(run[name])

            def read(i: int) -> Values:
                return {name: _to_python(columns[name].slice(i, 1))[0] for name in new}

            if sheet.first_new(start, has_new, read, text=False):
                break
        return sheet.finish()


def texts_of(column: Any, notation: Notation) -> tuple[list[str | None], BoolArray]:
    """Convert a column to labels by `decoders.values.label`, and return which values that rejects."""
    if not types.is_dictionary(column.type):
        # Arrow cannot encode half floats as dictionaries.
        column = (column.cast(pa.float32()) if types.is_float16(column.type) else column).dictionary_encode()
    n = len(column.dictionary)
    levels = np.full(n + 1, None, np.object_)
    rejected = np.zeros(n + 1, np.bool_)
    for code, value in enumerate(_to_python(column.dictionary)):
        try:
            levels[code] = label("", value, text=False, notation=notation)
        except InvalidEvent:
            rejected[code] = True
    codes = np.where(valid_of(column.indices), in_memory(column.indices), n)
    return levels[codes].tolist(), rejected[codes]


def floats_of(column: Any) -> FloatArray:
    """Convert a column of 64-bit floats to a read-only array, with NaN for null."""
    values = in_memory(column)
    return np.where(valid_of(column), values, math.nan) if column.null_count else values


def in_memory(column: Any) -> AnyArray:
    """View the numbers in a column's buffer as a read-only array; they are arbitrary for null.

    Arrow's own conversion imports pandas, which takes a quarter of a second in the first batch, and memory.
    """
    return np.from_dlpack(
        pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    )


def times_of(column: Any, notation: Notation = USUAL) -> FloatArray | None:
    """Convert times in ISO 8601 to seconds since 1970; return ``None`` unless all are valid and have one layout."""
    if notation.time != ISO:
        return None
    seconds = np.full(len(column), math.nan)
    valid = valid_of(column)
    column = column.drop_null().cast(pa.large_string())
    n = len(column)
    if not n:
        return seconds
    _, ends, block = column.buffers()
    ends = np.frombuffer(ends, np.int64)[column.offset : column.offset + n + 1]
    first = np.frombuffer(block, np.uint8)[ends[0] : ends[1]]
    match = TIME.fullmatch(first.tobytes().decode(errors="replace"))
    if match is None or (np.diff(ends) != len(first)).any():
        return None
    characters = np.frombuffer(block, np.uint8)[ends[0] : ends[-1]].reshape(n, len(first))
    digits = characters - np.uint8(ord("0"))  # wraps around for characters that precede the digits
    is_digit = digits[0] <= 9
    if (characters[:, ~is_digit] != first[~is_digit]).any() or (digits[:, is_digit] > 9).any():
        return None

    def part(group: int) -> IntArray:
        number = np.zeros(n, np.int64)
        for position in range(*match.span(group)):  # empty for a missing part
            number = 10 * number + digits[:, position]
        return number

    year, month, day, hour, minute, second, fraction = map(part, range(1, 8))
    hours, minutes = part(10), part(11)
    if not match[3]:
        day += 1
    months = 12 * (year - 1970) + month - 1
    month_start, month_end = (
        ticks.view("datetime64[M]").astype("datetime64[D]").astype(np.int64) for ticks in (months, months + 1)
    )
    for value, least, most in (
        (year, 1, 9999),
        (month, 1, 12),
        (day, 1, month_end - month_start),
        *((hour, 0, 23), (minute, 0, 59), (second, 0, 59), (hours, 0, 23), (minutes, 0, 59)),
    ):
        if ((value < least) | (value > most)).any():
            return None
    offset = (hours * 3600 + minutes * 60) * (-1 if match[9] == "-" else 1)
    whole = (month_start + day - 1) * DAY + hour * 3600 + minute * 60 + second - offset
    if not (match[8] or match[9]):
        whole = _in_utc(whole, notation)
    begin, end = match.span(7)
    seconds[valid] = whole.astype(np.float64) + fraction * 10 ** (9 - (end - begin)) / 1e9
    return seconds


def _in_utc(seconds: IntArray, notation: Notation) -> IntArray:
    """Convert local times as `Notation.utc` does."""
    return np.fromiter(map(notation.utc, seconds.tolist()), np.int64, len(seconds)) if notation.zone else seconds


def _columns(batch: Batch) -> dict[str, Any]:
    return {
        # Arrow has few functions for views.
        name: column.cast(pa.large_string()) if types.is_string_view(column.type) else column
        for name, column in zip(batch.table.schema.names, batch.table.columns, strict=True)
    }


def _fill(sheet: Sheet, start: int, n: int, columns: dict[str, Any]) -> None:
    """Store all values that have only one reading, and read records with others one by one, as `Sheet.put` does."""
    doubtful = np.zeros(n, np.bool_)
    mixed_times = []
    for j, (name, kind, notation) in enumerate(sheet.slots):
        column = columns.get(name)
        if column is None or column.null_count == n:
            continue
        if types.is_dictionary(column.type) and kind != "text":
            column = column.dictionary_decode()
        if kind == "text" and _is_scalar(column.type):
            sheet.texts[j][start : start + n], rejected = texts_of(column, notation)
            doubtful |= rejected
        elif kind == "time" and (_is_text(column.type) or notation.time != ISO):
            seconds = times_of(column, notation)
            if seconds is None:
                mixed_times.append((j, column))
            else:
                sheet.numbers[start : start + n, j] = seconds
        elif (values := _floats(column, kind, notation)) is not None:
            sheet.numbers[start : start + n, j] = values
            doubtful |= np.isinf(values) if "NaN" in notation.missing else ~np.isfinite(values) & valid_of(column)
        else:
            doubtful |= valid_of(column)
    rows = np.flatnonzero(doubtful)
    if rows.size:
        exact = {slot.name: _rows_to_python(columns[slot.name], rows) for slot in sheet.slots if slot.name in columns}
        for at, i in enumerate((start + rows).tolist()):
            try:
                sheet.put(i, {name: column[at] for name, column in exact.items()}, text=False)
            except InvalidEvent as error:
                sheet.reject(i, error)
    # Last, since the first reason for which a record is rejected is the one that is reported.
    for j, column in mixed_times:
        sheet.put_column(j, range(start, start + n), _to_python(column), text=False)
    sheet.check_rows(start, start + n)


def _floats(column: Any, kind: Kind, notation: Notation) -> FloatArray | None:
    """Convert a column of numbers or times to floats, with NaN for null; ``None`` if it holds neither."""
    dtype = column.type
    if kind == "time" and (types.is_timestamp(dtype) or types.is_date(dtype)):
        ticks, unit = _ticks(column)
        whole, parts = np.divmod(ticks, SECOND_PARTS[unit])
        whole = whole * DAY if unit == "D" else whole
        whole = _in_utc(whole, notation) if _is_local(dtype) else whole
        values = whole.astype(np.float64) + (parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit])) / 1e9
        values[~valid_of(column)] = math.nan
        return values
    if types.is_decimal(dtype):
        column = column.cast(pa.string())  # rounds only once
    elif not (types.is_integer(dtype) or types.is_floating(dtype) or (types.is_boolean(dtype) and kind == "number")):
        return None
    return floats_of(column.cast(pa.float64(), safe=False))


def _ticks(column: Any) -> tuple[AnyArray, str]:
    """Convert times to counts of a unit since 1970, arbitrary for null, and return the unit."""
    if types.is_date32(column.type):
        return in_memory(column.cast(pa.int32())).astype(np.int64), "D"
    unit = "ms" if types.is_date64(column.type) else column.type.unit
    return in_memory(column.cast(pa.int64())), unit


def valid_of(column: Any) -> BoolArray:
    """Return which values of a column are not null."""
    return in_memory(column.is_valid().cast(pa.uint8())).view(np.bool_)


def _to_python(column: Any) -> list[object]:
    """Convert values of any type to those that `Sheet.put` takes."""
    dtype = column.type
    if types.is_dictionary(dtype) and _is_readable(dtype):
        return _to_python(column.dictionary_decode())
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
    if _is_readable(dtype):
        return list(column.to_pylist())
    return [_unreadable(column) if valid else None for valid in valid_of(column)]


def _rows_to_python(column: Any, rows: IntArray) -> list[object]:
    """Convert some rows as `_to_python` does."""
    if _is_readable(column.type):
        return _to_python(column.take(pa.array(rows)))
    return [_unreadable(column) if valid else None for valid in valid_of(column)[rows]]


def _unreadable(column: Any) -> Unreadable:
    return Unreadable(f"a value of type {column.type}")


def _is_local(dtype: Any) -> bool:
    """Return whether times of this type name no time zone."""
    return bool(types.is_date(dtype) or dtype.tz is None)


def _is_text(dtype: Any) -> bool:
    return bool(types.is_string(dtype) or types.is_large_string(dtype))


def _is_scalar(dtype: Any) -> bool:
    """Return whether values of this type can be read as text."""
    if types.is_dictionary(dtype):
        return _is_scalar(dtype.value_type)
    is_number = types.is_integer(dtype) or types.is_floating(dtype) or types.is_decimal(dtype)
    return bool(is_number or _is_text(dtype) or types.is_boolean(dtype))


def _is_readable(dtype: Any) -> bool:
    """Return whether values of this type can be read as numbers, times or text."""
    if types.is_dictionary(dtype):
        return _is_readable(dtype.value_type)
    return bool(_is_scalar(dtype) or types.is_timestamp(dtype) or types.is_date(dtype) or types.is_null(dtype))
