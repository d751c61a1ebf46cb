"""Files of a position: find them, and check whether they are still the same."""

from __future__ import annotations

import errno
import fnmatch
import glob
import hashlib
import logging
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Annotated, BinaryIO, NamedTuple, NotRequired, cast

from pydantic import AfterValidator, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Position
from streammoe_connectors.formats.texts import ENDINGS, PARQUET, by_extension
from streammoe_connectors.positions import check_kind, invalid

RESTORE_ADVICE = "restore it, or start with a fresh checkpoint folder"
HEAD_BYTES = 4096
_LOGGER = logging.getLogger("streammoe.source")
_MAX_WARNINGS = 10
GZIP_MAGIC = b"\x1f\x8b"


def _file_name(path: str) -> str:
    """Return a text that can name a file; raise ValueError if it cannot."""
    if not path or b"\0" in os.fsencode(path):
        raise ValueError("must name a file")
    return path


Count = Annotated[int, Field(ge=0, lt=1 << 63)]


class File(TypedDict):
    """A file in a position; the hash of its first bytes on disk identifies it."""

    path: Annotated[str, AfterValidator(_file_name)]
    inode: Count
    head_bytes: Annotated[int, Field(ge=0, le=HEAD_BYTES)]
    head_sha256: str
    offset: Count
    """Where reading resumes: a byte of the (decompressed) content, or a row of a Parquet file."""
    done: bool
    size: NotRequired[Count]
    """Bytes on disk when it was done; its offset if missing."""
    rotation: NotRequired[Count]
    """For a followed file: the number of files that had this path before."""


_FILES = TypeAdapter(list[File], config=ConfigDict(strict=True, extra="forbid"))


class Kind(NamedTuple):
    """The format and compression of a file."""

    format: str
    gzipped: bool

    @property
    def is_plain(self) -> bool:
        """Whether it is text, not compressed, which may grow record by record."""
        return self.format != PARQUET and not self.gzipped


def expand(path: str) -> list[str]:
    """Return the names that match a path or glob, in order.

    Raises:
        SourceError: the folder at the beginning of a glob cannot be listed, for now (`RetriableSourceError`) or at all.
    """
    if os.path.lexists(path):  # a name may contain characters of a glob
        return [path]
    paths = sorted(glob.glob(path, recursive=True))  # noqa: PTH207 - Path.glob rejects absolute patterns
    _check_listable(path)
    return paths


def status_at(path: str) -> os.stat_result | None:
    """Return the status of `path`, ``None`` if it does not exist; raise `SourceError` if that cannot be determined."""
    try:
        with as_source_errors(path):
            return Path(path).stat()
    except SourceError as error:
        if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
            return None
        raise


def identity(status: os.stat_result) -> tuple[int, int]:
    """Return the device and inode of a file, which all its names share."""
    return status.st_dev, status.st_ino


def is_same_file(path: str, other: str | int) -> bool:
    """Return whether two paths, or an open file, are one regular file that can be looked at."""
    try:
        return os.path.isfile(other) and os.path.samefile(path, other)  # noqa: PTH113, PTH121 - one may be open
    except OSError:
        return False


def without_other_names(paths: Sequence[str], known: Sequence[str] = ()) -> list[str]:
    """Remove all but one of several paths to the same file, with warnings.

    A name without symbolic links is kept, else the first one.

    Args:
        paths: names of files, in order.
        known: names under which files are read already; they take precedence.

    Raises:
        SourceError: the status of a path cannot be determined.
    """
    names: dict[tuple[int, int], str] = {}
    for path in known:
        with suppress(OSError):  # finished files may be removed
            names.setdefault(identity(Path(path).stat()), path)
    omitted: dict[str, str] = {}
    for path in sorted(paths, key=lambda path: os.path.realpath(path) != os.path.abspath(path)):  # noqa: PTH100 - `resolve` follows links
        try:
            status = status_at(path)
        except SourceError as error:
            # In a folder that links to itself `**` finds each file under forty names; the last has too many links.
            if len(paths) == 1 or not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ELOOP:
                raise
            omitted[path] = "others"
            continue
        if status is not None and (name := names.setdefault(identity(status), path)) != path:
            omitted[path] = name  # one that is missing is reported when it is opened
    for path, name in islice(omitted.items(), _MAX_WARNINGS):
        _LOGGER.warning("%s is the same file as %s; it is read once, under that name", path, name)
    if len(omitted) > _MAX_WARNINGS:
        _LOGGER.warning("%d more are other names of files that are read", len(omitted) - _MAX_WARNINGS)
    return [path for path in paths if path not in omitted]


def _check_listable(pattern: str) -> None:
    """Raise `SourceError` if the folder of a glob cannot be listed.

    `glob` treats such a folder as empty, which would make the source forget the files in it and later read them again.
    """
    folder = pattern
    while glob.has_magic(folder):
        folder = os.path.dirname(folder)  # noqa: PTH120 - keeps the spelling
    with as_source_errors(folder or os.curdir):
        try:
            os.scandir(folder or os.curdir).close()
        except (FileNotFoundError, NotADirectoryError):
            return


def files_of(position: Position) -> list[File]:
    """Return the files of a position; raise `SourceError` if it is not a valid position of files."""
    check_kind(position, "file")
    try:
        return _FILES.validate_python(position.get("files"))
    except ValidationError as error:
        raise invalid("file", "each file must have its path, inode, head and offset") from error


def matches_pattern(pattern: str, path: str) -> bool:
    """Whether `path` matches a path or glob, regardless of what exists.

    Links are not resolved, and wildcards do not match hidden names.

    >>> matches_pattern("logs/*.csv", "logs/a.csv"), matches_pattern("logs/**/a.csv", "logs/b/c/a.csv")
    (True, True)
    >>> matches_pattern("*", "../a.csv")
    False
    """
    return pattern == path or _matches(Path(pattern).absolute().parts, Path(path).absolute().parts)


def _matches(pattern: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    # After each part of the pattern: the possible numbers of path parts matched so far.
    matched_counts = {0}
    for wanted in pattern:
        if wanted == "**":
            for n, part in enumerate(parts):
                if n in matched_counts and not part.startswith("."):
                    matched_counts.add(n + 1)
        else:
            matched_counts = {n + 1 for n in matched_counts if n < len(parts) and _is_part(wanted, parts[n])}
    return len(parts) in matched_counts


def _is_part(wanted: str, part: str) -> bool:
    if wanted == part:
        return True
    is_hidden = part == ".." or (part.startswith(".") and not wanted.startswith("."))
    return not is_hidden and fnmatch.fnmatchcase(part, wanted)


class Opened(NamedTuple):
    """A regular file, unbuffered and at its beginning."""

    raw: BinaryIO
    file: File
    """As it is now, to be read from its beginning."""
    head: bytes
    size: int


def open_file(path: str, known: File | None = None) -> Opened:
    """Open a file.

    Raises:
        SourceError: it cannot be read, is not a regular file, or does not begin like the known one.
    """
    with ExitStack() as on_failure, as_source_errors(path):
        if not stat.S_ISREG(Path(path).stat().st_mode):  # opening anything else could wait for ever
            raise SourceError(f"{path} is not a regular file; let source.path name files only, such as {path}/*.csv")
        raw = on_failure.enter_context(Path(path).open("rb", buffering=0))
        status, head = os.fstat(raw.fileno()), raw.read(HEAD_BYTES)
        raw.seek(0)
        if known is not None and not begins_like(head, known):
            raise SourceError(
                f"{path} was replaced: its first {known['head_bytes']} bytes have changed since it was first read; "
                f"give new data a new name, or {RESTORE_ADVICE}"
            )
        on_failure.pop_all()
    return Opened(cast("BinaryIO", raw), file_at(path, status.st_ino, head), head, status.st_size)


def inspect(path: str, format: str) -> File:
    """Return a `File` for `path` at its beginning; raise `SourceError` as `open_file` does, or for an unknown kind."""
    opened = open_file(path)
    opened.raw.close()
    kind_of(path, format, opened.head)
    return opened.file


def file_at(path: str, inode: int, head: bytes) -> File:
    """Return a `File` to be read from its beginning."""
    return File(path=path, inode=inode, head_bytes=len(head), head_sha256=digest(head), offset=0, done=False)


def kind_of(path: str, format: str, head: bytes) -> Kind:
    """Determine the kind of a file: by extension for the format ``auto``, else compression by its first bytes."""
    if format != "auto":
        return Kind(format, gzipped=format != PARQUET and head.startswith(GZIP_MAGIC))
    extension, gzipped, known = by_extension(path)
    if known is None or (gzipped and known == PARQUET):
        shown = extension + ".gz" * gzipped
        raise SourceError(
            f"{path} has the extension {shown!r}; known extensions are {', '.join(ENDINGS)}, and .gz after those of "
            "text formats; set source.format to 'csv', 'jsonl' or 'parquet'"
        )
    return Kind(known, gzipped)


def digest(head: bytes) -> str:
    """Hash the first bytes of a file."""
    return hashlib.sha256(head).hexdigest()


def begins_like(head: bytes, file: File) -> bool:
    """Return whether the first bytes of a file are those of `file`."""
    return digest(head[: file["head_bytes"]]) == file["head_sha256"]


def is_same_file_at(path: str, file: File) -> bool:
    """Return whether a regular file at `path` begins like `file`."""
    status = status_at(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    opened = open_file(path)
    opened.raw.close()
    return begins_like(opened.head, file)


@contextmanager
def as_source_errors(path: str) -> Iterator[None]:
    """Turn system errors into source errors; a lack of file descriptors is retriable."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.EMFILE, errno.ENFILE}:
            raise RetriableSourceError(
                f"{path} cannot be opened: {error.strerror}; raise the limit (ulimit -n), or find out what uses them"
            ) from error
        raise SourceError(
            f"{path} cannot be read: {error.strerror or error}; it must be a readable file: check the path, its "
            "permissions and its disk"
        ) from error
