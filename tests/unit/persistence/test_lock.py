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


def test_a_second_holder_is_told_who_the_first_is(tmp_path: Path) -> None:
    with FolderLock(tmp_path), pytest.raises(CheckpointError) as refused:
        FolderLock(tmp_path)
    assert str(refused.value) == (
        f"checkpoint folder {tmp_path}: in use by process {os.getpid()}; "
        "stop that process, or set checkpoint.dir to another folder"
    )


def test_close_lets_others_in(tmp_path: Path) -> None:
    lock = FolderLock(tmp_path)
    lock.close()
    lock.close()
    with FolderLock(tmp_path):
        pass
    FolderLock(tmp_path).close()


def test_a_refused_holder_does_not_disturb_the_first(tmp_path: Path) -> None:
    with FolderLock(tmp_path):
        for _ in range(2):
            with pytest.raises(CheckpointError, match=str(os.getpid())):
                FolderLock(tmp_path)


def test_folders_do_not_share_a_lock(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "a"), FolderLock(tmp_path / "b"):
        pass


def test_a_killed_holder_lets_others_in(tmp_path: Path) -> None:
    path = os.pathsep.join(entry or str(Path.cwd()) for entry in sys.path)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path},
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(CheckpointError, match=f"process {holder.pid};"):
            FolderLock(tmp_path)
        holder.kill()
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_the_pid_of_an_earlier_holder_leaves_no_trace(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text("99999999999999999999\n")
    with FolderLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/state: cannot be locked \(Not a directory\); make it"):
        FolderLock(tmp_path / "file" / "state")


def test_a_lock_file_that_is_removed_is_made_and_held_again(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "state") as lock:
        lock.renew()
        (tmp_path / "state" / LOCK_NAME).unlink()
        lock.renew()
        with pytest.raises(CheckpointError, match="in use by process"):
            FolderLock(tmp_path / "state")
    FolderLock(tmp_path / "state").close()


def test_a_folder_that_is_removed_is_made_and_held_again(tmp_path: Path) -> None:
    with FolderLock(tmp_path / "state") as lock:
        shutil.rmtree(tmp_path / "state")
        lock.renew()
        with pytest.raises(CheckpointError, match="in use by process"):
            FolderLock(tmp_path / "state")


def test_whoever_has_taken_the_folder_meanwhile_keeps_it(tmp_path: Path) -> None:
    with FolderLock(tmp_path) as lock:
        (tmp_path / LOCK_NAME).unlink()
        other = FolderLock(tmp_path)
        for _ in range(2):
            with pytest.raises(CheckpointError, match="in use by process") as refused:
                lock.renew()
            assert not refused.value.retriable
        other.close()
        lock.renew()
