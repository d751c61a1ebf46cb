"""Decoder for Arrow tables, as Parquet files hold them: null is missing, and every value has a type."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from streammoe.errors import InvalidEvent
from streammoe.pipeline.decoders.rows import DecodedBatch, FieldRoles, Sheet, Values, growing_runs, require_targets
from streammoe.pipeline.decoders.values import DAY, SECOND_PARTS, TIME, Kind, Unreadable, label
from streammoe.ports import Batch
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray


class ArrowDecoder:
    """A decoder for batches whose ``table`` is a ``pyarrow.RecordBatch``.

    Values of an unsupported type (lists, structures, bytes, durations) are only described by that type.
    """

    def names(self, batch: Batch, i: int) -> Values:
        return {name: _plain(column.slice(i, 1))[0] for name, column in _columns(batch).items()}

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
            parts = {name: column.slice(start, n) for name, column in columns.items()}
            _fill(sheet, start, n, parts)
            holds = np.zeros(n, np.bool_)
            for name in new:
                holds |= valid_of(parts[name])

            def read(i: int) -> Values:
                return {name: _plain(columns[name].slice(i, 1))[0] for name in new}

            if sheet.first_new(start, holds, read, text=False):
                break
        return sheet.finish()


def texts_of(column: Any) -> tuple[list[str | None], BoolArray]:
    """Return a column's values as `label` reads them, and which ones it rejects."""
    if not types.is_dictionary(column.type):
        # Arrow cannot encode half floats as dictionaries.
        column = (column.cast(pa.float32()) if types.is_float16(column.type) else column).dictionary_encode()
    n = len(column.dictionary)
    levels = np.full(n + 1, None, np.object_)
    rejected = np.zeros(n + 1, np.bool_)
    for code, value in enumerate(_plain(column.dictionary)):
        try:
            levels[code] = label("", value, text=False)
        except InvalidEvent:
            rejected[code] = True
    codes = np.where(valid_of(column.indices), in_memory(column.indices), n)
    return levels[codes].tolist(), rejected[codes]


def floats_of(column: Any) -> FloatArray:
    """Return a column of 64-bit floats, NaN for null; read-only."""
    values = in_memory(column)
    return np.where(valid_of(column), values, math.nan) if column.null_count else values


def in_memory(column: Any) -> AnyArray:
    """Return the numbers in a column's buffer, arbitrary for null; read-only.

    Arrow's own conversion imports pandas, which takes a quarter of a second in the first batch, and memory.
    """
    return np.from_dlpack(
        pa.Array.from_buffers(column.type, len(column), [None, column.buffers()[1]], offset=column.offset)
    )


def times_of(column: Any) -> FloatArray | None:
    """Read a column of texts as `seconds` does if all are times that differ only in digits; else return ``None``."""
    seconds = np.full(len(column), math.nan)
    there = valid_of(column)
    column = column.drop_null().cast(pa.large_string())
    n = len(column)
    if not n:
        return seconds
    _, ends, block = column.buffers()
    ends = np.frombuffer(ends, np.int64)[column.offset : column.offset + n + 1]
    layout = np.frombuffer(block, np.uint8)[ends[0] : ends[1]]
    match = TIME.fullmatch(layout.tobytes().decode(errors="replace"))
    if match is None or (np.diff(ends) != len(layout)).any():
        return None
    octets = np.frombuffer(block, np.uint8)[ends[0] : ends[-1]].reshape(n, len(layout))
    digits = octets - np.uint8(ord("0"))  # characters before the digits wrap around
    varies = digits[0] <= 9
    if (octets[:, ~varies] != layout[~varies]).any() or (digits[:, varies] > 9).any():
        return None

    def part(group: int) -> IntArray:
        number = np.zeros(n, np.int64)
        for at in range(*match.span(group)):  # empty for a missing part
            number = 10 * number + digits[:, at]
        return number

    year, month, day, hour, minute, second, fraction = map(part, range(1, 8))
    hours, minutes = part(9), part(10)
    months = 12 * (year - 1970) + month - 1
    first, after = (
        ticks.view("datetime64[M]").astype("datetime64[D]").astype(np.int64) for ticks in (months, months + 1)
    )
    for value, least, most in (
        (year, 1, 9999),
        (month, 1, 12),
        (day, 1, after - first),
        *((hour, 0, 23), (minute, 0, 59), (second, 0, 59), (hours, 0, 23), (minutes, 0, 59)),
    ):
        if ((value < least) | (value > most)).any():
            return None
    offset = (hours * 3600 + minutes * 60) * (-1 if match[8] == "-" else 1)
    whole = (first + day - 1) * DAY + hour * 3600 + minute * 60 + second - offset
    begin, end = match.span(7)
    seconds[there] = whole.astype(np.float64) + fraction * 10 ** (9 - (end - begin)) / 1e9
    return seconds


def _columns(batch: Batch) -> dict[str, Any]:
    return {
        # Arrow has few functions for views.
        name: column.cast(pa.large_string()) if types.is_string_view(column.type) else column
        for name, column in zip(batch.table.schema.names, batch.table.columns, strict=True)
    }


def _fill(sheet: Sheet, start: int, n: int, columns: dict[str, Any]) -> None:
    """Store all unambiguous values, and let the exact path decide on records with others."""
    doubtful = np.zeros(n, np.bool_)
    times = []
    for j, (name, kind) in enumerate(sheet.slots):
        column = columns.get(name)
        if column is None or column.null_count == n:
            continue
        if types.is_dictionary(column.type) and kind != "text":
            column = column.dictionary_decode()
        if kind == "text" and _is_scalar(column.type):
            sheet.texts[j][start : start + n], rejected = texts_of(column)
            doubtful |= rejected
        elif kind == "time" and _is_text(column.type):
            seconds = times_of(column)
            if seconds is None:
                times.append((j, column))
            else:
                sheet.numbers[start : start + n, j] = seconds
        elif (values := _floats(column, kind)) is not None:
            sheet.numbers[start : start + n, j] = values
            finite = np.isfinite(values)
            if n - np.count_nonzero(finite) != column.null_count:
                doubtful |= ~finite & valid_of(column)
        else:
            doubtful |= valid_of(column)
    odd = np.flatnonzero(doubtful)
    if odd.size:
        roles = {slot.name: _some(columns[slot.name], odd) for slot in sheet.slots if slot.name in columns}
        for at, i in enumerate((start + odd).tolist()):
            try:
                sheet.put(i, {name: values[at] for name, values in roles.items()}, text=False)
            except InvalidEvent as error:
                sheet.reject(i, error)
    # After the others, since records rejected here must have no earlier reason.
    for j, column in times:
        sheet.put_column(j, range(start, start + n), _plain(column), text=False)
    sheet.judge(start, start + n)


def _floats(column: Any, kind: Kind) -> FloatArray | None:
    """Return a column of numbers or times as floats, NaN for null; ``None`` if it holds neither."""
    holds = column.type
    if kind == "time" and (types.is_timestamp(holds) or types.is_date(holds)):
        ticks, unit = _ticks(column)
        if unit == "D":
            values = (ticks * DAY).astype(np.float64)
        else:
            whole, parts = np.divmod(ticks, SECOND_PARTS[unit])
            values = whole.astype(np.float64) + (parts * (SECOND_PARTS["ns"] // SECOND_PARTS[unit])) / 1e9
        values[~valid_of(column)] = math.nan
        return values
    if types.is_decimal(holds):
        column = column.cast(pa.string())  # rounds only once
    elif not (types.is_integer(holds) or types.is_floating(holds) or (types.is_boolean(holds) and kind == "number")):
        return None
    return floats_of(column.cast(pa.float64(), safe=False))


def _ticks(column: Any) -> tuple[AnyArray, str]:
    """Return times as whole numbers of a unit since 1970, arbitrary for null."""
    if types.is_date32(column.type):
        return in_memory(column.cast(pa.int32())).astype(np.int64), "D"
    unit = "ms" if types.is_date64(column.type) else column.type.unit
    return in_memory(column.cast(pa.int64())), unit


def valid_of(column: Any) -> BoolArray:
    """Return which values of a column are not null."""
    return in_memory(column.is_valid().cast(pa.uint8())).view(np.bool_)


def _plain(column: Any) -> list[object]:
    """Convert values of any type to those that the exact path reads."""
    holds = column.type
    if types.is_dictionary(holds) and _is_readable(holds):
        return _plain(column.dictionary_decode())
    if types.is_timestamp(holds) or types.is_date(holds):
        # Python's own times have neither nanoseconds nor all time zones.
        ticks, unit = _ticks(column)
        times = ticks.view(f"datetime64[{unit}]")
        return [time if valid else None for time, valid in zip(times, valid_of(column), strict=True)]
    if _is_text(holds):
        try:
            return list(column.to_pylist())
        except UnicodeDecodeError:  # a file may claim to hold UTF-8 and not do so
            raw = column.cast(pa.large_binary() if types.is_large_string(holds) else pa.binary()).to_pylist()
            return [None if value is None else value.decode(errors="surrogateescape") for value in raw]
    if _is_readable(holds):
        return list(column.to_pylist())
    return [_unreadable(column) if valid else None for valid in valid_of(column)]


def _some(column: Any, rows: IntArray) -> list[object]:
    """Apply `_plain` to some rows only."""
    if _is_readable(column.type):
        return _plain(column.take(pa.array(rows)))
    return [_unreadable(column) if valid else None for valid in valid_of(column)[rows]]


def _unreadable(column: Any) -> Unreadable:
    return Unreadable(f"a value of type {column.type}")


def _is_text(holds: Any) -> bool:
    return bool(types.is_string(holds) or types.is_large_string(holds))


def _is_scalar(holds: Any) -> bool:
    """Whether values of this type can be read as text."""
    if types.is_dictionary(holds):
        return _is_scalar(holds.value_type)
    is_number = types.is_integer(holds) or types.is_floating(holds) or types.is_decimal(holds)
    return bool(is_number or _is_text(holds) or types.is_boolean(holds))


def _is_readable(holds: Any) -> bool:
    """Whether some kind of slot can take values of this type."""
    if types.is_dictionary(holds):
        return _is_readable(holds.value_type)
    return bool(_is_scalar(holds) or types.is_timestamp(holds) or types.is_date(holds) or types.is_null(holds))
