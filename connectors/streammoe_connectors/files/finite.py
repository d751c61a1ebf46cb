"""Reading of complete files, one after the other."""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from streammoe.errors import SourceError, not_installed
from streammoe.ports import Batch, Position
from streammoe.text import counted
from streammoe_connectors.files.listing import (
    RESTORE_ADVICE,
    File,
    as_source_errors,
    expand,
    files_of,
    inspect,
    is_same_file_at,
    kind_of,
    matches_pattern,
    open_file,
    status_at,
    without_other_names,
)
from streammoe_connectors.files.settings import FileSettings
from streammoe_connectors.files.streams import GzipStream, PlainStream
from streammoe_connectors.formats.records import RecordReader
from streammoe_connectors.formats.texts import PARQUET

if TYPE_CHECKING:
    from streammoe_connectors.files.parquet import ParquetReader

_LOGGER = logging.getLogger("streammoe.source")


class FiniteFiles:
    """A reader of files in name order; files that are new since a position follow those that it lists.

    Of a plain file that was read to its end and has grown since, what was appended is read. A file with several names,
    by links, is read once.
    """

    finished = False

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._files: list[File] = []
        self._index = 0
        self._reader: RecordReader | ParquetReader | None = None
        self._raw: BinaryIO | None = None  # what it reads
        self._finished_bytes = 0
        self._total_bytes = 0

    def seek(self, position: Position | None) -> None:
        before = [] if position is None else files_of(position)
        listed = {Path(file["path"]).absolute() for file in before}
        paths = [path for path in expand(self._settings.path) if Path(path).absolute() not in listed]
        paths = without_other_names(paths, [file["path"] for file in before])
        before, paths = _match_renamed_files(before, paths)
        if not before and not paths:
            raise SourceError(
                f"source.path {self._settings.path!r} matches no file; correct the path, or put the files there"
            )
        self._files = [*map(self._resume, before), *(inspect(path, self._settings.format) for path in paths)]
        for path in paths if position is not None else ():
            _LOGGER.info("%s is new since the checkpoint; it is read after the files listed there", path)
        done = sum(_size_when_finished(file) for file in self._files if file["done"])
        self._finished_bytes = done
        left = (status_at(file["path"]) for file in self._files if not file["done"])
        self._total_bytes = done + sum(status.st_size for status in left if status is not None)
        self._skip_finished()

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while not self.finished:
            batch = self._next()
            if batch is not None or time.monotonic() >= deadline:
                return batch
        return None

    def progress(self) -> tuple[int, int]:
        done = self._finished_bytes + (self._reader.raw_bytes if self._reader is not None else 0)
        return done, max(done, self._total_bytes)

    def close(self) -> None:
        if self._raw is not None:
            self._raw.close()
        self._reader = self._raw = None

    def _resume(self, file: File) -> File:
        """Return a file of a position as it is read on; one that was read to its end only if it has grown since.

        Raises:
            SourceError: it is not there or not to be read, another file has its name, or what was appended continues
                its last record.
        """
        path, is_done = file["path"], file["done"]
        if not matches_pattern(self._settings.path, path):
            if is_done:  # and not even looked at
                return file
            # A manipulated checkpoint must not choose which files are read.
            raise SourceError(
                f"the checkpoint resumes in the middle of {path!r}, which source.path {self._settings.path!r} does not "
                "match; let it match that file until all of it was read, or start with a fresh checkpoint folder"
            )
        status = status_at(path)
        if status is None and not is_done:
            raise SourceError(f"{path} was removed before all of it was read; {RESTORE_ADVICE}")
        # A followed file was rotated away before it was done, and its path is that of another one.
        if status is None or (is_done and "rotation" in file and status.st_ino != file["inode"]):
            return file
        previous = _size_when_finished(file)
        opened = open_file(path, known=file if is_done or file["offset"] else None)
        with opened.raw:
            kind = kind_of(path, self._settings.format, opened.head)
            if not is_done:
                return {**opened.file, "offset": file["offset"]}
            with as_source_errors(path):
                opened.raw.seek(max(0, previous - 1))
                joint = opened.raw.read(3) if previous else b"\n"
        grown = opened.size - previous
        if grown < 0:
            raise SourceError(
                f"{path} was replaced after it had been read completely: it has {opened.size} bytes and had "
                f"{previous}; give new data a new name, or start with a fresh checkpoint folder"
            )
        if not grown:
            return file
        what = f"{path} grew by {counted(grown, 'byte')} after it had been read completely"
        if not kind.is_plain:
            _LOGGER.warning(
                "%s; they are not read, since only plain CSV and JSON Lines are read on where they have grown: put new "
                "rows into a new file",
                what,
            )
            return file
        if not joint.startswith(b"\n") and joint[1:2] != b"\n" and joint[1:] not in {b"\r", b"\r\n"}:
            raise SourceError(
                f"{what}, and they continue its last record, which had no line end at byte {previous} and was taken as "
                "it was; end that line there and give new records lines of their own, or start with a fresh checkpoint "
                "folder"
            )
        _LOGGER.info("%s; they are read now", what)
        known: File = {**file, "done": False}
        known.pop("size", None)
        return known

    def _next(self) -> Batch | None:
        """Return a batch of the current file, or ``None`` at its end."""
        reader = self._reader or self._open()
        batch = reader.next()
        file: File = {**self._files[self._index], "offset": reader.offset, "done": reader.exhausted}
        if reader.exhausted:
            file["size"] = reader.raw_bytes
            self._finished_bytes += file["size"]
            self.close()
        self._files[self._index] = file
        self._skip_finished()
        if batch is None:
            return None
        end = {"kind": "file", "files": list(self._files)}
        return replace(batch, end=end)

    def _open(self) -> RecordReader | ParquetReader:
        """Open the current file."""
        file, settings = self._files[self._index], self._settings
        path, start = file["path"], file["offset"]
        opened = open_file(path, known=file)
        self._raw = opened.raw
        kind = kind_of(path, settings.format, opened.head)
        if kind.format == PARQUET:
            try:
                from streammoe_connectors.files.parquet import ParquetReader
            except ModuleNotFoundError:
                raise not_installed(f"reading {path}", "pyarrow", "parquet") from None
            self._reader = ParquetReader(
                opened.raw, path=path, size=opened.size, block_rows=settings.block_rows, start=start
            )
        else:
            raw, head = opened.raw, opened.head
            stream = GzipStream(raw, path, head) if kind.gzipped else PlainStream(raw, path)
            self._reader = RecordReader(
                stream, settings, name=path, format=kind.format, start=start, location={"path": path}
            )
        return self._reader

    def _skip_finished(self) -> None:
        while self._index < len(self._files) and self._files[self._index]["done"]:
            self._index += 1
        self.finished = self._index == len(self._files)


def _match_renamed_files(before: list[File], paths: list[str]) -> tuple[list[File], list[str]]:
    """Return the files of a position under their present names, and the paths that are left as new.

    A file whose path is gone is recognised by inode and first bytes once it was read to its end: it was renamed, or
    another hard link to it stays. If it has grown by whole lines, reading continues there, which is right even for a
    new file that has the inode of a removed one and begins with the same lines.
    """
    gone: dict[int, list[int]] = {}
    for i, file in enumerate(before):
        if file["done"] and _size_when_finished(file) and _is_gone(file["path"]):
            gone.setdefault(file["inode"], []).append(i)
    files, new = list(before), []
    for path in paths:
        status = status_at(path)
        here, size = ([], 0) if status is None else (gone.get(status.st_ino, []), status.st_size)
        same = [i for i in here if _size_when_finished(before[i]) <= size and is_same_file_at(path, before[i])]
        if not same:
            new.append(path)
            continue
        longest = max(same, key=lambda i: _size_when_finished(before[i]))
        here.remove(longest)
        # A warning, since a new file that is taken for a removed one would be missed.
        _LOGGER.warning(
            "%s is %s under another name, which had been read completely; only what was appended since is read. If "
            "it is a new file, replace it by a copy of itself",
            path,
            files[longest]["path"],
        )
        files[longest] = {**files[longest], "path": path}
    return files, new


def _size_when_finished(file: File) -> int:
    """Return the size on disk that a finished file had."""
    return file.get("size", file["offset"])


def _is_gone(path: str) -> bool:
    try:
        return status_at(path) is None
    except SourceError:  # it may still be there
        return False
