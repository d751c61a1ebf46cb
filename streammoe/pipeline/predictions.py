"""Predictions as rows of files: one for each event, made before it was learned; and their intervals."""

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

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import parquet

from streammoe.checked import is_count, require, restoring
from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence import durable
from streammoe.persistence.append_log import AppendLog, failing_loudly, of_another_kind
from streammoe.ports import Position, Predictions, PredictionSink
from streammoe.rows import json_rows
from streammoe.text import shown
from streammoe.types import FloatArray

LOGGER = logging.getLogger("streammoe.predictions")
SETTING = "predictions.path"
MOST_ROWS = 250_000
"""Rows of a Parquet part; more are not held in memory, however far checkpoints are apart."""

_KIND = "parts"
_SERIES, _NUMBER = b"streammoe.series", b"streammoe.part"


class Restart(NamedTuple):
    """What a start has to do with predictions that there are already."""

    cut: Callable[[], None] | None = None
    """Takes away what came after the checkpoint, once nothing else can fail."""
    save_first: bool = False
    """Whether a checkpoint must say how far they go before more are made."""


def restart(sink: PredictionSink, metadata: Mapping[str, Any] | None) -> Restart:
    """Find out what to do with predictions where a daemon goes on from a checkpoint, or begins.

    Args:
        sink: of the predictions.
        metadata: of the checkpoint, if there is one.

    Raises:
        CheckpointError: predictions are not what they were when the checkpoint was written.
    """
    if sink.position() is None:
        return Restart()
    if metadata is None:
        return Restart(save_first=True)
    known = metadata.get("predictions")
    if known is None:
        LOGGER.info("the checkpoint does not say how far predictions go; those that came after it are made again")
        return Restart(save_first=True)
    if "stdin" in _kinds(metadata["positions"]):
        LOGGER.warning("predictions that came after the checkpoint stay: stdin cannot be read again to make them again")
        return Restart()
    return Restart(sink.restore(known))


def _kinds(positions: Sequence[Position | None]) -> Iterator[object]:
    """Yield the kinds of these positions, and of those that are joined in them."""
    for position in positions:
        if isinstance(position, dict):
            yield position.get("kind")
            yield from _kinds(position.get("positions", []))


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

    Durable after `flush`. Without a checkpoint to go back to, a line that a killed process has torn is ended at the
    next start, and stays as a line that is no JSON.
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

    def position(self) -> Position | None:
        return self._lines.position()

    def restore(self, position: Position) -> Callable[[], None]:
        return self._lines.restore(position)

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

    The metadata of a part say which series it belongs to, and as what number: by that a restart knows those that came
    after its checkpoint, and no other file is ever removed. A new series begins where there is no checkpoint.
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
        self._series = uuid.uuid4().hex
        self._parts = 0
        """Of the series, so far."""
        self._newest = 0
        """Model version of the first row of its newest part."""
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
            self._newest = int(rows.versions[0])
            self._open = _Part(self._newest, self._parts, [])
            self._parts += 1
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

    def position(self) -> Position | None:
        return {"kind": _KIND, "series": self._series, "parts": self._parts, "newest": self._newest}

    def restore(self, position: Position) -> Callable[[], None]:
        place = f"{SETTING} {self.path}"
        if position.get("kind") != _KIND:
            return of_another_kind(place)
        with restoring(place):
            series, parts, newest = position["series"], position["parts"], position["newest"]
            require(
                isinstance(series, str) and is_count(parts) and is_count(newest),
                f"predictions is {shown(position)}, and must count the parts of a series",
            )
        self._series, self._parts, self._newest = series, parts, newest
        return self._remove_later

    def _remove_later(self) -> None:
        """Remove the parts of this series that have numbers beyond those counted."""
        rows = 0
        with failing_loudly(SETTING, self.path, CheckpointError):
            for path in self.path.parent.glob(f"{glob.escape(self.path.stem)}-*{glob.escape(self._extension)}"):
                version = path.stem.removeprefix(f"{self.path.stem}-").partition("_")[0]
                # Versions only rise between checkpoints, so that few parts have to be looked at.
                if not (version.isdecimal() and version.isascii() and int(version) >= self._newest):
                    continue
                try:
                    metadata = parquet.read_metadata(path)
                except (pa.ArrowException, OSError):
                    continue  # none of ours: those are whole
                held = metadata.metadata or {}
                if held.get(_SERIES) == self._series.encode() and int(held.get(_NUMBER, b"0")) >= self._parts:
                    rows += metadata.num_rows
                    path.unlink()
            durable.sync_folder(self.path.parent)
        if rows:
            LOGGER.info(
                "%s %s: removed the parts after the checkpoint; %d rows are made again", SETTING, self.path, rows
            )

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
                parquet.write_table(self._whole[0].table(self._series), sink)
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
    number: int
    """In its series, from 0."""
    batches: list[Any]

    def table(self, series: str) -> Any:
        """Return all of it, with what says where it belongs."""
        own = {_SERIES: series.encode(), _NUMBER: str(self.number).encode()}
        return pa.Table.from_batches(self.batches).replace_schema_metadata(own)

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
