"""Files that grow: followed for ever, through rotation, and told when what was to be read is gone."""

from __future__ import annotations

import logging
import os
import stat
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO, cast

from streammoe.errors import SourceError
from streammoe.ports import Batch, Position
from streammoe_connectors.files.growing import GrowingStream, LostError
from streammoe_connectors.files.listing import (
    HEAD_BYTES,
    PARQUET,
    File,
    digest,
    expand,
    explained,
    file_at,
    identity,
    inspect,
    is_named,
    is_same,
    kind_of,
    listed,
    status_at,
    without_other_names,
)
from streammoe_connectors.files.settings import FileSettings
from streammoe_connectors.formats.records import RecordReader

_LOGGER = logging.getLogger("streammoe.source")
_LOOK_SECONDS = 0.1  # between two looks for growth, rotation and new files
_LARGEST_SHARE = 0.05  # of the time may go into looking; folders can be large


class FollowedFiles:
    """Reads what files hold and what is appended to them, for ever.

    A file is what was opened once, whatever it is called later. Once its path names another file that is not empty, it
    was rotated away: it is read to its end, where a last line without line end is a record, and then the new one from
    its beginning. Until then a line without line end waits.

    Files take turns, in name order and new ones behind those known; a turn lasts to the end that the file had when the
    turn began, so that none waits for another one that grows all the time. With several growing files it depends on
    time which record comes first: between files, never within one.
    """

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._files: deque[_Followed] = deque()  # the first one has its turn
        self._turn_ends: int | None = None
        self._done: list[File] = []  # rotated away, but still under a name that is looked for
        self._lingering: dict[str, _Followed] = {}  # the last one done of each path
        self._look_at = 0.0
        self._ignored: set[str] = set()
        self._skipped = 0

    def seek(self, position: Position | None) -> None:
        before = [] if position is None else listed(position)
        for file in before:
            self._take_up(file, {other["inode"] for other in before if other is not file})
        self._find_new(tell=position is not None)
        if not self._files:
            _LOGGER.warning("source.path %r matches no file yet; waiting for one", self._settings.path)

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while True:
            if time.monotonic() >= self._look_at:
                self._look()
            batch = self._next()
            if batch is not None:
                return batch
            now = time.monotonic()
            if now >= deadline:
                return None
            time.sleep(max(0.0, min(self._look_at, deadline) - now))

    @property
    def finished(self) -> bool:
        return False

    def progress(self) -> None:
        """There is no end to compare with."""

    def close(self) -> None:
        for followed in (*self._files, *self._lingering.values()):
            followed.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _next(self) -> Batch | None:
        """One batch of the first file in turn that has complete records."""
        for _ in range(len(self._files) + 1):
            if not self._files:
                break
            followed = self._files[0]
            begins = self._turn_ends is None
            if self._turn_ends is None:
                self._turn_ends = followed.status().st_size
            batch = self._take_turn(followed, self._turn_ends, begins=begins)
            if batch is not None:
                return batch
            self._turn_ends = None
            self._files.popleft()
            if followed.file["done"]:
                self._finish(followed)
            else:
                self._files.append(followed)
        return None

    def _take_turn(self, followed: _Followed, turn_ends: int, *, begins: bool) -> Batch | None:
        while not followed.file["done"] and (begins or followed.is_last or followed.file["offset"] < turn_ends):
            begins = False  # each turn has one attempt at least, which also finds out what was lost
            try:
                batch = followed.next()
            except LostError as lost:
                self._may_restart(lost)
                followed.restart()
                break
            if batch is not None:
                self._skipped += batch.skipped
                if len(batch):
                    skipped, self._skipped = self._skipped, 0
                    files = [*self._done, *(each.file for each in self._files)]
                    return replace(batch, end={"kind": "file", "files": files}, skipped=skipped)
            elif followed.is_waiting:
                break
        return None

    def _finish(self, followed: _Followed) -> None:
        path = followed.file["path"]
        _LOGGER.info("%s was rotated away and has been read to its end", path)
        if path in self._lingering:
            self._lingering.pop(path).close()
        self._lingering[path] = followed
        self._done.append(followed.file)
        self._look_at = 0.0  # the new file under its path is next
        missed = self._missed(followed)
        if missed:
            _LOGGER.warning(
                "%s was perhaps rotated more than once since it was looked at, and then %s was never read; let "
                "source.path match rotated files too",
                path,
                ", ".join(missed),
            )

    def _missed(self, followed: _Followed) -> list[str]:
        """Names that the path of a file may have had after it, and before the file that has it now."""
        path = followed.file["path"]
        known = {
            _inode_at(path),
            *(file["inode"] for file in self._done),
            *(each.file["inode"] for each in self._files),
        }
        known.add(followed.file["inode"])
        looked_for = {Path(name).absolute() for name in expand(self._settings.path)}
        names = [name for name in _beside(path) if name.startswith(path) and Path(name).absolute() not in looked_for]
        since = followed.status().st_mtime_ns
        found = [(name, status) for name in names if (status := status_at(name)) is not None]
        return [name for name, status in found if status.st_ino not in known and status.st_mtime_ns > since]

    def _may_restart(self, lost: LostError) -> None:
        """Go on where the settings say so.

        Raises:
            SourceError: they do not.
        """
        if self._settings.on_truncate == "stop":
            raise lost
        _LOGGER.warning("%s; reading begins anew there, since source.on_truncate is 'restart'", lost.what)

    # --- looking for files ------------------------------------------------------------------------------------------

    def _look(self) -> None:
        began = time.monotonic()
        for followed in self._files:
            followed.look_for_successor()
        self._warn_of_late()
        self._find_new(tell=True)
        now = time.monotonic()
        self._look_at = now + max(_LOOK_SECONDS, (now - began) / _LARGEST_SHARE)

    def _warn_of_late(self) -> None:
        """Say where others still wrote to a file after the next one under its path was begun."""
        for path, followed in list(self._lingering.items()):
            late = followed.status().st_size - followed.file["size"]
            if late > 0:
                _LOGGER.warning(
                    "%s was rotated away and grew by %d bytes after the new file under its path had data; they are not "
                    "read: let all writers reopen the path before any of them writes there",
                    path,
                    late,
                )
                self._lingering.pop(path).close()

    def _find_new(self, *, tell: bool) -> None:
        paths = {Path(followed.file["path"]).absolute() for followed in self._files}
        followed = {identity(each.status()) for each in self._files}
        kept, new = [], []
        for path in expand(self._settings.path):
            status = status_at(path)
            # A file under the path of one that was rotated away has to wait until that one has been read.
            if status is None or identity(status) in followed:
                continue
            if Path(path).absolute() in paths or path in self._ignored:
                continue
            stays = [file for file in self._done if file["inode"] == status.st_ino and _is_at(path, file)]
            kept += stays
            if not stays:
                new.append(path)
        for path in without_other_names(new):
            self._add(path, tell=tell)
        # Also the last one of each path that nothing followed yet, to count on from.
        paths = {Path(followed.file["path"]).absolute() for followed in self._files}
        self._done = [file for file in self._done if file in kept or Path(file["path"]).absolute() not in paths]

    def _add(self, path: str, *, tell: bool) -> None:
        """Follow `path` from its beginning."""
        before = [file["rotation"] for file in self._done if Path(file["path"]).absolute() == Path(path).absolute()]
        rotation = max(before, default=-1) + 1
        try:
            followed = _Followed.at(path, self._settings, rotation)
        except SourceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return  # it was moved since the names were listed
            raise
        if followed is None:
            self._ignored.add(path)
            _LOGGER.warning("%s is compressed or Parquet; only plain files can be followed, so it is not read", path)
            return
        self._files.append(followed)
        if tell:
            _LOGGER.info("%s is new; it is read behind the files known before", path)

    # --- taking up a position ---------------------------------------------------------------------------------------

    def _take_up(self, file: File, others: set[int]) -> None:
        """Go on with a file of a position that lists `others`, too, under whatever name it has now.

        Raises:
            SourceError: it cannot be found, or no longer holds what had been read, and the settings do not say to begin
                anew there.
        """
        rotation = file.get("rotation", 0)
        if not is_named(self._settings.path, file["path"]):
            if file["done"]:
                return
            # Whoever can write a checkpoint must not choose which files are read.
            raise SourceError(
                f"the checkpoint goes on in the middle of {file['path']!r}, which source.path {self._settings.path!r} "
                "does not name; let it name that file too, or start with a fresh checkpoint folder"
            )
        if file["done"] and ("rotation" in file or not self._may_have_grown(file)):
            self._done.append({**file, "rotation": rotation})
            return
        try:
            raw = _find(file, others, self._settings.format)
        except LostError as lost:
            self._may_restart(lost)
            inode = _inode_at(file["path"])
            anew = None
            if inode is not None and inode not in others:
                anew = _Followed.at(file["path"], self._settings, rotation + 1)
            if anew is not None:
                self._files.append(anew)
            return
        inode = os.fstat(raw.fileno()).st_ino  # another one, if it is a copy
        self._files.append(
            _Followed(raw, {**file, "inode": inode, "rotation": rotation, "done": False}, self._settings)
        )

    def _may_have_grown(self, file: File) -> bool:
        """Whether a file that was read to its end, when nothing was followed yet, is still there to be gone on with."""
        path = file["path"]
        if not _is_at(path, file):
            return False
        with explained(path), Path(path).open("rb") as stream:
            return _is_plain(path, self._settings.format, stream.read(HEAD_BYTES))


class _Followed:
    """One open file."""

    def __init__(self, raw: BinaryIO, file: File, settings: FileSettings) -> None:
        self.file: File = file
        """Where reading goes on in it; a new object after each step, since positions hold the old ones."""
        self._raw = raw
        self._settings = settings
        self._begin()

    @classmethod
    def at(cls, path: str, settings: FileSettings, rotation: int) -> _Followed | None:
        """The file at `path` from its beginning; ``None`` where it is of a kind that cannot be followed.

        Raises:
            SourceError: it cannot be read.
        """
        inspect(path, settings.format)  # opening what is no regular file could wait for ever
        with ExitStack() as on_failure, explained(path):
            raw = on_failure.enter_context(Path(path).open("rb", buffering=0))
            head = raw.read(HEAD_BYTES)
            if not _is_plain(path, settings.format, head):
                return None
            file = file_at(path, os.fstat(raw.fileno()).st_ino, head)
            raw.seek(0)
            on_failure.pop_all()
        return cls(cast("BinaryIO", raw), {**file, "rotation": rotation}, settings)

    @property
    def is_last(self) -> bool:
        """Whether another file has taken its place, so that it ends where it ends now."""
        return self._stream.is_last

    @property
    def is_waiting(self) -> bool:
        """Whether there is nothing to give before it has grown."""
        return self._reader.waiting

    def status(self) -> os.stat_result:
        with explained(self.file["path"]):
            return os.fstat(self._raw.fileno())

    def next(self) -> Batch | None:
        batch = self._reader.next()
        head = self._stream.head
        self.file = {
            **self.file,
            "head_bytes": len(head),
            "head_sha256": digest(head),
            "offset": max(self.file["offset"], self._reader.offset),
            "done": self._reader.done,
        }
        if self._reader.done:
            self.file["size"] = self.file["offset"]
        return batch

    def look_for_successor(self) -> None:
        """Find out whether another file has taken its place."""
        status = status_at(self.file["path"])
        if status is not None and status.st_ino != self.file["inode"] and status.st_size:
            self._stream.is_last = True

    def restart(self) -> None:
        """Begin anew with what the file holds now."""
        with explained(self.file["path"]):
            self._raw.seek(0)
            head = self._raw.read(HEAD_BYTES)
            self._raw.seek(0)
        rotation = self.file["rotation"] + 1
        self.file = {**file_at(self.file["path"], self.file["inode"], head), "rotation": rotation}
        self._begin()

    def close(self) -> None:
        self._raw.close()

    def _begin(self) -> None:
        path, settings = self.file["path"], self._settings
        with explained(path):
            head = self._raw.read(self.file["head_bytes"])
            self._raw.seek(0)
        self._stream = GrowingStream(self._raw, path, head)
        self._reader = RecordReader(
            self._stream,
            name=path,
            format=kind_of(path, settings.format, head).format,
            block_bytes=settings.block_bytes,
            max_record_bytes=settings.max_record_bytes,
            start=self.file["offset"],
            place={"path": path, "rotation": self.file["rotation"]},
            dialect=settings.dialect,
        )


def _is_plain(path: str, format: str, head: bytes) -> bool:
    kind = kind_of(path, format, head)
    return not kind.gzipped and kind.format != PARQUET


def _find(file: File, others: set[int], format: str) -> BinaryIO:
    """Open a file of a position again: under its path, or one that it was given since, or a copy under its path.

    Raises:
        SourceError: there is none, it is shorter than what had been read of it, or it cannot be followed.
    """
    path = file["path"]
    names = [name for name in (path, *_beside(path)) if _inode_at(name) == file["inode"]]
    copies = [] if _inode_at(path) in others else [path]
    found = next((name for name in (*names, *copies) if _is_at(name, file)), None)
    if found is None:
        wrong = "begins otherwise now" if path in names else "is no longer there, nor under another name in its folder"
        raise LostError(
            f"{path} (inode {file['inode']}) {wrong}: it had been read to byte {file['offset']}, and what came after "
            "that is lost"
        )
    if found != path:
        _LOGGER.info("%s was rotated away; its rest is read from %s", path, found)
    with ExitStack() as on_failure, explained(found):
        raw = on_failure.enter_context(Path(found).open("rb", buffering=0))
        size = os.fstat(raw.fileno()).st_size
        if size < file["offset"]:
            raise LostError(
                f"{found} was truncated to {size} bytes: it had been read to byte {file['offset']}, and what came "
                "after that is lost"
            )
        if not _is_plain(path, format, raw.read(HEAD_BYTES)):
            raise SourceError(
                f"{path} is compressed or Parquet, which cannot be followed; read it to its end with source.follow = "
                "false first"
            )
        raw.seek(0)
        on_failure.pop_all()
    return cast("BinaryIO", raw)


def _beside(path: str) -> list[str]:
    """Other names in the folder of `path`."""
    folder = Path(path).parent
    with explained(str(folder)):
        return sorted(str(name) for name in folder.iterdir() if name != Path(path)) if folder.is_dir() else []


def _inode_at(path: str) -> int | None:
    status = status_at(path)
    return None if status is None else status.st_ino


def _is_at(path: str, file: File) -> bool:
    """Whether what is at `path` begins like `file`."""
    status = status_at(path)
    if status is None or not stat.S_ISREG(status.st_mode):
        return False
    with explained(path), Path(path).open("rb") as stream:
        return is_same(file, stream)
