"""Files and folders that survive a power cut."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

from streammoe.errors import ConfigError
from streammoe.text import shown

TEMPORARY_SUFFIX = ".tmp"


def path_of(place: object) -> Path:
    """A path as users give it.

    Raises:
        ConfigError: it is no path.
    """
    if not isinstance(place, str | os.PathLike) or not isinstance(os.fspath(place), str):
        raise ConfigError(f"path: got {shown(place)}; it must be text or a pathlib.Path")
    return Path(place)


def replace(path: Path, *data: bytes | memoryview) -> None:
    """Swap a file's content in one step; several pieces are written one after the other, without being joined.

    After a normal return the new bytes are on disk under `path`; after an error, a kill or a power cut there are
    either the old bytes or the new ones, never a mixture, and a reader sees only whole files at any time.

    Caveats: it holds on local journalling filesystems and disks that honour a flush; network filesystems promise
    less. When only the last step fails, the flush of the folder, the new bytes are in place but may be lost to a
    power cut. A kill leaves a temporary file ``.<name>.<random>.tmp`` in the folder. Links to the old content keep it,
    and its owner and permissions are not carried over.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
    try:
        with temporary.open("xb") as file:
            for piece in data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, durably; fine if it is there.

    Raises:
        OSError: it cannot be created, or something else has its name.
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put a folder's entries on disk: a file's name is as mortal as its bytes."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
