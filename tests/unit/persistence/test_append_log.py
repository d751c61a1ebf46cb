import errno
import os
from io import FileIO

import pytest

from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence import append_log
from streammoe.persistence.append_log import AppendLog


@pytest.fixture
def opened(tmp_path):
    """Open the same log, which is closed at the end."""
    logs = []

    def opened(path=tmp_path / "folder" / "file"):
        logs.append(AppendLog(path, "some.path"))
        return logs[-1]

    yield opened
    for log in logs:
        log.close()


class Disk(FileIO):
    """A file on a disk with room for so many bytes, which takes five of them at a time."""

    room = 10**9

    def write(self, data):
        if not Disk.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(len(data), Disk.room, 5)
        Disk.room -= taken
        return super().write(data[:taken])


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(append_log, "FileIO", Disk)
    monkeypatch.setattr(Disk, "room", 10**9)
    return Disk


@pytest.mark.parametrize(
    ("before", "after"), [(b"", b"a\nb\nc\n"), (b"x\n", b"x\na\nb\nc\n"), (b"x\nto", b"x\nto\na\nb\nc\n")]
)
def test_lines_follow_those_of_the_last_run_and_a_torn_one_is_ended_first(opened, tmp_path, before, after):
    (tmp_path / "file").write_bytes(before)
    for lines in (b"a\n", b"", b"b\nc\n"):
        log = opened(tmp_path / "file")
        log.write(lines)
        log.flush()
    assert (tmp_path / "file").read_bytes() == after


def test_a_file_that_cannot_be_opened_is_the_settings_fault(tmp_path):
    with pytest.raises(ConfigError):
        AppendLog(tmp_path, "some.path")


def test_closing_reports_what_cannot_be_written():
    log = AppendLog("/dev/full", "some.path")
    log.write(b"a\n")
    with pytest.raises(RetriableCheckpointError):
        log.flush()
    with pytest.raises(CheckpointError):
        log.close()


def test_of_a_write_that_fails_halfway_nothing_stays_and_the_next_flush_has_it_all(opened, tmp_path, disk):
    path = tmp_path / "folder" / "file"
    log = opened()
    log.write(b"first\n")
    log.flush()
    disk.room = 9
    log.write(b"second\nthird\n")
    for _ in range(2):
        with pytest.raises(RetriableCheckpointError):
            log.flush()
        assert path.read_bytes() == b"first\n"
        disk.room = 3
    disk.room = 10**9
    log.write(b"fourth\n")
    log.flush()
    assert path.read_bytes() == b"first\nsecond\nthird\nfourth\n"


def test_amid_a_batch_nothing_is_raised_and_nothing_lost(opened, tmp_path, disk, monkeypatch):
    monkeypatch.setattr(append_log, "WRITTEN_AT_ONCE", 8)
    monkeypatch.setattr(append_log, "MOST_WAITING", 40)
    path = tmp_path / "folder" / "file"
    log = opened()
    disk.room = 0
    for _ in range(4):
        log.write(b"a line\n")
        assert not log.overdue
    log.write(b"a longer line\n")
    assert log.overdue
    disk.room = 10**9
    log.flush()
    assert not log.overdue
    assert path.read_bytes() == b"a line\n" * 4 + b"a longer line\n"
    log.write(b"another line\n")
    assert path.read_bytes().endswith(b"another line\n"), "it is written between flushes again"


def test_a_failed_sync_is_not_tried_again(opened, monkeypatch):
    """The kernel has dropped the bytes by then, and a second sync would report success."""
    log = opened()
    log.write(b"a\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(CheckpointError) as failed:
            log.flush()
    assert not failed.value.retriable


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_file_that_is_taken_away_is_begun_again(opened, tmp_path, is_moved):
    path = tmp_path / "folder" / "file"
    log = opened()
    log.write(b"a\n")
    log.flush()
    if is_moved:
        path.rename(path.with_name("file.1"))
    else:
        path.unlink()
        path.parent.rmdir()
    log.write(b"b\n")
    log.flush()
    assert path.read_bytes() == b"b\n"


def test_lines_in_a_file_that_was_moved_are_synced_too(opened, tmp_path, monkeypatch):
    monkeypatch.setattr(append_log, "WRITTEN_AT_ONCE", 1)
    path = tmp_path / "folder" / "file"
    log = opened()
    log.write(b"a\n")  # in the file, and not yet on the disk
    path.rename(tmp_path / "moved")
    inodes = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (inodes.append(os.fstat(descriptor).st_ino), sync(descriptor)))
    log.write(b"b\n")
    log.flush()
    assert {(tmp_path / "moved").stat().st_ino, path.stat().st_ino} <= set(inodes)
