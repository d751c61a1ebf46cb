"""Predictions on request of real daemons, and of a server that follows their checkpoints."""

import json
import os
import re
import signal
import urllib.error
import urllib.request
from pathlib import Path

import pytest

import streammoe
from tests.process.workspace import EVENTS, LINES, append, wait_until

RECORD = {"a": 1.0, "b": -0.5}
SERVED = """
    serve = { enabled = true, port = 0 }
    checkpoint.every_events = 1000
"""


def answer_of(command):
    """The prediction of a record, and the version and digest of the model that has made it."""
    command.wait_for("predictions at")
    url = re.search(r"predictions at (\S+)", command.err)[1]
    try:
        with urllib.request.urlopen(f"{url}/predict", json.dumps(RECORD).encode(), timeout=60) as answer:
            said = json.loads(answer.read())
            return said["prediction"], int(answer.headers["Streammoe-Version"]), answer.headers["Streammoe-Digest"]
    except (urllib.error.URLError, ConnectionError):  # nothing was learned yet, or nobody listens
        return None, 0, None


def children_of(pid):
    """The processes that a daemon has started to answer requests."""
    children = " ".join(each.read_text() for each in Path("/proc", str(pid), "task").glob("*/children")).split()
    return [int(child) for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def test_a_process_that_answers_is_started_again_and_ends_with_its_daemon(here):
    here.write("all.csv")
    here.config('all.csv", follow = true, on_truncate = "stop', SERVED)
    daemon = here.run()
    wait_until(lambda: answer_of(daemon)[1] == EVENTS)
    before = answer_of(daemon)
    (first,) = children_of(daemon.pid)
    os.kill(first, signal.SIGKILL)
    daemon.wait_for("starting another")
    wait_until(lambda: answer_of(daemon) == before)
    (second,) = children_of(daemon.pid)
    os.kill(second, signal.SIGTERM)  # as service managers send it to all processes of a service
    assert answer_of(daemon) == before
    daemon.kill()
    wait_until(lambda: not Path(f"/proc/{second}").exists())


def test_a_killed_daemon_answers_as_before_and_whoever_follows_its_checkpoints_does_too(here, whole):
    half = EVENTS // 2
    here.write("all.csv", LINES[:half])
    here.config('all.csv", follow = true, on_truncate = "stop', SERVED)
    daemon, following = here.run(), here.start("serve", "state", "--every", "0.1", "--set", "serve.port=0")
    wait_until(lambda: answer_of(daemon)[1] == half)
    before = answer_of(daemon)
    daemon.kill()
    again = here.run()
    wait_until(lambda: answer_of(again)[1] == half)
    assert answer_of(again)[0] == before[0]
    append(here / "all.csv", b"".join(LINES[half:]))
    wait_until(lambda: answer_of(again)[1] == EVENTS)
    last = answer_of(again)[0]
    assert again.stop()["state_digest"] == whole["state_digest"]
    wait_until(lambda: answer_of(following)[1:] == (EVENTS, whole["state_digest"]))
    assert answer_of(following)[0] == last != before[0]
    assert last == pytest.approx(streammoe.load(here / "state").predict_one(RECORD), rel=1e-12)
    assert following.stop() == ""
