"""SIGTERM and SIGINT in every phase of a run: before there is anything to save, while it learns, and while it ends.

`tests.process.points` lets a daemon send the signal to itself, so that it comes exactly there.
"""

import json
import re
import signal
from pathlib import Path

import pytest

from tests.process.place import BATCH, Place
from tests.process.points import CHECKPOINT, NEVER, RUNNING, STARTING

pytestmark = [pytest.mark.process, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
EVENTS = 3_000
LINES = [
    f"{a:.3f},{b:.3f},{2 * a if a > 0 else b - 1:.3f}\n"
    for a, b in (((i * 37 % 101) / 50 - 1, (i * 53 % 97) / 50 - 1) for i in range(EVENTS))
]
EXTRA = """
    checkpoint.every_events = 400
    checkpoint.every_seconds = 1e6
    predictions = { kind = "file", path = "rows.jsonl" }
"""
OWN_CODE = {signal.SIGTERM: 143, signal.SIGINT: 130}


def write(place, n):
    (place.folder / "all.csv").write_text("a,b,y\n" + "".join(LINES[:n]))


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The summary of a run that nobody stops."""
    place = Place(tmp_path_factory.mktemp("whole"))
    write(place, EVENTS)
    return place.run_here(place.config("all.csv", extra=EXTRA))


def new_place(folder):
    place = Place(folder / "here")
    place.environment["PYTHONPATH"] += f":{ROOT}:{ROOT / 'connectors'}"
    return place


@pytest.fixture
def place(tmp_path):
    return new_place(tmp_path)


def stopped(place, point, signals, times=1):
    """A run that is sent signals at a point of its way."""
    names = ",".join(each.name.removeprefix("SIG") for each in signals)
    program = ["-m", "tests.process.points", point, str(times), names]
    done = place.call("run", "config.toml", "--summary", "json", program=program)
    assert "Traceback" not in done.stderr, done.stderr
    assert NEVER not in done.stderr, done.stderr
    return done


def exhaustive(cases, chosen):
    """All cases; only those that are chosen belong to every run."""
    assert set(chosen) <= set(cases)
    return [case if case in chosen else pytest.param(*case, marks=pytest.mark.exhaustive) for case in cases]


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    """A folder with a checkpoint, and with more to read."""
    place = new_place(tmp_path_factory.mktemp("begun"))
    write(place, EVENTS)
    place.config("all.csv", extra=EXTRA)
    place.run_here(batches=3)
    assert 0 < place.inspect()["n"] < EVENTS
    return place


@pytest.mark.parametrize(
    ("point", "stop"),
    exhaustive(
        [(point, stop) for point in STARTING for stop in OWN_CODE],
        [("importing", signal.SIGTERM), ("loading", signal.SIGINT), ("seeking", signal.SIGTERM)],
    ),
)
def test_before_there_is_anything_to_save_the_first_signal_leaves_at_once(begun, point, stop):
    before = begun.kept()
    done = stopped(begun, point, [stop])
    assert done.returncode == OWN_CODE[stop]
    assert done.stdout == ""
    assert begun.kept() == before


@pytest.mark.parametrize(
    ("point", "times"),
    # The fit that ends the warm-up is one step: the signal, which comes as it begins, is honoured once it is over.
    exhaustive(
        [
            *((point, 1) for point in RUNNING),
            ("learning", 5),
            *((point, 1) for point in CHECKPOINT if point not in {"half written", "pruning", "pruned"}),
        ],
        [("preparing", 1), ("fitting", 1), ("learning", 5), ("written", 1)],
    ),
)
def test_from_then_on_it_finishes_its_batch_and_saves(place, whole, point, times):
    write(place, EVENTS)
    place.config("all.csv", extra=EXTRA)
    done = stopped(place, point, [signal.SIGTERM], times)
    assert done.returncode == 0, done.stderr
    summary = json.loads(done.stdout)
    newest = max(place.kept(), default="")
    if point == "preparing":
        assert (summary["events"], newest) == (0, ""), "nothing has been read"
    else:
        assert summary["checkpoint"] == f"state/{newest}"
        assert place.inspect()["state_digest"] == summary["state_digest"]
        # Beside a step of the other thread learning may come to its end before it hears of the signal.
        assert summary["events"] < EVENTS or point not in {*RUNNING, "taken"} - {"closing"}
    if point == "fitting":
        assert place.inspect()["warming_up"] is False
    again = place.run_here()
    assert again["state_digest"] == whole["state_digest"]
    assert again["learned"] == EVENTS
    rows = {json.loads(line)["place"]["offset"] for line in (place.folder / "rows.jsonl").read_text().splitlines()}
    assert len(rows) == EVENTS


@pytest.mark.parametrize(
    ("point", "times", "second"),
    exhaustive(
        [
            (point, times, second)
            for point, times in (("reading", 6), ("learning", 6), ("written", 2), ("pruning", 1))
            for second in OWN_CODE
        ],
        [("learning", 6, signal.SIGINT)],
    ),
)
def test_a_second_signal_leaves_at_once_with_a_sound_checkpoint(place, whole, point, times, second):
    write(place, EVENTS)
    # Learning does not wait for checkpoints, so there may be but two of them, and none yet when the signals come.
    place.config("all.csv", extra=EXTRA + "checkpoint.keep = 1")
    place.run_here(batches=2)
    done = stopped(place, point, [signal.SIGTERM, second], times)
    assert done.returncode == OWN_CODE[second]
    assert done.stdout == ""
    assert place.inspect()["n"] > 0
    assert place.run_here()["state_digest"] == whole["state_digest"]


def test_amid_the_last_checkpoint_too(place, whole):
    write(place, EVENTS)
    place.config("all.csv", extra=EXTRA.replace("400", "1_000_000"))
    done = stopped(place, "written", [signal.SIGTERM, signal.SIGTERM])  # the only one
    assert done.returncode == OWN_CODE[signal.SIGTERM]
    assert place.kept() == {}
    assert place.run_here()["state_digest"] == whole["state_digest"]


def test_a_batch_is_smaller_than_what_lies_between_checkpoints():
    """Else the tests above would say little of checkpoints that are written beside the learning."""
    assert BATCH // max(map(len, LINES)) < 400 < EVENTS // 5
    assert not re.search(r"[^-\d.,\n]", "".join(LINES))
