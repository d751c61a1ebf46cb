"""Reading of complete files, one after the other."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from streammoe.errors import SourceError
from streammoe.ports import Batch, Position
from streammoe.text import counted
from streammoe_connectors.files.gzipped import UNVERIFIED, GzipStream
from streammoe_connectors.files.listing import (
    HEAD_BYTES,
    PARQUET,
    RESTORE_ADVICE,
    File,
    as_source_errors,
    check_head,
    expand,
    files_of,
    inspect,
    is_same_file_at,
    kind_of,
    matches_pattern,
    status_at,
    without_other_names,
)
from streammoe_connectors.files.parquet import ParquetReader
from streammoe_connectors.files.plain import PlainStream
from streammoe_connectors.files.settings import FileSettings
from streammoe_connectors.formats.records import RecordReader, empty_batch

_LOGGER = logging.getLogger("streammoe.source")


class FiniteFiles:
    """A reader of files in name order; files that are new since a position follow those that it lists.

    Of a plain file that was read to its end and has grown since, what was appended is read.

    A file with several names, by links, is read once. Blank lines are counted in `Batch.skipped` of their own or the
    next batch, and after the very last record in a batch without records.
    """

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._files: list[File] = []
        self._index = 0
        self._reader: RecordReader | ParquetReader | None = None
        self._caveat = ""  # until the end of the current file
        self._raw_bytes: Callable[[], int] = int  # bytes on disk of the current file read so far
        self._finished_bytes = 0
        self._total_bytes = 0
        self._skipped = 0

    def seek(self, position: Position | None) -> None:
        before = [] if position is None else files_of(position)
        listed = {Path(file["path"]).absolute() for file in before}
        paths = [path for path in expand(self._settings.path) if Path(path).absolute() not in listed]
        paths = without_other_names(paths, [file["path"] for file in before])
        before, paths = self._match_renamed_files(before, paths)
        if not before and not paths:
            raise SourceError(
                f"source.path {self._settings.path!r} matches no file; correct the path, or put the files there"
            )
        for file in before:
            known = self._look_again(file) if file["done"] else file
            self._files.append(known if known["done"] else self._resume(known))
        for path in paths:
            self._files.append(inspect(path, self._settings.format))
            if position is not None:
                _LOGGER.info("%s is new since the checkpoint; it is read after the files listed there", path)
        sizes = [_size_when_finished(file) if file["done"] else _size_at(file["path"]) for file in self._files]
        self._finished_bytes = sum(size for size, file in zip(sizes, self._files, strict=True) if file["done"])
        self._total_bytes = sum(sizes)
        self._skip_finished()

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while not self.finished:
            batch = self._next()
            if batch is not None:
                return batch
            if self.finished and self._skipped:
                skipped, self._skipped = self._skipped, 0
                return empty_batch(self._settings.path, self._position, skipped)
            if time.monotonic() >= deadline:
                break
        return None

    @property
    def finished(self) -> bool:
        return self._index == len(self._files)

    def progress(self) -> tuple[int, int]:
        done = self._finished_bytes + (self._raw_bytes() if self._reader is not None else 0)
        return done, max(done, self._total_bytes)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _resume(self, file: File) -> File:
        path = file["path"]
        if not matches_pattern(self._settings.path, path):
            # A manipulated checkpoint must not choose which files are read.
            raise SourceError(
                f"the checkpoint resumes in the middle of {path!r}, which source.path {self._settings.path!r} does not "
                "match; let the first [[source]] match it and a second one the new files, or start with a fresh "
                "checkpoint folder"
            )
        if not Path(path).exists():
            raise SourceError(f"{path} was removed before all of it was read; {RESTORE_ADVICE}")
        now = inspect(path, self._settings.format)
        if file["offset"] == 0:
            return now  # not read yet, so the file may have changed
        with as_source_errors(path), Path(path).open("rb") as stream:
            check_head(file, stream)
            kind = kind_of(path, self._settings.format, stream.read(HEAD_BYTES))
        size = _size_at(path)
        # The size of other kinds is only known to their readers.
        if kind.is_plain and size < file["offset"]:
            raise SourceError(
                f"{path} was truncated: it has {size} bytes, but {file['offset']} had been read; {RESTORE_ADVICE}"
            )
        return {**now, "offset": file["offset"]}

    def _match_renamed_files(self, before: list[File], paths: list[str]) -> tuple[list[File], list[str]]:
        """Return the files of a position under their present names, and the paths that are left as new.

        A file whose path is gone is recognised by inode, size and first bytes once it was read to its end: it was
        renamed, or another hard link to it stays. If it has grown by whole lines, reading continues there, which is
        right even for a new file that has the inode of a removed one and begins with the same lines.
        """
        gone: dict[int, list[int]] = {}
        for i, file in enumerate(before):
            if file["done"] and _size_when_finished(file) and _is_gone(file["path"]):
                gone.setdefault(file["inode"], []).append(i)
        files, new = list(before), []
        for path in paths:
            status = status_at(path)
            same = [] if status is None else gone.get(status.st_ino, [])
            same = [
                i for i in same if _size_when_finished(files[i]) <= _size_at(path) and is_same_file_at(path, files[i])
            ]
            if not same:
                new.append(path)
                continue
            longest = max(same, key=lambda i: _size_when_finished(files[i]))
            gone[files[longest]["inode"]].remove(longest)
            previous = files[longest]
            files[longest] = {**previous, "path": path}
            # A warning, since a new file that is taken for a removed one would be missed.
            _LOGGER.warning(
                "%s is %s under another name, which had been read completely; only what was appended since is read. If "
                "it is a new file, replace it by a copy of itself",
                path,
                previous["path"],
            )
        return files, new

    def _next(self) -> Batch | None:
        """Return a batch of the current file, or ``None`` if there were only blank lines or its end."""
        reader = self._reader or self._open()
        batch = reader.next()
        file: File = {**self._files[self._index], "offset": reader.offset, "done": reader.exhausted}
        if reader.exhausted:
            file["size"] = self._raw_bytes()
            self._finished_bytes += file["size"]
            self.close()
        self._files[self._index] = file
        self._skip_finished()
        if batch is None:
            return None
        self._skipped += batch.skipped
        # The header of a file without records is passed on, so that missing columns are noticed.
        if not len(batch) and not (isinstance(reader, RecordReader) and reader.had_no_records):
            return None
        skipped, self._skipped = self._skipped, 0
        return replace(batch, end=self._position, skipped=skipped, caveat="" if reader.exhausted else self._caveat)

    @property
    def _position(self) -> Position:
        return {"kind": "file", "files": list(self._files)}

    def _open(self) -> RecordReader | ParquetReader:
        """Open the current file."""
        file, settings = self._files[self._index], self._settings
        path, start = file["path"], file["offset"]
        with ExitStack() as on_failure:
            with as_source_errors(path):
                raw = on_failure.enter_context(Path(path).open("rb", buffering=0))
                check_head(file, raw)
                kind = kind_of(path, settings.format, raw.read(HEAD_BYTES))
                raw.seek(0)
                size = os.fstat(raw.fileno()).st_size
            self._caveat = f"{path} may be damaged: {UNVERIFIED}" if kind.gzipped else ""
            reader: RecordReader | ParquetReader
            if kind.format == PARQUET:
                reader = parquet = ParquetReader(raw, path=path, size=size, block_rows=settings.block_rows, start=start)
                self._raw_bytes = lambda: parquet.raw_bytes
            else:
                stream = GzipStream(raw, path) if kind.gzipped else PlainStream(raw, path)
                self._raw_bytes = lambda: stream.raw_bytes
                reader = RecordReader(
                    stream,
                    settings,
                    name=path,
                    format=kind.format,
                    start=start,
                    location={"path": path},
                )
            on_failure.pop_all()
        self._reader = reader
        return reader

    def _skip_finished(self) -> None:
        while not self.finished and self._files[self._index]["done"]:
            self._index += 1

    def _look_again(self, file: File) -> File:
        """Return a finished file, which may be gone; one that is not finished if it has grown since.

        Raises:
            SourceError: another file has its name, or what was appended continues its last record.
        """
        path, previous = file["path"], _size_when_finished(file)
        # Files that the settings do not match are not opened.
        status = status_at(path) if matches_pattern(self._settings.path, path) else None
        # A followed file was rotated away before it was done, and its path is that of another one.
        if status is None or ("rotation" in file and status.st_ino != file["inode"]):
            return file
        with as_source_errors(path), Path(path).open("rb") as stream:
            check_head(file, stream)
            kind = kind_of(path, self._settings.format, stream.read(HEAD_BYTES))
            stream.seek(max(0, previous - 1))
            joint = stream.read(3) if previous else b"\n"
        grown = status.st_size - previous
        if grown < 0:
            raise SourceError(
                f"{path} was replaced after it had been read completely: it has {status.st_size} bytes and had "
                f"{previous}; give new data a new name, or start with a fresh checkpoint folder"
            )
        if grown and not kind.is_plain:
            _LOGGER.warning(
                "%s grew by %s after it had been read completely; they are not read, since only plain CSV and "
                "JSON Lines are read on where they have grown: put new rows into a new file",
                path,
                counted(grown, "byte"),
            )
        elif grown:
            if not joint.startswith(b"\n") and joint[1:2] != b"\n" and joint[1:] not in {b"\r", b"\r\n"}:
                raise SourceError(
                    f"{path} grew by {counted(grown, 'byte')} after it had been read completely, and they continue its "
                    f"last record, which had no line end at byte {previous} and was taken as it was; end that line "
                    "there and give new records lines of their own, or start with a fresh checkpoint folder"
                )
            _LOGGER.info(
                "%s grew by %s after it had been read completely; they are read now", path, counted(grown, "byte")
            )
            file = {**file, "done": False}
            file.pop("size", None)
        return file


def _size_at(path: str) -> int:
    with as_source_errors(path):
        return Path(path).stat().st_size


def _size_when_finished(file: File) -> int:
    """Return the size on disk that a finished file had."""
    return file.get("size", file["offset"])


def _is_gone(path: str) -> bool:
    try:
        return status_at(path) is None
    except SourceError:  # it may still be there
        return False
