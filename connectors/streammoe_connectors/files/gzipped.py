"""A stream of decompressed bytes over a gzip file."""

from __future__ import annotations

import zlib
from typing import BinaryIO

from streammoe.errors import SourceError
from streammoe_connectors.files.listing import GZIP_MAGIC, as_source_errors

_READ_BYTES = 1 << 16  # deflate expands at most 1,032-fold
_SKIP_BYTES = 1 << 20
_GZIP_WBITS = 16 + zlib.MAX_WBITS
UNVERIFIED = "the checksum of a gzip file is at its end, which has not been reached; gzip -t checks the file"


def _zlib_message(error: zlib.error) -> str:
    """Return zlib's message without the error number."""
    return str(error).rpartition(": ")[2]


class GzipStream:
    """A stream over the content of a gzip file, which may consist of several members.

    All content that can be decompressed before a damaged byte is returned before the error. The checksum is at the end
    of each member, so damage that still decompresses is only detected there.

    Args:
        raw: the file, at its beginning; closed together with the stream.
        path: for messages.
    """

    def __init__(self, raw: BinaryIO, path: str) -> None:
        self.at_eof = False
        self.raw_bytes = 0
        """Bytes of the file read so far, for progress."""
        self._raw = raw
        self._path = path
        self._decoder = zlib.decompressobj(_GZIP_WBITS)
        self._between_members = False
        self._input = b""
        self._step = _READ_BYTES
        self._damage: SourceError | None = None
        self._offset = 0

    def read(self, count: int) -> bytes:
        data = b""
        while count and not data and not self.at_eof:
            if self._damage is not None:
                raise self._damage
            data = self._decompress(count)
        self._offset += len(data)
        return data

    def skip(self, count: int) -> int:
        skipped = 0
        while skipped < count and (piece := self.read(min(count - skipped, _SKIP_BYTES))):
            skipped += len(piece)
        return skipped

    def close(self) -> None:
        self._raw.close()

    def _decompress(self, count: int) -> bytes:
        """Decompress at most `count` bytes; none at the end of a member or at damage."""
        if self._between_members:
            rest = self._input.lstrip(b"\0")  # members may be padded
            if rest:
                self._input, self._decoder, self._between_members = rest, zlib.decompressobj(_GZIP_WBITS), False
            elif not self._read_raw():
                self.at_eof = True
            return b""
        at_end = not self._input and not self._read_raw()
        if self.raw_bytes == len(self._input) and not GZIP_MAGIC.startswith(self._input[: len(GZIP_MAGIC)]):
            self._damage = SourceError(
                f"{self._path} is not gzip data, although its name ends in .gz; if it is plain text, rename it "
                "without that ending, else restore it"
            )
            return b""
        before, fed = self._decoder.copy(), self._input[: self._step]
        try:
            data = self._decoder.decompress(fed, count)
        except zlib.error as error:
            if len(fed) > 1:  # such a call returns nothing of what comes before the damage
                self._decoder, self._step = before, len(fed) // 2
                return b""
            self._damage = SourceError(
                f"{self._path} is damaged: nothing can be decompressed beyond byte {self._offset} of its content "
                f"({_zlib_message(error)}); the content before has been read, and part of it may be corrupt, since "
                "damage can go undetected until the checksum at the end. Restore the file (gzip -t checks it) and "
                "start again; a daemon resumes there, so start it with --fresh unless only the rest was damaged"
            )
            return b""
        self._between_members = self._decoder.eof
        rest = self._decoder.unused_data if self._between_members else self._decoder.unconsumed_tail
        self._input = rest + self._input[len(fed) :]
        if at_end and not data and not self._between_members:
            self._damage = SourceError(
                f"{self._path} is truncated: its gzip data ends after byte {self._offset} of its content; the content "
                "before has been read. Complete the file (gzip -t checks it) and start again: a daemon resumes there"
            )
        return data

    def _read_raw(self) -> bool:
        with as_source_errors(self._path):
            self._input = self._raw.read(_READ_BYTES)
        self.raw_bytes += len(self._input)
        return bool(self._input)
