"""A lock that allows one daemon per checkpoint folder."""

from __future__ import annotations

import fcntl
import logging
import os
from contextlib import AbstractContextManager
from pathlib import Path

from streammoe.errors import CheckpointError
from streammoe.persistence.durable import make_folder, reporting

LOGGER = logging.getLogger("streammoe.lock")
LOCK_NAME = "lock"


def is_locked(folder: Path) -> bool:
    """Return whether a process holds the lock of a folder; it is neither taken nor created."""
    try:
        with (folder / LOCK_NAME).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


class FolderLock(AbstractContextManager["FolderLock"]):
    """An exclusive lock on a checkpoint folder, held from construction to `close`.

    The kernel releases the lock when its holder dies, so the remaining file means nothing. It is never removed, since a
    process could lock the removed file while another one creates and locks a new one. Processes forked while the lock
    is held share it until they end.

    Args:
        folder: created if it is missing.
        what: what it is, for messages.
        setting: the setting or option that names it, for messages.

    Raises:
        CheckpointError: another process holds the lock, or its file cannot be opened.
    """

    def __init__(self, folder: str | Path, *, what: str = "checkpoint folder", setting: str = "checkpoint.dir") -> None:
        self.folder = Path(folder)
        self._name = f"{what} {folder}"
        self._setting = setting
        advice = f"make it a folder that this user may write, or set {setting} to one"
        with reporting(f"{self._name}: cannot be locked", advice):
            self._descriptor: int | None = self._open()

    def renew(self) -> bool:
        """Lock the folder again if its lock file was removed, or the whole folder, which is then created again.

        Returns:
            Whether that was necessary.

        Raises:
            CheckpointError: another process has locked the folder since.
            OSError: the folder cannot be created or locked for now.
        """
        if self._descriptor is None:
            return False
        path = self.folder / LOCK_NAME
        held = os.fstat(self._descriptor)
        if path.exists() and os.path.samestat(held, path.stat()):
            return False
        # A lock on a removed file excludes no other process. A process that has locked the new file keeps it.
        new = self._open()
        os.close(self._descriptor)
        self._descriptor = new
        LOGGER.warning("%s was removed; the folder is locked again", path)
        return True

    def _open(self) -> int:
        make_folder(self.folder)
        descriptor = os.open(self.folder / LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            self._lock(descriptor)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _lock(self, descriptor: int) -> None:
        advice = f"set {self._setting} to a folder on a local disk"
        with reporting(f"{self._name}: its filesystem cannot lock files", advice):
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
                raise CheckpointError(
                    f"{self._name}: in use by process {holder or '(just starting)'}; "
                    f"stop that process, or set {self._setting} to another folder"
                ) from error
        if not os.pread(descriptor, 32, 0).strip().isdigit() and os.fstat(descriptor).st_size:
            raise CheckpointError(
                f"{self._name}: its file {LOCK_NAME!r} is something else than the lock, and would be lost; set "
                f"{self._setting} to a folder of its own"
            )
        advice = f"make room on the disk, or set {self._setting} to another folder"
        with reporting(f"{self._name}: cannot be written", advice):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def close(self) -> None:
        """Release the lock. May be called again."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def __exit__(self, *_: object) -> None:
        self.close()
