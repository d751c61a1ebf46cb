"""Places of checkpoints that other processes read: a local folder, or a folder of an object store by its URL."""

from __future__ import annotations

import os
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Hashable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError, not_installed
from streammoe.persistence import make_folder, replace
from streammoe.secrets import masked
from streammoe.text import cut, printable, shown

LARGEST_FILE = 1 << 31
"""Bytes that a file may have: far more than any model, and still little enough to be read into memory."""
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_CHAINED = "::"
_GONE = "there is no such file any more"
_QUERY = re.compile(r"(?<=\S)\?[^\s'\"]*")


class MissingFileError(RetriableCheckpointError):
    """A file is not, or no longer, in a place; its writer may have removed it since the place was listed."""


class Place(ABC):
    """A flat folder of files that are written whole, and read by other processes at any moment.

    Every method may take as long as the network does.

    Raises:
        RetriableCheckpointError: the place cannot be read or written for now; any method may raise it, and nothing else
            unless it says so.
    """

    name: str
    """For messages; it shows no secret."""

    @property
    @abstractmethod
    def identity(self) -> Hashable:
        """Equal for the same place, as far as that can be known."""

    @abstractmethod
    def names(self) -> list[str]:
        """Return the names of its files, sorted; none where the folder does not exist."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """Return the content of a file of at most `LARGEST_FILE` bytes.

        Raises:
            MissingFileError: there is no such file.
            CheckpointError: it is larger, or no regular file, which does not pass by itself.
        """

    @abstractmethod
    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        """Write a file; readers see either no file, the one before, or all of these bytes."""

    @abstractmethod
    def delete(self, name: str) -> None:
        """Remove a file, unless there is none."""

    def file(self, name: str) -> str:
        """Return the name of one of its files for messages."""
        return f"{self.name.rstrip('/')}/{name}"


def place_of(text: str | os.PathLike[str], what: str) -> Place:
    """Return the place that a user names by a path or URL; nothing is created or read yet.

    Args:
        text: a path, or a URL as fsspec takes it, such as ``s3://bucket/folder``.
        what: the option or setting that names it, for messages.

    Raises:
        ConfigError: fsspec, or its package for such URLs, is not installed, or it knows none.
    """
    text = os.fspath(text)
    if not text:
        raise ConfigError(f"{what}: got an empty text; it must be a folder, or a URL such as s3://bucket/folder")
    if not _URL.match(text) or Path(text).exists():
        return Folder(Path(text))
    return _by_url(text, what)


def _by_url(url: str, what: str) -> Place:
    hidden = _without_secrets(url)
    if _CHAINED in url:
        rule = "it must be one URL without '::', since what is cached on the way may be out of date"
        raise ConfigError(f"{what}: got {hidden}; {rule}")
    try:
        import fsspec
        from fsspec.implementations.local import LocalFileSystem
    except ImportError as error:
        raise not_installed(f"{what} {hidden}", "fsspec", "distributed") from error
    try:
        client, path = fsspec.core.url_to_fs(url)
    except ImportError as error:  # its message names the package
        raise ConfigError(f"{what}: {hidden} needs a package that is not installed: {_reason(error)}") from None
    except Exception as error:  # noqa: BLE001 - each kind of store has its own
        rule = "it must be a folder, or a URL that fsspec knows, such as s3://bucket/folder"
        raise ConfigError(f"{what}: got {hidden}, which cannot be used ({_reason(error)}); {rule}") from None
    if isinstance(client, LocalFileSystem):
        return Folder(Path(path))
    return _Store(client, path, hidden)


class Folder(Place):
    """A folder of the local file system; a file that was written survives a power cut."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path)

    @property
    def identity(self) -> Hashable:
        path = self.path.resolve()
        try:
            status = path.stat()  # the same for a folder that is mounted twice
        except OSError:
            return str(path)
        return status.st_dev, status.st_ino

    def names(self) -> list[str]:
        try:
            with os.scandir(self.path) as entries:
                return sorted(entry.name for entry in entries)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RetriableCheckpointError(
                f"{self.name}: cannot be listed ({error.strerror}); name a folder that this user may read"
            ) from error

    def read(self, name: str) -> bytes:
        path = self.path / name
        try:
            # Opening a pipe would wait for its writer.
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise CheckpointError(f"{path}: is not a regular file; move it away")
                _check_size(str(path), status.st_size)
                return file.read(status.st_size)
        except FileNotFoundError as error:
            raise MissingFileError(f"{path}: {_GONE}") from error
        except OSError as error:
            raise RetriableCheckpointError(
                f"{path}: cannot be read ({error.strerror}); correct its permissions"
            ) from error

    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        try:
            make_folder(self.path)
            replace(self.path / name, *pieces)
        except OSError as error:
            reason = f"cannot be written ({error.strerror}); make room on the disk or correct its permissions"
            raise RetriableCheckpointError(f"{self.path / name}: {reason}") from error

    def delete(self, name: str) -> None:
        try:
            (self.path / name).unlink(missing_ok=True)
        except OSError as error:
            raise RetriableCheckpointError(f"{self.path / name}: cannot be removed ({error.strerror})") from error


class _Store(Place):
    """A folder of an object store, where a file is put as a whole by one request.

    Clients of object stores raise errors of many kinds, the network's among them.

    Args:
        client: fsspec's file system.
        path: of the folder in it.
        name: see `Place`.
    """

    def __init__(self, client: Any, path: str, name: str) -> None:
        self._client = client
        self._path = path.rstrip("/")
        self.name = name

    @property
    def identity(self) -> Hashable:
        return self._client, self._path  # clients of the same store are equal

    def names(self) -> list[str]:
        with _reporting(self.name, "listed"):
            self._client.invalidate_cache()  # it may hold an earlier listing
            try:
                paths = self._client.ls(self._path, detail=False)
            except FileNotFoundError:
                return []
            return sorted(path.rstrip("/").rpartition("/")[2] for path in paths)

    def read(self, name: str) -> bytes:
        file = self.file(name)
        with _reporting(file, "read"):
            # Up to an end, which bounds what arrives whatever the store says about the size.
            content: bytes = self._client.cat_file(self._in_store(name), start=0, end=LARGEST_FILE + 1)
        _check_size(file, len(content))
        return content

    def write(self, name: str, *pieces: bytes | memoryview) -> None:
        with _reporting(self.file(name), "written"):
            self._client.pipe_file(self._in_store(name), b"".join(pieces))

    def delete(self, name: str) -> None:
        with suppress(MissingFileError), _reporting(self.file(name), "removed"):
            self._client.rm_file(self._in_store(name))

    def _in_store(self, name: str) -> str:
        return f"{self._path}/{name}"


@contextmanager
def _reporting(file: str, what: str) -> Iterator[None]:
    """Turn any error of a store's client, which may be of any kind, into that of a place."""
    try:
        yield
    except FileNotFoundError:
        raise MissingFileError(f"{file}: {_GONE}") from None
    except Exception as error:  # noqa: BLE001 - see above
        # From nothing: a traceback would show the URL.
        raise RetriableCheckpointError(f"{file}: cannot be {what} ({_reason(error)})") from None


def _check_size(file: str, size: int) -> None:
    if size > LARGEST_FILE:
        raise CheckpointError(f"{file}: has {size:,} bytes; a model has at most {LARGEST_FILE:,}")


def _reason(error: Exception) -> str:
    """Return an error's message on one line, without the secrets of URLs in it, and its kind where it has none."""
    return cut(printable(_without_secrets(str(error)))) or shown(type(error).__name__)


def _without_secrets(text: str) -> str:
    """Hide logins in URLs, and what follows a question mark, where signatures of requests are."""
    return _QUERY.sub("", masked(text))


def name_of_folder(text: str) -> str:
    """Return the last part of a path or URL, without looking whether it exists.

    >>> name_of_folder("s3://bucket/shards/north/"), name_of_folder("./shards/south")
    ('north', 'south')
    """
    if _URL.match(text) and not Path(text).exists():
        return _without_secrets(text).rstrip("/").rpartition("/")[2]
    return Path(text).absolute().resolve().name
