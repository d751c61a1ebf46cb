"""A durable append-only file of lines."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, suppress
from functools import partial
from io import FileIO
from pathlib import Path

from streammoe.checked import CheckedTable, Count, restoring
from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence.durable import make_folder, reporting, sync_folder
from streammoe.ports import Position, nothing_more

LOGGER = logging.getLogger("streammoe.appending")
Lines = bytes | bytearray | memoryview
WRITTEN_AT_ONCE = 1 << 20
"""Bytes to buffer before a write between two flushes."""
PROBE_BYTES = 4096
"""Bytes at the beginning of a file, and right before a position, that must be unchanged."""


class _End(CheckedTable):
    """A `Position` in a file of lines."""

    path: str
    inode: Count
    bytes: Count
    head_sha256: str
    tail_sha256: str


class AppendLog:
    """An append-only file of whole lines, durable after `flush`.

    Lines that cannot be written wait in memory. A write that fails halfway is cut off again, so that the file continues
    with a whole line. If the file is moved away or removed meanwhile, a new one is created under its path.

    Args:
        path: of the file; it and its folders are created if missing.
        setting: the setting that names the file, for messages.

    Raises:
        ConfigError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], setting: str) -> None:
        self.path = Path(path)
        self._setting = setting
        self._waiting = bytearray()
        self._torn = False
        """Whether the file ends with half a line left by a killed process, to be ended before the next line."""
        self._failing = False  # whether the latest attempt to write failed
        try:
            self._file = self._open()
        except OSError as error:
            # The system's own message for a file in place of a folder is only that it exists.
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror or str(error)
            message = (
                f"{setting} {self.path}: cannot be opened for appending ({reason}); "
                "name a file in a folder that this user may write"
            )
            raise ConfigError(message) from error

    def append(self, lines: Lines) -> None:
        """Append these lines, including the last line end; lines that cannot be written now wait for `flush`."""
        if not self._failing and len(self._waiting) + len(lines) >= WRITTEN_AT_ONCE:
            try:
                self._drain()
                self._write(lines)
            except OSError:
                self._failing = True  # within a batch nothing can be done; `flush` retries and reports
            else:
                return
        self._waiting += lines

    @property
    def overdue(self) -> bool:
        """Whether lines wait for a disk that does not take them, so that nothing more should come before a `flush`."""
        return self._failing

    def flush(self) -> None:
        """Return only when everything written is on disk.

        Raises:
            RetriableCheckpointError: it cannot be written for now; all of it waits for the next flush.
            CheckpointError: it is unknown how much of it is on disk; no checkpoint may follow.
        """
        with self._reporting(RetriableCheckpointError):
            self._drain()
        # After a failed sync the kernel considers the bytes written, and a second sync would succeed without them.
        with self._reporting():
            os.fsync(self._file.fileno())

    def position(self) -> Position | None:
        """Return the end of the file right after `flush`; ``None`` if it is not a regular file."""
        descriptor = self._file.fileno()
        with self._reporting(RetriableCheckpointError):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            head, tail = _probes(descriptor, status.st_size)
        return _End(
            path=str(self.path), inode=status.st_ino, bytes=status.st_size, head_sha256=head, tail_sha256=tail
        ).model_dump()

    def restore(self, position: Position) -> Callable[[], None]:
        """Verify that the file reaches a position, and return a function that removes the lines after it.

        A file that was moved away is searched for under other names in its folder. If it is not found, new lines go to
        a new file, and the lines after the position stay where they are.

        Raises:
            CheckpointError: the file is shorter but not empty, is another file, or was edited; or the position is not
                valid.
        """
        name, file = f"{self._setting} {self.path}", self._file
        with restoring(name):
            end = _End.model_validate(position)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return nothing_more
        # An empty file may be new and have the inode of the missing one by chance. Equal content means a copy.
        if status.st_size and (status.st_ino == end.inode or (end.bytes and _holds(file, end))):
            if status.st_size < end.bytes:
                raise CheckpointError(
                    f"{name}: is shorter than when the checkpoint was written: it has {status.st_size} bytes and had "
                    f"{end.bytes}; {_ADVICE}"
                )
            if not _holds(file, end):
                raise CheckpointError(
                    f"{name}: was edited since the checkpoint was written, within its first {end.bytes} bytes; "
                    f"{_ADVICE}"
                )
            return partial(self._cut_back, self.path, end.bytes)
        if str(self.path) != end.path:
            LOGGER.warning(
                "%s: the checkpoint belongs to %s; lines after the checkpoint stay there and are written again here",
                name,
                end.path,
            )
            return nothing_more
        if status.st_size:
            raise CheckpointError(
                f"{name}: was replaced since the checkpoint was written: it is another file, and not empty; {_ADVICE}"
            )
        if not end.bytes:
            return nothing_more
        moved = self._moved(end)
        if moved is None:
            LOGGER.warning(
                "%s: the file that the checkpoint belongs to is gone; lines after the checkpoint are written again, "
                "to a new file",
                name,
            )
            return nothing_more
        return partial(self._cut_back, moved, end.bytes)

    def _moved(self, end: _End) -> Path | None:
        """Search the folder for the file of a position under another name."""
        for path in sorted(self.path.parent.iterdir()):
            with suppress(OSError):
                status = path.lstat()
                if status.st_ino == end.inode and stat.S_ISREG(status.st_mode) and status.st_size >= end.bytes:
                    with FileIO(path) as file:
                        if _holds(file, end):
                            return path
        return None

    def _cut_back(self, path: Path, size: int) -> None:
        with self._reporting(path=path), FileIO(path, "r+") as file:
            file.seek(size)
            again = 0
            while piece := file.read(WRITTEN_AT_ONCE):
                again += piece.count(b"\n")
            if file.tell() > size:
                file.truncate(size)
                os.fsync(file.fileno())
                LOGGER.info(
                    "%s %s: cut back to the checkpoint, at byte %d; the %d lines after it will be written again",
                    self._setting,
                    path,
                    size,
                    again,
                )
        if path == self.path:
            self._torn = not self._ends_with_line_end()

    def close(self) -> None:
        """Close the file; raise `CheckpointError` if waiting lines cannot be written."""
        try:
            with self._reporting():
                self._drain()
        finally:
            self._file.close()

    def _reporting(
        self, kind: type[CheckpointError] = CheckpointError, path: Path | None = None
    ) -> AbstractContextManager[None]:
        """Turn a failed write into an error of this kind, which prevents the next checkpoint."""
        advice = "make room on the disk or correct its permissions: nothing since the last checkpoint is lost"
        return reporting(f"{self._setting} {path or self.path}: cannot be written", advice, kind)

    def _drain(self) -> None:
        """Write the waiting lines, all or none."""
        if self._waiting:
            self._write(self._waiting)
            self._waiting.clear()
            self._failing = False

    def _write(self, lines: Lines) -> None:
        """Write these lines, all or none."""
        self._reopen_if_moved()
        whole = os.fstat(self._file.fileno()).st_size
        try:
            for piece in (b"\n" if self._torn else b"", lines):
                with memoryview(piece) as rest:
                    written = 0
                    while written < len(rest):
                        with rest[written:] as left:  # an error that is kept must not hold on to the buffer
                            written += self._file.write(left)
        except OSError:
            with suppress(OSError):  # a device cannot be truncated; the next start ends half a line there
                self._file.truncate(whole)
            raise
        self._torn = False

    def _reopen_if_moved(self) -> None:
        """Create a new file if this one was moved or removed, so that readers find new lines under the path."""
        if self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
            return
        new = self._open()
        os.fsync(self._file.fileno())  # the moved file may hold lines that no checkpoint covers yet
        self._file.close()
        self._file = new
        LOGGER.warning("%s %s was moved or removed; a new file is created there", self._setting, self.path)

    def _open(self) -> FileIO:
        make_folder(self.path.parent)
        torn = self.path.exists() and not self._ends_with_line_end()
        with ExitStack() as on_failure:
            file = on_failure.enter_context(FileIO(self.path, "a+"))
            sync_folder(self.path.parent)
            on_failure.pop_all()
        self._torn = torn
        return file

    def _ends_with_line_end(self) -> bool:
        with self.path.open("rb") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return True
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"


_ADVICE = (
    "only this program may write there. Put it back as it was; or move it away, and lines after the checkpoint are "
    "written again, to a new file; or start over with --fresh"
)


def _probes(descriptor: int, size: int) -> tuple[str, str]:
    """Return the digests of the beginning of a file, and of the bytes before a size."""
    before = max(size - PROBE_BYTES, 0)
    head = os.pread(descriptor, min(size, PROBE_BYTES), 0)
    tail = os.pread(descriptor, size - before, before)
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest()


def _holds(file: FileIO, end: _End) -> bool:
    """Whether a file is unchanged up to a position, judged by its probes."""
    return _probes(file.fileno(), end.bytes) == (end.head_sha256, end.tail_sha256)
