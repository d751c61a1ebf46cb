"""Batches of records, as sources give them, made of events that are dicts."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import pyarrow as pa

from streammoe.ports import Batch


def batch_of(events: Sequence[Mapping[str, Any]], format: str, first: int) -> Batch:
    """Return one batch; the columns of ``csv`` and ``arrow`` are those of the first event.

    Args:
        events: one or more.
        format: ``csv``, ``jsonl`` or ``arrow``.
        first: number of the first event, for places and for the position after the batch.

    >>> batch = batch_of([{"x": 1, "y": 2.5}], "csv", 0)
    >>> batch.columns, batch.block.split()
    (('x', 'y'), [b'1,2.5'])
    """

    def place(i: int) -> dict[str, Any]:
        return {"path": format, "row": first + i}

    end = {"next": first + len(events)}
    if format == "arrow":
        table = pa.record_batch({name: pa.array([held[name] for held in events]) for name in events[0]})
        return Batch(b"", np.empty(0, np.int64), format, None, "a.parquet", place, end, table=table)
    if format == "jsonl":
        lines, columns = [json.dumps(held).encode() + b"\n" for held in events], None
    else:
        lines, columns = [csv_line(held.values()) for held in events], tuple(events[0])
    ends = np.array(list(accumulate(map(len, lines))), dtype=np.int64)
    return Batch(b"".join(lines), ends, format, columns, f"a.{format}", place, end)


def csv_line(values: Iterable[Any]) -> bytes:
    """Return a line with its end; None is an empty field, and what csv does not know is written as JSON."""
    line = io.StringIO()
    written = [
        json.dumps(value) if isinstance(value, bool | list | dict) else "" if value is None else value
        for value in values
    ]
    csv.writer(line, lineterminator="\n").writerow(written)
    return line.getvalue().encode()
