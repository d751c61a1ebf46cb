import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streammoe.errors import CheckpointError
from streammoe.persistence import FolderLock
from streammoe.persistence.lock import LOCK_NAME

HOLD = """
import sys
from streammoe.persistence.lock import FolderLock
lock = FolderLock(sys.argv[1])
print("locked", flush=True)
sys.stdin.read()
"""


def assert_locked(folder):
    with pytest.raises(CheckpointError):
        FolderLock(folder)


def test_a_folder_has_one_holder_until_it_closes(tmp_path):
    (tmp_path / LOCK_NAME).write_text("99999999999999999999\n")  # of an earlier holder
    with FolderLock(tmp_path) as lock, FolderLock(tmp_path / "another"):
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
        for _ in range(2):  # who is rejected does not disturb the holder
            assert_locked(tmp_path)
    lock.close()  # again
    FolderLock(tmp_path).close()


def test_a_killed_holder_lets_others_in(tmp_path):
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    with holder:
        assert holder.stdout.readline() == b"locked\n"
        assert (tmp_path / LOCK_NAME).read_text() == f"{holder.pid}\n"
        assert_locked(tmp_path)
        holder.kill()
    FolderLock(tmp_path).close()


def test_a_folder_that_cannot_be_made_cannot_be_locked(tmp_path):
    (tmp_path / "file").touch()
    assert_locked(tmp_path / "file" / "state")


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_lock_file_that_is_removed_is_made_and_held_again(tmp_path, is_folder):
    folder = tmp_path / "state"
    with FolderLock(folder) as lock:
        lock.renew()
        if is_folder:
            shutil.rmtree(folder)
        else:
            (folder / LOCK_NAME).unlink()
        lock.renew()
        assert_locked(folder)
    FolderLock(folder).close()


def test_whoever_has_taken_the_folder_meanwhile_keeps_it(tmp_path):
    with FolderLock(tmp_path) as lock:
        (tmp_path / LOCK_NAME).unlink()
        other = FolderLock(tmp_path)
        for _ in range(2):
            with pytest.raises(CheckpointError) as rejected:
                lock.renew()
            assert not rejected.value.retriable
        other.close()
        lock.renew()
