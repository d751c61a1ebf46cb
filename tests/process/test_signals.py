"""SIGTERM, SIGINT and SIGHUP in every phase of a run: while it starts, learns, fits, saves and ends.

`tests.process.points` lets a command send the signal to itself, so that it comes exactly there.
"""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from tests.process.points import NEVER
from tests.process.workspace import EVENTS, ROOT, Workspace, pause, wait_until

EXTRA = """
    checkpoint.every_events = 400
    checkpoint.every_seconds = 1e6
    predictions = { kind = "file", path = "rows.jsonl" }
"""
CODES = {"TERM": 143, "INT": 130}


@pytest.fixture
def ready(here):
    """A workspace with events and settings."""
    here.write("all.csv")
    here.config("all.csv", EXTRA)
    return here


def end_of(command, code):
    found = command.end(code)
    assert "Traceback" not in command.err
    assert NEVER not in command.err
    assert found == "" or code == 0
    return found


# --- before there is anything to save -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a checkpoint, and with more to read."""
    workspace = Workspace(tmp_path_factory.mktemp("begun") / "here")
    workspace.write("all.csv")
    workspace.config("all.csv", EXTRA)
    workspace.run_here(batches=3)
    assert 0 < workspace.inspect()["n"] < EVENTS
    yield workspace
    workspace.close()


@pytest.mark.parametrize(
    ("point", "stop"), [("importing", "TERM"), ("locked", "TERM"), ("loading", "INT"), ("seeking", "TERM")]
)
def test_before_there_is_anything_to_save_the_first_signal_leaves_at_once(begun, point, stop):
    before = begun.checkpoints()
    if point == "importing":
        command = begun.start_new("importing", 1, stop, "run", "config.toml", program=("-m", "tests.process.points"))
    else:
        command = begun.run(at=(point, 1, stop))
    end_of(command, CODES[stop])
    assert begun.checkpoints() == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_while_settings_are_read_sigterm_leaves_nothing_and_sighup_ends_nothing(ready, number):
    config = ready / "config.toml"
    text = config.read_bytes()
    config.unlink()
    os.mkfifo(config)  # so that it waits in the middle of reading its settings
    command = ready.run()
    writing = os.open(config, os.O_WRONLY)  # waits for the reader
    before = {path.name for path in ready.folder.iterdir()}
    if number == signal.SIGTERM:
        # Repeated: one that comes just before it begins to wait for the settings is noticed when it has them.
        wait_until(lambda: command.send_signal(number) or time.sleep(0.1) or command.code is not None)
        end_of(command, CODES["TERM"])
        assert {path.name for path in ready.folder.iterdir()} == before
        os.close(writing)
        return
    command.send_signal(number)
    config.unlink()
    config.write_bytes(text)
    os.write(writing, text)
    os.close(writing)
    assert command.end()["events"] == EVENTS


def test_nothing_is_imported_before_signals_are_taken_care_of():
    """What comes earlier is the interpreter's own; each import here would widen the gap in which Ctrl-C shows it."""
    program = "import sys; before = set(sys.modules); import streammoe.__main__; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-S", "-c", program], cwd=ROOT, capture_output=True, check=True, text=True)
    imported = set(done.stdout.split())
    assert {name for name in imported if name.startswith("streammoe")} == {"streammoe", "streammoe.__main__"}
    assert not imported & {"typing", "importlib.metadata", "logging", "click", "numpy"}


# --- from then on ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("point", "times"),
    # A first fit to so few columns is one step: the signal, which comes as it begins, is honoured once it is over.
    [("preparing", 1), ("fitting", 1), ("learning", 5), ("written", 1), ("closing", 1)],
)
def test_from_then_on_it_finishes_its_batch_and_saves(ready, whole, point, times):
    summary = end_of(ready.run(at=(point, times, "TERM")), 0)
    newest = max(ready.checkpoints(), default="")
    if point == "preparing":
        assert (summary["events"], newest) == (0, ""), "nothing has been read"
    else:
        assert summary["checkpoint"] == f"state/{newest}"
        assert ready.inspect()["state_digest"] == summary["state_digest"]
        assert summary["events"] < EVENTS or point == "closing"
    again = ready.run_here()
    assert (again["state_digest"], again["learned"]) == (whole["state_digest"], EVENTS)
    rows = {json.loads(line)["place"]["offset"] for line in (ready / "rows.jsonl").read_text().splitlines()}
    assert len(rows) == EVENTS


@pytest.mark.parametrize(("point", "times", "second"), [("learning", 6, "INT"), ("pruning", 1, "TERM")])
def test_a_second_signal_leaves_at_once_with_a_sound_checkpoint(ready, whole, point, times, second):
    ready.config("all.csv", EXTRA + "checkpoint.keep = 1")
    ready.run_here(batches=2)
    end_of(ready.run(at=(point, times, f"TERM,{second}")), CODES[second])
    assert ready.inspect()["n"] > 0
    assert ready.run_here()["state_digest"] == whole["state_digest"]


def test_amid_the_last_checkpoint_too(ready, whole):
    ready.config("all.csv", EXTRA.replace("400", "1_000_000"))
    end_of(ready.run(at=("written", 1, "TERM,TERM")), CODES["TERM"])  # the only one
    assert ready.checkpoints() == {}
    assert ready.run_here()["state_digest"] == whole["state_digest"]


def hanging():
    """In the new process: after a few batches no more come, and the disk answers no more."""
    pause(4)
    sync = os.fsync
    os.fsync = lambda descriptor: threading.Event().wait() if Path("paused").exists() else sync(descriptor)


def test_a_stop_that_takes_too_long_ends_and_says_what_was_not_saved(ready, whole):
    command = ready.run("--set", "checkpoint.stop_seconds=0.5", before=hanging)
    wait_until((ready / "paused").exists)
    command.send_signal(signal.SIGTERM)
    end_of(command, CODES["TERM"])
    assert re.search(r"stop_seconds = 0\.5, .* at least \d+ records were not saved", command.err)
    assert ready.run_here()["state_digest"] == whole["state_digest"]


# --- during fits that would take long -------------------------------------------------------------------------------

ROWS, COLUMNS = 2_000, 80
FITTING = "fitting 60 experts"
SOON = 40.0
"""Seconds that a busy machine may take for what lasts one on an idle one; the fit would take several times as long."""


@pytest.fixture
def wide(here):
    values = np.random.default_rng(0).normal(size=(ROWS, COLUMNS + 1))
    lines = [",".join(f"{value:.3f}" for value in row).encode() + b"\n" for row in values]
    here.write("rows.csv", lines, ",".join([*(f"x{j}" for j in range(COLUMNS)), "y\n"]).encode())
    here.config("rows.csv", model="n_experts = 60, warmup = 560")
    return here


def stopped(command, code):
    """What a command prints that is sent SIGTERM while it fits."""
    command.wait_for(FITTING)
    began = time.monotonic()
    command.send_signal(signal.SIGTERM)
    found = end_of(command, code)
    assert time.monotonic() - began < SOON
    return found


def test_a_daemon_gives_a_long_fit_up_and_saves_what_came_before(wide):
    summary, kept = stopped(wide.run(), 0), wide.inspect()
    assert kept["warming_up"]
    assert 0 < kept["n"] == summary["learned"] <= ROWS
    assert kept["state_digest"] == summary["state_digest"]


def test_a_command_that_fits_ends_soon_too_and_leaves_no_model(wide):
    stopped(wide.start("fit", "rows.csv", "--config", "config.toml", "--out", "past.model"), CODES["TERM"])
    assert not (wide / "past.model").exists()
