"""What the daemon and its connectors promise each other. Contracts only; implementations live elsewhere.

A *record* is raw bytes with a place, a *batch* a run of records in order, a *position* always the **next** thing to
read. Connectors know records and positions and nothing of events, features or models.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

from streammoe.types import IntArray

Position = dict[str, Any]
"""Where reading goes on: JSON-able, opaque to everyone but the source that made it."""

Place = dict[str, str | int]
"""Where one record came from: the key of a dead letter or a prediction.

For a file ``path`` and ``offset`` (in what it holds, decompressed) or ``row``; for one that is followed also
``rotation``, how many there were under its path before it.
"""


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

    def __len__(self) -> int:
        return len(self.ends) if self.table is None else int(self.table.num_rows)

    def record(self, i: int) -> bytes:
        """The i-th record without its line end; a row of a table as a JSON object."""
        if self.table is not None:
            return json.dumps(self.table.slice(i, 1).to_pylist()[0], default=str, ensure_ascii=False).encode()
        start = int(self.ends[i - 1]) if i else 0
        return self.block[start : int(self.ends[i])].rstrip(b"\r\n")

    def tail(self, first: int) -> Batch:
        """The batch without its first records."""

        def place(i: int) -> Place:
            return self.place(first + i)

        if self.table is not None:
            return replace(self, table=self.table.slice(first), place=place)
        start = int(self.ends[first - 1]) if first else 0
        return replace(self, block=self.block[start:], ends=self.ends[first:] - start, place=place)


class Source(Protocol):
    """Where records come from.

    The daemon calls, from one thread: ``seek`` once, then ``poll`` again and again, now and then ``commit``, at the
    end ``close``. A source keeps no position outside what ``seek`` was given and ``poll`` has returned.
    """

    def seek(self, position: Position | None) -> None:
        """Go where `position` says, or to the configured beginning for ``None``.

        Called once, before the first ``poll``, and before any event is read. Raises `SourceError` when the place
        does not exist, cannot be read, or no longer holds what the position speaks of (a truncated or replaced
        file); it never starts elsewhere silently.
        """
        ...

    def poll(self, timeout: float) -> Batch | None:
        """The next batch, or ``None`` when nothing came within `timeout` seconds.

        Never blocks longer than `timeout` plus the time of one read. Never returns an empty batch.
        """
        ...

    @property
    def finished(self) -> bool:
        """True once a finite source has returned its last batch. Always false for an endless one."""
        ...

    def commit(self, position: Position) -> None:
        """Told after a checkpoint that holds `position` is durable. Advisory; must not raise for a mere mirror."""
        ...

    def progress(self) -> tuple[int, int] | None:
        """Bytes (or records) returned so far and in all, for a progress bar; ``None`` when the end is unknown."""
        ...

    def close(self) -> None:
        """Let go of files and connections. Called once; nothing is called afterwards."""
        ...


class DeadLetter(NamedTuple):
    """One refused record, with all that is needed to find it, count it and replay it after a fix."""

    place: Place
    stage: str
    """Where it was refused: ``decode``, ``validate`` or ``learn``."""
    reason: str
    """Short stable word, the label of the counter: ``malformed``, ``wrong_type``, ``not_finite``, ``out_of_range``."""
    detail: str
    """A sentence naming the field, the value and the rule."""
    record: bytes


class DeadLetterSink(Protocol):
    """Where refused records go. At least once: a restart may write a record again, with the same place."""

    def write(self, letters: list[DeadLetter]) -> None:
        """Take these letters, in order. May buffer."""
        ...

    def flush(self) -> None:
        """Return only when everything written is durable; the daemon checkpoints after this."""
        ...

    def close(self) -> None: ...
