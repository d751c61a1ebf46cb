"""Decode Arrow tables, such as those read from Parquet files, whose columns are typed and where null is missing."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import types

from streammoe.columns.values import Unsupported
from streammoe.pipeline.decoders.columns import is_readable, taken, to_python, valid_of
from streammoe.pipeline.decoders.decoder import Decoder, Found
from streammoe.pipeline.decoders.rows import NewNames, Slot, Values
from streammoe.ports import Batch
from streammoe.types import IntArray


class ArrowDecoder(Decoder):
    """A decoder for batches whose ``table`` is a ``pyarrow.RecordBatch``."""

    def header(self, batch: Batch) -> tuple[str, ...]:
        return tuple(batch.table.schema.names)

    def names(self, batch: Batch, i: int) -> Values:
        return self.reader(batch, np.array([i]), self.header(batch))(0)

    def reader(self, batch: Batch, rows: IntArray, names: Collection[str]) -> Callable[[int], Values]:
        columns = {
            name: to_python(taken(column, rows))
            if is_readable(column.type)
            else [Unsupported(str(column.type)) if valid else None for valid in valid_of(column)[rows]]
            for name, column in _columns(batch).items()
            if name in names
        }
        return lambda at: {name: values[at] for name, values in columns.items()}

    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found:
        columns = {name: column.slice(start, stop - start) for name, column in _columns(batch).items()}
        return Found(np.arange(start, stop), columns)


def _columns(batch: Batch) -> dict[str, Any]:
    """Return the columns by their names, views of strings as strings, since Arrow has few functions for views."""
    return {
        name: column.cast(pa.large_string()) if types.is_string_view(column.type) else column
        for name, column in zip(batch.table.schema.names, batch.table.columns, strict=True)
    }
