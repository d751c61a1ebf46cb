"""Finite csv and jsonl files, by path or glob, read in name order.

Reading is stateless: where a record ends depends only on the bytes from its beginning on, never on where a block was
cut or reading was resumed. That is what lets a restart go on with exactly the remaining records.
"""

from __future__ import annotations

import codecs
import csv
import glob
import hashlib
import io
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, TypedDict, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from streammoe.errors import SourceError
from streammoe.ports import Batch, Place, Position
from streammoe.types import IntArray

_LOGGER = logging.getLogger("streammoe.source")
_HEAD_BYTES = 4096
_LARGEST = 1 << 30  # decoders hold sizes of blocks in 32 bits
_FORMATS = {".csv": "csv", ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl"}
_START_AFRESH = "restore it, or start with a fresh checkpoint folder"


class _File(TypedDict):
    """One file of a position. The head tells whether the path still holds the same file; the inode is for humans."""

    path: str
    inode: int
    head_bytes: int
    head_sha256: str
    offset: int
    done: bool


class FileSource:
    """Reads whole records from csv and jsonl files.

    A csv file begins with a header, which names the columns and is no record. A byte order mark at the beginning of
    a file is passed over. Lines of nothing but white space are no records; they are counted in `Batch.skipped` of
    their own or the next batch, and those after the very last record of all in none.

    In csv a line end inside quotes belongs to the record. A stray quote cannot swallow the file: a record without an
    end within ``max_record_bytes`` (or before the end of the file) is cut at its first line end, for the decoder to
    refuse. Of a record without any line end within ``max_record_bytes`` the beginning is refused as too long and the
    rest is passed over.

    Args:
        settings: which files, and how to cut them.
    """

    class Settings(BaseModel):
        """The ``[source]`` section for files.

        Attributes:
            path: a path or a glob; ``**`` matches any number of folders.
            format: ``auto`` goes by each file's extension.
            block_bytes: how much is read and decoded at once.
            max_record_bytes: a longer record is cut and refused.
        """

        model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

        kind: Literal["file"]
        path: str = Field(min_length=1)
        format: Literal["auto", "csv", "jsonl"] = "auto"
        block_bytes: int = Field(default=1 << 20, ge=4096, le=_LARGEST)
        max_record_bytes: int = Field(default=1 << 20, ge=1, le=_LARGEST)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._files: list[_File] = []
        self._at = 0
        self._stream: BinaryIO | None = None
        self._format = ""
        self._columns: tuple[str, ...] | None = None
        self._size = 0
        self._begins_at = 0
        self._skipped = 0
        self._bytes_read = 0
        self._bytes_total = 0

    def seek(self, position: Position | None) -> None:
        listed = [] if position is None else _listed(position)
        known = {Path(file["path"]).absolute() for file in listed}
        found = [path for path in self._expand() if Path(path).absolute() not in known]
        if not listed and not found:
            raise SourceError(
                f"source.path {self._settings.path!r} matches no file; correct the path, or put the files there"
            )
        for file in listed:
            self._files.append(file if file["done"] else self._resume(file))
        for path in found:
            self._files.append(self._inspect(path))
            if position is not None:
                _LOGGER.info("%s is new since the checkpoint; it is read after the files listed there", path)
        self._bytes_read = sum(file["offset"] for file in self._files)
        self._bytes_total = sum(map(_size_now, self._files))
        self._pass_over_done()

    def poll(self, timeout: float) -> Batch | None:
        while not self.finished:
            batch = self._next()
            if batch is not None:
                return batch
        return None

    @property
    def finished(self) -> bool:
        return self._at == len(self._files)

    def commit(self, position: Position) -> None:
        """Nobody else needs to know how far files were read."""

    def progress(self) -> tuple[int, int] | None:
        return self._bytes_read, max(self._bytes_read, self._bytes_total)

    def close(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    # --- finding files and finding them again -----------------------------------------------------------------------

    def _expand(self) -> list[str]:
        path = self._settings.path
        if os.path.lexists(path):  # a name may hold a glob's characters
            return [path]
        return sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - Path.glob refuses absolute patterns

    def _inspect(self, path: str) -> _File:
        """`path` as a file to be read from its beginning, once it is certain that it can be read."""
        self._format_of(path)
        with _explained(path):
            status = Path(path).stat()
            if not stat.S_ISREG(status.st_mode):
                raise SourceError(
                    f"{path} is not a regular file; let source.path name files only, such as {path}/*.csv"
                )
            with Path(path).open("rb") as stream:
                head = stream.read(_HEAD_BYTES)
        digest = hashlib.sha256(head).hexdigest()
        return _File(path=path, inode=status.st_ino, head_bytes=len(head), head_sha256=digest, offset=0, done=False)

    def _resume(self, file: _File) -> _File:
        path = file["path"]
        if not Path(path).exists():
            raise SourceError(f"{path} was removed before all of it was read; {_START_AFRESH}")
        now = self._inspect(path)
        if file["offset"] == 0:
            return now  # nothing of it has been read, so nothing speaks against a mended file
        with _explained(path), Path(path).open("rb") as stream:
            size = os.fstat(stream.fileno()).st_size
            _check_head(file, stream)
        if size < file["offset"]:
            raise SourceError(
                f"{path} was truncated: it has {size} bytes, and {file['offset']} had been read; {_START_AFRESH}"
            )
        return {**now, "offset": file["offset"]}

    def _format_of(self, path: str) -> str:
        if self._settings.format != "auto":
            return self._settings.format
        extension = Path(path).suffix
        try:
            return _FORMATS[extension.lower()]
        except KeyError:
            raise SourceError(
                f"{path} has the extension {extension!r}, and source.format = 'auto' knows {', '.join(_FORMATS)}; "
                "set source.format to 'csv' or 'jsonl'"
            ) from None

    # --- reading ----------------------------------------------------------------------------------------------------

    def _next(self) -> Batch | None:
        """One batch of the current file, or ``None`` when there were only blank lines or its end."""
        path = self._files[self._at]["path"]
        with _explained(path):
            stream = self._stream or self._begin()
            start = self._files[self._at]["offset"]
            chunk, ends = self._read(stream, start)
            goes_on = start > self._begins_at and not self._is_line_start(stream, start)
        # A record without a line end within the limit comes in pieces. The first is refused, in a batch of its own; the
        # others would look like records, so they are passed over.
        torn = np.flatnonzero(np.frombuffer(chunk, np.uint8)[ends - 1] != ord("\n"))
        torn = torn[ends[torn] + start < self._size]
        too_long = not goes_on and torn.size > 0 and torn[0] == 0
        if goes_on or too_long:
            ends = ends[:1]
        elif torn.size:
            ends = ends[: torn[0]]
        stop = start + (int(ends[-1]) if ends.size else 0)
        self._advance(stop, done=stop >= self._size)
        if goes_on:
            return None
        block, ends, begins, blank = (
            (chunk[: int(ends[0])], ends, np.zeros(1, np.int64), 0) if too_long else _without_blank_lines(chunk, ends)
        )
        self._skipped += blank
        if not ends.size:
            return None
        skipped, self._skipped = self._skipped, 0
        return Batch(
            block=block,
            ends=ends,
            format=self._format,
            columns=self._columns,
            origin=path,
            place=partial(_place, path, begins + start),
            end={"kind": "file", "files": list(self._files)},
            skipped=skipped,
            too_long=too_long,
        )

    @staticmethod
    def _is_line_start(stream: BinaryIO, offset: int) -> bool:
        stream.seek(offset - 1)
        return stream.read(1) == b"\n"

    def _begin(self) -> BinaryIO:
        """Opens the current file and moves past what comes before its first record."""
        file = self._files[self._at]
        path = file["path"]
        with ExitStack() as on_failure:
            stream = on_failure.enter_context(Path(path).open("rb"))
            _check_head(file, stream)
            self._size = file["offset"]
            self._format, self._columns = self._format_of(path), None
            begin = len(codecs.BOM_UTF8) if stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8 else 0
            if self._format == "csv":
                chunk, ends = self._read(stream, begin)
                header = chunk[: int(ends[0])] if ends.size else b""
                begin += len(header)
                if not header:
                    _LOGGER.warning("%s is empty: it has not even a header", path)
                elif not header.endswith(b"\n") and begin < self._size:
                    raise SourceError(
                        f"{path} has a header of more than source.max_record_bytes = "
                        f"{self._settings.max_record_bytes}; raise that setting, or correct the file"
                    )
                else:
                    self._columns = _column_names(path, header)
            on_failure.pop_all()
        self._stream = stream
        self._begins_at = begin
        self._advance(max(file["offset"], begin), done=False)
        return stream

    def _read(self, stream: BinaryIO, offset: int) -> tuple[bytes, IntArray]:
        """Bytes from `offset` on, and where the records in them end: at least one, unless the file ends here."""
        limit = self._settings.max_record_bytes
        want = self._settings.block_bytes
        while True:
            size = os.fstat(stream.fileno()).st_size
            stream.seek(offset)
            chunk = stream.read(want)
            if size < self._size or len(chunk) < min(want, size - offset):
                path = self._files[self._at]["path"]
                raise SourceError(f"{path} became shorter while it was being read; {_START_AFRESH}")
            self._size = size
            last = offset + len(chunk) >= size
            ends = _record_ends(chunk, limit, quoted=self._format == "csv", last=last)
            if ends.size or last:
                return chunk, ends
            want = min(2 * want, max(want, limit))

    def _advance(self, offset: int, *, done: bool) -> None:
        file = self._files[self._at]
        self._bytes_read += offset - file["offset"]
        self._files[self._at] = {**file, "offset": offset, "done": done}
        if done:
            self.close()
            self._pass_over_done()

    def _pass_over_done(self) -> None:
        while not self.finished and self._files[self._at]["done"]:
            self._at += 1


@contextmanager
def _explained(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SourceError(
            f"{path} cannot be read: {error.strerror or error}; it must be a readable file: check the path, its "
            "permissions and its disk"
        ) from error


def _listed(position: Position) -> list[_File]:
    if position.get("kind") != "file":
        raise SourceError(
            f"the checkpoint's position is of kind {position.get('kind')!r}, and source.kind is 'file'; "
            "go back to that source, or start with a fresh checkpoint folder"
        )
    return cast("list[_File]", position["files"])


def _check_head(file: _File, stream: BinaryIO) -> None:
    stream.seek(0)
    head = stream.read(file["head_bytes"])
    if hashlib.sha256(head).hexdigest() != file["head_sha256"]:
        raise SourceError(
            f"{file['path']} was replaced: its first {file['head_bytes']} bytes are no longer those that were found "
            f"there; give new data a new name, or {_START_AFRESH}"
        )
    stream.seek(0)


def _size_now(file: _File) -> int:
    """The file's size; of a finished file, which may be gone, what was read of it."""
    if not file["done"]:
        with _explained(file["path"]):
            return Path(file["path"]).stat().st_size
    try:
        size = Path(file["path"]).stat().st_size
    except OSError:  # finished files need not stay
        return file["offset"]
    # But another one in its place, under its name, would never be read.
    with _explained(file["path"]), Path(file["path"]).open("rb") as stream:
        _check_head(file, stream)
    if size < file["offset"]:
        raise SourceError(
            f"{file['path']} was replaced after it had been read to its end: it has {size} bytes and had "
            f"{file['offset']}; give new data a new name, or start with a fresh checkpoint folder"
        )
    if size > file["offset"]:
        _LOGGER.warning(
            "%s grew by %d bytes after it had been read to its end; they are not read",
            file["path"],
            size - file["offset"],
        )
    return file["offset"]


def _column_names(path: str, header: bytes) -> tuple[str, ...]:
    advice = "the first line of a csv file must name its columns, each by a name of its own, in UTF-8"
    try:
        lines = list(csv.reader(io.StringIO(header.decode(), newline=""), strict=True))
    except (UnicodeDecodeError, csv.Error) as error:
        raise SourceError(f"{path} has a header that cannot be read ({error}); {advice}") from error
    names = tuple(name for line in lines for name in line)
    if len(lines) != 1 or not names or not all(map(str.strip, names)):
        raise SourceError(f"{path} has an empty name or a line end of another system in its header; {advice}")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SourceError(f"{path} names columns more than once: {', '.join(map(repr, twice))}; {advice}")
    return names


def _record_ends(chunk: bytes, limit: int, *, quoted: bool, last: bool) -> IntArray:
    """Where the complete records in `chunk` end; it begins with a record.

    Args:
        chunk: the bytes; an incomplete record at the end is left for the next chunk.
        limit: no record is longer. With so many bytes, or with `last`, there is at least one complete record.
        quoted: whether a line end inside quotes is part of the record.
        last: whether the file ends with this chunk, which then ends a line.
    """
    octets = np.frombuffer(chunk, np.uint8)
    lines: IntArray = np.flatnonzero(octets == ord("\n")) + 1
    if last and chunk and not chunk.endswith(b"\n"):
        lines = np.append(lines, len(chunk))
    quotes = np.flatnonzero(octets == ord('"')) if quoted and b'"' in chunk else np.empty(0, np.int64)
    inside = np.searchsorted(quotes, lines) % 2 == 1
    # A forced cut inside quotes swaps the two: from there on, what was inside counts as outside.
    outside, candidates = 0, (lines[~inside], lines[inside])

    runs: list[IntArray] = []
    start = 0
    while start < len(chunk):
        run = candidates[outside]
        run = run[np.searchsorted(run, start, "right") :]
        too_long = np.flatnonzero(np.diff(run, prepend=start) > limit)
        run = run[: too_long[0]] if too_long.size else run
        if run.size:
            runs.append(run)
            start = int(run[-1])
        if start == len(chunk) or (len(chunk) - start < limit and not last):
            break
        line = int(np.searchsorted(lines, start, "right"))
        start = min(start + limit, int(lines[line])) if line < len(lines) else start + limit
        runs.append(np.array([start]))
        outside = int(np.searchsorted(quotes, start)) % 2
    return np.concatenate(runs) if runs else np.empty(0, np.int64)


def _without_blank_lines(chunk: bytes, ends: IntArray) -> tuple[bytes, IntArray, IntArray, int]:
    """The block of records that are not blank, their ends in it, their beginnings in `chunk`; how many were blank."""
    begins = np.concatenate([np.zeros(1, np.int64), ends[:-1]]) if ends.size else ends
    octets = np.frombuffer(chunk, np.uint8)
    blank = [i for i in np.flatnonzero(octets[begins] <= ord(" ")) if chunk[begins[i] : ends[i]].isspace()]
    stop = int(ends[-1]) if ends.size else 0
    if not blank:
        return chunk[:stop], ends, begins, 0
    keep = np.ones(len(ends), np.bool_)
    keep[blank] = False
    lengths = ends - begins
    block = octets[:stop][np.repeat(keep, lengths)].tobytes()
    return block, np.cumsum(lengths[keep]), begins[keep], len(blank)


def _place(path: str, offsets: IntArray, i: int) -> Place:
    return {"path": path, "offset": int(offsets[i])}
