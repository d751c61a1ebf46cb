"""Commands other than `run` as processes: interrupted, and fed through pipes."""

import json
import os
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.inspect import describe_checkpoint
from tests.process.workspace import LINES, wait_until


@pytest.fixture
def call(here, monkeypatch, logging_as_before):
    """What a command prints, from JSON, that is run in this process."""
    here.write("all.csv")
    monkeypatch.chdir(here.folder)

    def call(*arguments):
        done = CliRunner().invoke(main, [*map(str, arguments), "--json"])
        assert done.exit_code == 0, done.output
        return json.loads(done.stdout)

    return call


def cpu_ticks(command):
    """Hundredths of a second that it has worked."""
    return int(Path(f"/proc/{command.pid}/stat").read_text().rpartition(")")[2].split()[11])


def test_an_interrupted_fit_saves_what_it_has_come_to(here, call):
    here.write("some.csv", LINES[:400])  # whose model is some way from that of all
    asked = ["--target", "y", "--set", "model.n_experts=4", "--set", "model.expert=laplace"]
    call("fit", "some.csv", *asked, "--rounds", 1, "--out", "first.model")
    endless = ["--tolerance", "0", "--rounds", "1000000"]  # hundreds of rounds, some seconds
    begun = ["--from-model", "first.model", "--out", "m.model", "--json"]  # so that it begins with rounds at once
    command = here.start("fit", "all.csv", *asked, *endless, *begun)
    command.wait_for("fitting 4 experts")
    began = cpu_ticks(command)
    wait_until(lambda: cpu_ticks(command) > began + 20)  # it is in the middle of it
    command.send_signal(signal.SIGINT)
    assert command.end()["converged"] is False
    assert "Traceback" not in command.err
    assert describe_checkpoint(Path("m.model"))["n"] == len(LINES)


def test_a_reader_that_leaves_is_no_bug(here):
    here.write("all.csv", LINES[:300])
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        command = here.start_new("evaluate", "all.csv", "--target", "y", stdout=pipe)
    assert command.end(1) == ""
    assert "Traceback" not in command.err


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_processes_that_evaluate_end_with_their_parent(here, number, code):
    here.write("all.csv", LINES * 300)  # a minute or more
    command = here.start_new("evaluate", "all.csv", "--target", "y", "--grid", "model.n_experts=1,2", "--jobs", "2")
    children = Path(f"/proc/{command.pid}/task/{command.pid}/children")

    def working():
        found = [Path("/proc", pid, "cmdline") for pid in children.read_text().split()]
        return [each.parent for each in found if b"spawn_main" in each.read_bytes()]

    wait_until(lambda: len(working()) == 2)
    processes = working()
    # A terminal sends Ctrl-C to all of them.
    (os.killpg if number == signal.SIGINT else os.kill)(command.pid, number)
    assert command.end(code) == ""
    wait_until(lambda: not any(each.exists() for each in processes))
    assert number == signal.SIGKILL or "Traceback" not in command.err
