"""Files of predictions: one row per event, made before it was learned."""

from __future__ import annotations

import glob
import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streammoe.checked import is_count, require, restoring
from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence import durable
from streammoe.persistence.append_log import AppendLog, ignore_position, reporting_failure
from streammoe.ports import Location, Position, Predictions, PredictionSink
from streammoe.rows import json_lines
from streammoe.text import shown
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.predictions")
SETTING = "predictions.path"
MAX_PART_ROWS = 250_000
"""Maximum number of rows of a Parquet part, and so in memory, however far apart checkpoints are."""

_KIND = "parts"
_SERIES, _NUMBER = b"streammoe.series", b"streammoe.part"


class RestartPlan(NamedTuple):
    """The steps that a start has to take with existing predictions."""

    cut: Callable[[], None] | None = None
    """Remove predictions after the checkpoint, once nothing else can fail."""
    must_record_end: bool = False
    """Whether a checkpoint must record the end of the predictions before more are written."""


def plan_restart(sink: PredictionSink, metadata: Mapping[str, Any] | None) -> RestartPlan:
    """Determine what to do with existing predictions when a daemon starts from a checkpoint, if any, or fresh.

    Raises:
        CheckpointError: predictions have changed since the checkpoint was written.
    """
    if sink.position() is None:
        return RestartPlan()
    if metadata is None:
        return RestartPlan(must_record_end=True)
    known = metadata.get("predictions")
    if known is None:
        LOGGER.info("the checkpoint has no position of the predictions; those after it are written again")
        return RestartPlan(must_record_end=True)
    if "stdin" in _kinds(metadata["positions"]):
        LOGGER.warning("predictions after the checkpoint are kept: stdin cannot be read again to recreate them")
        return RestartPlan()
    return RestartPlan(sink.restore(known))


def _kinds(positions: Sequence[Position | None]) -> Iterator[object]:
    """Yield the kinds of these positions, including nested ones."""
    for position in positions:
        if isinstance(position, dict):
            yield position.get("kind")
            yield from _kinds(position.get("positions", []))


def prediction_sink(path: str | os.PathLike[str], format: str) -> PredictionSink:
    """Create a file sink for predictions in the format ``jsonl`` or ``parquet``.

    Raises:
        ConfigError: the file cannot be opened for writing, or the format is unknown.
    """
    if format == "jsonl":
        return JsonlPredictions(path)
    if format == "parquet":
        return ParquetPredictions(path)
    raise ConfigError(f"predictions.format must be jsonl or parquet, got {format!r}")


class JsonlPredictions(AppendLog, PredictionSink):
    """A file with one JSON object per row, see `json_lines`; unknown and non-finite values are null.

    Durable after `flush`. Without a checkpoint to go back to, the next start ends a line that a killed process left
    incomplete; it stays as a line of invalid JSON.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, SETTING)

    def write(self, rows: Predictions) -> None:
        self.append(json_lines(rows))


class ParquetPredictions(PredictionSink):
    """A series of files ``<stem>-<model version of the first row>.parquet``, each complete once it appears.

    A part appears at each `flush`, or earlier after `MAX_PART_ROWS`, and only when all of it is on disk; rows that
    cannot be written wait in memory. Columns are as in `JsonlPredictions`: ``place`` is a struct, ``probabilities`` a
    map, ``gate`` and ``interval`` are lists. The schema of a part is that of its first rows; rows that do not fit start
    a new part. A part never replaces another: one that starts with the same version, after a restart or amid events
    that are not learned, has ``_1``, ``_2``, … after its number.

    The metadata of a part name its series and its number therein. By these a restart identifies parts after its
    checkpoint; no other file is ever removed. A start without a checkpoint begins a new series.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._open: _Part | None = None  # the part that new rows go to
        self._complete: list[_Part] = []  # parts that are not yet on disk
        self._failing = False  # whether the latest attempt to write failed
        self._writing = threading.Lock()
        self._series = uuid.uuid4().hex
        self._parts = 0  # number of parts in the series so far
        self._newest = 0  # model version of the first row of the newest part
        try:
            durable.make_folder(self.path.parent)
            # Temporary files of a killed process.
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
            self._newest = int(rows.versions[0])
            self._open = _Part(self._newest, self._parts, [])
            self._parts += 1
        self._open.batches.append(batch)
        if self._open.rows >= MAX_PART_ROWS:
            self._end_part()

    @property
    def overdue(self) -> bool:
        return self._failing and sum(part.rows for part in list(self._complete)) >= MAX_PART_ROWS

    def flush(self) -> None:
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        if self._open is not None:
            self._complete.append(self._open)
            self._open = None
        return self._write_parts

    def position(self) -> Position | None:
        return {"kind": _KIND, "series": self._series, "parts": self._parts, "newest": self._newest}

    def restore(self, position: Position) -> Callable[[], None]:
        name = f"{SETTING} {self.path}"
        if position.get("kind") != _KIND:
            return ignore_position(name)
        with restoring(name):
            series, parts, newest = position["series"], position["parts"], position["newest"]
            require(
                isinstance(series, str) and is_count(parts) and is_count(newest),
                f"predictions is {shown(position)}, and must count the parts of a series",
            )
        self._series, self._parts, self._newest = series, parts, newest
        return self._remove_parts_after_checkpoint

    def _remove_parts_after_checkpoint(self) -> None:
        """Remove the parts of this series after the checkpoint."""
        rows = 0
        with reporting_failure(SETTING, self.path, CheckpointError):
            for path in self.path.parent.glob(f"{glob.escape(self.path.stem)}-*{glob.escape(self._extension)}"):
                version = path.stem.removeprefix(f"{self.path.stem}-").partition("_")[0]
                # Versions only rise between checkpoints, so few parts have to be read.
                if not (version.isdecimal() and version.isascii() and int(version) >= self._newest):
                    continue
                try:
                    metadata = parquet.read_metadata(path)
                except (pa.ArrowException, OSError):
                    continue  # not ours, which are complete
                own = metadata.metadata or {}
                if own.get(_SERIES) == self._series.encode() and int(own.get(_NUMBER, b"0")) >= self._parts:
                    rows += metadata.num_rows
                    path.unlink()
            durable.sync_folder(self.path.parent)
        if rows:
            LOGGER.info(
                "%s %s: removed the parts after the checkpoint; %d rows will be written again", SETTING, self.path, rows
            )

    def close(self) -> None:
        self._open = None
        self._complete.clear()

    def _end_part(self) -> None:
        """Complete the open part and try to write it; otherwise it waits for a flush, which reports the reason."""
        write = self.begin_flush()
        if not self._failing:
            with suppress(RetriableCheckpointError):  # within a batch nothing can be done
                write()

    def _write_parts(self) -> None:
        """Write all complete parts; may run in another thread while more rows are written."""
        with self._writing, reporting_failure(SETTING, self.path, RetriableCheckpointError):
            self._failing = bool(self._complete)
            while self._complete:
                sink = pa.BufferOutputStream()
                parquet.write_table(self._complete[0].table(self._series), sink)
                durable.make_folder(self.path.parent)
                durable.replace(self._path_of(self._complete[0]), memoryview(sink.getvalue()))
                del self._complete[0]
            self._failing = False

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
    number: int
    """Number in the series, from 0."""
    batches: list[Any]

    def table(self, series: str) -> Any:
        """Return all rows as a table whose metadata name the series and the number."""
        own = {_SERIES: series.encode(), _NUMBER: str(self.number).encode()}
        return pa.Table.from_batches(self.batches).replace_schema_metadata(own)

    @property
    def rows(self) -> int:
        return sum(map(len, self.batches))


def _places(locations: Sequence[Location]) -> Any:
    try:
        return pa.array(locations)
    except UnicodeEncodeError:  # the path of a file whose name is not UTF-8, which Arrow cannot hold
        return pa.array(
            [
                {
                    name: value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value
                    for name, value in location.items()
                }
                for location in locations
            ]
        )


def _record_batch(rows: Predictions) -> Any:
    columns: dict[str, Any] = {
        "place": _places(rows.locations),
        "model_version": pa.array(rows.versions, pa.int64()),
    }
    if rows.global_versions is not None:
        columns["global_version"] = pa.array(rows.global_versions, pa.int64())
    predictions, targets = rows.predictions, rows.targets
    if isinstance(predictions, np.ndarray) and isinstance(targets, np.ndarray):
        columns["prediction"] = _arrow_by_output(predictions, rows.outputs)
        if rows.intervals is not None:
            columns["interval"] = _arrow_by_output(rows.intervals(), rows.outputs)
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
    # Either all outputs are known or none.
    mask = pa.array(np.isnan(values).reshape(len(values), -1).all(axis=1))
    return pa.StructArray.from_arrays(each, list(outputs), mask=mask)


def _lists(values: FloatArray) -> Any:
    n, length = values.shape
    offsets = pa.array(np.arange(n + 1) * length, pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values.ravel(), from_pandas=True))
