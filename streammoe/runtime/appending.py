"""A file of lines that is only ever appended to, and says in whose name it fails."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from streammoe.errors import CheckpointError, ConfigError
from streammoe.persistence.durable import sync_folder


class AppendedLines:
    """Appends whole lines; durable after `flush`.

    Args:
        path: the file; it and its folders are made where they are not there.
        setting: the setting that names it, for messages.

    Raises:
        ConfigError: it cannot be opened.
    """

    def __init__(self, path: str | os.PathLike[str], setting: str) -> None:
        self.path = Path(path)
        self._setting = setting
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            torn = self.path.exists() and not self._ends_with_line_end()
            self._stream = self.path.open("ab")
            sync_folder(self.path.parent)
            if torn:
                # A killed process may have left half a line; what follows must not be glued to it.
                self._stream.write(b"\n")
        except OSError as error:
            message = (
                f"{setting} {self.path}: cannot be opened for appending ({error.strerror}); "
                "name a file in a folder that this user may write"
            )
            raise ConfigError(message) from error

    def write(self, lines: bytes) -> None:
        """Append these lines, the last one with its line end.

        Raises:
            CheckpointError: they cannot be written.
        """
        with failing_loudly(self._setting, self.path):
            self._stream.write(lines)

    def flush(self) -> None:
        """Return only when everything written is on disk.

        Raises:
            CheckpointError: it cannot be written; a checkpoint must not pass over what is kept nowhere.
        """
        self.begin_flush()()

    def begin_flush(self) -> Callable[[], None]:
        """Hand everything written to the kernel; what is returned puts it on disk, also while more is written.

        Raises:
            CheckpointError: it cannot be written; of what is returned, too.
        """
        with failing_loudly(self._setting, self.path):
            self._stream.flush()
        return self._sync

    def _sync(self) -> None:
        with failing_loudly(self._setting, self.path):
            os.fsync(self._stream.fileno())

    def close(self) -> None:
        """Close the file.

        Raises:
            CheckpointError: what was written last cannot be.
        """
        with failing_loudly(self._setting, self.path):
            self._stream.close()

    def _ends_with_line_end(self) -> bool:
        with self.path.open("rb") as stream:
            if stream.seek(0, os.SEEK_END) == 0:
                return True
            stream.seek(-1, os.SEEK_END)
            return stream.read(1) == b"\n"


@contextmanager
def failing_loudly(setting: str, path: Path) -> Iterator[None]:
    """Turn failures to write into the error that keeps a checkpoint from being saved."""
    try:
        yield
    except OSError as error:
        message = (
            f"{setting} {path}: cannot be written ({error.strerror}); make room on the disk or mend "
            "its permissions, and start again: nothing after the last checkpoint has been passed over"
        )
        raise CheckpointError(message) from error
