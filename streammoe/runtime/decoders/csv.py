"""Comma-separated values (RFC 4180, and quotes as plain characters inside unquoted fields)."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from pyarrow import csv

from streammoe.errors import InvalidEvent, SourceError
from streammoe.ports import Batch
from streammoe.runtime.decoders import Decoded, Rejected, collect, is_utf8, malformed, text_of, to_row
from streammoe.types import AnyArray, FloatArray, IntArray

_FIELD = re.compile(r'(?:"([^"]*(?:""[^"]*)*)"|([^",\r\n][^,\r\n]*|))(,|\Z)')
_FEW = 256  # so few records are taken one by one rather than halved again


class CsvDecoder:
    """Decodes records whose column names the batch holds."""

    def names(self, batch: Batch, i: int) -> dict[str, object]:
        record = text_of(batch.record(i))
        fields = _fields(record)
        columns = _columns(batch)
        if len(fields) != len(columns):
            raise malformed(record, f"has {len(fields)} values; it must have one for each of {len(columns)} columns")
        return dict(zip(columns, fields, strict=True))

    def decode(self, batch: Batch, columns: Sequence[str], targets: Sequence[str]) -> Decoded:
        header = _columns(batch)
        for target in targets:
            if target not in header:
                raise SourceError(
                    f"{batch.origin} has no column {target!r}, which the settings name as target; its columns are "
                    f"{', '.join(map(repr, header))}"
                )
        values = np.full((len(batch), len(columns) + len(targets)), np.nan)
        rejected: list[Rejected] = []
        runs = [(0, len(batch))]
        while runs:
            start, stop = runs.pop()
            if _fill(values[start:stop], batch, start, stop, (*columns, *targets)):
                continue
            if stop - start > _FEW:
                # Halving keeps the rare bad record from slowing down thousands of good ones.
                middle = (start + stop) // 2
                runs += [(middle, stop), (start, middle)]
                continue
            for i in range(start, stop):
                try:
                    x, y = to_row(self.names(batch, i), columns, targets, text=True)
                    values[i] = x + y
                except InvalidEvent as error:
                    rejected.append(Rejected(i, error.reason, str(error)))
        return collect(values, len(columns), rejected)


def _columns(batch: Batch) -> tuple[str, ...]:
    if batch.columns is None:
        raise SourceError(f"{batch.origin} gives csv records without column names; its first line must be a header")
    return batch.columns


def _fields(record: str) -> list[str]:
    if '"' not in record and "\r" not in record and "\n" not in record:
        return record.split(",")
    fields = []
    start = 0
    while match := _FIELD.match(record, start):
        quoted, plain, separator = match.groups()
        fields.append(plain if quoted is None else quoted.replace('""', '"'))
        if not separator:
            return fields
        start = match.end()
    raise malformed(record, f"must pair its quotes and hold line ends only inside them, and does not from {start} on")


def _fill(values: FloatArray, batch: Batch, start: int, stop: int, names: Sequence[str]) -> bool:
    """Fills `values` with records `start` to `stop` by Arrow's parser; false if the exact path must decide."""
    base = int(batch.ends[start - 1]) if start else 0
    ends = batch.ends[start:stop] - base
    block = batch.block[base : base + int(ends[-1])] if ends.size else b""
    header = _columns(batch)
    # Arrow gets numbers as names: those of the header may be empty, double or meant for something else.
    where = {name: str(j) for j, name in enumerate(header)}
    wanted = sorted({where[name] for name in names if name in where})
    if not wanted or not _plain(block, ends):
        return False
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            read_options=csv.ReadOptions(
                use_threads=False, block_size=len(block) + 1, column_names=[str(j) for j in range(len(header))]
            ),
            parse_options=csv.ParseOptions(newlines_in_values=b'"' in block),
            convert_options=csv.ConvertOptions(
                check_utf8=False,
                column_types=dict.fromkeys(wanted, pa.float64()),
                include_columns=wanted,
                null_values=[""],
            ),
        )
    except pa.ArrowException:  # also an interrupt, which Arrow hands on to Python before it raises
        return False
    if len(table) != len(values):
        return False
    for j, name in enumerate(names):
        if name in where:
            column = table[where[name]]
            values[:, j] = column.to_numpy()
            if len(values) - np.count_nonzero(np.isfinite(values[:, j])) != column.null_count:
                return False
    return True


def _plain(block: bytes, ends: IntArray) -> bool:
    """Whether every csv reader sees the same records and fields in `block`.

    Records end where lines end outside quotes; quotes only surround whole fields or are doubled inside of them.
    """
    lone_returns = b"\r" in block and block.count(b"\r") != block.count(b"\r\n")
    if lone_returns or block.startswith(codecs.BOM_UTF8) or not is_utf8(block):
        return False
    octets = np.frombuffer(block, np.uint8)
    lines = np.flatnonzero(octets == ord("\n")) + 1
    if b'"' in block:
        quotes = np.flatnonzero(octets == ord('"'))
        framed = np.frombuffer(b"\n" + block + b"\n", np.uint8)
        before, after = framed[quotes[0::2]], framed[quotes[1::2] + 2]
        if not (_among(before, b',\n"') and _among(after, b',\r\n"') and len(quotes) % 2 == 0):
            return False
        lines = lines[np.searchsorted(quotes, lines) % 2 == 0]
    if not block.endswith(b"\n"):
        lines = np.append(lines, len(block))
    return np.array_equal(lines, ends)


def _among(octets: AnyArray, accepted: bytes) -> bool:
    return bool(np.isin(octets, np.frombuffer(accepted, np.uint8)).all())
