"""A source that reads records from the standard input."""

from __future__ import annotations

import logging
import os
import select
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import Literal

from streammoe.errors import SourceError
from streammoe.ports import Batch, Position, Source
from streammoe_connectors.files.listing import is_same_file
from streammoe_connectors.formats.records import RecordReader
from streammoe_connectors.formats.texts import TextSettings
from streammoe_connectors.positions import check_kind, invalid

_LOGGER = logging.getLogger("streammoe.source")
_READ_BYTES = 1 << 20  # a pipe gives less
_GATHER_SECONDS = 0.05  # longest delay of a record for the sake of decoding several together


class StdinSource(Source):
    """A source of whole records from the standard input, up to its end.

    `RecordReader` determines where records end. Complete records are returned as soon as they arrive, however few; in
    larger batches if the producer is faster.

    A pipe cannot be read again. A restart loses records that were read after the last checkpoint, and treats all input
    as new, starting with a header if it is csv. Locations include the start time, so that they are unique.

    Args:
        settings: of the section.
        descriptor: the open file to read from; it is not closed.
    """

    replayable = False

    class Settings(TextSettings):
        """The ``[source]`` section for the standard input.

        Attributes:
            format: of the records.
        """

        kind: Literal["stdin"]
        format: Literal["csv", "jsonl"]

    @staticmethod
    def reads(settings: Settings, path: str) -> bool:  # noqa: ARG004
        """Whether `path` is the file that the standard input comes from."""
        return is_same_file(path, 0)

    def __init__(self, settings: Settings, *, descriptor: int = 0) -> None:
        self._pipe = _Pipe(descriptor)
        self._reader = RecordReader(
            self._pipe,
            settings,
            name="stdin",
            format=settings.format,
            start=0,
            location={"stdin": datetime.now(UTC).isoformat()},  # noqa: TID251 - a name
        )

    def seek(self, position: Position | None) -> None:
        if position is not None:
            check_kind(position, "stdin")
            if not isinstance(position.get("offset"), int):
                raise invalid("stdin", "it must hold an offset")
            _LOGGER.warning(
                "stdin cannot be read again: %d bytes had been read when the checkpoint was written, and all input "
                "from now on counts as new",
                position["offset"],
            )
        self._pipe.check()

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while not self.finished:
            self._pipe.gather()
            batch = self._reader.next()
            if batch is not None:
                return replace(batch, end={"kind": "stdin", "offset": self._reader.offset})
            left = deadline - time.monotonic()
            if left <= 0 or (self._reader.needs_more_data and not self._pipe.wait(left)):
                break
        return None

    @property
    def finished(self) -> bool:
        return self._reader.exhausted


class _Pipe:
    """A non-blocking stream over a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self.at_eof = False
        self.raw_bytes = 0  # nobody asks, since there is no progress to show
        self._descriptor = descriptor
        self._gather_until = 0.0

    def check(self) -> None:
        """Raise `SourceError` unless the descriptor is open."""
        if self._descriptor == 0 and sys.stdin is None:
            # Stdin was closed at the start, so this descriptor may belong to a file opened since.
            raise SourceError("stdin is closed; connect a pipe or a file to it, such as with < records.jsonl")
        try:
            os.fstat(self._descriptor)
        except OSError as error:
            raise self._unreadable(error) from error

    def gather(self) -> None:
        """Allow reads for a short time, so that a busy producer cannot delay records."""
        self._gather_until = time.monotonic() + _GATHER_SECONDS

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds for input or its end; return whether there is any."""
        return bool(select.select([self._descriptor], [], [], timeout)[0])

    def read(self, count: int) -> bytes:
        if self.at_eof or time.monotonic() >= self._gather_until:
            return b""
        try:
            if not self.wait(0):
                return b""
            data = os.read(self._descriptor, min(count, _READ_BYTES))
        except BlockingIOError:  # another process reads from the same pipe
            return b""
        except OSError as error:
            raise self._unreadable(error) from error
        self.at_eof = not data
        return data

    def skip(self, count: int) -> int:
        return len(self.read(count))

    @staticmethod
    def _unreadable(error: OSError) -> SourceError:
        return SourceError(f"stdin cannot be read: {error.strerror or error}; pipe records into the process")
