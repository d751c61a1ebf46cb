"""Comma-separated values (RFC 4180, and quotes as plain characters inside unquoted fields)."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import compute, csv

from streammoe.errors import InvalidEvent, SourceError
from streammoe.notation import BOOLEANS, CommaText, Notation
from streammoe.pipeline.decoders.arrow import floats_of, texts_of, times_of, valid_of
from streammoe.pipeline.decoders.rows import (
    DecodedBatch,
    FieldRoles,
    Sheet,
    Slot,
    Values,
    growing_runs,
    is_utf8,
    malformed,
    readable,
    require_targets,
    text_of,
)
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import shown
from streammoe.types import AnyArray, IntArray

_FIELD = {
    delimiter: re.compile(
        r'(?:"([^"]*(?:""[^"]*)*)"|([^"{0}\r\n][^{0}\r\n]*|))([{0}]|\Z)'.replace("{0}", re.escape(delimiter))
    )
    for delimiter in DELIMITERS
}
_SAMPLED = 4  # records that determine which columns hold booleans,
_SAMPLED_MOST = 32  # or more while a column has been empty
_FEW = 256  # a run of so few records is decoded one by one rather than halved again
_TRUE, _FALSE = ([form(text) for form in (str.lower, str.title, str.upper)] for text in sorted(BOOLEANS, reverse=True))


class CsvDecoder:
    """A decoder for csv records; the batch holds the column names."""

    def names(self, batch: Batch, i: int) -> Values:
        record = text_of(readable(batch, i))
        if record.startswith("\ufeff"):
            raise malformed(record, "must not begin with a byte order mark, which may only begin a stream")
        fields = _fields(record, batch.delimiter)
        columns = _columns(batch)
        if len(fields) == 1 < len(columns):
            mark = shown(batch.delimiter)
            raise malformed(
                record, f"must have {len(columns)} values between {mark}; only those at its end may be left out"
            )
        for j, field in enumerate(fields):
            if field and not field.isspace() and (j >= len(columns) or not columns[j]):
                raise malformed(record, _surplus(batch, columns, j, field))
        values = [*(map(CommaText, fields) if batch.decimal == "," else fields), *[""] * (len(columns) - len(fields))]
        return {name: value for name, value in zip(columns, values, strict=False) if name}

    def names_beyond(self, batch: Batch, known: Collection[str], most: int) -> set[str]:
        return set(sorted(set(_columns(batch)) - set(known) - {""})[:most])

    def unsupported(self, batch: Batch) -> dict[str, str]:
        return {}

    def decode(
        self,
        batch: Batch,
        roles: FieldRoles,
        ignore: Collection[str] | None = None,
        awaited: Collection[str] = (),
    ) -> DecodedBatch:
        header = _columns(batch)
        require_targets(batch.origin, header, roles, lambda: _guess(batch, roles))
        sheet = Sheet(len(batch), roles)
        new = tuple(sheet.candidates(filter(None, header), ignore, awaited))
        halves = not (roles.notations.units or roles.notations.thousands)
        runs = list(growing_runs(len(batch)))[::-1] if new else [(0, len(batch))] * bool(len(batch))
        while runs and sheet.new is None:
            start, stop = runs.pop()
            if self._fill(sheet, batch, start, stop, new):
                continue
            if stop - start > _FEW and halves:
                # Halving keeps the rare bad record from slowing down thousands of good ones; units are in all of them.
                middle = (start + stop) // 2
                runs += [(middle, stop), (start, middle)]
                continue
            for i in range(start, stop):
                try:
                    values = self.names(batch, i)
                    sheet.put(i, values, text=True)
                    if new_values := sheet.check_new(i, {name: values[name] for name in new}, text=True):
                        sheet.new = (i, new_values)
                        break
                except InvalidEvent as error:
                    sheet.reject(i, error)
        return sheet.finish()

    def _fill(self, sheet: Sheet, batch: Batch, start: int, stop: int, new: tuple[str, ...]) -> bool:
        """Decode records `start` to `stop` by Arrow's parser; return false if the exact path must decide."""
        base = int(batch.ends[start - 1]) if start else 0
        ends = batch.ends[start:stop] - base
        block = batch.block[base : base + int(ends[-1])] if ends.size else b""
        width = self._width(batch, start)
        header = (*_columns(batch), *[""] * width)[:width]
        # Arrow gets numbers as column names, since names in the header may be special, and some columns have none.
        where = {name: str(j) for j, name in enumerate(header) if name}
        new = tuple(name for name in new if name in where)
        numbers = [slot for slot in sheet.slots if slot.kind == "number" and slot.name in where]
        booleans = self._booleans(batch, start, stop, numbers)
        # Arrow knows one set for all columns. Those of texts are looked at later.
        missing = frozenset.intersection(*(slot.notation.missing for slot in numbers)) if numbers else frozenset[str]()
        types = {where[name]: pa.string() for name in new}
        for name, kind, _ in sheet.slots:
            if name in where:
                number = pa.bool_() if name in booleans else pa.float64()
                expected = number if kind == "number" else pa.string()
                if types.setdefault(where[name], expected) != expected:
                    return False  # one column with two roles
        if not types or width == 1 < len(_columns(batch)) or not _plain(block, ends, batch.delimiter):
            return False
        nameless = [str(j) for j, name in enumerate(header) if not name]
        types |= dict.fromkeys(nameless, pa.string())
        # Numbers first, since records rejected below must have no earlier reason. Hardly any block holds a text that
        # stands for a missing one, and to look for all of them takes time.
        for nulls in ([""], sorted(missing)):
            table = _parsed(batch, block, len(header), types, nulls)
            if table is not None and len(table) == stop - start and _take_numbers(sheet, start, table, where):
                break
        else:
            return False
        if any(compute.any(compute.not_equal(table[j], "")).as_py() for j in nameless):
            return False
        for j, (name, kind, notation) in enumerate(sheet.slots):
            if kind == "text" and name in where:
                texts, doubtful = texts_of(table[where[name]].combine_chunks(), notation)
                if doubtful.any():
                    return False
                sheet.texts[j][start:stop] = texts
            elif kind == "time" and name in where:
                column = table[where[name]].combine_chunks()
                seconds = times_of(column, notation)
                if seconds is None:
                    column = _without(column, notation)
                    seconds = times_of(column, notation)
                if seconds is None:
                    cells = column.to_pylist()
                    if batch.decimal == ",":
                        cells = [None if cell is None else CommaText(cell) for cell in cells]
                    sheet.put_column(j, range(start, stop), cells, text=True)
                else:
                    sheet.numbers[start:stop, j] = seconds
        sheet.check_rows(start, stop)
        holds = np.zeros(stop - start, np.bool_)
        for name in new:
            holds |= valid_of(_without(table[where[name]].combine_chunks(), sheet.roles.notations.of(name)))

        def read(i: int) -> Values:
            values = self.names(batch, i)
            return {name: values[name] for name in new}

        sheet.first_new(start, holds, read, text=True)
        return True

    def _width(self, batch: Batch, i: int) -> int:
        """Return how many values the i-th record has, or as many as there are columns if it cannot be read."""
        try:
            return len(_fields(text_of(batch.record(i)), batch.delimiter))
        except InvalidEvent:
            return len(_columns(batch))

    def _booleans(self, batch: Batch, start: int, stop: int, slots: Collection[Slot]) -> set[str]:
        """Return those of the columns that hold only booleans in the first records."""
        cells: dict[str, set[str]] = {slot.name: set() for slot in slots}
        for i in range(start, min(start + _SAMPLED_MOST, stop)):
            if i >= start + _SAMPLED and all(cells.values()):
                break
            try:
                values = self.names(batch, i)
            except InvalidEvent:
                break
            for slot in slots:
                if not slot.notation.is_missing(values[slot.name]):
                    cells[slot.name].add(str(values[slot.name]).lower())
        return {name for name, seen in cells.items() if seen and seen <= BOOLEANS.keys()}


def _columns(batch: Batch) -> tuple[str, ...]:
    if batch.columns is None:
        raise SourceError(f"{batch.origin} gives csv records without column names; its first line must be a header")
    return batch.columns


def _surplus(batch: Batch, columns: Sequence[str], j: int, field: str) -> str:
    """Say what is wrong with a value in a column without a name."""
    if j >= len(columns):
        return (
            f"holds {shown(field)} in column {j + 1}, and the header names {len(columns)}; quote values that contain "
            f"{shown(batch.delimiter)}, or name that column in the header"
        )
    return (
        f"holds {shown(field)} in column {j + 1}, which has no name in the header; name it there, or leave the header "
        "out by source.skip_lines and name every column by source.header"
    )


def _guess(batch: Batch, roles: FieldRoles) -> str:
    """Say which line of the opening looks like the header, and how to begin there; nothing if none does."""
    targets = {*roles.targets, *(name for name in (roles.label,) if name is not None)}
    for n, line in enumerate(batch.opening.decode(errors="replace").split("\n")):
        for mark in (batch.delimiter, *DELIMITERS):
            if n and targets <= {cell.strip(' \t\r"') for cell in line.split(mark)}:
                also = "" if mark == batch.delimiter else f" and source.delimiter to {json.dumps(mark)}"
                return f"; line {n + 1} looks like the header: set source.skip_lines to {n}{also}"
    return ""


def _fields(record: str, delimiter: str) -> list[str]:
    if '"' not in record and "\r" not in record and "\n" not in record:
        return record.split(delimiter)
    fields = []
    start = 0
    while match := _FIELD[delimiter].match(record, start):
        quoted, plain, separator = match.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if not separator:
            return fields
        start = match.end()
    raise malformed(
        record,
        f"must pair its quotes and have line ends only inside them, and does not from {start} on; put a value that "
        'holds a quote in quotes and double it there, as in "a ""b""" (from MySQL by FIELDS ESCAPED BY \'"\')',
    )


def _plain(block: bytes, ends: IntArray, delimiter: str) -> bool:
    """Whether every csv reader would see the same records and fields in `block`.

    Records end where lines end outside quotes; quotes only surround whole fields or are doubled inside them.
    """
    lone_returns = b"\r" in block and block.count(b"\r") != block.count(b"\r\n")
    has_mark = codecs.BOM_UTF8 in block and (block.startswith(codecs.BOM_UTF8) or b"\n" + codecs.BOM_UTF8 in block)
    if lone_returns or has_mark or not is_utf8(block):
        return False
    octets = np.frombuffer(block, np.uint8)
    lines = np.flatnonzero(octets == ord("\n")) + 1
    if b'"' in block:
        quotes = np.flatnonzero(octets == ord('"'))
        mark = delimiter.encode()
        framed = np.frombuffer(b"\n" + block + b"\n", np.uint8)
        before, after = framed[quotes[0::2]], framed[quotes[1::2] + 2]
        if not (_among(before, b'\n"' + mark) and _among(after, b'\r\n"' + mark) and len(quotes) % 2 == 0):
            return False
        lines = lines[np.searchsorted(quotes, lines) % 2 == 0]
    if not block.endswith(b"\n"):
        lines = np.append(lines, len(block))
    return np.array_equal(lines, ends)


def _parsed(batch: Batch, block: bytes, width: int, types: Mapping[str, Any], nulls: list[str]) -> Any:
    """Return the columns with these types that Arrow finds in a block of so many; None if it finds anything else."""
    try:
        return csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(
                use_threads=False,
                block_size=len(block) + 1,
                column_names=[str(j) for j in range(width)],
            ),
            parse_options=csv.ParseOptions(delimiter=batch.delimiter, newlines_in_values=b'"' in block),
            convert_options=csv.ConvertOptions(
                check_utf8=False,
                column_types=types,
                include_columns=sorted(types),
                null_values=nulls,
                strings_can_be_null=False,
                true_values=_TRUE,
                false_values=_FALSE,
                decimal_point=batch.decimal,
            ),
        )
    except pa.ArrowException:  # also after an interrupt, which Arrow passes on to Python before it raises
        return None


def _take_numbers(sheet: Sheet, start: int, table: Any, where: Mapping[str, str]) -> bool:
    """Store the numbers of a table from record `start` on; return whether all of them are finite or missing."""
    for j, (name, kind, _) in enumerate(sheet.slots):
        if kind == "number" and name in where:
            column = table[where[name]]
            values = floats_of(column.cast(pa.float64()).combine_chunks())
            sheet.numbers[start : start + len(table), j] = values
            if len(values) - np.count_nonzero(np.isfinite(values)) != column.null_count:
                return False
    return True


def _without(texts: Any, notation: Notation) -> Any:
    """Return a column of texts with null for those that stand for a missing value."""
    missing = compute.is_in(texts, pa.array(sorted(notation.missing), pa.string()))
    return compute.if_else(missing, pa.scalar(None, pa.string()), texts)


def _among(octets: AnyArray, accepted: bytes) -> bool:
    return bool(np.isin(octets, np.frombuffer(accepted, np.uint8)).all())
