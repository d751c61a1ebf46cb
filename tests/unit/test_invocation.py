"""Commands that are shown to users run as they are, in the shell that they read them in."""

import os
import re
import shlex
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from streammoe import invocation
from streammoe.errors import not_installed

BIN = Path(sys.executable).parent


@pytest.mark.process
@pytest.mark.parametrize(
    ("typed", "folder", "path"),
    [
        ("streammoe", "/", [BIN]),
        (f"{BIN.parent.name}/{BIN.name}/streammoe", BIN.parent.parent, []),
        (f"{sys.executable} -m streammoe", "/", []),
    ],
)
def test_a_hint_of_the_command_line_runs_where_it_is_shown(typed, folder, path):
    environment = {**os.environ, "PATH": ":".join(map(str, [*path, "/usr/bin", "/bin"]))}

    def run(words):
        return subprocess.run(
            words, shell=True, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )

    wrong = run(f"{typed} check-config")
    assert wrong.returncode == 2
    [hint] = re.findall(r"^Try '(.*)' for help", wrong.stderr, re.MULTILINE)
    assert hint.startswith(f"{typed} "), "as it was typed"
    found = run(hint)
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.startswith(f"Usage: {typed} check-config")


def test_a_missing_extra_is_installed_by_this_python_and_never_by_the_name_of_streammoe(monkeypatch):
    lines = ["numpy>=2", "a[b]<3,>=2; extra == 'kafka'", 'c; extra == "kafka"', "d; extra == 'kafka2'"]
    monkeypatch.setattr(metadata, "requires", lambda name: lines if name == "streammoe" else None)
    assert shlex.split(invocation.install_command("kafka", "e"))[1:] == ["-m", "pip", "install", "a[b]<3,>=2", "c"]
    lines.clear()
    monkeypatch.setattr("sys.executable", "/a folder/bin/python")
    shown = "'/a folder/bin/python' -m pip install 'e[f]'"
    assert not_installed("it", "e[f]", "kafka").problems == (f"it needs e[f], which is not installed; run {shown}",)
    monkeypatch.setattr("sys.argv", ["streammoe/__main__.py"])
    assert invocation.command_line("run", "a b") == "'/a folder/bin/python' -m streammoe run 'a b'"


@pytest.mark.process
def test_a_current_folder_that_was_removed_is_no_reason_not_to_start(tmp_path):
    script = f"rmdir {tmp_path}; exec {sys.executable} -m streammoe --version"
    done = subprocess.run(["/bin/sh", "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
