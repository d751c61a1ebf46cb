"""Of `streammoe.persistence`: checkpoints, their folder and its lock, and files that grow."""

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

import numpy as np

from streammoe.persistence import CheckpointStore, FolderLock, decode, encode
from streammoe.persistence.append_log import AppendLog
from streammoe.persistence.format import _pack


def _with_one(folder: Path, **more: object) -> CheckpointStore:
    store = CheckpointStore(folder / "state", **more)
    store.prepare()
    store.save({"theta": np.zeros(2)}, {"n": 1})
    return store


def _full(call: str = "fsync") -> object:
    return patch.object(os, call, side_effect=OSError(errno.ENOSPC, "No space left on device"))


def _save(call: str) -> Callable[[Path], None]:
    def save(folder: Path) -> None:
        store = _with_one(folder)
        with _full(call):
            store.save({}, {})

    return save


def _prepare_on_a_full_disk(folder: Path) -> None:
    with _full():
        CheckpointStore(folder / "state").prepare()


def _prepare_on_a_file(folder: Path) -> None:
    (folder / "file").touch()
    CheckpointStore(folder / "file").prepare()


def _half_written(folder: Path) -> None:
    store = _with_one(folder)
    (store.folder / ".checkpoint-000000000002.safetensors.0123.tmp").touch()
    store.prepare()


def _damaged(folder: Path) -> None:
    store = _with_one(folder)
    for generation in (2, 3, 4):
        shutil.copy(store.path(1), store.path(generation))
    store.path(2).write_bytes(b"")
    store.path(3).write_bytes(store.path(1).read_bytes()[:-1] + b"\1")
    store.path(4).unlink()
    store.path(4).mkdir()
    store.latest()
    store.path(1).unlink()
    store.latest()


def _not_removed(folder: Path) -> None:
    store = _with_one(folder, keep=1)
    store.path(1).unlink()
    store.path(1).mkdir()
    error = OSError(errno.EISDIR, "Is a directory", str(store.path(1)))
    with patch.object(Path, "unlink", side_effect=error):
        store.save({}, {})


def _not_set_aside(folder: Path) -> None:
    store = _with_one(folder)
    with patch.object(Path, "rename", side_effect=OSError(errno.EACCES, "Permission denied")):
        store.set_aside()


def _locked(folder: Path) -> None:
    with FolderLock(folder), patch("os.getpid", return_value=7):
        (folder / "lock").write_text("7\n")
        FolderLock(folder)


def _no_folder_to_lock(folder: Path) -> None:
    (folder / "file").touch()
    FolderLock(folder / "file" / "state")


def _appended(call: str) -> Callable[[Path], None]:
    def append(folder: Path) -> None:
        full = OSError(errno.ENOSPC, "No space left on device")
        with closing(AppendLog(folder / "file", "dead_letters.path")) as log:
            log.write(b"a\n")
            with _full() if call == "fsync" else patch.object(log, "_drain", side_effect=full):
                log.flush()

    return append


def _taken_away(folder: Path) -> None:
    with closing(AppendLog(folder / "file", "dead_letters.path")) as log:
        (folder / "file").rename(folder / "file.1")
        log.write(b"a\n")
        log.flush()


CASES = {
    "checkpoint, nothing": lambda _: decode(b"", "here"),
    "checkpoint, no header": lambda _: decode(b"garbage" * 100, "here"),
    "checkpoint, a byte after the end": lambda _: decode(encode({}, {}) + b" ", "here"),
    "checkpoint, a flipped bit": lambda _: decode(encode({"a": np.zeros(1)}, {})[:-1] + b"\1", "here"),
    "checkpoint, metadata that are no table": lambda _: decode(_pack({}, "[]"), "here"),
    "checkpoint, newer format": lambda _: decode(_pack({}, '{"format":2}'), "here"),
    "array of a type that the format has not": lambda _: encode({"a": np.zeros(2, "f4")}, {}),
    "metadata with a format of its own": lambda _: encode({}, {"format": 3}),
    "no such generation": lambda folder: CheckpointStore(folder).load(7),
    "some damaged, then all": _damaged,
    "save, full disk": _save("fsync"),
    "save, no descriptor": _save("listdir"),
    "prepare, full disk": _prepare_on_a_full_disk,
    "prepare, a file": _prepare_on_a_file,
    "prepare, half a checkpoint": _half_written,
    "an old one stays": _not_removed,
    "set aside, not permitted": _not_set_aside,
    "folder in use": _locked,
    "folder that cannot be made": _no_folder_to_lock,
    "lines, a folder": lambda folder: AppendLog(folder, "dead_letters.path"),
    "lines, full disk": _appended("write"),
    "lines, failed flush": _appended("fsync"),
    "lines, file moved": _taken_away,
}
