"""Predictions as rows of files: one for each event, made before it was learned; and their intervals."""

from __future__ import annotations

import glob
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streammoe.errors import ConfigError, RetriableCheckpointError
from streammoe.persistence import durable
from streammoe.persistence.append_log import AppendLog, failing_loudly
from streammoe.ports import Predictions, PredictionSink
from streammoe.rows import json_rows
from streammoe.types import FloatArray

SETTING = "predictions.path"
MOST_ROWS = 250_000
"""Rows of a Parquet part; more are not held in memory, however far checkpoints are apart."""


def prediction_sink(path: str | os.PathLike[str], format: str) -> PredictionSink:
    """A sink for predictions that writes ``jsonl`` or ``parquet``.

    Raises:
        ConfigError: the file cannot be opened for writing, or the format is neither.
    """
    if format == "jsonl":
        return JsonlPredictions(path)
    if format == "parquet":
        return ParquetPredictions(path)
    raise ConfigError(f"predictions.format must be jsonl or parquet, got {format!r}")


class JsonlPredictions(PredictionSink):
    """Appends one JSON object a row, see `json_rows`; numbers that are not finite and what is not known are null.

    Durable after `flush`. A line that a killed process has torn is ended
    at the next start, and stays as a line that is no JSON.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lines = AppendLog(path, SETTING)
        self._encode = msgspec.json.Encoder().encode_lines

    def write(self, rows: Predictions) -> None:
        self._lines.write(self._encode(json_rows(rows)))

    @property
    def overdue(self) -> bool:
        return self._lines.overdue

    def flush(self) -> None:
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        return self._lines.begin_flush()

    def close(self) -> None:
        self._lines.close()


class ParquetPredictions(PredictionSink):
    """Writes parts ``<stem>-<model version of the first row>.parquet``, each whole and for good.

    A part appears at each `flush`, or earlier after `MOST_ROWS`, under its name only when all of it is on disk; what
    the disk does not take waits in memory. Columns
    are as in `JsonlPredictions`: ``place`` is a struct, ``probabilities`` a map, ``gate`` and ``interval`` are lists.
    Each part has one schema, that of its first rows; rows that do not fit begin a new one. A part never replaces
    another one: one that begins with the same version, after a restart or amid events that are not learned, has
    ``_1``, ``_2``, … behind its number.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._open: _Part | None = None
        """The one that takes rows."""
        self._whole: list[_Part] = []
        """Not yet on disk."""
        self._refused = False
        """Whether the latest attempt to write failed."""
        self._writing = threading.Lock()
        try:
            durable.make_folder(self.path.parent)
            # What a killed process has left half-written.
            parts = f".{glob.escape(self.path.stem)}-*{glob.escape(self._extension)}"
            for left in self.path.parent.glob(f"{parts}.*{durable.TEMPORARY_SUFFIX}"):
                left.unlink()
        except OSError as error:
            message = (
                f"{SETTING} {self.path}: its folder cannot be written ({error.strerror}); "
                "name a file in a folder that this user may write"
            )
            raise ConfigError(message) from error

    def write(self, rows: Predictions) -> None:
        if not len(rows):
            return
        batch = _record_batch(rows)
        if self._open is not None and self._open.batches[0].schema != batch.schema:
            self._end_part()
        if self._open is None:
            self._open = _Part(int(rows.versions[0]), [])
        self._open.batches.append(batch)
        if self._open.rows >= MOST_ROWS:
            self._end_part()

    @property
    def overdue(self) -> bool:
        return self._refused and sum(part.rows for part in list(self._whole)) >= MOST_ROWS

    def flush(self) -> None:
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        if self._open is not None:
            self._whole.append(self._open)
            self._open = None
        return self._put_on_disk

    def close(self) -> None:
        self._open = None
        self._whole.clear()

    def _end_part(self) -> None:
        """Write what is there, if the disk takes it; else that waits for a flush, which says why."""
        write = self.begin_flush()
        if not self._refused:
            with suppress(RetriableCheckpointError):  # amid a batch nobody can act on it
                write()

    def _put_on_disk(self) -> None:
        """Also in another thread, while more rows come."""
        with self._writing, failing_loudly(SETTING, self.path, RetriableCheckpointError):
            self._refused = bool(self._whole)
            while self._whole:
                sink = pa.BufferOutputStream()
                parquet.write_table(pa.Table.from_batches(self._whole[0].batches), sink)
                durable.make_folder(self.path.parent)
                durable.replace(self._path_of(self._whole[0]), memoryview(sink.getvalue()))
                del self._whole[0]
            self._refused = False

    @property
    def _extension(self) -> str:
        return self.path.suffix or ".parquet"

    def _path_of(self, part: _Part) -> Path:
        stem = f"{self.path.stem}-{part.first:012d}"
        path = self.path.with_name(f"{stem}{self._extension}")
        again = 0
        while path.exists():
            again += 1
            path = self.path.with_name(f"{stem}_{again}{self._extension}")
        return path


class _Part(NamedTuple):
    """Rows of one Parquet file."""

    first: int
    """Model version of the first row."""
    batches: list[Any]

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches))


def _record_batch(rows: Predictions) -> Any:
    columns: dict[str, Any] = {
        "place": pa.array(rows.places),
        "model_version": pa.array(rows.versions, pa.int64()),
    }
    predictions, targets = rows.predictions, rows.targets
    if isinstance(predictions, np.ndarray) and isinstance(targets, np.ndarray):
        columns["prediction"] = _arrow_by_output(predictions, rows.outputs)
        if rows.intervals is not None:
            columns["interval"] = _arrow_by_output(rows.intervals, rows.outputs)
        columns["target"] = _arrow_by_output(targets, rows.outputs)
    else:
        columns["prediction"] = pa.array(predictions, pa.string())
        columns["target"] = pa.array(targets, pa.string())
    if rows.losses is not None:
        columns["loss"] = pa.array(rows.losses, from_pandas=True)
    if rows.probabilities is not None:
        n, M = rows.probabilities.shape
        names = pa.array(list(rows.classes) * n, pa.string())
        offsets = pa.array(np.arange(n + 1) * M, pa.int32())
        columns["probabilities"] = pa.MapArray.from_arrays(offsets, names, pa.array(rows.probabilities.ravel()))
    if rows.gate is not None:
        columns["gate"] = _lists(rows.gate)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _arrow_by_output(values: FloatArray, outputs: Sequence[str]) -> Any:
    each = [
        _lists(values[:, q]) if values.ndim == 3 else pa.array(values[:, q].copy(), from_pandas=True)
        for q in range(len(outputs))
    ]
    if len(outputs) == 1:
        return each[0]
    # All outputs are known, or none.
    mask = pa.array(np.isnan(values).reshape(len(values), -1).all(axis=1))
    return pa.StructArray.from_arrays(each, list(outputs), mask=mask)


def _lists(values: FloatArray) -> Any:
    n, length = values.shape
    offsets = pa.array(np.arange(n + 1) * length, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel(), from_pandas=True))
