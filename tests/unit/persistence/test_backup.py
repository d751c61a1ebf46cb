"""Backups in folders and at URLs: what is copied, what stays, and what is not restored."""

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from streammoe.errors import CheckpointError, ConfigError
from streammoe.persistence import CheckpointStore, FolderLock, NewerCheckpointError, backup
from streammoe.persistence.backup import Target, back_up, restore
from streammoe.persistence.format import _pack
from tests.pairs import pairwise_cases

PLACES = ("folder", "file", "memory")


@pytest.fixture
def store(tmp_path):
    store = CheckpointStore(tmp_path / "state")
    store.prepare()
    return store


@pytest.fixture
def address(tmp_path):
    """Returns the address of a place that is not there yet."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield lambda place: {"memory": "memory://back/up", "file": f"file://{tmp_path}/a/b"}.get(place, f"{tmp_path}/a/b")
    memory.store.clear()


def save(store, *ns, **metadata):
    for n in ns:
        store.save({"theta": np.full(3, float(n))}, {"n": n, "created": f"at {n}", "state_digest": "d", **metadata})


def files(target):
    return target._fs.ls(target._root, detail=False) if target.backups() else []


def put(target, name, data):
    target._fs.makedirs(target._root, exist_ok=True)
    target._fs.pipe_file(f"{target._root}/{name}", data)


@pytest.mark.parametrize("place", PLACES)
def test_the_newest_checkpoint_is_copied_once_and_what_is_restored_says_so(store, address, place, tmp_path):
    target = Target(address(place))
    assert back_up(store, target) is None
    with pytest.raises(CheckpointError):
        restore(target, tmp_path / "new")
    save(store, 1, 2)
    copied = back_up(store, target)
    assert (copied["generation"], copied["n"], copied["created"]) == (2, 2, "at 2")
    assert copied["bytes"] == store.path(2).stat().st_size == len(target.read(target.backups()[0]))
    assert back_up(store, target) == copied
    assert len(target.backups()) == 1
    assert restore(target, tmp_path / "new") == copied
    found, checkpoint = CheckpointStore(tmp_path / "new").latest()
    assert found == 2
    assert checkpoint.metadata == {**store.load(2).metadata, "restored": {"generation": 2, "at": "at 2"}}
    np.testing.assert_array_equal(checkpoint.arrays["theta"], 2.0)
    assert not list((tmp_path / "new").glob(".*"))


@pytest.mark.parametrize("place", PLACES)
def test_the_latest_is_restored_also_after_a_fresh_start_and_a_rollback(store, address, place, tmp_path):
    target = Target(address(place))
    save(store, 1, 2, 3)
    back_up(store, target)
    store.set_aside(after=2)
    save(store, 30)  # generation 3 once more
    back_up(store, target)
    assert restore(target, tmp_path / "one")["n"] == 30
    store.set_aside()
    save(store, 4)
    back_up(store, target)
    assert restore(target, tmp_path / "two")["n"] == 4
    assert len(target.backups()) == 3


@pytest.mark.parametrize("place", PLACES)
def test_only_so_many_backups_stay_and_nothing_else_is_removed(store, address, place):
    target, foreign = Target(address(place)), {"notes.txt", "checkpoint-000000000001.safetensors", "backup-1-of-2"}
    for name in foreign:
        put(target, name, b"mine")
    for n in range(1, 6):
        save(store, n)
        back_up(store, target)
        target.prune(2)
    names = {str(path).rpartition("/")[2] for path in files(target)}
    assert names - set(target.backups()) == foreign
    assert [name[23:35].lstrip("0") for name in target.backups()] == ["4", "5"]


def test_where_the_daemon_removes_all_that_were_there_the_newest_by_then_is_copied(store, address, monkeypatch, caplog):
    save(store, 1, 2)
    load, left = CheckpointStore.load, iter([3, 4])

    def overtaken(self, generation):
        if (n := next(left, None)) is not None:
            daemon = CheckpointStore(self.folder, keep=1)
            for _ in range(2):
                daemon.save({}, {"n": n})
        return load(self, generation)

    monkeypatch.setattr(CheckpointStore, "load", overtaken)
    copied = back_up(store, Target(address("folder")))
    assert (copied["n"], copied["generation"]) == (4, 6)
    assert not caplog.text


def test_a_damaged_checkpoint_is_passed_over_and_where_all_are_none_is_copied(store, address):
    save(store, 1, 2)
    store.path(2).write_bytes(b"no")
    target = Target(address("folder"))
    assert back_up(store, target)["generation"] == 1
    store.path(1).write_bytes(b"no")
    with pytest.raises(CheckpointError):
        back_up(store, target)


def test_of_transactional_predictions_those_are_copied_that_are_visible(store, address, tmp_path):
    target = Target(address("folder"))
    save(store, 1, 2, transactional=True)
    assert back_up(store, target) is None
    store.confirm(1)
    assert back_up(store, target)["generation"] == 1
    restore(target, tmp_path / "new")
    assert CheckpointStore(tmp_path / "new").confirmed == 1


# --- hostile targets --------------------------------------------------------------------------------------------------


def spoil(kind, target, name, monkeypatch):
    """Put something at a name that must not be restored."""
    data, path = target.read(target.backups()[0]), f"{target._root}/{name}"
    sound = dict.fromkeys(["truncated"], data[:-1]) | {"changed": data[:-1] + b"\1", "empty": b"", "text": b"{}" * 99}
    sound |= {"longer": data + b"\0", "header": b"\xff" * 8 + data[8:]}
    match kind:
        case "large":
            put(target, name, data + bytes(1_000))
            monkeypatch.setattr("os.sysconf", lambda what: {"SC_PAGE_SIZE": 4}.get(what, len(data) + 999))
        case "link":
            Path(path).symlink_to(target.backups()[0])
        case "pipe":
            os.mkfifo(path)
        case "folder":
            target._fs.makedirs(path, exist_ok=True)
            target._fs.pipe_file(f"{path}/x", b"") if target._root.startswith("/back") else None
        case _:
            put(target, name, sound[kind])


KINDS = ("truncated", "changed", "longer", "empty", "text", "header", "large", "link", "pipe", "folder")


@pytest.mark.parametrize("case", pairwise_cases(kind=KINDS, place=PLACES, others=[True, False]))
def test_what_is_no_sound_backup_is_named_and_not_restored(store, address, case, tmp_path, monkeypatch, caplog):
    if case["place"] == "memory" and case["kind"] in {"link", "pipe"}:
        pytest.skip("there are none")
    target = Target(address(case["place"]))
    save(store, 1)
    back_up(store, target)
    sound, name = target.backups()[0], backup._NAME.format(2, 7)
    spoil(case["kind"], target, name, monkeypatch)
    if case["others"]:
        assert restore(target, tmp_path / "new")["generation"] == 1
    else:
        target._fs.rm_file(f"{target._root}/{sound}")
        with pytest.raises(CheckpointError):
            restore(target, tmp_path / "new")
        assert not CheckpointStore(tmp_path / "new").generations()
    assert name in caplog.text


def test_names_that_lead_elsewhere_do_not_count(address, monkeypatch):
    target = Target(address("memory"))
    name = backup._NAME.format(2, 7)
    listed = [f"/back/up/../{name}x", f"..{name}", "/back/up/..", f"/back/up/{name}\n", f"/elsewhere/../{name}"]
    monkeypatch.setattr(target, "_fs", SimpleNamespace(ls=lambda *_, **__: listed))
    assert target.backups() == [name]  # of which the target's own is read


def test_a_newer_format_is_not_passed_over(store, address, tmp_path):
    target = Target(address("folder"))
    save(store, 1)
    back_up(store, target)
    put(target, backup._NAME.format(2, 2), _pack({}, '{"format":2}'))
    with pytest.raises(NewerCheckpointError):
        restore(target, tmp_path / "new")


# --- what is refused --------------------------------------------------------------------------------------------------


def test_nothing_is_restored_over_checkpoints_or_under_a_daemon(store, address, tmp_path):
    target = Target(address("folder"))
    save(store, 1)
    back_up(store, target)
    before = store.path(1).read_bytes()
    with pytest.raises(CheckpointError):
        restore(target, store.folder)
    with FolderLock(tmp_path / "new"), pytest.raises(CheckpointError):
        restore(target, tmp_path / "new")
    assert store.path(1).read_bytes() == before
    assert not CheckpointStore(tmp_path / "new").generations()


def test_what_is_read_back_must_be_what_was_written(store, address, monkeypatch):
    save(store, 1)
    monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda self, path, **_: b"something else")
    with pytest.raises(CheckpointError):
        back_up(store, Target(address("memory")))


@pytest.mark.parametrize("error", [OSError, ValueError, RuntimeError])
def test_no_login_and_no_key_is_in_a_message(store, address, monkeypatch, error):
    def refuse(self, path, value, **_):
        raise error(f"403, url='https://me:word@host{path}?sig=key' of memory://me:word@back")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    save(store, 1)
    with pytest.raises(CheckpointError) as caught:
        back_up(store, Target("memory://me:word@back/up?sig=key"))
    assert "403" in str(caught.value)
    assert not any(secret in str(caught.value) for secret in ("word", "key"))
    assert caught.value.__suppress_context__


def test_a_url_needs_fsspec_and_what_that_needs_and_a_folder_neither(store, address, monkeypatch):
    with pytest.raises(CheckpointError, match="nosuch"):
        Target("nosuch://place")
    with monkeypatch.context() as patch:
        patch.setattr("fsspec.core.url_to_fs", Mock(side_effect=ImportError("Install s3fs")))
        with pytest.raises(ConfigError, match="Install"):
            Target("s3://bucket")
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(ConfigError, match="needs fsspec"):
        Target(address("memory"))
    save(store, 1)
    assert Path(back_up(store, Target(address("folder")))["path"]).is_file()


def test_a_folder_within_that_of_the_checkpoints_is_no_place_for_copies(store):
    save(store, 1)
    for place in (store.folder, store.folder / "sub"):
        with pytest.raises(ConfigError, match="would be lost with it"):
            back_up(store, Target(str(place)))
