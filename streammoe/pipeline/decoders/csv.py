"""Comma-separated values (RFC 4180, and quotes as plain characters inside unquoted fields)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from statistics import mode

import numpy as np
import pyarrow as pa
from pyarrow import csv

from streammoe.errors import InvalidEvent, SourceError
from streammoe.pipeline.decoders.columns import taken, valid_of
from streammoe.pipeline.decoders.decoder import Decoder, Found, is_utf8, malformed, readable, text_of
from streammoe.pipeline.decoders.rows import NewNames, Slot, Values
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import shown
from streammoe.types import BoolArray, IntArray

_FIELD = {
    delimiter: re.compile(
        r'(?:"([^"]*(?:""[^"]*)*)"|([^"{0}\r\n][^{0}\r\n]*|))([{0}]|\Z)'.replace("{0}", re.escape(delimiter))
    )
    for delimiter in DELIMITERS
}
_SAMPLED = 5  # records of which most have as many values as the others


class CsvDecoder(Decoder):
    """A decoder for csv records; the batch holds the column names."""

    def header(self, batch: Batch) -> tuple[str, ...]:
        if batch.columns is None:
            raise SourceError(f"{batch.origin} gives csv records without column names; its first line must be a header")
        return batch.columns

    def names(self, batch: Batch, i: int) -> Values:
        record = text_of(readable(batch, i))
        if record.startswith("\ufeff"):
            raise malformed(record, "must not begin with a byte order mark, which may only begin a stream")
        fields = _fields(record, batch.delimiter)
        columns = self.header(batch)
        if len(fields) == 1 < len(columns):
            mark = shown(batch.delimiter)
            raise malformed(
                record, f"must have {len(columns)} values between {mark}; only those at its end may be left out"
            )
        for j, field in enumerate(fields):
            if field and not field.isspace() and (j >= len(columns) or not columns[j]):
                raise malformed(record, _surplus(batch, columns, j, field))
        values = [*fields, *[""] * (len(columns) - len(fields))]
        return {name: value for name, value in zip(columns, values, strict=False) if name}

    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found | None:
        """Return columns of texts, which Arrow's parser finds, but for records of another width than most."""
        base = int(batch.ends[start - 1]) if start else 0
        ends = batch.ends[start:stop] - base
        block, header = batch.block[base : base + int(ends[-1])], self.header(batch)
        width = self._width(batch, start, stop)
        if width == 1 < len(header):
            return None
        rows = np.arange(start, stop)
        if not (plain := _plain(block, ends, batch.delimiter)).all():
            block = np.frombuffer(block, np.uint8)[np.repeat(plain, np.diff(ends, prepend=0))].tobytes()
            rows = rows[plain]
        header = (*header, *[""] * width)[:width]
        own = {slot.name for slot in slots}
        # Arrow gets numbers as column names, since names in the header may be special, and some columns have none.
        kept = {str(j): pa.string() for j, name in enumerate(header) if not name or name in own or names.has(name)}
        if not kept:
            return None
        others: list[int] = []

        def leave_out(row: csv.InvalidRow) -> str:
            others.append(row.number - 1)
            return "skip"

        try:
            table = csv.read_csv(
                pa.BufferReader(block),
                csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=[*map(str, range(width))]),
                csv.ParseOptions(
                    delimiter=batch.delimiter,
                    newlines_in_values=b'"' in block,
                    invalid_row_handler=leave_out,
                ),
                csv.ConvertOptions(
                    check_utf8=False,
                    column_types=kept,
                    include_columns=[*kept],
                    null_values=[""],
                    strings_can_be_null=True,
                ),
            ).combine_chunks()
        except pa.ArrowException:  # also after an interrupt, which Arrow passes on to Python before it raises
            return None
        rows = np.delete(rows, others)
        if len(table) != len(rows):
            return None
        for j in kept:
            if not header[int(j)] and table[j].null_count < len(table):
                without = np.flatnonzero(~valid_of(table[j].combine_chunks()))
                rows, table = rows[without], taken(table, without)  # those with surplus values are read alone
        return Found(rows, {header[int(j)]: table[j].combine_chunks() for j in kept})

    def _width(self, batch: Batch, start: int, stop: int) -> int:
        """Return how many values most of the first records have; as many as there are columns if one is unreadable."""
        try:
            texts = [text_of(batch.record(i)) for i in range(start, min(start + _SAMPLED, stop))]
            return mode(len(_fields(text, batch.delimiter)) for text in texts)
        except InvalidEvent:
            return len(self.header(batch))


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


def _plain(block: bytes, ends: IntArray, delimiter: str) -> BoolArray:
    """Return which records every csv reader would see in `block`, with the same fields.

    They end where lines end outside quotes, and quotes only surround whole fields or are doubled inside them.
    """
    octets = np.frombuffer(block, np.uint8)
    plain: BoolArray = octets[ends - 1] == ord("\n")
    n_lines = np.count_nonzero(plain)
    plain[-1] = True

    def leave_out(at: IntArray) -> None:
        plain[np.searchsorted(ends, at, "right")] = False

    if b"\r" in block:
        returns = np.flatnonzero(octets == ord("\r"))
        leave_out(returns[np.append(octets, 0)[returns + 1] != ord("\n")])
    if not block.isascii():
        if not is_utf8(block):
            leave_out(np.flatnonzero(octets >= 0x80))
        if codecs.BOM_UTF8 in block:
            starts = [0, *ends[:-1].tolist()]
            plain &= [not block.startswith(codecs.BOM_UTF8, start) for start in starts]
    lines = np.flatnonzero(octets == ord("\n"))
    if b'"' in block:
        quotes = np.flatnonzero(octets == ord('"'))
        counts = np.diff(np.searchsorted(quotes, ends), prepend=0)
        is_second = (np.arange(len(quotes)) - np.repeat(np.cumsum(counts) - counts, counts)) % 2
        around = np.frombuffer(b"\n" + block + b"\n", np.uint8)[quotes + 2 * is_second]
        is_odd = np.ones(256, np.bool_)
        is_odd[list(b'\r\n"' + delimiter.encode())] = False
        leave_out(quotes[is_odd[around]])
        plain &= counts % 2 == 0
        if len(lines) > n_lines:
            at = np.searchsorted(quotes, lines)
            lines = lines[(at == len(quotes)) | (is_second[np.minimum(at, len(quotes) - 1)] == 0)]
    if len(lines) > n_lines:
        leave_out(np.setdiff1d(lines, ends - 1))
    return plain
