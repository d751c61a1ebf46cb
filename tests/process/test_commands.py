"""Commands beside `run` as their users meet them: processes that are killed, interrupted, or write into a pipe."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from streammoe.commands.inspect import describe_checkpoint

pytestmark = [pytest.mark.process, pytest.mark.slow]

TIMEOUT = 120
STREAMMOE = [sys.executable, "-m", "streammoe"]
CONFIG = """
source = { kind = "file", path = "data.csv" }
schema.target = "y"
model = { n_experts = 2, warmup = 100 }
metrics.enabled = false
"""
KILLED_BEFORE = """
import os, signal, sys
from streammoe import commands as cli
from streammoe.commands import dead_letters as replay
{place} = lambda *arguments, **more: os.kill(os.getpid(), signal.SIGKILL)
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


def call(*arguments, program=STREAMMOE):
    return subprocess.run(
        [*program, *map(str, arguments)], capture_output=True, text=True, timeout=TIMEOUT, check=False
    )


def count():
    found = json.loads(call("dead-letters", LETTERS, "--json").stdout)
    return found["letters"], describe_checkpoint("state")["counters"]["outcomes"]


@pytest.mark.parametrize(
    ("place", "learned_before"),
    [("replay._Replay._save", 0), ("replay._Replay._rewrite", 3)],
)
def test_kill_9_during_a_replay_learns_nothing_twice_and_loses_nothing(place, learned_before):
    write(400, far={200, 300, 390})
    Path("config.toml").write_text(CONFIG)
    assert call("run", "config.toml").returncode == 0
    assert count()[1]["learned"] == 397
    killed = call(*REPLAY, program=[sys.executable, "-c", KILLED_BEFORE.format(place=place)])
    assert killed.returncode == -signal.SIGKILL
    letters, outcomes = count()
    assert (letters, outcomes["learned"], outcomes["rejected"]) == (3, 397 + learned_before, 3 - learned_before)
    done = call(*REPLAY, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["learned"] == 3 - learned_before
    letters, outcomes = count()
    assert letters == 0
    assert (outcomes["learned"], outcomes["rejected"]) == (400, 0)


def test_interrupted_evaluation_prints_what_it_has(tmp_path):
    write(300_000)
    # Its own group, so that the signal reaches nobody else.
    process = subprocess.Popen(
        [*STREAMMOE, "evaluate", "data.csv", "--target", "y", "--against", "river:HoeffdingTreeRegressor"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    for line in process.stderr:
        if "warm-up: fitting" in line:
            break
    time.sleep(0.5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    assert "stopped before the end; these are the results so far" in out
    assert "river HoeffdingTreeRegressor" in out
    assert "Traceback" not in err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data.csv"]


def test_results_go_to_stdout_and_all_else_to_stderr():
    write(2_000, far={1_500})
    done = call("evaluate", "data.csv", "--target", "y", "--json", "--log-format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rejected"] == 1
    assert all(json.loads(line)["logger"].startswith("streammoe") for line in done.stderr.splitlines())
    assert "\x1b" not in done.stdout + done.stderr


def test_a_reader_that_leaves_is_no_bug():
    write(2_000)
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(
            [*STREAMMOE, "evaluate", "data.csv", "--target", "y"],
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 1
    assert "bug" not in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demonstration_of_classes():
    done = call("demo", "--classify", "--port", "0", "--log-level", "warning")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2,310 events, each predicted before it is learned (prequential accuracy)")
    assert Path("demo-state/classes/demo.toml").exists()
    again = call("run", "demo-state/classes/demo.toml", "--fresh", "--summary", "json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["accuracy"] > 0.9


def test_evaluate_reads_the_standard_input_as_it_reads_a_file():
    write(2_000)
    asked = ["--target", "y", "--json", "--against", "river:LinearRegression"]
    whole = json.loads(call("evaluate", "data.csv", *asked).stdout)
    with Path("data.csv").open() as stream:
        done = subprocess.run(
            [*STREAMMOE, "evaluate", "-", "--format", "csv", *asked],
            stdin=stream,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    piped = json.loads(done.stdout)
    assert piped["source"] == "stdin"
    assert piped["state_digest"] == whole["state_digest"]
    assert [row["score"] for row in piped["rows"]] == [row["score"] for row in whole["rows"]]


def test_a_daemon_goes_on_from_a_fitted_model_whose_rows_came_through_a_pipe_or_not():
    write(3_000)
    Path("config.toml").write_text(CONFIG)
    asked = ["--config", "config.toml", "--rounds", "50", "--json", "--log-format", "json"]
    done = call("fit", "data.csv", *asked, "--out", "past.model")
    assert done.returncode == 0, done.stderr
    assert all(json.loads(line)["logger"].startswith("streammoe") for line in done.stderr.splitlines())
    found = json.loads(done.stdout)
    assert found["learned"] == 3_000
    assert found["rmse"] < 0.1
    assert describe_checkpoint("past.model")["state_digest"] == found["state_digest"]
    with Path("data.csv").open() as stream:
        piped = subprocess.run(
            [*STREAMMOE, "fit", "-", "--format", "csv", *asked],
            stdin=stream,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
    assert piped.returncode == 0, piped.stderr
    assert json.loads(piped.stdout)["state_digest"] == found["state_digest"]
    write(500)
    run = call("run", "config.toml", "--from-model", "past.model", "--summary", "json")
    assert run.returncode == 0, run.stderr
    assert describe_checkpoint("state")["n"] == 3_500
    assert json.loads(run.stdout)["rmse"] < 0.1


def test_an_interrupted_fit_saves_what_it_has_come_to():
    write(20_000)
    # Its own group, so that the signal reaches nobody else.
    process = subprocess.Popen(
        [*STREAMMOE, "fit", "data.csv", "--target", "y", "--method", "gradient_descent", "--step", "1e-9",
         "--tolerance", "0", "--rounds", "1000000", "--n-experts", "2", "--out", "m.model", "--set",
         "model.warmup_restarts=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )  # fmt: skip
    for line in process.stderr:
        if "fitting 2 experts" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=TIMEOUT)
    assert process.returncode == 0, err
    assert "not converged (asked to stop)" in out
    assert describe_checkpoint("m.model")["n"] == 20_000
