import errno
import os
from io import FileIO

import pytest

from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.persistence import append_log as appending
from streammoe.persistence.append_log import AppendLog


def append(path, *lines):
    file = AppendLog(path, "some.path")
    for line in lines:
        file.write(line)
    file.flush()
    file.close()


def test_lines_come_after_those_of_the_last_run(tmp_path):
    path = tmp_path / "new" / "folder" / "file"
    append(path, b"a\n", b"b\nc\n")
    append(path)
    append(path, b"d\n")
    assert path.read_bytes() == b"a\nb\nc\nd\n"


def test_a_torn_line_is_ended_first(tmp_path):
    (tmp_path / "file").write_bytes(b"a\nhal")
    append(tmp_path / "file", b"b\n")
    assert (tmp_path / "file").read_bytes() == b"a\nhal\nb\n"


def test_a_file_that_cannot_be_opened_names_its_setting(tmp_path):
    with pytest.raises(ConfigError, match=r"some\.path .*cannot be opened for appending \(Is a directory\)"):
        AppendLog(tmp_path, "some.path")


def test_a_full_disk_names_the_setting_and_what_to_do():
    file = AppendLog("/dev/full", "some.path")
    file.write(b"a\n")
    with pytest.raises(CheckpointError, match=r"some\.path /dev/full: cannot be written .*make room on the disk"):
        file.flush()
    with pytest.raises(CheckpointError):
        file.close()


class Disk(FileIO):
    """A file on a disk with room for so many bytes."""

    room = 10**9

    def write(self, data):
        if not Disk.room:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(len(data), Disk.room, 5)
        Disk.room -= taken
        return super().write(data[:taken])


@pytest.fixture
def disk(monkeypatch):
    monkeypatch.setattr(appending, "FileIO", Disk)
    monkeypatch.setattr(Disk, "room", 10**9)
    return Disk


def test_of_a_write_that_fails_halfway_nothing_stays_and_the_next_flush_has_it_all(tmp_path, disk):
    path = tmp_path / "file"
    file = AppendLog(path, "some.path")
    file.write(b"first\n")
    file.flush()
    disk.room = 9
    file.write(b"second\nthird\n")
    for _ in range(2):
        with pytest.raises(RetriableCheckpointError, match="No space left"):
            file.flush()
        assert path.read_bytes() == b"first\n"
        disk.room = 3
    disk.room = 10**9
    file.write(b"fourth\n")
    file.flush()
    assert path.read_bytes() == b"first\nsecond\nthird\nfourth\n"
    file.close()


def test_amid_a_batch_nothing_is_raised_and_nothing_lost(tmp_path, disk, monkeypatch):
    monkeypatch.setattr(appending, "WRITTEN_AT_ONCE", 8)
    monkeypatch.setattr(appending, "MOST_WAITING", 40)
    path = tmp_path / "file"
    file = AppendLog(path, "some.path")
    disk.room = 0
    for _ in range(4):
        file.write(b"a line\n")
        assert not file.overdue
    file.write(b"a longer line\n")
    assert file.overdue
    disk.room = 10**9
    file.flush()
    assert not file.overdue
    assert path.read_bytes() == b"a line\n" * 4 + b"a longer line\n"
    file.write(b"another line\n")
    assert path.read_bytes().endswith(b"another line\n"), "it is written between flushes again"
    file.close()


def test_a_failed_sync_is_not_tried_again(tmp_path, monkeypatch):
    """The kernel has dropped the bytes by then, and a second sync would say that all is well."""
    file = AppendLog(tmp_path / "file", "some.path")
    file.write(b"a\n")
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(CheckpointError, match="Input/output error") as failed:
            file.flush()
    assert not failed.value.retriable
    file.close()


@pytest.mark.parametrize("moved", [True, False])
def test_a_file_that_is_taken_away_is_begun_anew(tmp_path, caplog, moved):
    path = tmp_path / "folder" / "file"
    file = AppendLog(path, "some.path")
    file.write(b"a\n")
    file.flush()
    if moved:
        path.rename(path.with_name("file.1"))
    else:
        path.unlink()
        path.parent.rmdir()
    file.write(b"b\n")
    file.flush()
    assert path.read_bytes() == b"b\n"
    assert "was moved or removed by somebody" in caplog.text
    file.close()


def test_lines_in_a_file_that_was_moved_are_synced_too(tmp_path, monkeypatch):
    monkeypatch.setattr(appending, "WRITTEN_AT_ONCE", 1)
    path = tmp_path / "file"
    file = AppendLog(path, "some.path")
    file.write(b"a\n")  # in the file, and not yet on the disk
    path.rename(tmp_path / "moved")
    inodes = []
    sync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: (inodes.append(os.fstat(descriptor).st_ino), sync(descriptor)))
    file.write(b"b\n")
    file.flush()
    assert {(tmp_path / "moved").stat().st_ino, path.stat().st_ino} <= set(inodes)
    file.close()
