"""Comma-separated values (RFC 4180, and quotes as plain characters inside unquoted fields)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

import numpy as np

from streammoe.errors import InvalidEvent, SourceError
from streammoe.pipeline.decoders.columns import numbers_in
from streammoe.pipeline.decoders.decoder import Decoder, Found, malformed, readable, text_of
from streammoe.pipeline.decoders.rows import NewNames, Slot, Values
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import shown
from streammoe.types import FloatArray, IntArray

_FIELD = {
    delimiter: re.compile(
        r'(?:"([^"]*(?:""[^"]*)*)"|([^"{0}\r\n][^{0}\r\n]*|))([{0}]|\Z)'.replace("{0}", re.escape(delimiter))
    )
    for delimiter in DELIMITERS
}


class CsvDecoder(Decoder):
    """A decoder for csv records; the batch holds the column names."""

    def header(self, batch: Batch) -> tuple[str, ...]:
        if batch.columns is None:
            raise SourceError(f"{batch.origin} gives csv records without column names; its first line must be a header")
        return batch.columns

    def names(self, batch: Batch, i: int) -> Values:
        columns = self.header(batch)
        return {
            name: cell for name, cell in zip(columns, _cells(readable(batch, i), batch, columns), strict=True) if name
        }

    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found:
        """Return columns of numbers, or of texts, but for malformed records."""
        base = int(batch.ends[start - 1]) if start else 0
        ends, header = batch.ends[start:stop] - base, self.header(batch)
        block = batch.block[base : base + int(ends[-1])]
        kinds = {slot.name: slot.kind for slot in slots}
        kept = {name: j for j, name in enumerate(header) if name and (name in kinds or names.has(name))}
        rows: IntArray = np.arange(start, stop)
        columns: Any = None
        if all(header) and (lines := _lines(block, ends)) is not None:
            are_numbers = batch.decimal == "." and all(kinds.get(name) == "number" for name in kept)
            columns = _numbers(lines, len(rows), batch, header) if are_numbers else None
            columns = _texts(lines, batch, header) if columns is None else columns
        if columns is None:
            good: list[int] = []
            cells: list[list[str]] = []
            for i, (begin, end) in enumerate(pairwise([0, *ends.tolist()]), start):
                with suppress(InvalidEvent):
                    cells.append(_cells(block[begin:end].rstrip(b"\r\n"), batch, header))
                    good.append(i)
            rows, columns = np.array(good, np.int64), [*zip(*cells, strict=True)]
        return Found(rows, {name: columns[j] for name, j in kept.items()} if len(rows) else {})


def _lines(block: bytes, ends: IntArray) -> bytes | None:
    """Return records of which each is a line, and where nothing is special; None if these are not."""
    if block.count(b"\n") != len(ends) or (np.frombuffer(block, np.uint8)[ends - 1] != ord("\n")).any():
        return None
    lines = block.replace(b"\r\n", b"\n")[:-1]
    return None if any(mark in lines for mark in (b'"', b"\r", codecs.BOM_UTF8)) else lines


def _numbers(lines: bytes, n: int, batch: Batch, header: Sequence[str]) -> FloatArray | None:
    """Return all columns as numbers; None if there is anything else."""
    octets, width, mark = np.frombuffer(lines, np.uint8), len(header), batch.delimiter.encode()
    stops = np.append(np.flatnonzero(octets == ord("\n")), len(octets))
    inside = np.diff(np.searchsorted(np.flatnonzero(octets == ord(mark)), stops), prepend=0)
    if (inside != width - 1).any():
        return None
    values = numbers_in(lines.replace(b"\n", b",").replace(mark, b","), n * width)
    return None if values is None else values.reshape(n, width).T


def _texts(lines: bytes, batch: Batch, header: Sequence[str]) -> list[tuple[str, ...]] | None:
    """Return all columns as texts; None if some lines are of another width."""
    try:
        cells = [line.split(batch.delimiter) for line in lines.decode().split("\n")]
    except UnicodeDecodeError:
        return None
    return [*zip(*cells, strict=True)] if {*map(len, cells)} == {len(header)} else None


def _cells(record: bytes, batch: Batch, columns: Sequence[str]) -> list[str]:
    """Return the cell of a record in each column; raise `InvalidEvent` if it is ``malformed``."""
    text = text_of(record)
    if text.startswith("\ufeff"):
        raise malformed(text, "must not begin with a byte order mark, which may only begin a stream")
    cells = _fields(text, batch.delimiter)
    width = len(columns)
    if len(cells) == 1 < width:
        mark = shown(batch.delimiter)
        raise malformed(text, f"must have {width} values between {mark}; only those at its end may be left out")
    if len(cells) != width or not all(columns):
        for j, cell in enumerate(cells):
            if cell and not cell.isspace() and (j >= width or not columns[j]):
                raise malformed(text, _surplus(batch, columns, j, cell))
        cells = [*cells, *[""] * (width - len(cells))][:width]
    return cells


def _surplus(batch: Batch, columns: Sequence[str], j: int, field: str) -> str:
    """Say what is wrong with a value in a column without a name."""
    held = f"holds {shown(field)} in column {j + 1}, "
    if j >= len(columns):
        mark = shown(batch.delimiter)
        return f"{held}and the header names {len(columns)}; quote values that contain {mark}, or name that column there"
    return f"{held}which has no name in the header; name it there, or all by source.header, with source.skip_lines"


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
