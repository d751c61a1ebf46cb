"""Write files and folders so that they survive a power cut."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from streammoe.errors import ConfigError
from streammoe.text import shown

TEMPORARY_SUFFIX = ".tmp"


def path_of(path: object) -> Path:
    """Return a path as users give it; raise `ConfigError` for anything else."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ConfigError(f"path: got {shown(path)}; it must be text or a pathlib.Path")
    return Path(path)


def replace(path: Path, *data: bytes | memoryview) -> None:
    """Replace a file's content atomically; several pieces are written one after the other without being joined.

    After a normal return the new bytes are on disk under `path`; after an error, a kill or a power cut there are
    either the old bytes or the new ones, never a mixture, and readers only ever see whole files.

    This holds on local journaling filesystems and disks that honor a flush; network filesystems promise less. If only
    the last step fails, the flush of the folder, the new bytes are in place but a power cut may lose them. A kill
    leaves a temporary file ``.<name>.<random>.tmp`` in the folder. Hard links keep the old content; owner and
    permissions are not carried over.

    Raises:
        OSError: the folder cannot be written, or the disk is full; it names `path`.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            for piece in data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException as error:
        with suppress(OSError):  # the first error counts
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # the name that the caller knows
            del error.filename2
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents durably, unless they exist; raise OSError if that fails."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk: a power cut can lose a file's name as well as its bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
