"""Of `streammoe.persistence`: checkpoints, their folder and its lock, and files that grow."""

import errno
import os
from contextlib import closing, nullcontext
from pathlib import Path
from unittest.mock import patch

import numpy as np

from streammoe.persistence import CheckpointStore, FolderLock, decode, encode
from streammoe.persistence.append_log import AppendLog
from streammoe.persistence.format import _pack


def _failing(owner, call, number=errno.ENOSPC, place=None):
    """Have a call of the system fail."""
    return patch.object(owner, call, side_effect=OSError(number, os.strerror(number), place))


def _store(act, failing=lambda store: nullcontext(), before=lambda store: None, **more):
    """Return a case of a folder with one checkpoint, to which something happens before the store acts."""

    def case(folder):
        store = CheckpointStore(folder / "state", **more)
        store.prepare()
        store.save({"theta": np.zeros(2)}, {"n": 1})
        before(store)
        with failing(store):
            act(store)

    return case


def _save(store):
    store.save({}, {})


def _write_half(store):
    (store.folder / ".checkpoint-000000000002.safetensors.0123.tmp").touch()


def _make_a_folder_of_it(store):
    store.path(1).unlink()
    store.path(1).mkdir()


def _go_back_over_damaged_ones(store):
    store.path(2).write_bytes(b"")
    store.path(3).write_bytes(store.path(1).read_bytes()[:-1] + b"\1")
    store.path(4).mkdir()
    store.latest()
    store.path(1).unlink()
    store.latest()


def _locked(folder):
    with FolderLock(folder), patch("os.getpid", return_value=7):
        (folder / "lock").write_text("7\n")
        FolderLock(folder)


def _log(failing=lambda log: nullcontext(), before=lambda path: None):
    """Return a case of a log to whose file something happens before it is flushed."""

    def case(folder):
        with closing(AppendLog(folder / "file", "dead_letters.path")) as log:
            before(folder / "file")
            log.append(b"a\n")
            with failing(log):
                log.flush()

    return case


def _prepare_on_a_full_disk(folder):
    with _failing(os, "fsync"):
        CheckpointStore(folder / "state").prepare()


CASES = {
    "checkpoint, a flipped bit": lambda _: decode(encode({"a": np.zeros(1)}, {})[:-1] + b"\1", "here"),
    "checkpoint, metadata that are no table": lambda _: decode(_pack({}, "[]"), "here"),
    "checkpoint, newer format": lambda _: decode(_pack({}, '{"format":2}'), "here"),
    "array of a type that the format has not": lambda _: encode({"a": np.zeros(2, "f4")}, {}),
    "metadata with a format of its own": lambda _: encode({}, {"format": 3}),
    "no such generation": lambda folder: CheckpointStore(folder).load(7),
    "some damaged, then all": _store(_go_back_over_damaged_ones),
    "save, full disk": _store(_save, lambda _: _failing(os, "fsync")),
    "prepare, full disk": _prepare_on_a_full_disk,
    "prepare, half a checkpoint": _store(CheckpointStore.prepare, before=_write_half),
    "an old one stays": _store(
        _save,
        lambda store: _failing(Path, "unlink", errno.EISDIR, str(store.path(1))),
        _make_a_folder_of_it,
        keep=1,
    ),
    "set aside, not permitted": _store(CheckpointStore.set_aside, lambda _: _failing(Path, "rename", errno.EACCES)),
    "folder in use": _locked,
    "lines, full disk": _log(lambda log: _failing(log, "_drain")),
    "lines, failed flush": _log(lambda _: _failing(os, "fsync")),
    "lines, file moved": _log(before=lambda path: path.rename(path.with_name("file.1"))),
}
