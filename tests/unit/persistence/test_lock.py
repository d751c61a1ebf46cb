import os
import shutil
import subprocess
import sys

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
        for _ in range(2):  # a rejected process does not disturb the holder
            assert_locked(tmp_path)
    lock.close()  # again
    FolderLock(tmp_path).close()


def test_a_killed_holder_lets_others_in(tmp_path):
    program = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert_locked(tmp_path)
        holder.kill()
    FolderLock(tmp_path).close()


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: (folder / LOCK_NAME).unlink()])
def test_a_lock_file_that_is_removed_is_made_and_held_again(tmp_path, remove):
    folder = tmp_path / "state"
    with FolderLock(folder) as lock:
        remove(folder)
        lock.renew()
        assert_locked(folder)
    FolderLock(folder).close()


def test_another_process_that_has_taken_the_folder_meanwhile_keeps_it(tmp_path):
    with FolderLock(tmp_path) as lock:
        (tmp_path / LOCK_NAME).unlink()
        with FolderLock(tmp_path):
            for _ in range(2):
                with pytest.raises(CheckpointError) as rejected:
                    lock.renew()
                assert not rejected.value.retriable
        lock.renew()
