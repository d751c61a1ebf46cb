"""Following of growing files through rotation, with detection of lost content."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from streammoe.errors import SourceError
from streammoe.ports import Batch, Position
from streammoe_connectors.files.listing import (
    HEAD_BYTES,
    File,
    Opened,
    as_source_errors,
    digest,
    expand,
    file_at,
    files_of,
    identity,
    is_same_file_at,
    kind_of,
    matches_pattern,
    open_file,
    status_at,
    without_other_names,
)
from streammoe_connectors.files.settings import FileSettings
from streammoe_connectors.files.streams import ContentLostError, PlainStream
from streammoe_connectors.formats.records import RecordReader

_LOGGER = logging.getLogger("streammoe.source")
_CHECK_INTERVAL_SECONDS = 0.1  # between two checks for growth, rotation and new files
_MAX_CHECK_SHARE = 0.05  # largest share of time spent on checks, since folders can be large


class FollowedFiles:
    """An endless reader of files and of everything appended to them.

    An open file stays the same file when it is renamed. Once its path refers to another file that is not empty, it was
    rotated away: it is read to its end, where a last line without line end is a record, and then the new file from its
    beginning. Until then a line without line end waits.

    Files take turns in name order, new ones after known ones; a turn lasts to the end that the file had when the turn
    began, so that no file waits for another one that keeps growing. The order of records between growing files depends
    on timing, but never the order within a file.
    """

    finished = False

    def __init__(self, settings: FileSettings) -> None:
        self._settings = settings
        self._files: deque[_FollowedFile] = deque()  # in the order of turns; the first is being read
        self._turn_end: int | None = None
        self._finished: list[File] = []  # rotated away, but still under a name that matches
        self._last_finished: dict[str, _FollowedFile] = {}  # the last finished file of each path
        self._next_check_at = 0.0
        self._ignored: set[str] = set()

    def seek(self, position: Position | None) -> None:
        before = [] if position is None else files_of(position)
        for file in before:
            self._resume(file, {other["inode"] for other in before if other is not file})
        self._find_new(log=position is not None)
        if not self._files:
            _LOGGER.warning("source.path %r matches no file yet; waiting for one", self._settings.path)

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while True:
            if time.monotonic() >= self._next_check_at:
                self._check_files()
            batch = self._next()
            if batch is not None:
                return batch
            now = time.monotonic()
            if now >= deadline:
                return None
            time.sleep(max(0.0, min(self._next_check_at, deadline) - now))

    def progress(self) -> None:
        """Return None, since there is no end."""

    def close(self) -> None:
        for followed in (*self._files, *self._last_finished.values()):
            followed.close()

    # --- reading ----------------------------------------------------------------------------------------------------

    def _next(self) -> Batch | None:
        """Return a batch of the first file, in turn, that has complete records."""
        for _ in range(len(self._files) + 1):
            if not self._files:
                break
            followed = self._files[0]
            is_first_attempt = self._turn_end is None
            if self._turn_end is None:
                self._turn_end = followed.status().st_size
            batch = self._take_turn(followed, self._turn_end, is_first_attempt=is_first_attempt)
            if batch is not None:
                return batch
            self._turn_end = None
            self._files.popleft()
            if followed.file["done"]:
                self._finish(followed)
            else:
                self._files.append(followed)
        return None

    def _take_turn(self, followed: _FollowedFile, turn_end: int, *, is_first_attempt: bool) -> Batch | None:
        while not followed.file["done"] and (
            is_first_attempt or followed.stream.is_last or followed.file["offset"] < turn_end
        ):
            is_first_attempt = False  # at least one attempt per turn, which also detects lost content
            try:
                batch = followed.next()
            except ContentLostError as lost:
                self._check_restart(lost)
                followed.restart()
                break
            if batch is not None:
                files = [*self._finished, *(each.file for each in self._files)]
                return replace(batch, end={"kind": "file", "files": files})
            if followed.reader.needs_more_data:
                break
        return None

    def _finish(self, followed: _FollowedFile) -> None:
        path = followed.file["path"]
        _LOGGER.info("%s was rotated away and has been read completely", path)
        if path in self._last_finished:
            self._last_finished.pop(path).close()
        self._last_finished[path] = followed
        self._finished.append(followed.file)
        self._next_check_at = 0.0  # the new file under its path is next
        missed = self._files_possibly_missed(followed)
        if missed:
            _LOGGER.warning(
                "%s may have been rotated more than once since the last check, and then %s was never read; let "
                "source.path match rotated files too",
                path,
                ", ".join(missed),
            )

    def _files_possibly_missed(self, followed: _FollowedFile) -> list[str]:
        """Return files that may have had the path of a followed file after it and before the current one."""
        path = followed.file["path"]
        known_inodes = {
            _inode_at(path),
            *(file["inode"] for file in self._finished),
            *(each.file["inode"] for each in self._files),
        }
        known_inodes.add(followed.file["inode"])
        matched = {Path(name).absolute() for name in expand(self._settings.path)}
        names = [name for name in _siblings(path) if name.startswith(path) and Path(name).absolute() not in matched]
        since = followed.status().st_mtime_ns
        candidates = [(name, status) for name in names if (status := status_at(name)) is not None]
        return [name for name, status in candidates if status.st_ino not in known_inodes and status.st_mtime_ns > since]

    def _check_restart(self, lost: ContentLostError) -> None:
        """Raise the error unless the settings allow to restart at the beginning."""
        if self._settings.on_truncate == "stop":
            raise lost
        _LOGGER.warning("%s; reading restarts at its beginning, since source.on_truncate is 'restart'", lost.what)

    # --- finding files ----------------------------------------------------------------------------------------------

    def _check_files(self) -> None:
        started = time.monotonic()
        for followed in self._files:
            followed.check_rotation()
        self._warn_of_late_writes()
        self._find_new(log=True)
        now = time.monotonic()
        self._next_check_at = now + max(_CHECK_INTERVAL_SECONDS, (now - started) / _MAX_CHECK_SHARE)

    def _warn_of_late_writes(self) -> None:
        """Warn of files that still grew after reading of their successor began."""
        for path, followed in list(self._last_finished.items()):
            late = followed.status().st_size - followed.file["size"]
            if late > 0:
                _LOGGER.warning(
                    "%s was rotated away and grew by %d bytes after the new file under its path had data; they are not "
                    "read: let all writers reopen the path before any of them writes there",
                    path,
                    late,
                )
                self._last_finished.pop(path).close()

    def _find_new(self, *, log: bool) -> None:
        paths = {Path(followed.file["path"]).absolute() for followed in self._files}
        followed = {identity(each.status()) for each in self._files}
        still_present, new = [], []
        for path in expand(self._settings.path):
            status = status_at(path)
            # A file under the path of a rotated one waits until that one has been read.
            if status is None or identity(status) in followed:
                continue
            if Path(path).absolute() in paths or path in self._ignored:
                continue
            finished = [
                file for file in self._finished if file["inode"] == status.st_ino and is_same_file_at(path, file)
            ]
            still_present += finished
            if not finished:
                new.append(path)
        for path in without_other_names(new):
            self._add(path, log=log)
        # Where no file has the path yet, the finished one is kept, too, to number the next.
        paths = {Path(followed.file["path"]).absolute() for followed in self._files}
        self._finished = [
            file for file in self._finished if file in still_present or Path(file["path"]).absolute() not in paths
        ]

    def _add(self, path: str, *, log: bool) -> None:
        """Follow `path` from its beginning."""
        before = [file["rotation"] for file in self._finished if Path(file["path"]).absolute() == Path(path).absolute()]
        rotation = max(before, default=-1) + 1
        try:
            followed = _FollowedFile.open(path, self._settings, rotation)
        except SourceError as error:
            if isinstance(error.__cause__, FileNotFoundError):
                return  # moved since the names were listed
            raise
        if followed is None:
            self._ignored.add(path)
            _LOGGER.warning("%s is compressed or Parquet; only plain files can be followed, so it is not read", path)
            return
        self._files.append(followed)
        if log:
            _LOGGER.info("%s is new; it is read after the files known before", path)

    # --- resuming ---------------------------------------------------------------------------------------------------

    def _resume(self, file: File, others: set[int]) -> None:
        """Resume a file of a position, under whatever name it has now.

        Args:
            file: as the position has it.
            others: inodes of the other files in the position.

        Raises:
            SourceError: it cannot be found, or no longer holds what had been read, and the settings do not allow a
                restart.
        """
        rotation = file.get("rotation", 0)
        if not matches_pattern(self._settings.path, file["path"]):
            if file["done"]:
                return
            # A manipulated checkpoint must not choose which files are read.
            raise SourceError(
                f"the checkpoint resumes in the middle of {file['path']!r}, which source.path {self._settings.path!r} "
                "does not match; let it match that file too, or start with a fresh checkpoint folder"
            )
        if file["done"] and ("rotation" in file or not self._may_have_grown(file)):
            self._finished.append({**file, "rotation": rotation})
            return
        try:
            opened = _reopen(file, others, self._settings.format)
        except ContentLostError as lost:
            self._check_restart(lost)
            inode = _inode_at(file["path"])
            if inode is not None and inode not in others:
                followed = _FollowedFile.open(file["path"], self._settings, rotation + 1)
                if followed is not None:
                    self._files.append(followed)
            return
        inode = opened.file["inode"]  # differs for a copy
        self._files.append(
            _FollowedFile(opened, {**file, "inode": inode, "rotation": rotation, "done": False}, self._settings)
        )

    def _may_have_grown(self, file: File) -> bool:
        """Whether a file that was finished with ``source.follow = false`` is still there and can be followed."""
        if not is_same_file_at(file["path"], file):
            return False
        opened = open_file(file["path"])
        opened.raw.close()
        return kind_of(file["path"], self._settings.format, opened.head).is_plain


class _FollowedFile:
    """An open file that is followed."""

    def __init__(self, opened: Opened, file: File, settings: FileSettings) -> None:
        self.file: File = file
        """The current position; replaced, not changed, since positions of earlier batches refer to it."""
        self._raw = opened.raw
        self._settings = settings
        self._open(opened.head[: file["head_bytes"]])

    @classmethod
    def open(cls, path: str, settings: FileSettings, rotation: int) -> _FollowedFile | None:
        """Open the file at `path` at its beginning; return ``None`` if its kind cannot be followed."""
        opened = open_file(path)
        if not kind_of(path, settings.format, opened.head).is_plain:
            opened.raw.close()
            return None
        return cls(opened, {**opened.file, "rotation": rotation}, settings)

    def status(self) -> os.stat_result:
        with as_source_errors(self.file["path"]):
            return os.fstat(self._raw.fileno())

    def next(self) -> Batch | None:
        batch = self.reader.next()
        head = self.stream.head
        self.file = {
            **self.file,
            "head_bytes": len(head),
            "head_sha256": digest(head),
            "offset": max(self.file["offset"], self.reader.offset),
            "done": self.reader.exhausted,
        }
        if self.reader.exhausted:
            self.file["size"] = self.file["offset"]
        return batch

    def check_rotation(self) -> None:
        """Check whether another file has taken its place."""
        status = status_at(self.file["path"])
        if status is not None and status.st_ino != self.file["inode"] and status.st_size:
            self.stream.is_last = True

    def restart(self) -> None:
        """Restart at the beginning of the current content."""
        with as_source_errors(self.file["path"]):
            self._raw.seek(0)
            head = self._raw.read(HEAD_BYTES)
            self._raw.seek(0)
        rotation = self.file["rotation"] + 1
        self.file = {**file_at(self.file["path"], self.file["inode"], head), "rotation": rotation}
        self._open(head)

    def close(self) -> None:
        self._raw.close()

    def _open(self, head: bytes) -> None:
        """Open stream and reader at the current position, of a file that begins like this."""
        path, settings = self.file["path"], self._settings
        self.stream = PlainStream(self._raw, path, head, follow=True)
        self.reader = RecordReader(
            self.stream,
            settings,
            name=path,
            format=kind_of(path, settings.format, head).format,
            start=self.file["offset"],
            location={"path": path, "rotation": self.file["rotation"]},
        )


def _reopen(file: File, others: set[int], format: str) -> Opened:
    """Reopen a file of a position under its path or a new name, or a copy of it under its path.

    Raises:
        SourceError: there is none, it is shorter than the position, or it cannot be followed.
    """
    path = file["path"]
    names = [name for name in (path, *_siblings(path)) if _inode_at(name) == file["inode"]]
    copies = [] if _inode_at(path) in others else [path]
    current_path = next((name for name in (*names, *copies) if is_same_file_at(name, file)), None)
    if current_path is None:
        wrong = "was overwritten" if path in names else "is no longer there, nor under another name in its folder"
        raise ContentLostError(
            f"{path} (inode {file['inode']}) {wrong}: it had been read to byte {file['offset']}, and the content after "
            "that is lost"
        )
    if current_path != path:
        _LOGGER.info("%s was rotated away; its rest is read from %s", path, current_path)
    opened = open_file(current_path)
    try:
        if opened.size < file["offset"]:
            raise ContentLostError(
                f"{current_path} was truncated to {opened.size} bytes: it had been read to byte {file['offset']}, and "
                "the content after that is lost"
            )
        if not kind_of(path, format, opened.head).is_plain:
            raise SourceError(
                f"{path} is compressed or Parquet, which cannot be followed; first read it completely with "
                "source.follow = false"
            )
    except SourceError:
        opened.raw.close()
        raise
    return opened


def _siblings(path: str) -> list[str]:
    """Return the other names in the folder of `path`."""
    folder = Path(path).parent
    with as_source_errors(str(folder)):
        return sorted(str(name) for name in folder.iterdir() if name != Path(path)) if folder.is_dir() else []


def _inode_at(path: str) -> int | None:
    status = status_at(path)
    return None if status is None else status.st_ino
