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


def test_a_killed_holder_lets_others_in(tmp_path):
    program = [sys.executable, "-c", HOLD, tmp_path]
    with subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        assert_locked(tmp_path)
        holder.kill()
    FolderLock(tmp_path).close()


def test_a_lock_file_that_is_removed_is_made_and_held_again(tmp_path):
    with FolderLock(tmp_path) as lock:
        (tmp_path / LOCK_NAME).unlink()
        lock.renew()
        assert_locked(tmp_path)
    FolderLock(tmp_path).close()


def test_another_process_that_has_taken_the_folder_meanwhile_keeps_it(tmp_path):
    with FolderLock(tmp_path) as lock:
        (tmp_path / LOCK_NAME).unlink()
        with FolderLock(tmp_path):
            with pytest.raises(CheckpointError) as rejected:
                lock.renew()
            assert not rejected.value.retriable
        lock.renew()
