"""Records that were refused: kept for later, and watched in case there are too many of them."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable

import numpy as np

from streammoe.errors import TooManyBadRecords
from streammoe.ports import DeadLetter
from streammoe.runtime.appending import AppendedLines
from streammoe.types import BoolArray

WINDOW = 1_000
"""Records that the ratio is taken over; it is judged only once there have been so many."""


class DeadLetterFile:
    """Appends refused records to a file of JSON lines: place, stage, reason, detail, record, and how to replay it.

    A record that is not UTF-8 is kept as ``record_base64`` instead. `read_letter` reads a line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._lines = AppendedLines(path, "dead_letters.path")
        self.path = self._lines.path

    def write(self, letters: list[DeadLetter]) -> None:
        """Append these letters; durable after `flush`."""
        for letter in letters:
            entry = {name: value for name, value in letter._asdict().items() if value is not None}
            try:
                entry["record"] = letter.record.decode()
            except UnicodeDecodeError:
                del entry["record"]
                entry["record_base64"] = base64.b64encode(letter.record).decode()
            self._lines.write(json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    @property
    def overdue(self) -> bool:
        """See `DeadLetterSink.overdue`."""
        return self._lines.overdue

    def flush(self) -> None:
        """Return only when everything written is on disk.

        Raises:
            CheckpointError: it cannot be written; a checkpoint must not pass over records that are kept nowhere. It is
                a `RetriableCheckpointError` where the same letters can be flushed later.
        """
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        """See `DeadLetterSink`."""
        return self._lines.begin_flush()

    def close(self) -> None:
        """Close the file."""
        self._lines.close()


_REQUIRED: dict[str, type] = {"place": dict, "stage": str, "reason": str, "detail": str}
_OPTIONAL: dict[str, type] = {"format": str, "columns": list, "run": str, "events": int}


def read_letter(line: bytes) -> DeadLetter | None:
    """A line of a `DeadLetterFile`, or ``None`` if it is none: half a line, or something else altogether."""
    try:
        entry = json.loads(line)
        record = (
            entry["record"].encode() if "record" in entry else base64.b64decode(entry["record_base64"], validate=True)
        )
        values = {name: entry[name] for name in _REQUIRED}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    values |= {name: entry[name] for name in _OPTIONAL if entry.get(name) is not None}
    if not all(isinstance(value, (_REQUIRED | _OPTIONAL)[name]) for name, value in values.items()):
        return None
    if "columns" in values:
        values["columns"] = tuple(values["columns"])
        if not all(isinstance(column, str) for column in values["columns"]):
            return None
    return DeadLetter(record=record, **values)


class BadRecordGuard:
    """Stops the daemon when too many of the latest records were refused: a bad deploy must not empty a topic."""

    def __init__(self, max_ratio: float, latest: BoolArray | None = None) -> None:
        self.max_ratio = max_ratio
        self.latest: BoolArray = np.zeros(0, dtype=np.bool_) if latest is None else latest
        """Which of the latest records were refused; kept in checkpoints, so that restarts grant no new start."""

    def judge(self, bad: BoolArray) -> None:
        """Take which of the next records were refused, in order.

        Raises:
            TooManyBadRecords: among some `WINDOW` records in a row more than `max_ratio` were refused.
        """
        flags = np.concatenate([self.latest, bad])
        self.latest = flags[-(WINDOW - 1) :]
        if len(flags) < WINDOW:
            return
        sums = np.concatenate([[0], np.cumsum(flags)])
        worst = int((sums[WINDOW:] - sums[:-WINDOW]).max())
        if worst > self.max_ratio * WINDOW:
            message = (
                f"{worst} of {WINDOW} records in a row were refused, dead_letters.max_ratio allows {self.max_ratio:g} "
                "of them; look at the reasons in the dead letters, mend the producer, or name the columns that hold no "
                "numbers in schema.categorical, schema.timestamps or schema.ignore, and start again: nothing after the "
                "last checkpoint has been passed over"
            )
            raise TooManyBadRecords(message)
