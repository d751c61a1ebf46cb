"""A file of lines that is only ever appended to, and says in whose name it fails."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from io import FileIO
from pathlib import Path
from typing import NamedTuple

from streammoe.checked import is_count, require, restoring
from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence.durable import make_folder, sync_folder
from streammoe.ports import Position, nothing_more
from streammoe.text import shown

LOGGER = logging.getLogger("streammoe.appending")
WRITTEN_AT_ONCE = 1 << 20
"""Bytes that are gathered before they go to the file between two flushes."""
MOST_WAITING = 64 << 20
"""Bytes that wait in memory for a disk that takes none, before learning has to wait, too."""

PROBE_BYTES = 4096
"""So much of the beginning of a file, and of what comes right before a position, must be what it was."""
_KIND = "lines"


class _End(NamedTuple):
    """A `Position` in a file of lines."""

    path: str
    inode: int
    bytes: int
    head_sha256: str
    tail_sha256: str


class AppendLog:
    """Appends whole lines; durable after `flush`.

    What the disk does not take waits in memory, and of a write that fails halfway the half is cut off again, so that
    what follows goes on with a whole line. A file that is moved away or removed meanwhile is begun anew under its path.

    Args:
        path: the file; it and its folders are made where they are not there.
        setting: the setting that names it, for messages.

    Raises:
        ConfigError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], setting: str) -> None:
        self.path = Path(path)
        self._setting = setting
        self._waiting = bytearray()
        self._torn = False
        """Whether the file ends with half a line, left by a killed process; what follows must not be glued to it."""
        self._refused = False
        """Whether the latest attempt to write failed."""
        self._changing = threading.Lock()
        """Held while the file is synced, or another one takes its place."""
        try:
            self._file = self._open()
        except OSError as error:
            # Of a folder that is to be made where there is a file the system says only that it exists.
            reason = "Not a directory" if isinstance(error, FileExistsError) else error.strerror
            message = (
                f"{setting} {self.path}: cannot be opened for appending ({reason}); "
                "name a file in a folder that this user may write"
            )
            raise ConfigError(message) from error

    def write(self, lines: bytes) -> None:
        """Take these lines, the last one with its line end; those that cannot be written now wait for `flush`."""
        self._waiting += lines
        if len(self._waiting) >= WRITTEN_AT_ONCE and not self._refused:
            try:
                self._drain()
            except OSError:
                self._refused = True  # amid a batch nobody can act on it; `flush` tries again, and says why

    @property
    def overdue(self) -> bool:
        """Whether so much waits for the disk that no more should come before a `flush`."""
        return len(self._waiting) >= MOST_WAITING

    def flush(self) -> None:
        """Return only when everything written is on disk.

        Raises:
            RetriableCheckpointError: it cannot be written for now; all of it waits for the next flush.
            CheckpointError: nobody can tell what of it is on the disk; a checkpoint must not pass over that.
        """
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        """Hand everything written to the kernel; what is returned puts it on disk, also while more is written.

        Raises:
            RetriableCheckpointError: it cannot be written for now; all of it waits for the next flush.
        """
        with failing_loudly(self._setting, self.path, RetriableCheckpointError):
            self._drain()
        return self._sync

    def _sync(self) -> None:
        # After a failed sync the kernel takes the bytes for written, and a second one would succeed without them.
        with self._changing, failing_loudly(self._setting, self.path, CheckpointError):
            os.fsync(self._file.fileno())

    def position(self) -> Position | None:
        """Return where the file ends, right after `begin_flush`; ``None`` if it is no regular file."""
        descriptor = self._file.fileno()
        with failing_loudly(self._setting, self.path, RetriableCheckpointError):
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                return None
            head, tail = _probes(descriptor, status.st_size)
        end = _End(str(self.path), status.st_ino, status.st_size, head, tail)
        return {"kind": _KIND, **end._asdict()}

    def restore(self, position: Position) -> Callable[[], None]:
        """Make sure that the file holds a position, and return what takes away the lines after it.

        A file that was moved away is looked for under other names in its folder. Where it cannot be found, what is
        written from now on goes to a new one, and the lines after the position stay where they are.

        Raises:
            CheckpointError: the file is shorter but not empty, another one, or was edited; or it is no position of such
                a file.
        """
        place, file = f"{self._setting} {self.path}", self._file
        if position.get("kind") != _KIND:
            return of_another_kind(place)
        end = _end_of(position, place)
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return nothing_more
        # An empty one may have been made just now, and by chance have the inode of the one that is gone.
        if status.st_size and (status.st_ino == end.inode or (end.bytes and _holds(file, end))):  # or a copy
            if status.st_size < end.bytes:
                raise CheckpointError(
                    f"{place}: is shorter than when the checkpoint was written: it has {status.st_size} bytes and had "
                    f"{end.bytes}; {_ADVICE}"
                )
            if not _holds(file, end):
                raise CheckpointError(
                    f"{place}: was edited since the checkpoint was written, within its first {end.bytes} bytes; "
                    f"{_ADVICE}"
                )
            return partial(self._cut_back, self.path, end.bytes)
        if str(self.path) != end.path:
            LOGGER.warning(
                "%s: the checkpoint belongs to %s; lines that came after it stay there, and are written again here",
                place,
                end.path,
            )
            return nothing_more
        if status.st_size:
            raise CheckpointError(
                f"{place}: was replaced since the checkpoint was written: it is another file, and not empty; {_ADVICE}"
            )
        if not end.bytes:
            return nothing_more
        moved = self._moved(end)
        if moved is None:
            LOGGER.warning(
                "%s: the file that the checkpoint belongs to is gone; a new one is begun, and lines that came after "
                "the checkpoint are written again",
                place,
            )
            return nothing_more
        return partial(self._cut_back, moved, end.bytes)

    def _moved(self, end: _End) -> Path | None:
        """Return the name in the folder that the file of a position has now."""
        for path in sorted(self.path.parent.iterdir()):
            with suppress(OSError):
                status = path.lstat()
                if status.st_ino == end.inode and stat.S_ISREG(status.st_mode) and status.st_size >= end.bytes:
                    with FileIO(path) as file:
                        if _holds(file, end):
                            return path
        return None

    def _cut_back(self, path: Path, size: int) -> None:
        with failing_loudly(self._setting, path, CheckpointError), FileIO(path, "r+") as file:
            file.seek(size)
            again = 0
            while piece := file.read(WRITTEN_AT_ONCE):
                again += piece.count(b"\n")
            if file.tell() > size:
                file.truncate(size)
                os.fsync(file.fileno())
                LOGGER.info(
                    "%s %s: cut back to the checkpoint, at byte %d; the %d lines after it are made again",
                    self._setting,
                    path,
                    size,
                    again,
                )
        if path == self.path:
            self._torn = not self._ends_with_line_end()

    def close(self) -> None:
        """Close the file.

        Raises:
            CheckpointError: what was written last cannot be.
        """
        try:
            with failing_loudly(self._setting, self.path, CheckpointError):
                self._drain()
        finally:
            self._file.close()

    def _drain(self) -> None:
        """Write what waits, all of it or nothing."""
        if not self._waiting:
            return
        self._stay_at_path()
        if self._torn:
            self._waiting[:0] = b"\n"
            self._torn = False
        whole = os.fstat(self._file.fileno()).st_size
        try:
            with memoryview(self._waiting) as rest:
                written = 0
                while written < len(rest):
                    written += self._file.write(rest[written:])
        except OSError:
            with suppress(OSError):  # a device cannot be cut; half a line there is ended at the next start
                self._file.truncate(whole)
            raise
        self._waiting.clear()
        self._refused = False

    def _stay_at_path(self) -> None:
        """Begin the file anew where somebody has moved or removed it: nobody would find what is written there."""
        if self.path.exists() and os.path.samestat(self.path.stat(), os.fstat(self._file.fileno())):
            return
        new = self._open()
        with self._changing:
            os.fsync(self._file.fileno())  # lines that no checkpoint has passed may be in the file that was moved
            self._file.close()
            self._file = new
        LOGGER.warning("%s %s was moved or removed by somebody; a new file is begun there", self._setting, self.path)

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
    "only this program may write there. Put it back as it was; or move it away, and lines that came after the "
    "checkpoint are written again, to a new file; or begin anew with --fresh"
)


def of_another_kind(place: str) -> Callable[[], None]:
    """Say that a checkpoint holds a position of another kind of sink, which takes nothing away here."""
    LOGGER.warning(
        "%s: the checkpoint was written with predictions of another kind; those that came after it stay where they "
        "are, and are made again here",
        place,
    )
    return nothing_more


def _end_of(position: Position, origin: str) -> _End:
    """Return a position of this kind, once it is certain to be one.

    Raises:
        CheckpointError: it is none.
    """
    with restoring(origin):
        values = {name: position[name] for name in _End._fields}
        counts = {"inode", "bytes"}
        require(
            all(is_count(value) if name in counts else isinstance(value, str) for name, value in values.items()),
            f"predictions is {shown(position)}, and must say where a file of lines ends",
        )
    return _End(**values)


def _probes(descriptor: int, size: int) -> tuple[str, str]:
    """Return the digests of how a file begins, and of what comes before a size."""
    before = max(size - PROBE_BYTES, 0)
    head = os.pread(descriptor, min(size, PROBE_BYTES), 0)
    tail = os.pread(descriptor, size - before, before)
    return hashlib.sha256(head).hexdigest(), hashlib.sha256(tail).hexdigest()


def _holds(file: FileIO, end: _End) -> bool:
    """Whether a file has, up to the position, what it had."""
    return _probes(file.fileno(), end.bytes) == (end.head_sha256, end.tail_sha256)


@contextmanager
def failing_loudly(setting: str, path: Path, error_type: type[CheckpointError]) -> Iterator[None]:
    """Turn failures to write into an error of this type, which keeps a checkpoint from being saved."""
    try:
        yield
    except OSError as error:
        message = (
            f"{setting} {path}: cannot be written ({error.strerror}); make room on the disk or mend "
            "its permissions: nothing after the last checkpoint has been passed over"
        )
        raise error_type(message) from error
