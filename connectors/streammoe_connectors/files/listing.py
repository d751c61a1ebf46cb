"""The files of a position: finding them, and finding out whether they are still the same."""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple, NotRequired, Protocol, TypedDict, cast

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Position

START_AFRESH = "restore it, or start with a fresh checkpoint folder"
PARQUET = "parquet"
HEAD_BYTES = 4096
_LOGGER = logging.getLogger("streammoe.source")
_MOST_TOLD = 10
_GZIP_MAGIC = b"\x1f\x8b"
_FORMATS = {".csv": "csv", ".json": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": PARQUET, ".pq": PARQUET}


class File(TypedDict):
    """One file of a position.

    The head, the hash of its first bytes as they are on disk, tells whether it is still the same file.
    """

    path: str
    inode: int
    head_bytes: int
    head_sha256: str
    offset: int
    """Where reading goes on: a byte of the content, decompressed where it is compressed, or a row of a Parquet file."""
    done: bool
    size: NotRequired[int]
    """Bytes on disk when it was done; without it, its offset."""
    rotation: NotRequired[int]
    """Of a followed file: how many there were under this path before it."""


class Kind(NamedTuple):
    """How a file's content is to be read."""

    format: str
    gzipped: bool


class Readable(Protocol):
    """What can be read from its beginning again: a file of Python's or of Arrow's."""

    def seek(self, offset: int, /) -> object: ...
    def read(self, count: int, /) -> bytes: ...


def expand(path: str) -> list[str]:
    """The names that a path or glob stands for, in order.

    Raises:
        SourceError: the folder that a glob begins with cannot be listed, for now (`RetriableSourceError`) or at all.
    """
    if os.path.lexists(path):  # a name may hold a glob's characters
        return [path]
    found = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - Path.glob refuses absolute patterns
    _check_listable(path)
    return found


def status_at(path: str) -> os.stat_result | None:
    """Return the status of what is at `path`; ``None`` if nothing is there.

    Raises:
        SourceError: nobody can say.
    """
    try:
        with explained(path):
            return Path(path).stat()
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return what all names of a file have in common: its device and inode."""
    return status.st_dev, status.st_ino


def without_other_names(paths: Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """Leave out paths that are links to a file that has another name among them, with one warning for each file.

    Of several names the one that is no symbolic link, nor goes through one, is kept, else the first in the order given.

    Args:
        paths: names of files, in order.
        known: names under which files are read already; they come before all others.

    Raises:
        SourceError: nobody can say what is at one of the paths.
    """
    taken: dict[tuple[int, int], str] = {}
    for path in known:
        with suppress(OSError):  # finished files need not stay
            taken.setdefault(identity(Path(path).stat()), path)
    names: dict[tuple[int, int], list[str]] = {}
    left_out: set[str] = set()
    for path in paths:
        try:
            status = status_at(path)
        except SourceError as error:
            # Below a folder that links to itself `**` finds each file under forty names, the last of them one too long.
            if len(paths) == 1 or not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ELOOP:
                raise
            left_out.add(path)
            continue
        if status is not None:  # whoever opens it says that it is gone
            names.setdefault(identity(status), []).append(path)
    told = 0
    for file, same in names.items():
        kept = taken.get(file)
        if kept is None:
            if len(same) == 1:
                continue
            kept = next((path for path in same if os.path.realpath(path) == os.path.abspath(path)), same[0])  # noqa: PTH100 - `resolve` follows links
        others = [path for path in same if path != kept]
        left_out.update(others)
        if told < _MOST_TOLD:
            more = f", and so are {len(others) - 1} more" if len(others) > 1 else ""
            _LOGGER.warning("%s is the same file as %s%s; it is read once, under that name", others[0], kept, more)
        told += 1
    if told > _MOST_TOLD:
        _LOGGER.warning("%d more files have several names; each is read once", told - _MOST_TOLD)
    return [path for path in paths if path not in left_out]


def _check_listable(pattern: str) -> None:
    """Make sure that there is a difference between no file and none that can be seen.

    To `glob`, a folder that cannot be listed is an empty one. Whoever believed that would forget which files of it were
    read, and read them again.
    """
    folder = pattern
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)  # noqa: PTH120 - keeps the name as it is written
    with explained(folder or os.curdir):
        try:
            os.scandir(folder or os.curdir).close()
        except (FileNotFoundError, NotADirectoryError):
            return


def listed(position: Position) -> list[File]:
    """The files of a position.

    Raises:
        SourceError: it is not a position in files, or no version of this source wrote it.
    """
    if position.get("kind") != "file":
        raise SourceError(
            f"the checkpoint's position is of kind {position.get('kind')!r}, and source.kind is 'file'; "
            "go back to that source, or start with a fresh checkpoint folder"
        )
    files = position.get("files")
    if not (isinstance(files, list) and all(isinstance(file, dict) and _is_file(file) for file in files)):
        raise SourceError(
            "the checkpoint's position is not one of files: each must have its path, inode, head and offset; go back "
            "to an earlier checkpoint, or start with a fresh checkpoint folder"
        )
    return cast("list[File]", files)


def _is_file(entry: dict[str, object]) -> bool:
    """Whether it is a `File`, with a head no longer than this source takes."""
    texts, counts, marks = ("path", "head_sha256"), ("inode", "head_bytes", "offset"), ("done",)
    known = {*texts, *counts, *marks, "size", "rotation"}
    if not known.issuperset(entry) or not entry.keys() >= known - {"size", "rotation"}:
        return False
    path, head_bytes = entry["path"], entry["head_bytes"]
    return (
        all(isinstance(entry[name], str) for name in texts)
        and all(_is_count(entry[name]) for name in known.intersection(entry).difference(texts, marks))
        and isinstance(entry["done"], bool)
        and isinstance(head_bytes, int)
        and head_bytes <= HEAD_BYTES
        and isinstance(path, str)
        and path != ""
        and "\0" not in path
        and _is_utf8(path)
    )


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _is_utf8(text: str) -> bool:
    """Whether the system can be asked for a file of this name."""
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        return False
    return True


def is_named(pattern: str, path: str) -> bool:
    """Whether a path or glob stands for `path`, whatever is there now.

    Without regard to links, and of hidden names only those that it spells out.

    >>> is_named("logs/*.csv", "logs/a.csv"), is_named("logs/**/a.csv", "logs/b/c/a.csv"), is_named("*", "../a.csv")
    (True, True, False)
    """
    return pattern == path or _matches(Path(pattern).absolute().parts, Path(path).absolute().parts)


def _matches(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    # After each part of the pattern: how many parts of the path it may have taken.
    taken = {0}
    for wanted in pattern:
        if wanted == "**":
            for n, part in enumerate(parts):
                if n in taken and not part.startswith("."):
                    taken.add(n + 1)
        else:
            taken = {n + 1 for n in taken if n < len(parts) and _is_part(wanted, parts[n])}
    return len(parts) in taken


def _is_part(wanted: str, part: str) -> bool:
    if wanted == part:
        return True
    is_hidden = part == ".." or (part.startswith(".") and not wanted.startswith("."))
    return not is_hidden and fnmatch.fnmatchcase(part, wanted)


def inspect(path: str, format: str) -> File:
    """`path` as a file to be read from its beginning, once it is certain that it can be read.

    Raises:
        SourceError: it cannot be read, is no regular file, or of no known kind.
    """
    with explained(path):
        status = Path(path).stat()
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{path} is not a regular file; let source.path name files only, such as {path}/*.csv")
        with Path(path).open("rb") as stream:
            head = stream.read(HEAD_BYTES)
    kind_of(path, format, head)
    return file_at(path, status.st_ino, head)


def file_at(path: str, inode: int, head: bytes) -> File:
    """A file to be read from its beginning."""
    return File(path=path, inode=inode, head_bytes=len(head), head_sha256=digest(head), offset=0, done=False)


def kind_of(path: str, format: str, head: bytes) -> Kind:
    """The kind of a file: by its extension for the format ``auto``, else it is compressed if it begins like gzip."""
    if format != "auto":
        return Kind(format, gzipped=format != PARQUET and head.startswith(_GZIP_MAGIC))
    extensions = [extension.lower() for extension in Path(path).suffixes]
    gzipped = extensions[-1:] == [".gz"]
    known = _FORMATS.get(extensions[-2] if gzipped and len(extensions) > 1 else (extensions or [""])[-1])
    if known is None or (gzipped and known == PARQUET):
        shown = "".join(extensions[-2:] if gzipped else extensions[-1:])
        raise SourceError(
            f"{path} has the extension {shown!r}, and without a format only {', '.join(_FORMATS)} are known, and .gz "
            "behind those of text; set source.format to 'csv', 'jsonl' or 'parquet' (of streammoe produce that is "
            "--read-as, of streammoe evaluate --format)"
        )
    return Kind(known, gzipped)


def digest(head: bytes) -> str:
    """The fingerprint of a file's first bytes."""
    return hashlib.sha256(head).hexdigest()


def is_same(file: File, stream: Readable) -> bool:
    """Whether a stream has the head of `file`; it stands at its beginning afterwards."""
    stream.seek(0)
    head = stream.read(file["head_bytes"])
    stream.seek(0)
    return digest(head) == file["head_sha256"]


def check_head(file: File, stream: Readable) -> None:
    """Make sure that a stream has the head of `file`; it stands at its beginning afterwards.

    Raises:
        SourceError: it has another one.
    """
    if not is_same(file, stream):
        raise SourceError(
            f"{file['path']} was replaced: its first {file['head_bytes']} bytes are no longer those that were found "
            f"there; give new data a new name, or {START_AFRESH}"
        )


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turns the system's errors into those of a source; want of file descriptors may pass."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise RetriableSourceError(
                f"{path} cannot be opened: {error.strerror}; raise the limit (ulimit -n), or find out who takes them"
            ) from error
        raise SourceError(
            f"{path} cannot be read: {error.strerror or error}; it must be a readable file: check the path, its "
            "permissions and its disk"
        ) from error
