"""A stream of bytes over a plain file."""

from __future__ import annotations

import os
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import HEAD_BYTES, RESTORE_ADVICE, as_source_errors


class PlainStream:
    """A stream over a file that may grow but not shrink or change.

    Args:
        raw: the file, unbuffered, at its beginning; closed together with the stream.
        path: for messages.
    """

    def __init__(self, raw: BinaryIO, path: str) -> None:
        self.at_eof = False
        self._raw = raw
        self._path = path
        self.raw_bytes = 0
        """Bytes of the file read so far, for progress."""
        self._size = 0
        self._head = b""

    def read(self, count: int) -> bytes:
        with as_source_errors(self._path):
            self._update_size()
            data = self._raw.read(count)
            # Checked after reading: if the head is unchanged now, it was unchanged during the read.
            head = os.pread(self._raw.fileno(), HEAD_BYTES, 0)
        if not head.startswith(self._head):
            raise SourceError(
                f"{self._path} was overwritten while it was being read: its first bytes have changed; "
                f"{RESTORE_ADVICE}, and give new data a new name"
            )
        self._head = head
        self.raw_bytes += len(data)
        self.at_eof = self.raw_bytes >= self._size
        return data

    def skip(self, count: int) -> int:
        with as_source_errors(self._path):
            self._update_size()
            count = min(count, self._size - self.raw_bytes)
            self._raw.seek(self.raw_bytes + count)
        self.raw_bytes += count
        return count

    def close(self) -> None:
        self._raw.close()

    def _update_size(self) -> None:
        size = os.fstat(self._raw.fileno()).st_size
        if size < self._size:
            raise SourceError(
                f"{self._path} became shorter while it was being read: it had {self._size} bytes and has {size}; "
                f"{RESTORE_ADVICE}"
            )
        self._size = size
