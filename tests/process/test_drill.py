"""The restore drill of docs/checkpoints.md, command by command in a shell, as its reader does it."""

import os
import re
import signal
import subprocess
import sys

from tests.process.workspace import EVENTS, LINES, ROOT, append, wait_until

DOCUMENT = (ROOT / "docs" / "checkpoints.md").read_text(encoding="utf-8")
DRILL = DOCUMENT.partition("## Restore drill\n")[2].partition("\n## ")[0]
COMMANDS = [line.strip() for block in re.findall(r"```sh\n(.*?)```", DRILL, re.DOTALL) for line in block.split("\n")]
START, BACKUP, KILL, LOSE, RESTORE, INSPECT, AGAIN = filter(None, COMMANDS)


class Shell:
    """A shell with job control, in which `streammoe` is this clone."""

    def __init__(self, here):
        program = here / "streammoe"
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m streammoe "$@"\n')
        program.chmod(0o755)
        environment = os.environ | {"PATH": f"{here.folder}:{os.environ['PATH']}"}
        environment |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"}
        self._said, self._log = here / "said", here / "log"
        with self._said.open("w") as out, self._log.open("w") as log:
            self.process = subprocess.Popen(
                ["bash", "-m"],
                cwd=here.folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=log,
                text=True,
            )

    def __call__(self, command):
        self.process.stdin.write(f"{command}\n")
        self.process.stdin.flush()

    def done(self, command):
        """What a command prints, which must succeed."""
        before = len(self.said)
        self(f"{command} && echo done. || echo failed.")
        wait_until(lambda: re.search(r"(done|failed)\.\n$", self.said[before:]))
        assert self.said.endswith("done.\n"), self.log
        return self.said[before:]

    @property
    def said(self):
        return self._said.read_text()

    @property
    def log(self):
        return self._log.read_text()


def test_a_daemon_that_is_lost_with_its_folder_ends_as_one_that_was_never_interrupted(here, whole):
    third = EVENTS // 3
    here.write("all.csv", LINES[:third])
    here.config('all.csv", follow = true, on_truncate = "stop', "checkpoint.every_seconds = 0.5")
    shell = Shell(here)

    def has(n):
        return here.checkpoints() and here.inspect()["n"] == n

    try:
        shell(START)
        wait_until(lambda: has(third))
        copied = shell.done(BACKUP)
        append(here / "all.csv", b"".join(LINES[third : 2 * third]))
        wait_until(lambda: has(2 * third))
        shell.done(KILL)
        shell.done(LOSE)
        restored, shown = shell.done(RESTORE), shell.done(INSPECT)
        assert restored == copied
        digest = re.search(r"state_digest +(\w+)", copied)[1]
        assert digest in shown
        append(here / "all.csv", b"".join(LINES[2 * third :]))
        shell(AGAIN)
        wait_until(lambda: has(EVENTS))
        assert f"restored from a backup of generation {re.search(r'generation +(.+)', copied)[1]} " in shell.log
        os.kill(int((here / "state" / "lock").read_text()), signal.SIGTERM)
        shell.process.stdin.close()
        assert shell.process.wait(60) == 0
        assert here.inspect()["state_digest"] == whole["state_digest"]
    finally:
        lock = here / "state" / "lock"
        if shell.process.poll() is None and lock.exists():
            os.kill(int(lock.read_text()), signal.SIGKILL)
        shell.process.kill()
        shell.process.communicate()
