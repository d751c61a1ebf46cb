"""A file of lines that is only ever appended to, and says in whose name it fails."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import FileIO
from pathlib import Path

from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence.durable import make_folder, sync_folder

LOGGER = logging.getLogger("streammoe.appending")
WRITTEN_AT_ONCE = 1 << 20
"""Bytes that are gathered before they go to the file between two flushes."""
MOST_WAITING = 64 << 20
"""Bytes that wait in memory for a disk that takes none, before learning has to wait, too."""


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
            file = on_failure.enter_context(FileIO(self.path, "a"))
            sync_folder(self.path.parent)
            on_failure.pop_all()
        if torn:
            # A killed process may have left half a line; what follows must not be glued to it.
            self._waiting[:0] = b"\n"
        return file

    def _ends_with_line_end(self) -> bool:
        with self.path.open("rb") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return True
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"


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
