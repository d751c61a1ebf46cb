"""The bytes of one file that grows, and how its loss is noticed."""

from __future__ import annotations

import os
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import HEAD_BYTES, START_AFRESH, explained


class GrowingStream:
    """The bytes of a file to which others append.

    Args:
        raw: the file, unbuffered, at its beginning; closed together with the stream.
        path: for messages.
        head: how the file begins.
    """

    def __init__(self, raw: BinaryIO, path: str, head: bytes) -> None:
        self.ended = False
        self.is_last = False
        """Whether it ends where it ends now."""
        self.head = head
        """How the file begins, as far as it has been read."""
        self._raw = raw
        self._path = path
        self._at = 0
        self._seen: tuple[int, int] | None = None  # size and time of change when all of it had been read
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
            # Looked at after reading: what was read before anyone began to change what comes first is sound.
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
            f"{self._path} {change} while it was being followed: it had been read to byte {self._at}, and what came "
            "after that is lost"
        )


class LostError(SourceError):
    """Content of a file that was still to be read is gone."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {START_AFRESH}, or set source.on_truncate to 'restart'")
        self.what = what
