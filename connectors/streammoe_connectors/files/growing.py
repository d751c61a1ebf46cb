"""A stream of bytes over a growing file, which detects lost content."""

from __future__ import annotations

import os
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import HEAD_BYTES, RESTORE_ADVICE, as_source_errors


class GrowingStream:
    """A stream over a file to which others append.

    Args:
        raw: the file, unbuffered, at its beginning; closed together with the stream.
        path: for messages.
        head: the known first bytes of the file.
    """

    def __init__(self, raw: BinaryIO, path: str, head: bytes) -> None:
        self.at_eof = False
        self.is_last = False
        """Whether another file has taken its place, so that it no longer grows."""
        self.head = head
        """The first bytes of the file, as far as they have been read."""
        self._raw = raw
        self._path = path
        self._offset = 0
        self._stat_at_eof: tuple[int, int] | None = None  # size and modification time when it was last read to its end
        self._loss: ContentLostError | None = None

    def read(self, count: int) -> bytes:
        if self._loss is not None:
            raise self._loss
        with as_source_errors(self._path):
            status = os.fstat(self._raw.fileno())
            now = status.st_size, status.st_mtime_ns
            if now == self._stat_at_eof:
                self.at_eof = self.is_last
                return b""
            self.at_eof = False
            data = self._raw.read(count) if status.st_size >= self._offset else b""
            # Checked after reading: if the head is unchanged now, it was unchanged during the read.
            head = os.pread(self._raw.fileno(), HEAD_BYTES, 0)
        if status.st_size < self._offset or not head.startswith(self.head):
            self._loss = self._explain_loss(status.st_size)
            raise self._loss
        self._offset += len(data)
        self.head = head[: max(len(self.head), self._offset)]
        if not data or self._offset == status.st_size:
            self._stat_at_eof = now
        return data

    def skip(self, count: int) -> int:
        with as_source_errors(self._path):
            count = min(count, os.fstat(self._raw.fileno()).st_size - self._offset)
            self._raw.seek(self._offset + count)
        self._offset += count
        return count

    def close(self) -> None:
        self._raw.close()

    def _explain_loss(self, size: int) -> ContentLostError:
        change = f"was truncated to {size} bytes" if size < self._offset else "was overwritten"
        return ContentLostError(
            f"{self._path} {change} while it was being followed: it had been read to byte {self._offset}, and the "
            "content after that is lost"
        )


class ContentLostError(SourceError):
    """Content of a file was lost before it was read."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {RESTORE_ADVICE}, or set source.on_truncate to 'restart'")
        self.what = what
