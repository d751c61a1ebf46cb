"""What the daemon and its connectors promise each other. Contracts only; implementations live elsewhere.

A *record* is raw bytes with a place, a *batch* a run of records in order, a *position* always the **next** thing to
read. Connectors know records and positions and nothing of events, features or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

from streammoe.types import FloatArray, IntArray

Position = dict[str, Any]
"""Where reading resumes: JSON-able, opaque to everyone but the source that made it.

Its entry ``kind`` is that of the source's settings. What else it holds, only that source knows; `chained` and
`parts_of` handle positions of several sources without looking inside.
"""
CHAINED = "chain"
"""The kind of a position that is made of those of several sources."""


def chained(positions: Sequence[Position | None]) -> Position:
    """Return one position for several sources, in their order; ``None`` for one that has not begun."""
    return {"kind": CHAINED, "positions": list(positions)}


def parts_of(position: Position | None) -> Iterator[Position]:
    """Yield the positions of single sources that `position` is made of, in order."""
    if position is None:
        return
    if position.get("kind") != CHAINED:
        yield position
        return
    for part in position["positions"]:
        yield from parts_of(part)


Place = dict[str, str | int]
"""Where one record came from: the key of a dead letter or a prediction.

For a file ``path`` and ``offset`` (in what it holds, decompressed) or ``row``; for one that is followed also
``rotation``, how many there were under its path before it. For Kafka ``topic``, ``partition`` and ``offset``.
"""


DELIMITERS = (",", ";", "\t", "|")
"""What may stand between two values of csv."""
DECIMALS = (".", ",")
"""What may stand before the decimals of a number in csv."""


class Unreadable(NamedTuple):
    """A record of which the source itself could make nothing."""

    reason: str
    """See `DeadLetter.reason`."""
    detail: str
    record: bytes
    """Its own bytes."""


@dataclass(frozen=True, slots=True)
class Batch:
    """A run of complete records, in order, as the source read them.

    The records stay in one block of bytes, because decoding a block is many times faster than decoding its parts.
    """

    block: bytes
    """The records' bytes, one after the other. Each record may end with its line end; the last one need not."""
    ends: IntArray
    """Where each record ends in ``block`` (exclusive), shape (n,); the first one begins at 0."""
    format: str
    """Name of the decoder: ``csv``, ``jsonl``, ``arrow``."""
    columns: tuple[str, ...] | None
    """Column names from a header, for formats whose records do not name their own values."""
    origin: str
    """Where the block came from, for messages."""
    place: Callable[[int], Place]
    """The place of the i-th record."""
    end: Position
    """Where reading goes on once every record of this batch has been dealt with."""
    skipped: int = 0
    """Blank lines in the block and other records that carry nothing; they are counted and otherwise ignored."""
    too_long: bool = False
    """Whether this is a single record that went on beyond the longest allowed; only its beginning is here."""
    table: Any = None
    """For the format ``arrow``, whose records come as columns: a ``pyarrow.RecordBatch``, one row for each record.
    ``block`` and ``ends`` are empty then."""
    timestamps: IntArray | None = None
    """When each record came into being, in milliseconds since 1970, shape (n,); for sources that know."""
    keys: Sequence[bytes | None] | None = None
    """The n records' keys, for sources that have any."""
    unreadable: Mapping[int, Unreadable] = field(default_factory=dict)
    """Records that must be refused, by their number. In the block stands something in their place that no decoder
    accepts."""

    delimiter: str = ","
    """Of csv: what stands between two values."""
    decimal: str = "."
    """Of csv: what stands before the decimals of a number."""

    def __len__(self) -> int:
        return len(self.ends) if self.table is None else int(self.table.num_rows)

    def record(self, i: int) -> bytes:
        """The i-th record without its line end; a row of a table as a JSON object."""
        if i in self.unreadable:
            return self.unreadable[i].record
        if self.table is not None:
            row = {name: _as_python(self.table[name][i]) for name in self.table.schema.names}
            return json.dumps(row, default=str, ensure_ascii=False).encode(errors="replace")
        start = int(self.ends[i - 1]) if i else 0
        return self.block[start : int(self.ends[i])].rstrip(b"\r\n")

    def tail(self, first: int) -> Batch:
        """The batch without its first records."""

        def place(i: int) -> Place:
            return self.place(first + i)

        rest = replace(
            self,
            place=place,
            timestamps=None if self.timestamps is None else self.timestamps[first:],
            keys=None if self.keys is None else self.keys[first:],
            unreadable={i - first: bad for i, bad in self.unreadable.items() if i >= first},
        )
        if self.table is not None:
            return replace(rest, table=self.table.slice(first))
        start = int(self.ends[first - 1]) if first else 0
        return replace(rest, block=self.block[start:], ends=self.ends[first:] - start)


def _as_python(scalar: Any) -> object:
    """An Arrow value as Python's own; of what Python cannot hold, what can be said about it."""
    try:
        return scalar.as_py()
    # Nanoseconds, the year 10000, a time zone that is not known here, text that is not UTF-8.
    except (ValueError, LookupError, OverflowError):
        ticks = getattr(scalar, "value", None)
        return ticks if isinstance(ticks, int) else f"a value of type {scalar.type}"


class Partition(NamedTuple):
    """A part of a stream whose records are in order."""

    topic: str
    partition: int


class SourceStatus(NamedTuple):
    """How a source fares, for metrics and for whoever asks whether the daemon is ready."""

    ready: bool = True
    """Whether reading has begun at the position that was sought."""
    connected: bool = True
    """Whether what is read from answers."""
    positions: Mapping[Partition, int] = MappingProxyType({})
    """The next offset to read of each partition that is read."""
    lags: Mapping[Partition, int] = MappingProxyType({})
    """Records that each of them has beyond that."""
    stalled: Sequence[Partition] = ()
    """Partitions that hold more, of which nothing has come for a while."""
    counters: Mapping[str, int] = MappingProxyType({})
    """How often each kind of event has happened since the start, by short stable names such as ``reconnected``."""


class Source(Protocol):
    """Where records come from.

    The daemon calls, from one thread: ``seek`` once; ``prepare`` until it says that it is done; then ``poll`` again and
    again, now and then ``commit``; at the end ``close``. ``status`` may be asked at any time between. A source keeps no
    position outside what ``seek`` was given and ``poll`` has returned.

    Methods with a body are what most sources need; they are inherited by classes that derive from this one.
    """

    replayable: ClassVar[bool] = True
    """Whether an earlier position can be sought again."""

    def seek(self, position: Position | None) -> None:
        """Go where `position` says, or to the configured beginning for ``None``.

        Called once, before anything else. Raises `SourceError` when the place does not exist, cannot be read, or no
        longer holds what the position speaks of (a truncated or replaced file); it never starts elsewhere silently. A
        source that has to ask others for that may leave it to ``prepare``.
        """
        ...

    def prepare(self, timeout: float) -> bool:
        """Go on connecting for up to `timeout` seconds; whether reading can begin.

        Whoever cannot be reached is tried again and again, by later calls. Raises what ``seek`` does.
        """
        return True

    @property
    def position(self) -> Position | None:
        """Where reading stands, once prepared, if that is worth a checkpoint although no record has told it.

        Such as the end of a topic, where reading begins: a start after a crash must not begin at what is the end then.
        Or where it went on because what was to be read is lost. ``None`` again after a batch that passes it.
        """
        return None

    def poll(self, timeout: float) -> Batch | None:
        """The next batch, or ``None`` when nothing came within `timeout` seconds.

        Never blocks longer than `timeout` plus the time of one read. A batch holds records, or counts what was
        skipped.
        """
        ...

    @property
    def finished(self) -> bool:
        """True once a finite source has returned its last batch. Always false for an endless one."""
        ...

    def commit(self, position: Position, generation: int) -> None:
        """Told after a checkpoint of this generation, which holds `position`, is durable.

        At the start also of the checkpoint that reading goes on from. Advisory: must not wait, nor raise for a mere
        mirror. `SourceError` says that somebody else has taken what is read.
        """
        return

    def progress(self) -> tuple[int, int] | None:
        """Bytes (or records) returned so far and in all, for a progress bar; ``None`` when the end is unknown."""
        ...

    def status(self) -> SourceStatus:
        """How it fares. Must not wait."""
        return SourceStatus()

    def close(self) -> None:
        """Let go of files and connections. Called once; nothing is called afterwards."""


class DeadLetter(NamedTuple):
    """One refused record, with all that is needed to find it, count it and replay it after a fix."""

    place: Place
    stage: str
    """Where it was refused: ``decode``, ``validate`` or ``learn``."""
    reason: str
    """One of `streammoe.errors.REASONS`, the label of the counter."""
    detail: str
    """A sentence naming the field, the value and the rule."""
    record: bytes
    format: str | None = None
    """Name of the decoder that reads `record`; ``None`` if that is not a whole record."""
    columns: tuple[str, ...] | None = None
    """Column names, for formats whose records do not name their own values."""
    run: str | None = None
    """Which run of the daemon refused it, from one start to the next."""
    events: int | None = None
    """How many events had been dealt with once the record's batch was; restarts go on counting."""
    delimiter: str | None = None
    """See `Batch.delimiter`; ``None`` for a comma."""
    decimal: str | None = None
    """See `Batch.decimal`; ``None`` for a point."""


def nothing_more() -> None:
    """What `begin_flush` returns where all is durable already."""


class DeadLetterSink(Protocol):
    """Where refused records go. At least once: a restart may write a record again, with the same place.

    Methods with a body are what most sinks need; they are inherited by classes that derive from this one.
    """

    def write(self, letters: list[DeadLetter]) -> None:
        """Take these letters, in order. May buffer."""
        ...

    def flush(self) -> None:
        """Return only when everything written is durable; the daemon checkpoints after this.

        Raises:
            RetriableCheckpointError: not for now; what was written is held, and the call may be made again later.
            SinkError: it cannot be made durable, for good; nothing may be dropped.
        """
        ...

    @property
    def overdue(self) -> bool:
        """Whether so much is held in memory that nothing more should be written before a `flush`."""
        return False

    def begin_flush(self) -> Callable[[], None]:
        """Begin what `flush` does, and return what ends it: the daemon writes a checkpoint beside the learning.

        What is returned runs in another thread, while `write` may be called, and returns only when all that was written
        before this call is durable; it raises what `flush` does. Sinks that cannot be used so flush here.
        """
        self.flush()
        return nothing_more

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What was predicted for n events in a row, each before it was learned.

    Of a classifier the predictions and targets are labels, else numbers for each of the Q outputs.
    """

    places: Sequence[Place]
    """Where each event came from: the key of its row."""
    versions: IntArray
    """(n,) events that the model had learned before it predicted; only a rollback lowers it."""
    predictions: FloatArray | Sequence[str | None]
    """(n, Q) numbers, or n labels; ``None`` before any is known."""
    targets: FloatArray | Sequence[str | None]
    """The same of what turned out; NaN or ``None`` where it is not known."""
    outputs: tuple[str, ...]
    """Names of the Q targets."""
    classes: tuple[str, ...] = ()
    """Names of the M classes."""
    probabilities: FloatArray | None = None
    """(n, M) of the classes."""
    gate: FloatArray | None = None
    """(n, K) share of each expert, or nothing if they are not wanted."""
    intervals: FloatArray | None = None
    """(n, Q, 2) ends of the predictive intervals, or nothing if they are not wanted."""

    keys: Sequence[bytes | None] | None = None
    """The keys of the n records that the events came from, for sources that have any."""
    losses: FloatArray | None = None
    """(n,) -log s(y|x) of each event that was learned, in the target's own units; NaN for others."""

    def __len__(self) -> int:
        return len(self.versions)


class Message(NamedTuple):
    """One record to be written as it is."""

    value: bytes
    key: bytes | None = None
    timestamp: int | None = None
    """In ms since 1970; ``None`` leaves it to the time of sending."""


class RecordWriter(Protocol):
    """Where `streammoe produce` writes records, in order; from construction to `close`."""

    acknowledged: int
    """Records that are known to be durable."""

    def send(self, message: Message, number: int) -> None:
        """Take a message; may wait. One that is too large is left out, for `problem` to report.

        Args:
            message: what to send.
            number: of its record, for messages.

        Raises:
            SourceError: an earlier one could not be delivered.
            SinkError: an earlier one was rejected as too large, which could not be foreseen.
        """
        ...

    def flush(self) -> None:
        """Return when everything that was sent is acknowledged; raises what `send` does."""
        ...

    def problem(self) -> str | None:
        """Return what was left out, and what to do about it."""
        ...

    def close(self) -> None:
        """Close the connection; what was not flushed may be lost."""
        ...


class Recovered(NamedTuple):
    """What a transactional sink has found."""

    generation: int | None
    """Of the checkpoint whose predictions are all to be seen; ``None`` if there is none yet."""


class PredictionSink(Protocol):
    """Where predictions go: at least once, or exactly once where a sink has a `position` or is `transactional`.

    A row that is written again has the same place and version.

    Methods with a body are what most sinks need; they are inherited by classes that derive from this one.
    """

    def write(self, rows: Predictions) -> None:
        """Take these rows, in order. May buffer."""
        ...

    def flush(self) -> None:
        """Return only when everything written is durable; the daemon checkpoints after this.

        Raises:
            RetriableCheckpointError: not for now; what was written is held, and the call may be made again later.
        """
        ...

    @property
    def overdue(self) -> bool:
        """Whether so much is held in memory that nothing more should be written before a `flush`."""
        return False

    def begin_flush(self) -> Callable[[], None]:
        """As in `DeadLetterSink`; not called of a transactional sink."""
        self.flush()
        return nothing_more

    def position(self) -> Position | None:
        """Return where ends what the latest `flush` or `begin_flush` has taken; ``None`` if nobody can go back there.

        JSON-able, opaque to everyone but sinks of this kind. The checkpoint that follows keeps it, and a start from
        that checkpoint hands it to `restore`, so that no row is to be seen twice. Without it rows come at least once.
        """
        return None

    def restore(self, position: Position) -> Callable[[], None]:
        """Make sure that all is there up to a `position`, and return what takes away everything after it.

        Called at most once, before anything is written. It changes nothing; what it returns does, durably, and is
        called when nothing else can fail: the rows that it takes away are made again.

        Raises:
            CheckpointError: what is there is not what the position speaks of.
        """
        return nothing_more

    def close(self) -> None:
        """Let go of files and connections; what has not been flushed may be lost."""
        ...

    @property
    def transactional(self) -> bool:
        """Whether what was written stays unseen until `commit`, together with the source's position."""
        return False

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        """Of a transactional sink, before anything else: which checkpoint's predictions have been seen.

        Ends what an earlier run has left open. ``None`` if nobody could be asked within `timeout` seconds; to be called
        again.

        Args:
            timeout: seconds to wait at most.
            position: in the newest checkpoint; of the checkpoints that `commit` was told of, only those that it goes
                back to count. ``None`` where all begins anew.

        Raises:
            SinkError: it cannot be told, for good.
        """
        return Recovered(None)

    def commit(self, position: Position, generation: int) -> None:
        """Of a transactional sink, after a checkpoint of this generation, which holds `position`, is durable.

        Makes all that was written before seen, and writes the position beside it, both or neither.

        Raises:
            SinkError: it cannot be done, for good; the next start goes on from an earlier checkpoint.
        """
        return
