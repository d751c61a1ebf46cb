import errno
import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import CheckpointStore, FolderLock, NewerCheckpointError
from streammoe.persistence.format import _pack


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    store = CheckpointStore(tmp_path / "state")
    store.prepare()
    return store


def save(store: CheckpointStore, *ns: int) -> None:
    for n in ns:
        store.save({"theta": np.full(3, float(n))}, {"n": n})


def damage(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def latest_n(store: CheckpointStore) -> int:
    latest = store.latest()
    assert latest is not None
    generation, checkpoint = latest
    assert store.load(generation).metadata == checkpoint.metadata
    assert (checkpoint.arrays["theta"] == checkpoint.metadata["n"]).all()
    return int(checkpoint.metadata["n"])


class TestGenerations:
    def test_an_empty_or_absent_folder_has_none(self, store: CheckpointStore, tmp_path: Path) -> None:
        assert store.latest() is None
        assert CheckpointStore(tmp_path / "absent").latest() is None

    def test_are_numbered_and_pruned(self, store: CheckpointStore) -> None:
        assert store.save({}, {}) == 1
        assert store.path(1) == store.folder / "checkpoint-000000000001.safetensors"
        save(store, 2, 3, 4, 5)
        assert store.generations() == [3, 4, 5]
        assert latest_n(store) == 5
        assert store.load(3).metadata == {"n": 3}

    def test_outlive_the_process(self, store: CheckpointStore) -> None:
        save(store, 1)
        again = CheckpointStore(store.folder)
        assert latest_n(again) == 1
        save(again, 2)
        assert store.generations() == [1, 2]

    def test_keep_one(self, store: CheckpointStore) -> None:
        one = CheckpointStore(store.folder, keep=1)
        save(one, 1, 2)
        assert one.generations() == [2]

    def test_are_ordered_by_number_beyond_the_padding(self, store: CheckpointStore) -> None:
        save(store, 1)
        store.path(1).rename(store.path(10**12 - 1))
        save(store, 2)
        assert store.generations() == [10**12 - 1, 10**12]
        assert latest_n(store) == 2

    def test_foreign_files_are_let_alone(self, store: CheckpointStore) -> None:
        for name in ("dead-letters.jsonl", "checkpoint-1.safetensors", "checkpoint-000000000009.safetensors.bak"):
            (store.folder / name).write_text("mine")
        save(store, 1, 2, 3, 4)
        store.prepare()
        assert store.generations() == [2, 3, 4]
        assert len(list(store.folder.iterdir())) == 6

    def test_an_absent_one_is_an_error(self, store: CheckpointStore) -> None:
        with pytest.raises(
            CheckpointError, match=r"checkpoint-000000000007\.safetensors: cannot be read \(No such file"
        ):
            store.load(7)


class TestDamage:
    def test_goes_back_to_the_newest_sound_one_loudly(
        self, store: CheckpointStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        save(store, 1, 2, 3)
        damage(store.path(3))
        store.path(2).write_bytes(store.path(2).read_bytes()[:-1])
        assert latest_n(store) == 1
        records = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert ["000000000003" in records[0].message, "000000000002" in records[1].message] == [True, True]
        save(store, 4)
        assert latest_n(store) == 4

    def test_damaged_ones_do_not_push_out_those_to_go_back_to(self, store: CheckpointStore) -> None:
        save(store, 1, 2, 3)
        damage(store.path(2))
        damage(store.path(3))
        again = CheckpointStore(store.folder, keep=2)
        assert latest_n(again) == 1
        save(again, 4)
        assert again.generations() == [1, 2, 3, 4]
        damage(again.path(4))
        assert latest_n(CheckpointStore(store.folder)) == 1
        save(again, 5, 6)
        assert again.generations() == [5, 6]

    def test_the_number_of_a_damaged_one_that_was_set_aside_is_sound_again(self, store: CheckpointStore) -> None:
        save(store, 1)
        damage(store.path(1))
        with pytest.raises(CheckpointError):
            store.latest()
        store.set_aside()
        save(store, 2, 3, 4, 5)
        assert store.generations() == [2, 3, 4]

    @pytest.mark.parametrize("spoilt", ["folder", "pipe", "device", "read error", "loop"])
    def test_what_is_no_file_is_passed_over(
        self, store: CheckpointStore, caplog: pytest.LogCaptureFixture, spoilt: str
    ) -> None:
        save(store, 1)
        path = store.path(2)
        if spoilt == "folder":
            path.mkdir()
        elif spoilt == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to({"device": "/dev/zero", "read error": "/proc/self/mem", "loop": path.name}[spoilt])
        assert latest_n(store) == 1
        assert f"{path}: " in caplog.text

    def test_none_sound_is_an_error_that_names_them(self, store: CheckpointStore) -> None:
        save(store, 1, 2)
        damage(store.path(1))
        store.path(2).write_bytes(b"")
        with pytest.raises(
            CheckpointError, match=r"no checkpoint is sound \(.*0001.*, .*0002.*\); restore a copy, or move"
        ):
            store.latest()

    def test_a_newer_format_is_not_undone(self, store: CheckpointStore) -> None:
        save(store, 1)
        store.path(2).write_bytes(_pack({}, '{"format":2}'))
        with pytest.raises(NewerCheckpointError):
            store.latest()


class TestDisk:
    def test_prepare_clears_half_written_files_away(self, store: CheckpointStore) -> None:
        save(store, 1)
        stale = store.folder / ".checkpoint-000000000002.safetensors.0123.tmp"
        stale.write_bytes(b"half")
        store.prepare()
        assert [path.name for path in store.folder.iterdir()] == [store.path(1).name]

    def test_prepare_refuses_a_folder_that_cannot_be(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=r"file: cannot be written \(File exists\); make it a folder"):
            CheckpointStore(tmp_path / "file").prepare()

    def test_a_full_disk_is_found_when_preparing_and_when_saving(
        self, store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        save(store, 1, 2, 3)

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(CheckpointError, match="No space left on device"):
            store.prepare()
        with pytest.raises(CheckpointError, match="No space left on device"):
            save(store, 4)
        assert store.generations() == [1, 2, 3]
        assert latest_n(store) == 3

    def test_a_file_that_cannot_be_pruned_does_not_stop_the_saving(
        self, store: CheckpointStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        store.path(1).mkdir()
        save(store, 2, 3, 4)
        assert store.generations() == [1, 2, 3, 4]
        save(store, 5)
        assert store.generations() == [1, 3, 4, 5]
        assert caplog.text.count("an old checkpoint stays") == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO])
def test_what_the_system_refuses_may_be_tried_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    save(store, 1, 2)

    def refuse(descriptor: int) -> None:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", refuse)
        with pytest.raises(CheckpointError, match=os.strerror(number)) as failed:
            save(store, 3)
    assert failed.value.retriable
    assert store.generations() == [1, 2]
    assert not list(store.folder.glob(".*"))
    save(store, 3)
    assert store.generations() == [1, 2, 3]


def test_without_a_descriptor_to_list_the_folder_it_may_be_tried_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(store, 1)

    def none_left(folder: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(os, "listdir", none_left)
        with pytest.raises(CheckpointError, match="Too many open files") as failed:
            save(store, 2)
    assert failed.value.retriable


def test_what_cannot_be_removed_stays_and_the_new_one_counts(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    save(store, 1, 2, 3)
    generations = store.generations
    asked: list[int] = []

    def only_before() -> list[int]:
        asked.append(1)
        if len(asked) > 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return generations()

    monkeypatch.setattr(store, "generations", only_before)
    save(store, 4)
    assert "old checkpoints stay" in caplog.text
    monkeypatch.undo()
    assert store.generations()[-1] == 4


def test_a_folder_that_is_removed_is_made_again(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "state") as lock:
        store = CheckpointStore(tmp_path / "state", lock=lock)
        store.prepare()
        save(store, 1)
        shutil.rmtree(store.folder)
        save(store, 2)
        assert store.generations() == [1]
        with pytest.raises(CheckpointError, match="in use by process"):
            FolderLock(store.folder)
