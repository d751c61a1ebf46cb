"""Contracts between the daemon and its connectors; implementations live elsewhere.

A *record* is raw bytes with a location, a *batch* is a run of records in order, and a *position* is always that of the
**next** thing to read. Connectors deal with records and positions and know nothing about events, features or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol, overload

import numpy as np

from streammoe.types import FloatArray, IntArray

Position = dict[str, Any]
"""Where reading resumes: JSON-serializable, and opaque to all but the source that created it.

Its entry ``kind`` is the ``kind`` in the source's settings. Only that source understands the rest.
"""
Location = dict[str, str | int]
"""Where a record came from; identifies a dead letter or a prediction.

For a file: ``path`` and ``offset`` (in the decompressed content) or ``row``; for a followed file also ``rotation``, the
number of files that had its path before. For Kafka: ``topic``, ``partition`` and ``offset``. One of several events in a
record has its number there, too, as ``record``.
"""


@dataclass(frozen=True, slots=True)
class Locations(Sequence[Location]):
    """Locations that differ in whole numbers alone, kept as columns: a dict for each takes as long as learning it."""

    common: Location
    """The entries that all have in common, which come first."""
    numbers: Mapping[str, IntArray]
    """The others by name: at least one, and a number for each location."""

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values())))

    @overload
    def __getitem__(self, i: int) -> Location: ...
    @overload
    def __getitem__(self, i: slice) -> Locations: ...
    def __getitem__(self, i: int | slice) -> Location | Locations:
        if isinstance(i, slice):
            return Locations(self.common, {name: numbers[i] for name, numbers in self.numbers.items()})
        return {**self.common, **{name: int(numbers[i]) for name, numbers in self.numbers.items()}}

    def __iter__(self) -> Iterator[Location]:
        columns = [numbers.tolist() for numbers in self.numbers.values()]
        return ({**self.common, **dict(zip(self.numbers, row, strict=True))} for row in zip(*columns, strict=True))


DELIMITERS = (",", ";", "\t", "|")
"""Characters that may separate two values of csv."""
DECIMALS = (".", ",")
"""Characters that may be the decimal mark of a number in csv."""
INDEX_NAMES = ("Unnamed: 0", "Unnamed: 0.1", "__index_level_0__", "__index_level_1__")
"""What pandas calls the index of a data frame without a name in csv, where that is a first column without one, and in
Parquet; and a second one."""


Headers = tuple[tuple[str, bytes | None], ...]
"""The headers of a record in their order; a name may occur several times."""


class Unreadable(NamedTuple):
    """A record that the source itself could not decode."""

    reason: str
    """See `DeadLetter.reason`."""
    detail: str
    record: bytes
    """Its bytes as they were read."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of complete records, in order, as the source read them.

    The records stay in one block of bytes because decoding a block is many times faster than decoding its parts.
    """

    block: bytes
    """The bytes of the records, one after the other. Each record may include its line end; the last one need not."""
    ends: IntArray
    """Where each record ends in ``block`` (exclusive), shape (n,); the first one starts at 0."""
    format: str
    """Name of the decoder: ``csv``, ``jsonl``, ``arrow``."""
    columns: tuple[str, ...] | None
    """Column names from a header, for formats whose records do not name their values; empty for one without a name."""
    origin: str
    """Where the block came from, for messages."""
    locations: Sequence[Location]
    """Where each of the n records came from; `Locations`, if they can be, are many times faster than others."""
    end: Position
    """Where reading resumes once every record of this batch has been processed."""
    skipped: int = 0
    """Blank lines in the block and other records without content, which are counted and otherwise ignored."""
    too_long: bool = False
    """Whether this is a single record longer than allowed, of which only the beginning is here."""
    table: Any = None
    """For the format ``arrow``, whose records come as columns: a ``pyarrow.RecordBatch`` with one row per record.
    ``block`` and ``ends`` are then empty."""
    categorical: frozenset[str] = frozenset()
    """Columns of the table that are categories by their type, whatever their values are."""
    timestamps: IntArray | None = None
    """Creation time of each record in milliseconds since 1970, shape (n,), if the source knows it."""
    keys: Sequence[bytes | None] | None = None
    """The keys of the n records, if the source has any."""
    headers: Sequence[Headers] | None = None
    """The headers of the n records, if any of them has some."""
    unreadable: Mapping[int, Unreadable] = field(default_factory=dict)
    """Records that must be rejected, by index. The block holds bytes in their place that no decoder accepts."""

    delimiter: str = ","
    """Separates two values of csv."""
    decimal: str = "."
    """Decimal mark of numbers in csv."""
    lags: Mapping[int, FloatArray] = field(default_factory=dict)
    """The lags that events were predicted with earlier, by index, where a model has such features and targets come
    late; in the order of their names, infinite where one was missing."""

    def __len__(self) -> int:
        return len(self.ends) if self.table is None else int(self.table.num_rows)

    def record(self, i: int) -> bytes:
        """Return the i-th record without its line end; a row of a table as a JSON object."""
        if i in self.unreadable:
            return self.unreadable[i].record
        if self.table is not None:
            row = {name: _as_python(self.table[name][i]) for name in self.table.schema.names}
            return json.dumps(row, default=str, ensure_ascii=False).encode(errors="replace")
        start = int(self.ends[i - 1]) if i else 0
        return self.block[start : int(self.ends[i])].rstrip(b"\r\n")

    def location(self, i: int) -> Location:
        """Return the location of the i-th record."""
        return self.locations[i]

    def locations_at(self, indexes: IntArray) -> Sequence[Location]:
        """Return the locations of the records of these indexes."""
        if isinstance(found := self.locations, Locations):
            return replace(found, numbers={name: numbers[indexes] for name, numbers in found.numbers.items()})
        return [self.locations[i] for i in indexes.tolist()]

    def tail(self, first: int) -> Batch:
        """Return the batch without its first `first` records."""
        return self.select(np.arange(first, len(self)))

    def select(self, indexes: IntArray) -> Batch:
        """Return the batch with only the records of these indexes, which rise."""
        first, last = (int(indexes[0]), int(indexes[-1]) + 1) if len(indexes) else (0, 0)
        is_run = last - first == len(indexes)

        def chosen(values: Sequence[Any]) -> Sequence[Any]:
            return values[first:last] if is_run else [values[i] for i in indexes.tolist()]

        now_at = {i: at for at, i in enumerate(indexes.tolist())} if self.unreadable or self.lags else {}
        rest = replace(
            self,
            locations=chosen(self.locations) if is_run else self.locations_at(indexes),
            timestamps=None if self.timestamps is None else self.timestamps[indexes],
            keys=None if self.keys is None else chosen(self.keys),
            headers=None if self.headers is None else chosen(self.headers),
            unreadable={now_at[i]: bad for i, bad in self.unreadable.items() if i in now_at},
            lags={now_at[i]: lags for i, lags in self.lags.items() if i in now_at},
        )
        if self.table is not None:
            table = self.table.slice(first, last - first) if is_run else self.table.take(indexes)
            return replace(rest, table=table)
        starts = np.concatenate([np.zeros(1, np.int64), self.ends])
        block = self.block[starts[first] : starts[last]]
        if not is_run:
            block = b"".join([self.block[starts[i] : starts[i + 1]] for i in indexes.tolist()])
        return replace(rest, block=block, ends=np.cumsum(np.diff(starts)[indexes]))


def _as_python(scalar: Any) -> object:
    """Convert an Arrow value to a Python object, or to a description of it if Python has no such value."""
    try:
        return scalar.as_py()
    # Nanoseconds, the year 10000, an unknown time zone, text that is not UTF-8.
    except (ValueError, LookupError, OverflowError):
        ticks = getattr(scalar, "value", None)
        return ticks if isinstance(ticks, int) else f"a value of type {scalar.type}"


class TopicPartition(NamedTuple):
    """One partition of a topic: a part of a stream whose records are in order."""

    topic: str
    partition: int


STALLS = ("leader", "records", "transaction", "topic")
"""Why a partition is held up: its leader does not answer, it has unread records and returns none, a transaction stays
open, or its topic is gone."""


class SourceStatus(NamedTuple):
    """The state of a source, for metrics and readiness checks."""

    connected: bool = True
    """Whether the system that is read from responds."""
    positions: Mapping[TopicPartition, int] = MappingProxyType({})
    """The next offset to read from each assigned partition."""
    lags: Mapping[TopicPartition, int] = MappingProxyType({})
    """The number of records behind that offset in each partition."""
    stalled: Mapping[TopicPartition, str] = MappingProxyType({})
    """Partitions that are held up, each with one of `STALLS`."""
    behind: float | None = None
    """Seconds since the newest record returned was written, where there are more; 0 where not, ``None`` if unknown."""
    counters: Mapping[str, int] = MappingProxyType({})
    """Events since the start, counted by short stable names such as ``reconnected``."""
    held_back: Mapping[TopicPartition, int] = MappingProxyType({})
    """The number of records read from each partition that wait for older ones of others."""
    refused: str = ""
    """Why the system that is read from rejects this daemon; empty if it does not."""


class Source(Protocol):
    """A source of records.

    The daemon calls from one thread: ``seek`` once; ``prepare`` until it returns true; then ``poll`` repeatedly, with
    ``commit`` in between; finally ``close``. ``status`` may be called at any time, also by another thread. A source
    keeps no position other than those passed to ``seek`` and returned by ``poll``.

    Methods with a body are the default for subclasses and suit most sources.
    """

    replayable: ClassVar[bool] = True
    """Whether the source can seek to an earlier position again."""
    can_look_ahead: ClassVar[bool] = False
    """Whether its first records can be read without waiting for anybody, and without anybody noticing."""

    def seek(self, position: Position | None) -> None:
        """Go to `position`, or to the configured beginning for ``None``.

        Called once, before anything else. Raises `SourceError` if the position does not exist, cannot be read, or no
        longer holds what it refers to (a truncated or replaced file); reading never silently starts elsewhere. A source
        that has to connect to find out may leave this to ``prepare``.
        """
        ...

    def renamed(self, position: Position) -> Position:
        """Return a position from a backup as that of another daemon, so that one that reads on from it is noticed."""
        return position

    def prepare(self, timeout: float) -> bool:
        """Continue to connect for up to `timeout` seconds; return whether reading can start.

        Later calls retry what could not be reached. Raises what ``seek`` does.
        """
        return True

    @property
    def position(self) -> Position | None:
        """The current position, once prepared, if it deserves a checkpoint although no record has led to it.

        Such as the end of a topic where reading starts, since a restart after a crash must not start at a later end;
        or the position where reading resumed after data was lost. ``None`` again after a batch that passes it.
        """
        return None

    def poll(self, timeout: float) -> Batch | None:
        """Return the next batch, or ``None`` if nothing arrived within `timeout` seconds.

        Never blocks longer than `timeout` plus the time of one read. A batch holds records, or counts skipped ones, or
        passes on the header of a stream without records so that the target can be checked.
        """
        ...

    @property
    def finished(self) -> bool:
        """Whether a finite source has returned its last batch; always false for an endless one."""
        ...

    def commit(self, position: Position, generation: int) -> None:
        """Report that the checkpoint of this generation, which holds `position`, is durable.

        Also called at the start for the checkpoint from which reading resumes. Advisory: must not wait, nor raise if a
        mere mirror of the position fails. `SourceError` means that another process has taken over the input.
        """
        return

    def progress(self) -> tuple[int, int] | None:
        """Return bytes (or records) returned so far and in total, for a progress bar; ``None`` if endless."""
        return None

    def status(self) -> SourceStatus:
        """Return the state of the source. Must not wait.

        Other threads call it while the daemon waits for a sink, and after ``close``; whether the source is connected
        should then be as true as otherwise.
        """
        return SourceStatus()

    def close(self) -> None:
        """Release files and connections. Called once, as the last call."""


EXPIRED = "expired"
"""Reason in letters of records that waited in vain for their other half; they are not counted as rejected."""


class DeadLetter(NamedTuple):
    """A rejected record, with all that is needed to find it, count it and read it again after a fix."""

    location: Location
    stage: str
    """Where it was rejected: ``decode``, ``validate`` or ``learn``; or ``join``, where it expired."""
    reason: str
    """One of `streammoe.errors.REASONS`, the label of the counter; or `EXPIRED`."""
    detail: str
    """A sentence naming the field, the value and the rule."""
    record: bytes
    format: str | None = None
    """Name of the decoder that reads `record`; ``None`` if that is not a whole record."""
    columns: tuple[str, ...] | None = None
    """Column names, for formats whose records do not name their values."""
    delimiter: str | None = None
    """See `Batch.delimiter`; ``None`` for a comma."""
    decimal: str | None = None
    """See `Batch.decimal`; ``None`` for a point."""
    key: bytes | None = None
    """The record's key, if its source has keys."""
    headers: Headers | None = None
    """The record's headers, if there are any; see `MAX_ENVELOPE_BYTES`."""
    omitted_bytes: int | None = None
    """Bytes of key and headers that were left out, since both together exceed `MAX_ENVELOPE_BYTES`."""


MAX_ENVELOPE_BYTES = 1 << 15
"""Bytes of key and headers that a dead letter holds at most: a topic of letters must have room for them."""


def enveloped(letter: DeadLetter, key: bytes | None, headers: Headers | None) -> DeadLetter:
    """Return a letter with key and headers of its record, as far as they fit; a part is kept whole or left out."""
    room = MAX_ENVELOPE_BYTES
    omitted = 0
    if key is not None:
        if len(key) <= room:
            room -= len(key)
        else:
            omitted, key = len(key), None
    kept = []
    for name, value in headers or ():
        size = len(name.encode(errors="surrogatepass")) + len(value or b"")
        if size <= room:
            room -= size
            kept.append((name, value))
        else:
            omitted += size
    return letter._replace(key=key, headers=tuple(kept) or None, omitted_bytes=omitted or None)


def nothing_more() -> None:
    """Return at once: the result of `restore` if there is nothing to remove."""


class Sink(Protocol):
    """The common part of sinks for rejected records and for predictions.

    Methods with a body are the default for subclasses and suit most sinks.
    """

    def flush(self) -> None:
        """Return only when everything written is durable; the daemon checkpoints after this.

        Raises:
            RetriableCheckpointError: it failed for now; what was written is retained, and the call may be repeated.
            SinkError: it cannot be made durable, permanently; nothing may be dropped.
        """
        ...

    @property
    def rejection(self) -> str:
        """Why the system that is written to rejects this client's login or certificate at present; empty otherwise.

        Other threads ask for it at any time.
        """
        return ""

    @property
    def overdue(self) -> bool:
        """Whether so much is held in memory that nothing more should be written before a `flush`."""
        return False

    def close(self) -> None:
        """Release files and connections; what has not been flushed may be lost."""
        ...


class DeadLetterSink(Sink, Protocol):
    """A sink for rejected records, at least once: a restart may write a record again, with the same location."""

    def write(self, letters: list[DeadLetter]) -> None:
        """Write these letters, in order. May buffer."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """Predictions for n consecutive events, each made before the event was learned.

    A classifier predicts labels, a regressor numbers for each of the Q outputs.
    """

    locations: Sequence[Location]
    """Where each event came from: the key of its row. Empty for those of a request."""
    versions: IntArray
    """(n,) events of the source that the model had learned before it predicted; only a rollback lowers it."""
    predictions: FloatArray | Sequence[str | None]
    """(n, Q) numbers, or n labels; ``None`` before any is known."""
    targets: FloatArray | Sequence[str | None] | None
    """(n, Q) numbers, or n labels; NaN or ``None`` if unknown. None for those of a request."""
    outputs: tuple[str, ...]
    """Names of the Q targets."""
    classes: tuple[str, ...] = ()
    """Names of the M classes."""
    probabilities: FloatArray | None = None
    """(n, M) class probabilities."""
    gate: FloatArray | None = None
    """(n, K) share of each expert, if requested."""
    intervals: Callable[[], FloatArray] | None = None
    """Computes the (n, Q, 2) ends of the predictive intervals, if requested; it takes as long as writing the rows."""

    keys: Sequence[bytes | None] | None = None
    """The keys of the n records that the events came from, if the source has any."""
    losses: FloatArray | None = None
    """(n,) -log s(y|x) of each learned event, in the units of the target; NaN for others."""
    global_versions: IntArray | None = None
    """(n,) the version of the global model that predicted, 0 where the daemon's own did; None without a global one."""

    def __len__(self) -> int:
        return len(self.versions)


class PredictionSink(Sink, Protocol):
    """A sink for predictions: at least once, or exactly once if it has a `position` or is `transactional`.

    A row that is written again has the same location and version.
    """

    def write(self, rows: Predictions) -> None:
        """Write these rows, in order. May buffer."""
        ...

    def position(self) -> Position | None:
        """Return the end of what the latest `flush` covers; ``None`` if output cannot be cut back.

        JSON-serializable, and opaque to all but sinks of this kind. The next checkpoint holds it, and a start from that
        checkpoint passes it to `restore`, so that no row appears twice. Without it rows are written at least once.
        """
        return None

    def restore(self, position: Position) -> Callable[[], None]:
        """Verify that the output reaches `position`, and return a function that removes everything after it.

        Called at most once, before anything is written. It changes nothing itself; the returned function does so
        durably, and is called when nothing else can fail, since the rows that it removes are written again.

        Raises:
            CheckpointError: the output does not match the position.
        """
        return nothing_more

    @property
    def transactional(self) -> bool:
        """Whether rows stay invisible until `commit` publishes them together with the source's position."""
        return False

    def recover(self, timeout: float, position: Position | None) -> int | None:
        """Return the last generation whose predictions are all visible, or 0; end what an earlier run left open.

        Called on a transactional sink before anything else. Returns ``None`` if no answer arrived within `timeout`
        seconds; the call is then repeated.

        Args:
            timeout: the longest wait in seconds.
            position: in the newest checkpoint. Of all committed checkpoints, only those that led to it count. ``None``
                for a fresh start.

        Raises:
            SinkError: it cannot be found out, permanently.
        """
        return 0

    def commit(self, position: Position, generation: int) -> None:
        """Publish everything written and the source's `position`, both or neither.

        Called on a transactional sink once the checkpoint of this generation, which holds `position`, is durable.

        Raises:
            SinkError: it failed permanently; the next start resumes from an earlier checkpoint.
        """
        return
