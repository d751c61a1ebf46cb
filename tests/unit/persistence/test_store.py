import errno
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, FolderLock, NewerCheckpointError, durable
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
    generation, checkpoint = store.latest()
    assert store.load(generation).metadata == checkpoint.metadata
    assert (checkpoint.arrays["theta"] == checkpoint.metadata["n"]).all()
    return checkpoint.metadata["n"]


def failing(error):
    def fail(*_):
        raise error

    return fail


# --- generations ----------------------------------------------------------------------------------------------------


def test_generations_are_numbered_pruned_and_outlive_the_process(store, tmp_path):
    assert store.latest() is None
    assert CheckpointStore(tmp_path / "absent").latest() is None
    assert store.save({}, {}) == 1
    assert store.path(1) == store.folder / "checkpoint-000000000001.safetensors"
    save(store, 2, 3, 4, 5)
    assert store.generations() == [3, 4, 5]
    assert store.load(3).metadata == {"n": 3}
    again = CheckpointStore(store.folder, keep=1)
    assert latest_n(again) == 5
    save(again, 6)
    assert again.generations() == [6]
    store.path(6).rename(store.path(10**12 - 1))
    save(store, 7)
    assert store.generations() == [10**12 - 1, 10**12], "ordered by number beyond the padding"
    assert latest_n(store) == 7


def test_prepare_and_save_leave_all_foreign_files_alone(store):
    names = {"dead-letters.jsonl", "checkpoint-1.safetensors", "checkpoint-000000000009.safetensors.bak"}
    for name in names:
        (store.folder / name).write_text("mine")
    save(store, 1, 2, 3, 4)
    (store.folder / ".checkpoint-000000000005.safetensors.0123.tmp").write_bytes(b"half")
    store.prepare()
    assert {path.name for path in store.folder.iterdir()} == names | {store.path(number).name for number in (2, 3, 4)}


# --- damage ---------------------------------------------------------------------------------------------------------


def test_cut_off_anywhere_or_with_any_bit_changed_the_one_before_is_taken(store, monkeypatch):
    monkeypatch.setattr("streammoe.persistence.store.logger.disabled", True)
    sound, chance = GOLDEN.read_bytes(), random.Random(2)
    flipped = ((byte, sound[byte] ^ 1 << chance.randrange(8)) for byte in chance.sample(range(len(sound)), 100))
    damaged = [sound[:length] for length in range(0, len(sound), 97)]  # a prime: other offsets than those of arrays
    damaged += [sound[:byte] + bytes([other]) + sound[byte + 1 :] for byte, other in flipped]
    store.path(1).write_bytes(sound)
    for content in damaged:
        store.path(2).write_bytes(content)
        assert store.latest()[0] == 1
    store.path(2).write_bytes(sound)
    assert store.latest()[0] == 2


def test_damaged_ones_are_logged_and_do_not_push_out_those_to_go_back_to(store, caplog):
    save(store, 1, 2, 3)
    damage(store, 2, 3)
    again = CheckpointStore(store.folder, keep=2)
    assert latest_n(again) == 1
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    save(again, 4)
    assert again.generations() == [1, 2, 3, 4]
    damage(again, 4)
    assert latest_n(CheckpointStore(store.folder)) == 1
    save(again, 5, 6)
    assert again.generations() == [5, 6]


def test_without_a_sound_one_nothing_is_begun_until_all_are_set_aside(store):
    save(store, 1, 2)
    damage(store, 1, 2)
    with pytest.raises(CheckpointError):
        store.latest()
    store.set_aside()
    save(store, 2, 3, 4, 5)
    assert store.generations() == [2, 3, 4], "the number of a damaged one may be that of a sound one"


@pytest.mark.parametrize(
    "kind", ["folder", "pipe", "/dev/zero", "/proc/self/mem", "checkpoint-000000000002.safetensors"]
)
def test_what_is_no_file_is_passed_over(store, kind):
    save(store, 1)
    make = {"folder": Path.mkdir, "pipe": os.mkfifo}.get(kind, lambda path: path.symlink_to(kind))
    make(store.path(2))
    assert latest_n(store) == 1


def test_a_newer_format_is_not_undone(store):
    save(store, 1)
    store.path(2).write_bytes(_pack({}, '{"format":2}'))
    with pytest.raises(NewerCheckpointError):
        store.latest()


# --- the disk -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "number"), [("fsync", errno.ENOSPC), ("fsync", errno.EIO), ("listdir", errno.EMFILE)])
def test_what_the_system_refuses_may_be_tried_again(store, monkeypatch, call, number):
    save(store, 1, 2)
    with monkeypatch.context() as patched:
        patched.setattr(os, call, failing(OSError(number, os.strerror(number))))
        with pytest.raises(CheckpointError) as failed:
            save(store, 3)
    assert failed.value.retriable
    assert [path.name for path in sorted(store.folder.iterdir())] == [store.path(number).name for number in (1, 2)]
    save(store, 3)
    assert store.generations() == [1, 2, 3]


@pytest.mark.parametrize(
    ("step", "error"), [("fsync", KeyboardInterrupt()), ("replace", OSError(errno.EIO, "Input/output error"))]
)
def test_a_replacement_that_fails_keeps_the_old_content_and_removes_the_new(tmp_path, monkeypatch, step, error):
    durable.replace(tmp_path / "file", b"old")
    monkeypatch.setattr(os, step, failing(error))
    with pytest.raises(type(error)):
        durable.replace(tmp_path / "file", b"new")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_old_ones_that_cannot_be_removed_or_listed_stay_with_one_warning_each(store, caplog, monkeypatch):
    store.path(1).mkdir()
    save(store, 2, 3, 4)
    assert store.generations() == [1, 2, 3, 4]
    save(store, 5)
    assert store.generations() == [1, 3, 4, 5]
    looks = iter([store.generations()])
    no_descriptor = failing(OSError(errno.EMFILE, "Too many open files"))
    with monkeypatch.context() as patched:
        patched.setattr(store, "generations", lambda: next(looks, None) or no_descriptor())
        save(store, 6)
    assert store.generations() == [1, 3, 4, 5, 6]
    assert len(caplog.records) == 2


def test_a_folder_that_is_removed_is_made_and_locked_again(tmp_path, monkeypatch):
    with FolderLock(tmp_path / "state") as lock:
        store = CheckpointStore(tmp_path / "state", lock=lock)
        store.prepare()
        save(store, 1)
        shutil.rmtree(store.folder)
        save(store, 2)
        assert store.generations() == [1]
        with pytest.raises(CheckpointError):
            FolderLock(store.folder)
        with monkeypatch.context() as patch:  # right after the new one was written
            write = durable.replace
            patch.setattr(
                "streammoe.persistence.store.replace", lambda *given: (write(*given), shutil.rmtree(store.folder))
            )
            save(store, 3)
        assert store.generations() == []
        save(store, 4)
        assert latest_n(store) == 4
