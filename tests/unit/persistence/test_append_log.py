import errno
import os
from io import FileIO

import pytest

from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.persistence import append_log
from streammoe.persistence.append_log import AppendLog


@pytest.fixture
def path(tmp_path):
    return tmp_path / "folder" / "file"


@pytest.fixture
def log(path):
    log = AppendLog(path, "some.path")
    yield log
    log.close()


@pytest.fixture
def disk(monkeypatch):
    """A disk with room for so many bytes, which takes five of them at a time."""

    class Disk(FileIO):
        room = 10**9

        def write(self, data):
            if not Disk.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            taken = min(len(data), Disk.room, 5)
            Disk.room -= taken
            return super().write(data[:taken])

    monkeypatch.setattr(append_log, "FileIO", Disk)
    return Disk


def test_lines_follow_those_of_the_last_run_and_a_torn_one_is_ended_first(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"x\nto")
    for lines in (b"a\n", b"b\nc\n"):
        log = AppendLog(path, "some.path")
        log.append(lines)
        log.flush()
        log.close()
    assert path.read_bytes() == b"x\nto\na\nb\nc\n"


def test_of_a_write_that_fails_halfway_nothing_stays_and_the_next_flush_has_it_all(disk, log, path):
    log.append(b"first\n")
    log.flush()
    log.append(b"second\nthird\n")
    disk.room = 9
    with pytest.raises(RetriableCheckpointError):
        log.flush()
    assert path.read_bytes() == b"first\n"
    disk.room = 10**9
    log.append(b"fourth\n")
    log.flush()
    assert path.read_bytes() == b"first\nsecond\nthird\nfourth\n"


def test_between_flushes_a_full_disk_raises_nothing_and_loses_nothing(disk, log, path, monkeypatch):
    monkeypatch.setattr(append_log, "WRITTEN_AT_ONCE", 8)
    disk.room = 0
    log.append(b"a line\n")
    assert not log.overdue
    log.append(b"a longer line\n")
    log.append(b"a line\n")
    assert log.overdue
    disk.room = 10**9
    log.flush()
    assert not log.overdue
    assert path.read_bytes() == b"a line\na longer line\na line\n"
    log.append(b"another line\n")
    assert path.read_bytes().endswith(b"another line\n"), "lines are written between flushes again"


def test_a_failed_sync_is_not_tried_again(log, monkeypatch):
    """The kernel has dropped the bytes by then, and a second sync would report success."""
    log.append(b"a\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(CheckpointError) as failed:
            log.flush()
    assert not failed.value.retriable


def test_after_its_file_is_moved_or_removed_a_new_one_is_written_and_the_moved_one_synced(log, path, monkeypatch):
    monkeypatch.setattr(append_log, "WRITTEN_AT_ONCE", 1)
    log.append(b"a\n")  # in the file, and not yet on the disk
    moved = path.rename(path.parents[1] / "moved")
    synced, sync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (synced.append(os.fstat(descriptor).st_ino), sync(descriptor)))
    log.append(b"b\n")
    log.flush()
    assert {moved.stat().st_ino, path.stat().st_ino} <= set(synced)
    assert (moved.read_bytes(), path.read_bytes()) == (b"a\n", b"b\n")
    path.unlink()
    path.parent.rmdir()
    log.append(b"c\n")
    log.flush()
    assert path.read_bytes() == b"c\n"
