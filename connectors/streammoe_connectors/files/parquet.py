"""A reader of batches of rows from a Parquet file."""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from pyarrow import parquet, types

from streammoe.errors import SourceError
from streammoe.ports import Batch, Locations
from streammoe.types import IntArray

_BUFFER_BYTES = 1 << 18  # per column; without it a whole row group would be read at once


class ParquetReader:
    """A reader of a file as tables, whose offsets are row numbers.

    Reading starts with the row group that holds the first row. Columns of all types are passed on.

    Args:
        stream: the file.
        path: for messages and locations.
        size: of the file in bytes, for progress.
        block_rows: most rows in a batch.
        start: the first row to return.

    Raises:
        SourceError: it is not a valid Parquet file, or has fewer rows than `start`.
    """

    def __init__(self, stream: BinaryIO, *, path: str, size: int, block_rows: int, start: int) -> None:
        self.offset = start
        """The next row."""
        self._path = path
        self._size = size
        with self._as_source_errors():
            # Not memory-mapped: reading from a truncated mapped file kills the process.
            file = parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, page_checksum_verification=True)
            groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
            self._columns = tuple(file.schema_arrow.names)
            self._categorical = _categorical(file)
        self._rows: int = sum(groups)
        if start > self._rows:
            raise SourceError(
                f"{path} was truncated: it has {self._rows} rows, but {start} had been read; restore it, or start "
                "with a fresh checkpoint folder"
            )
        duplicates = sorted(name for name, count in Counter(self._columns).items() if count > 1)
        if duplicates:
            raise SourceError(
                f"{path} has duplicate column names: {', '.join(map(repr, duplicates))}; write it with a distinct name "
                "for each column"
            )
        stops = list(accumulate(groups))
        first = int(np.searchsorted(stops, start, "right"))
        self._rows_to_skip = start - (stops[first - 1] if first else 0)
        self._tables: Iterator[Any] = file.iter_batches(
            batch_size=block_rows, row_groups=range(first, len(groups)), use_threads=False
        )

    @property
    def exhausted(self) -> bool:
        """Whether all rows have been returned."""
        return self.offset == self._rows

    @property
    def raw_bytes(self) -> int:
        """Bytes of the file read so far, estimated from the number of rows."""
        return self._size * self.offset // self._rows if self._rows else self._size

    def next(self) -> Batch | None:
        """Return the next batch, without its `end`; ``None`` if all rows were returned, or before the first one.

        Raises:
            SourceError: the file is damaged; all rows before were returned.
        """
        if self.exhausted:
            return None
        with self._as_source_errors():
            table = next(self._tables, None)
        if table is None:
            raise self._damage_error("it has fewer rows than its metadata say")
        skipped = min(self._rows_to_skip, table.num_rows)
        self._rows_to_skip -= skipped
        table = table.slice(skipped)
        if not table.num_rows:
            return None
        rows: IntArray = np.arange(self.offset, self.offset + table.num_rows)
        self.offset += table.num_rows
        return Batch(
            block=b"",
            ends=np.empty(0, np.int64),
            format="arrow",
            columns=self._columns,
            origin=self._path,
            locations=Locations({"path": self._path}, {"row": rows}),
            end={},
            table=table,
            categorical=self._categorical,
        )

    @contextmanager
    def _as_source_errors(self) -> Iterator[None]:
        try:
            yield
        # Arrow's own errors and system errors; ValueError for names that are not UTF-8.
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._damage_error(str(error).partition("\n")[0]) from error

    def _damage_error(self, reason: str) -> SourceError:
        return SourceError(
            f"{self._path} cannot be read as Parquet from row {self.offset} on ({reason}); the rows before have been "
            "read. Restore the file and start again: reading resumes there"
        )


def _categorical(file: parquet.ParquetFile) -> frozenset[str]:
    """Return the columns of numbers, truth values or texts that were written from dictionaries of Arrow or categories.

    Arrow reads dictionaries of anything but texts back as plain values.
    """
    written = (file.metadata.metadata or {}).get(b"ARROW:schema")
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(written))) if written else file.schema_arrow
    dictionaries = (field for field in schema if types.is_dictionary(field.type))
    return frozenset(field.name for field in dictionaries if not types.is_temporal(field.type.value_type))
