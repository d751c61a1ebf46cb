"""Streams of the bytes of plain files, which detect lost content, and of those that gzip has compressed."""

from __future__ import annotations

import gzip
import os
import zlib
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import GZIP_MAGIC, HEAD_BYTES, RESTORE_ADVICE, as_source_errors

_SKIP_BYTES = 1 << 20  # some hundredths of a second of decompression


class PlainStream:
    """A stream over a file that may grow but not shrink or change.

    Args:
        raw: the file, unbuffered, at its beginning.
        path: for messages.
        head: the known first bytes of the file.
        follow: whether to wait for what others append until `is_last`; else it ends where the file does.
    """

    def __init__(self, raw: BinaryIO, path: str, head: bytes = b"", *, follow: bool = False) -> None:
        self.at_eof = False
        self.is_last = False
        """Whether another file has taken its place, so that it no longer grows."""
        self.head = head
        """The first bytes of the file, as far as they have been read."""
        self.raw_bytes = 0
        """Bytes of the file read so far."""
        self._raw = raw
        self._path = path
        self._follow = follow
        self._size = 0
        self._stat_at_eof: tuple[int, int] | None = None  # size and modification time when it was last read to its end
        self._loss: SourceError | None = None

    def read(self, count: int) -> bytes:
        if self._loss is not None:
            raise self._loss
        with as_source_errors(self._path):
            status = os.fstat(self._raw.fileno())
            now = status.st_size, status.st_mtime_ns
            if now == self._stat_at_eof:
                self.at_eof = self.is_last or not self._follow
                return b""
            has_shrunk = status.st_size < max(self._size, self.raw_bytes)
            data = b"" if has_shrunk else self._raw.read(count)
            # Checked after reading: if the head is unchanged now, it was unchanged during the read.
            head = os.pread(self._raw.fileno(), HEAD_BYTES, 0)
        if has_shrunk or not head.startswith(self.head):
            change = f"was truncated to {status.st_size} bytes" if has_shrunk else "was overwritten"
            what = (
                f"{self._path} {change} while it was being {'followed' if self._follow else 'read'}: it had been read "
                f"to byte {self.raw_bytes}, and the content after that is lost"
            )
            self._loss = ContentLostError(what) if self._follow else SourceError(f"{what}; {RESTORE_ADVICE}")
            raise self._loss
        self._size = status.st_size
        self.raw_bytes += len(data)
        self.head = head[: max(len(self.head), self.raw_bytes)]
        if not data or self.raw_bytes == self._size:
            self._stat_at_eof = now
        self.at_eof = not self._follow and self.raw_bytes >= self._size
        return data

    def skip(self, count: int) -> int:
        with as_source_errors(self._path):
            count = min(count, os.fstat(self._raw.fileno()).st_size - self.raw_bytes)
            self._raw.seek(self.raw_bytes + count)
        self.raw_bytes += count
        return count


class ContentLostError(SourceError):
    """Content of a followed file was lost before it was read."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}; {RESTORE_ADVICE}, or set source.on_truncate to 'restart'")
        self.what = what


class GzipStream:
    """A stream over the content of a gzip file, which may consist of several members.

    What was decompressed before a damage is returned before the error. The checksum is at the end of each member, so
    damage that still decompresses is only detected there.

    Args:
        raw: the file, at its beginning.
        path: for messages.
        head: its first bytes.
    """

    def __init__(self, raw: BinaryIO, path: str, head: bytes) -> None:
        self.at_eof = False
        self.raw_bytes = 0
        """Bytes of the file read so far, for progress."""
        self._raw = raw
        self._path = path
        self._file = gzip.GzipFile(fileobj=raw)
        self._offset = 0
        self._damage: SourceError | None = None
        if not head:
            self._damage = self._truncated()
        elif not GZIP_MAGIC.startswith(head[: len(GZIP_MAGIC)]):
            self._damage = SourceError(
                f"{path} is not gzip data, although its name ends in .gz; if it is plain text, rename it "
                "without that ending, else restore it"
            )

    def read(self, count: int) -> bytes:
        if self._damage is None:
            with as_source_errors(self._path):
                try:
                    data = self._file.read1(count)
                except EOFError:
                    self._damage = self._truncated()
                except (zlib.error, gzip.BadGzipFile) as error:
                    self._damage = self._damaged(error)
        if self._damage is not None:
            raise self._damage
        self._offset += len(data)
        self.raw_bytes = self._raw.tell()
        self.at_eof = count > 0 and not data
        return data

    def skip(self, count: int) -> int:
        return len(self.read(min(count, _SKIP_BYTES)))

    def _truncated(self) -> SourceError:
        return SourceError(
            f"{self._path} is truncated: its gzip data ends after byte {self._offset} of its content; the content "
            "before has been read. Complete the file (gzip -t checks it) and start again: a daemon resumes there"
        )

    def _damaged(self, error: Exception) -> SourceError:
        return SourceError(
            f"{self._path} is damaged: nothing can be decompressed beyond byte {self._offset} of its content "
            f"({str(error).rpartition(': ')[2]}); the content before has been read, and part of it may be corrupt, "
            "since damage can go undetected until the checksum at the end. Restore the file (gzip -t checks it) and "
            "start again; a daemon resumes there, so start it with --fresh unless only the rest was damaged"
        )
