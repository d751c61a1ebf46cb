"""Commands beside `run` as their users meet them: processes that are killed, interrupted, or write into a pipe."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.inspect import describe_checkpoint
from tests.process.place import TIMEOUT

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.usefixtures("logging_as_before")]

STREAMMOE = [sys.executable, "-m", "streammoe"]
CONFIG = """
source = { kind = "file", path = "data.csv" }
schema.target = "y"
model = { n_experts = 2, warmup = 100 }
metrics.enabled = false
"""
KILLED_BEFORE_REWRITING = """
import os, signal, sys
from streammoe import commands as cli
from streammoe.commands import dead_letters as replay
replay._Replay._rewrite = lambda *arguments, **more: os.kill(os.getpid(), signal.SIGKILL)
cli.main(sys.argv[1:])
"""
LETTERS = "state/dead-letters.jsonl"
REPLAY = ["dead-letters", LETTERS, "--replay", "config.toml", "--set", "model.range_factor=1e12"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(n, far=()):
    """A file of two regimes, in which some records hold a number far away."""
    with Path("data.csv").open("w") as stream:
        stream.write("a,b,y\n")
        for i in range(n):
            a, b = (i * 37 % 101) / 50 - 1, (i * 53 % 97) / 50 - 1
            stream.write(f"{1e9 if i in far else a},{b},{2 * a if a > 0 else b}\n")


def call(*arguments):
    """What a command prints that is run in this process."""
    done = CliRunner().invoke(main, [*map(str, arguments)])
    assert done.exit_code == 0, done.output
    return done.stdout


def process(*arguments, program=STREAMMOE, **options):
    return subprocess.run(
        [*program, *map(str, arguments)],
        **{"stdout": subprocess.PIPE, **options},
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )


def interrupted(words, *arguments):
    """The result of a command that gets a SIGINT once its log holds these words."""
    # Its own group, so that the signal reaches nobody else.
    running = subprocess.Popen(
        [*STREAMMOE, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in running.stderr:
        if words in line:
            break
    running.send_signal(signal.SIGINT)
    try:
        out, err = running.communicate(timeout=TIMEOUT)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0, err
    assert "Traceback" not in err
    return out


def count():
    return json.loads(call("dead-letters", LETTERS, "--json"))["letters"], describe_checkpoint("state")["counters"]


def test_kill_9_during_a_replay_learns_nothing_twice_and_loses_nothing():
    write(400, far={200, 300, 390})
    Path("config.toml").write_text(CONFIG)
    call("run", "config.toml")
    killed = process(*REPLAY, program=[sys.executable, "-c", KILLED_BEFORE_REWRITING])
    assert killed.returncode == -signal.SIGKILL
    letters, counters = count()
    assert (letters, counters["outcomes"]["learned"], counters["outcomes"]["rejected"]) == (3, 400, 0)
    assert json.loads(call(*REPLAY, "--json"))["learned"] == 0
    letters, counters = count()
    assert (letters, counters["outcomes"]["learned"], counters["outcomes"]["rejected"]) == (0, 400, 0)


def test_an_interrupted_evaluation_prints_what_it_has(tmp_path):
    write(100_000)
    asked = ["--target", "y", "--json", "--against", "river:HoeffdingTreeRegressor"]
    found = json.loads(interrupted("warm-up: fitting", "evaluate", "data.csv", *asked))
    assert found["stopped"]
    assert len(found["rows"]) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv"]


def test_an_interrupted_fit_saves_what_it_has_come_to():
    write(20_000)
    asked = ["fit", "data.csv", "--target", "y", "--n-experts", "2"]
    call(*asked, "--rounds", 1, "--set", "model.warmup_restarts=1", "--out", "first.model")
    endless = ["--method", "gradient_descent", "--step", "1e-9", "--tolerance", "0", "--rounds", "1000000"]
    begun = ["--from-model", "first.model", "--out", "m.model", "--json"]  # so that it begins with rounds at once
    assert json.loads(interrupted("fitting 2 experts", *asked, *endless, *begun))["converged"] is False
    assert describe_checkpoint("m.model")["n"] == 20_000


def test_a_reader_that_leaves_is_no_bug():
    write(300)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = process("evaluate", "data.csv", "--target", "y", stdout=pipe)
    assert done.returncode == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["evaluate", "fit"])
def test_what_comes_through_a_pipe_is_as_if_it_came_from_a_file(command):
    write(1_000)
    asked = ["--target", "y", "--n-experts", 2, "--json"]
    whole = json.loads(call(command, "data.csv", *asked))
    with Path("data.csv").open() as stream:
        done = process(command, "-", "--format", "csv", *asked, "--log-format", "json", stdin=stream)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["state_digest"] == whole["state_digest"]
    assert all(json.loads(line)["logger"].startswith("streammoe") for line in done.stderr.splitlines())
