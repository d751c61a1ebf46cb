"""A stream of decompressed bytes over a gzip file."""

from __future__ import annotations

import gzip
import zlib
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import GZIP_MAGIC, as_source_errors

_SKIP_BYTES = 1 << 20  # some hundredths of a second


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

    @property
    def raw_bytes(self) -> int:
        """Bytes of the file read so far, for progress."""
        return self._raw.tell()

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
