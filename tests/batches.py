"""Batches of records from events, in each format that the daemon decodes."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np

from streammoe.pipeline.decoders import FieldRoles
from streammoe.pipeline.schema import Schema
from streammoe.ports import Batch, Locations

Event = Mapping[str, Any]


def batch_of(events: Sequence[Event | bytes], format: str, first: int = 0) -> Batch:
    """Return events as a source would read them from a file of this format, the first one from row `first`.

    "arrow" is a table as it is, "parquet" one that has been through a file.

    An event that lacks a value of the others has an empty cell, a null, or no such key. In csv and jsonl, bytes in
    place of an event are written as they are, for invalid records.
    """
    columns = tuple(dict.fromkeys(name for event in events if not isinstance(event, bytes) for name in event))
    end = {"next": first + len(events)}
    locations = Locations({"path": format}, {"row": np.arange(first, first + len(events))})
    if format in {"arrow", "parquet"}:
        table = _table([event for event in events if not isinstance(event, bytes)], columns, format)
        return Batch(b"", np.empty(0, np.int64), "arrow", None, "memory.parquet", locations, end, table=table)
    lines = [_line(event, format, columns) for event in events]
    ends = np.array(list(accumulate(map(len, lines))), dtype=np.int64)
    header = columns if format == "csv" else None
    return Batch(b"".join(lines), ends, format, header, f"memory.{format}", locations, end)


def roles_of(
    fields: Iterable[str],
    targets: Iterable[str] = (),
    *,
    label: str | None = None,
    categorical: Iterable[str] = (),
    timestamps: Iterable[str] = (),
    **schema: Any,
) -> FieldRoles:
    """Return roles of features that are numbers, categories or times, and of the targets or a label."""
    kinds = {name: "category" if name in categorical else "time" if name in timestamps else "number" for name in fields}
    given = {"categorical": frozenset(categorical), "timestamps": frozenset(timestamps), **schema}
    return FieldRoles(kinds, Schema((label,) if label else tuple(targets), **given), label is not None)  # type: ignore[arg-type]


def _line(event: Event | bytes, format: str, columns: Sequence[str]) -> bytes:
    if isinstance(event, bytes):
        return event + b"\n"
    return json.dumps(event).encode() + b"\n" if format == "jsonl" else csv_line([event.get(name) for name in columns])


def csv_line(values: Iterable[object]) -> bytes:
    """Write a record; None is an empty cell, and booleans, lists and dictionaries are written as JSON."""
    line = io.StringIO()
    cells = [json.dumps(value) if isinstance(value, bool | list | dict) else value for value in values]
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue().encode()


def _table(events: Sequence[Event], columns: Sequence[str], format: str) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    held = {name: [event.get(name) for event in events] for name in columns}
    if format == "arrow":
        return pa.record_batch({name: pa.array(values) for name, values in held.items()})
    file = io.BytesIO()
    pq.write_table(pa.table(held), file)
    return pq.read_table(file).combine_chunks().to_batches()[0]
