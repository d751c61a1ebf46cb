import errno
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from streammoe import persistence
from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, FolderLock, NewerCheckpointError
from streammoe.persistence.format import _pack


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
        data = bytearray(store.path(generation).read_bytes())
        data[-1] ^= 1
        store.path(generation).write_bytes(data)


def latest_n(store):
    generation, checkpoint = store.latest()
    assert store.load(generation).metadata == checkpoint.metadata
    assert (checkpoint.arrays["theta"] == checkpoint.metadata["n"]).all()
    return checkpoint.metadata["n"]


def failing(number):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    return fail


# --- generations ----------------------------------------------------------------------------------------------------


def test_an_empty_or_absent_folder_has_no_generation(store, tmp_path):
    assert store.latest() is None
    assert CheckpointStore(tmp_path / "absent").latest() is None
    with pytest.raises(CheckpointError):
        store.load(7)


def test_generations_are_numbered_pruned_and_outlive_the_process(store):
    assert store.save({}, {}) == 1
    assert store.path(1) == store.folder / "checkpoint-000000000001.safetensors"
    save(store, 2, 3, 4, 5)
    assert store.generations() == [3, 4, 5]
    assert store.load(3).metadata == {"n": 3}
    again = CheckpointStore(store.folder, keep=1)
    assert latest_n(again) == 5
    save(again, 6)
    assert again.generations() == [6]


def test_generations_are_ordered_by_number_beyond_the_padding(store):
    save(store, 1)
    store.path(1).rename(store.path(10**12 - 1))
    save(store, 2)
    assert store.generations() == [10**12 - 1, 10**12]
    assert latest_n(store) == 2


def test_prepare_and_save_leave_all_foreign_files_alone(store):
    names = {"dead-letters.jsonl", "checkpoint-1.safetensors", "checkpoint-000000000009.safetensors.bak"}
    for name in names:
        (store.folder / name).write_text("mine")
    save(store, 1, 2, 3, 4)
    (store.folder / ".checkpoint-000000000005.safetensors.0123.tmp").write_bytes(b"half")
    store.prepare()
    assert {path.name for path in store.folder.iterdir()} == names | {store.path(number).name for number in (2, 3, 4)}


# --- damage ---------------------------------------------------------------------------------------------------------


def test_damaged_ones_are_passed_over_and_each_is_logged(store, caplog):
    save(store, 1, 2, 3)
    damage(store, 3)
    store.path(2).write_bytes(store.path(2).read_bytes()[:-1])
    assert latest_n(store) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    save(store, 4)
    assert latest_n(store) == 4


def test_damaged_ones_do_not_push_out_those_to_go_back_to(store):
    save(store, 1, 2, 3)
    damage(store, 2, 3)
    again = CheckpointStore(store.folder, keep=2)
    assert latest_n(again) == 1
    save(again, 4)
    assert again.generations() == [1, 2, 3, 4]
    damage(again, 4)
    assert latest_n(CheckpointStore(store.folder)) == 1
    save(again, 5, 6)
    assert again.generations() == [5, 6]


def test_without_a_sound_one_nothing_is_begun_until_all_are_set_aside(store):
    save(store, 1, 2)
    damage(store, 1)
    store.path(2).write_bytes(b"")
    with pytest.raises(CheckpointError):
        store.latest()
    store.set_aside()
    save(store, 2, 3, 4, 5)
    assert store.generations() == [2, 3, 4], "the number of a damaged one may be that of a sound one"


@pytest.mark.parametrize("kind", ["folder", "pipe", "device", "read error", "loop"])
def test_what_is_no_file_is_passed_over(store, kind):
    save(store, 1)
    path = store.path(2)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to({"device": "/dev/zero", "read error": "/proc/self/mem", "loop": path.name}[kind])
    assert latest_n(store) == 1


def test_a_newer_format_is_not_undone(store):
    save(store, 1)
    store.path(2).write_bytes(_pack({}, '{"format":2}'))
    with pytest.raises(NewerCheckpointError):
        store.latest()


# --- the disk -------------------------------------------------------------------------------------------------------


def test_a_folder_that_cannot_be_written_is_found_when_preparing(store, monkeypatch):
    (store.folder / "file").touch()
    with pytest.raises(CheckpointError):
        CheckpointStore(store.folder / "file").prepare()
    monkeypatch.setattr(os, "fsync", failing(errno.ENOSPC))
    with pytest.raises(CheckpointError):
        store.prepare()


@pytest.mark.parametrize(
    ("call", "number"),
    [("fsync", errno.ENOSPC), ("fsync", errno.EROFS), ("fsync", errno.EIO), ("listdir", errno.EMFILE)],
)
def test_what_the_system_refuses_may_be_tried_again(store, monkeypatch, call, number):
    save(store, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(number))
        with pytest.raises(CheckpointError) as failed:
            save(store, 3)
    assert failed.value.retriable
    assert [path.name for path in sorted(store.folder.iterdir())] == [store.path(number).name for number in (1, 2)]
    save(store, 3)
    assert store.generations() == [1, 2, 3]


def test_an_old_one_that_cannot_be_removed_stays_and_is_reported_once(store, caplog):
    store.path(1).mkdir()
    save(store, 2, 3, 4)
    assert store.generations() == [1, 2, 3, 4]
    save(store, 5)
    assert store.generations() == [1, 3, 4, 5]
    assert len(caplog.records) == 1


def test_without_a_descriptor_to_look_for_old_ones_the_new_one_counts(store, monkeypatch):
    save(store, 1, 2, 3)
    looks = iter([store.generations()])

    def generations():
        return next(looks, None) or failing(errno.EMFILE)()

    with monkeypatch.context() as patched:
        patched.setattr(store, "generations", generations)
        save(store, 4)
    assert store.generations() == [1, 2, 3, 4]


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


def test_a_folder_that_is_removed_before_old_ones_are_is_no_bug(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = persistence.store.replace

    def replace_and_lose(path: Path, *data: bytes) -> None:
        replace(path, *data)
        shutil.rmtree(store.folder)

    with monkeypatch.context() as patch:
        patch.setattr(persistence.store, "replace", replace_and_lose)
        save(store, 1)
    assert store.generations() == []
    store.prepare()
    save(store, 2)
    assert latest_n(store) == 2
