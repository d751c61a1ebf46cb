"""Write files and folders so that they survive a power cut."""

from __future__ import annotations

import errno
import os
import stat
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeAlias

from streammoe.errors import CheckpointError, ConfigError
from streammoe.text import shown

TEMPORARY_SUFFIX = ".tmp"
AnyPath: TypeAlias = str | os.PathLike[str]


@contextmanager
def reporting(what: str, advice: str, kind: type[CheckpointError] = CheckpointError) -> Iterator[None]:
    """Turn a system error into a `CheckpointError` of this kind: what cannot be done, why, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise kind(f"{what} ({error.strerror}); {advice}") from error


def path_of(path: object) -> Path:
    """Return a path as users give it; raise `ConfigError` for anything else."""
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise ConfigError(f"path: got {shown(path)}; it must be text or a pathlib.Path")
    return Path(path)


def overlaps(outputs: Mapping[str, AnyPath], inputs: Iterable[tuple[str, AnyPath]]) -> Iterator[str]:
    """Yield a sentence for each output that is an input, or an earlier output, under whatever name.

    Args:
        outputs: files that are to be written, by the option or setting that names each.
        inputs: files that are read, likewise.
    """
    names: dict[object, tuple[str, AnyPath]] = {}
    for what, file in [*inputs, *outputs.items()]:
        if (found := _identity(file)) is not None:
            other, known = names.setdefault(found, (what, file))
            if other != what and what in outputs:
                yield f"{what}: is {str(file)!r}, the same file as {other} {str(known)!r}; name another file"


def _identity(file: AnyPath) -> object:
    """Return what all names of a file have in common; None for a device or a pipe, which keeps nothing."""
    try:
        status = Path(file).stat()
    except OSError:
        return os.path.realpath(file)
    return (status.st_dev, status.st_ino) if stat.S_ISREG(status.st_mode) else None


def replace(path: Path, *data: bytes | memoryview) -> None:
    """Replace a file's content atomically; several pieces are written one after the other without being joined.

    Nothing but a regular file is ever replaced. A symbolic link stays, and what it names is replaced.

    After a normal return the new bytes are on disk under `path`; after an error, a kill or a power cut there are
    either the old bytes or the new ones, never a mixture, and readers only ever see whole files.

    This holds on local journaling filesystems and disks that honor a flush; network filesystems promise less. If only
    the last step fails, the flush of the folder, the new bytes are in place but a power cut may lose them. A kill
    leaves a temporary file ``.<name>.<random>.tmp`` in the folder. Hard links keep the old content; owner and
    permissions are not carried over.

    Raises:
        OSError: there is something other than a file, the folder cannot be written, or the disk is full; it names
            `path`.
    """
    target, temporary = _places(path)
    try:
        with temporary.open("xb") as file:
            for piece in data:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException as error:
        with suppress(OSError):  # the first error counts
            temporary.unlink()
        if isinstance(error, OSError):
            error.filename = str(path)  # the name that the caller knows
            del error.filename2
        raise
    sync_folder(target.parent)


def probe(path: Path) -> None:
    """Raise the OSError that `replace` would raise now, unless it is for the size of the content."""
    _, temporary = _places(path)
    temporary.touch(exist_ok=False)
    temporary.unlink()


def _places(path: Path) -> tuple[Path, Path]:
    """Return the file to be replaced, and the temporary one to be written first."""
    target = Path(os.path.realpath(path))
    if target.exists() and not (target.is_file() or target.is_dir()):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return target, target.with_name(f".{target.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")


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
