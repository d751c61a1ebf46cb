"""A stream of bytes over a growing file, which detects lost content."""

from __future__ import annotations

import os
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import HEAD_BYTES, START_AFRESH, explained


class GrowingStream:
    """A stream over a file to which others append.

    Args:
        raw: the file, unbuffered, at its beginning; closed together with the stream.
        path: for messages.
        head: the known first bytes of the file.
    """

    def __init__(self, raw: BinaryIO, path: str, head: bytes) -> None:
        self.ended = False
        self.is_last = False
        """Whether another file has taken its place, so that it no longer grows."""
        self.head = head
        """The first bytes of the file, as far as they have been read."""
        self._raw = raw
        self._path = path
        self._at = 0
        self._seen: tuple[int, int] | None = None  # size and modification time when it was last read to its end
        self._lost: LostError | None = None

    def read(self, count: int) -> bytes:
        if self._lost is not None:
            raise self._lost
        with explained(self._path):
            status = os.fstat(self._raw.fileno())
            now = status.st_size, status.st_mtime_ns
            if now == self._seen:
                self.ended = self.is_last
                return b""
            self.ended = False
            data = self._raw.read(count) if status.st_size >= self._at else b""
            # Checked after reading: if the head is unchanged now, it was unchanged during the read.
            head = os.pread(self._raw.fileno(), HEAD_BYTES, 0)
        if status.st_size < self._at or not head.startswith(self.head):
            self._lost = self._explain_loss(status.st_size)
            raise self._lost
        self._at += len(data)
        self.head = head[: max(len(self.head), self._at)]
        if not data or self._at == status.st_size:
            self._seen = now
        return data

    def skip(self, count: int) -> int:
        with explained(self._path):
            count = min(count, os.fstat(self._raw.fileno()).st_size - self._at)
            self._raw.seek(self._at + count)
        self._at += count
        return count

    def close(self) -> None:
        self._raw.close()

    def _explain_loss(self, size: int) -> LostError:
        change = f"was truncated to {size} bytes" if size < self._at else "was overwritten"
        return LostError(
            f"{self._path} {change} while it was being followed: it had been read to byte {self._at}, and the content "
            "after that is lost"
        )


class LostError(SourceError):
    """Content of a file was lost before it was read."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {START_AFRESH}, or set source.on_truncate to 'restart'")
        self.what = what
