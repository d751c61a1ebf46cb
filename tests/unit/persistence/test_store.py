import errno
import os
import shutil
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, FolderLock, NewerCheckpointError
from streammoe.persistence.format import _pack

GOLDEN = Path(__file__).parents[2] / "golden" / "format-1" / "regressor-learned.safetensors"


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "state")
    store.prepare()
    return store


def save(store, *ns):
    for n in ns:
        store.save({"theta": np.full(3, float(n))}, {"n": n})


def damage(store, *generations):
    for generation in generations:
        store.path(generation).write_bytes(store.path(generation).read_bytes()[:-1] + b"\1")


def latest_n(store):
    return store.latest()[1].metadata["n"]


# --- generations ----------------------------------------------------------------------------------------------------


def test_generations_are_numbered_pruned_and_outlive_the_process(store, tmp_path):
    assert store.latest() is None
    assert CheckpointStore(tmp_path / "absent").latest() is None
    save(store, 1, 2, 3, 4, 5)
    assert store.generations() == [3, 4, 5]
    assert store.load(3).metadata == {"n": 3}
    again = CheckpointStore(store.folder, keep=1)
    assert latest_n(again) == 5
    save(again, 6)
    assert again.generations() == [6]


def test_prepare_and_save_leave_all_foreign_files_alone(store):
    names = {"dead-letters.jsonl", "checkpoint-1.safetensors", "checkpoint-000000000009.safetensors.bak"}
    for name in names:
        (store.folder / name).write_text("mine")
    save(store, 1, 2, 3, 4)
    (store.folder / ".checkpoint-000000000005.safetensors.0123.tmp").write_bytes(b"half")
    store.prepare()
    assert {path.name for path in store.folder.iterdir()} == names | {store.path(number).name for number in (2, 3, 4)}


# --- damage ---------------------------------------------------------------------------------------------------------


SPOILT = {
    "a folder": lambda path, content: path.mkdir(),
    "a pipe, from which reading would never end": lambda path, content: os.mkfifo(path),
    "a device that never ends": lambda path, content: path.symlink_to("/dev/zero"),
    "unreadable: an error of the disk": lambda path, content: path.symlink_to("/proc/self/mem"),
    "a link to itself": lambda path, content: path.symlink_to(path.name),
    "a link to nothing": lambda path, content: path.symlink_to("nothing"),
    "empty": lambda path, content: path.write_bytes(b""),
    "zeros after a power cut": lambda path, content: path.write_bytes(bytes(len(content))),
}


def test_newer_ones_that_are_spoilt_are_passed_over_and_each_is_named(store, caplog):
    save(store, 1)
    content = store.path(1).read_bytes()
    for number, spoil in enumerate(SPOILT.values(), 2):
        spoil(store.path(number), content)
    assert latest_n(store) == 1
    for number, message in zip(reversed(range(2, 2 + len(SPOILT))), caplog.messages, strict=True):
        assert store.path(number).name in message


def test_one_of_a_newer_format_is_not_passed_over(store):
    save(store, 1)
    store.path(2).write_bytes(_pack({}, '{"format":2}'))
    with pytest.raises(NewerCheckpointError):
        store.latest()


def test_damaged_ones_are_logged_and_do_not_push_out_those_to_go_back_to(store, caplog):
    save(store, 1, 2, 3)
    damage(store, 2, 3)
    again = CheckpointStore(store.folder, keep=2)
    assert latest_n(again) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    save(again, 4)
    assert again.generations() == [1, 2, 3, 4]
    save(again, 5)
    assert again.generations() == [4, 5]


def test_one_that_the_daemon_removes_while_it_is_read_is_found_in_those_that_are_newer(store, monkeypatch):
    save(store, 1)
    daemon, load = CheckpointStore(store.folder, keep=1), store.load

    def load_late(generation):
        if generation == 1:
            save(daemon, 2)
        return load(generation)

    monkeypatch.setattr(store, "load", load_late)
    assert latest_n(store) == 2


# --- the disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "number"),
    [("fsync", errno.ENOSPC), ("listdir" if sys.version_info < (3, 13) else "scandir", errno.EMFILE)],
)
def test_an_error_of_the_system_can_be_retried(store, call, number):
    save(store, 1, 2)
    failing = patch.object(os, call, side_effect=OSError(number, os.strerror(number)))
    with failing, pytest.raises(CheckpointError) as failed:
        save(store, 3)
    assert failed.value.retriable
    assert [path.name for path in sorted(store.folder.iterdir())] == [store.path(number).name for number in (1, 2)]
    save(store, 3)
    assert store.generations() == [1, 2, 3]


def test_a_folder_that_is_removed_is_made_and_locked_again(tmp_path):
    with FolderLock(tmp_path / "state") as lock:
        store = CheckpointStore(tmp_path / "state", lock=lock)
        store.prepare()
        save(store, 1)
        shutil.rmtree(store.folder)
        save(store, 2)
        assert store.generations() == [1]
        with pytest.raises(CheckpointError):
            FolderLock(store.folder)
