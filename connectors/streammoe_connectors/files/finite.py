"""Files that are complete: each is read to its end, one after the other."""

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
from streammoe_connectors.files.gzipped import GzipStream
from streammoe_connectors.files.listing import (
    HEAD_BYTES,
    PARQUET,
    START_AFRESH,
    File,
    check_head,
    expand,
    explained,
    inspect,
    is_named,
    kind_of,
    listed,
    without_other_names,
)
from streammoe_connectors.files.parquet import ParquetReader
from streammoe_connectors.files.plain import PlainStream
from streammoe_connectors.files.settings import FileSettings
from streammoe_connectors.formats.records import RecordReader, no_records

_LOGGER = logging.getLogger("streammoe.source")


class FiniteFiles:
    """Reads files in name order, and those that are new since a position after those that it lists.

    A file with several names, by links, is read once.

    Blank lines are counted in `Batch.skipped` of their own or the next batch; those after the very last record of all
    come in a batch without records, if there is none other for them.
    """

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._files: list[File] = []
        self._at = 0
        self._reader: RecordReader | ParquetReader | None = None
        self._raw_bytes: Callable[[], int] = int  # how much of the current file has been read, as it is on disk
        self._done_bytes = 0
        self._bytes_total = 0
        self._skipped = 0

    def seek(self, position: Position | None) -> None:
        before = [] if position is None else listed(position)
        known = {Path(file["path"]).absolute() for file in before}
        found = [path for path in expand(self._settings.path) if Path(path).absolute() not in known]
        found = without_other_names(found, [file["path"] for file in before])
        if not before and not found:
            raise SourceError(
                f"source.path {self._settings.path!r} matches no file; correct the path, or put the files there"
            )
        for file in before:
            self._files.append(file if file["done"] else self._resume(file))
        for path in found:
            self._files.append(inspect(path, self._settings.format))
            if position is not None:
                _LOGGER.info("%s is new since the checkpoint; it is read after the files listed there", path)
        sizes = [self._size_done(file) if file["done"] else _size_now(file) for file in self._files]
        self._done_bytes = sum(size for size, file in zip(sizes, self._files, strict=True) if file["done"])
        self._bytes_total = sum(sizes)
        self._pass_over_done()

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while not self.finished:
            batch = self._next()
            if batch is not None:
                return batch
            if self.finished and self._skipped:
                skipped, self._skipped = self._skipped, 0
                return no_records(self._settings.path, self._position, skipped)
            if time.monotonic() >= deadline:
                break
        return None

    @property
    def finished(self) -> bool:
        return self._at == len(self._files)

    def progress(self) -> tuple[int, int]:
        done = self._done_bytes + (self._raw_bytes() if self._reader is not None else 0)
        return done, max(done, self._bytes_total)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _resume(self, file: File) -> File:
        path = file["path"]
        if not is_named(self._settings.path, path):
            # Whoever can write a checkpoint must not choose which files are read.
            raise SourceError(
                f"the checkpoint goes on in the middle of {path!r}, which source.path {self._settings.path!r} does not "
                "name; let the first [[source]] name it and a second one the new files, or start with a fresh "
                "checkpoint folder"
            )
        if not Path(path).exists():
            raise SourceError(f"{path} was removed before all of it was read; {START_AFRESH}")
        now = inspect(path, self._settings.format)
        if file["offset"] == 0:
            return now  # nothing of it has been read, so nothing speaks against a mended file
        with explained(path), Path(path).open("rb") as stream:
            check_head(file, stream)
            kind = kind_of(path, self._settings.format, stream.read(HEAD_BYTES))
        size = _size_now(file)
        # Of the other kinds only their readers know how much they hold.
        if kind.format != PARQUET and not kind.gzipped and size < file["offset"]:
            raise SourceError(
                f"{path} was truncated: it has {size} bytes, and {file['offset']} had been read; {START_AFRESH}"
            )
        return {**now, "offset": file["offset"]}

    def _next(self) -> Batch | None:
        """One batch of the current file, or ``None`` when there were only blank lines or its end."""
        reader = self._reader or self._begin()
        batch = reader.next()
        file: File = {**self._files[self._at], "offset": reader.offset, "done": reader.done}
        if reader.done:
            file["size"] = self._raw_bytes()
            self._done_bytes += file["size"]
            self.close()
        self._files[self._at] = file
        self._pass_over_done()
        if batch is None:
            return None
        self._skipped += batch.skipped
        # Of a file without records the header is handed on: whoever reads the batch may miss a column in it.
        if not len(batch) and not (isinstance(reader, RecordReader) and reader.empty):
            return None
        skipped, self._skipped = self._skipped, 0
        return replace(batch, end=self._position, skipped=skipped)

    @property
    def _position(self) -> Position:
        return {"kind": "file", "files": list(self._files)}

    def _begin(self) -> RecordReader | ParquetReader:
        """Opens the current file."""
        file, settings = self._files[self._at], self._settings
        path, start = file["path"], file["offset"]
        with ExitStack() as on_failure:
            with explained(path):
                raw = on_failure.enter_context(Path(path).open("rb", buffering=0))
                check_head(file, raw)
                kind = kind_of(path, settings.format, raw.read(HEAD_BYTES))
                raw.seek(0)
                size = os.fstat(raw.fileno()).st_size
            reader: RecordReader | ParquetReader
            if kind.format == PARQUET:
                reader = parquet = ParquetReader(raw, path=path, size=size, block_rows=settings.block_rows, start=start)
                self._raw_bytes = lambda: parquet.raw_bytes
            else:
                stream = GzipStream(raw, path) if kind.gzipped else PlainStream(raw, path)
                self._raw_bytes = lambda: stream.raw_bytes
                reader = RecordReader(
                    stream,
                    name=path,
                    format=kind.format,
                    block_bytes=settings.block_bytes,
                    max_record_bytes=settings.max_record_bytes,
                    start=start,
                    place={"path": path},
                    dialect=settings.dialect,
                )
            on_failure.pop_all()
        self._reader = reader
        return reader

    def _pass_over_done(self) -> None:
        while not self.finished and self._files[self._at]["done"]:
            self._at += 1

    def _size_done(self, file: File) -> int:
        """What a finished file, which may be gone, had; another one under its name would never be read."""
        path, had = file["path"], file.get("size", file["offset"])
        # If it was followed, it was rotated away before it was done; and what the settings do not name is not opened.
        if "rotation" in file or not is_named(self._settings.path, path):
            return had
        try:
            size = Path(path).stat().st_size
        except OSError:  # finished files need not stay
            return had
        with explained(path), Path(path).open("rb") as stream:
            check_head(file, stream)
        if size < had:
            raise SourceError(
                f"{path} was replaced after it had been read to its end: it has {size} bytes and had {had}; give new "
                "data a new name, or start with a fresh checkpoint folder"
            )
        if size > had:
            _LOGGER.warning(
                "%s grew by %d bytes after it had been read to its end; they are not read", path, size - had
            )
        return had


def _size_now(file: File) -> int:
    with explained(file["path"]):
        return Path(file["path"]).stat().st_size
