"""The status that the prediction listener shows, its history, and who gets the page."""

import base64
import json
import os
import signal
import threading
import urllib.error
import urllib.request
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner

from streammoe.commands import main
from streammoe.commands.status import status_of
from streammoe.daemon.signals import StopFlag
from streammoe.ports import DeadLetter
from streammoe.serving.figures import LONGEST_DETAIL, MOST_REJECTED, History, experts_of, rejection, to_json
from streammoe.serving.page import FILES, POLICY
from tests.kafka_lab.broker import free_port
from tests.kafka_lab.lab import wait_until
from tests.unit import daemons

pytestmark = pytest.mark.usefixtures("logging_as_before")
STATE = Path("state")
SECRET = "correct horse"


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    config = f"""
        source = {{ kind = "file", path = "data.csv" }}
        schema.target = "y"
        model = {{ n_experts = 2, warmup = 50 }}
        metrics.enabled = false
        serve = {{ enabled = true, port = {free_port()} }}
        """
    daemons.enter(tmp_path, monkeypatch, config)
    rows = [(i % 7, i % 5, i % 3) for i in range(200)]
    rows[100:100] = [(1, f"broken {i}", SECRET) for i in range(MOST_REJECTED + 5)]
    daemons.write_csv("data.csv", rows)


def ask(path, **headers):
    """Headers and body of an answer by the listener of `settings`."""
    request = urllib.request.Request(f"http://127.0.0.1:{daemons.settings().serve.port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.headers, answer.read()


def status(query=""):
    return json.loads(ask(f"/status.json{query}")[1], parse_constant=pytest.fail)


def test_it_says_what_the_file_says_and_how_it_went():
    with daemons.opened() as running:
        wait_until(lambda: status()["problem"].startswith("not ready"), "it is shown")
        running.daemon.run(StopFlag())
        model = running.daemon.model
        wait_until(lambda: status().get("experts") == experts_of(model, model.coefficients()), "experts are in words")
        wait_until(lambda: status().get("model_events") == 200, "all is shown")
        found = status()
        assert found["member_weights"] == model.member_weights
        means = running.daemon.state.pipeline.scores.means()
        assert found["recent"].items() >= {name: each["window"] for name, each in means.items()}.items()
        assert 0.8 < found["recent"]["coverage"] <= 1.0
        assert found.pop("history").keys() == {"hour", "day"}
        assert status("?history=false").keys() == found.keys()
    on_disk = json.loads((STATE / "status.json").read_text())
    assert on_disk.keys() == found.keys() - {"experts", "events_per_second"}
    moving = {
        "experts",
        "end",
        "written",
        "cores_used",
        "events_per_second",
        *(name for name in found if "_seconds" in name),
    }
    assert [name for name in found.keys() - moving if on_disk[name] != found[name]] == []


def test_it_names_the_latest_rejected_records_without_showing_them():
    daemons.run()
    found = status_of(STATE)["latest_rejected"]
    letters = [*map(json.loads, Path(daemons.settings().dead_letters.path).read_text().splitlines())][-MOST_REJECTED:]
    for name in ("stage", "reason", "detail"):
        assert [each[name] for each in found] == [letter[name] for letter in letters]
    places = [{name: str(value) for name, value in letter["place"].items()} for letter in letters]
    assert [each["place"] for each in found] == places
    assert SECRET not in json.dumps(found)
    shown = rejection(DeadLetter({"path": "\udc80\x1b[2J"}, "decode", "wrong_type", "\u202e" + "x" * 10_000, b""))
    assert shown["place"] == {"path": r"\udc80\x1b[2J"}
    assert shown["detail"].startswith(r"\u202ex")
    assert len(shown["detail"]) <= LONGEST_DETAIL + len("...")


def test_what_is_not_finite_is_null():
    text = to_json({"a": float("nan"), "b": [float("inf"), 1.5], "\udc80": Path("c")})
    assert json.loads(text, parse_constant=pytest.fail) == {"a": None, "b": [None, 1.5], "\udc80": "c"}


def test_a_followed_checkpoint_is_shown_likewise():
    daemons.run()
    before, found = status_of(STATE), {}

    def has_points():
        try:
            found.update(status())
        except OSError:  # it does not listen yet
            return False
        return found["history"]["hour"]

    def visit():
        wait_until(has_points, "a point of the history")
        os.kill(os.getpid(), signal.SIGTERM)  # which `serve` waits for

    visitor = threading.Thread(target=visit)
    visitor.start()
    port = daemons.settings().serve.port
    done = CliRunner().invoke(main, ["serve", "state", "--every", "0.1", "--set", f"serve.port={port}"])
    visitor.join()
    known = ("model_events", "scores", "recent", "rejected", "member_weights", "drifts")
    assert {name: found[name] for name in known} == {name: before[name] for name in known}
    assert (done.exit_code, found["problem"], found["place"]) == (0, "", "state")
    assert found["events"]["learned"] == 200
    assert 0 <= found["checkpoint_age_seconds"] < 3600


def test_the_history_is_close_over_an_hour_and_coarse_over_a_day():
    history = History()
    history.add({"uptime_seconds": 0.0})  # nothing is known yet
    assert (history.events_per_second, history.points) == (None, {"hour": (), "day": ()})
    for at in range(0, 30 * 3600, 2):  # 10 events a second, and 20 from the 29th hour on
        events = 10 * at + max(at - 29 * 3600, 0) * 10
        history.add({"uptime_seconds": float(at), "events": {"learned": events - 7, "rejected": 7}, "recent": {}})
    for name, every, span in (("hour", 6, 3600), ("day", 120, 86400)):
        times = [point["at"] for point in history.points[name]]
        assert {after - before for before, after in pairwise(times)} == {every}
        assert at - every < times[-1] <= at
        assert times[-1] - span < times[0] <= times[-1] - span + every
        assert history.points[name][-1]["events_per_second"] == history.events_per_second == 20.0
    assert history.points["day"][1]["events_per_second"] == 10.0
    history.add({"uptime_seconds": 2.0 * at, "events": {"learned": 400}, "recent": {}})
    assert history.events_per_second == 0.0  # of a model that was taken back


@pytest.mark.parametrize("path", [*FILES, "/status.json"])
def test_it_needs_the_password_and_loads_nothing_from_elsewhere(path):
    Path("password").write_text(SECRET)
    with daemons.opened("serve.username=me", "serve.password.file=password"):
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            ask(path)
        refused.value.close()
        headers, body = ask(path, Authorization="Basic " + base64.b64encode(f"me:{SECRET}".encode()).decode())
    assert headers["Content-Security-Policy"] == POLICY
    assert not {"unsafe", "http", "data:", "*"} & set(POLICY.replace("-", " ").split())
    assert (headers["X-Content-Type-Options"], headers["Cache-Control"]) == ("nosniff", "no-store")
    assert b"://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
