"""A daemon whose labels come later: stopped and killed anywhere, it ends where an undisturbed one does."""

import json
import random
from functools import partial

import pytest

from streammoe.daemon.loop import CheckpointPolicy
from streammoe.pipeline.label_join import Limits
from streammoe.pipeline.pipeline import Schema
from tests.unit.daemon.scripted import Stop

RECORDS = 1_000
COMPARED = ("events", "learned", "predicted_only", "rejected", "skipped", "pending", "expired", "state_digest")


class KillError(Exception):
    """Stands in for the end of a process."""


def records():
    """Features and labels with delays of all lengths: some are too late, some never come, some are early or double."""
    rng = random.Random(5)
    due = []
    for i in range(RECORDS):
        a, b = rng.gauss(0, 1), rng.gauss(0, 1)
        features = {"id": i, "a": a if rng.random() < 0.97 else "no", "b": b}
        due.append((i, features))
        label = {"id": i, "y": 2 * a if b > 0 else b - 1}
        times = rng.choice([0, 1, 1, 1, 1, 1, 1, 1, 2])
        due += [(i + rng.choice([-2.5, 0.1, 3, 20, 60, 100, 200]), label) for _ in range(times)]
    return [json.dumps(record).encode() for _, record in sorted(due, key=lambda each: each[0])]


@pytest.fixture
def build(build):
    limits = Limits(120, expire_events=260)
    return partial(build, records(), schema=Schema(("y",), ignore=("id",)), max_ratio=0.9, labels=limits)


def ended(summary):
    return {name: getattr(summary, name) for name in COMPARED}


@pytest.mark.parametrize("sizes", [[20], [7, 90, 1]], ids=str)
def test_kills_and_stops_show_in_nothing(build, sizes):
    undisturbed = build(folder="whole", sizes=[1000])
    whole = undisturbed.run()
    assert min(whole.learned, whole.rejected, whole.pending, whole.expired) > 10
    assert whole.predicted_only == 0
    resumed = build(folder="whole", sizes=[1000])
    for ran in (undisturbed, resumed):
        for outcome in ("learned", "rejected", "expired", "predicted_only"):
            assert ran.value("events_total", outcome=outcome) == getattr(whole, outcome)
    assert undisturbed.value("pending_labels") == whole.pending == resumed.run().pending
    rng = random.Random(sizes[0])
    for at in sorted(rng.sample(range(RECORDS), 5)):
        with pytest.raises(KillError):
            build(sizes=sizes, policy=CheckpointPolicy(150, 1e9), failures={at: KillError()}).run()
    for at in sorted(rng.sample(range(RECORDS, 3 * RECORDS // 2), 2)):
        stop = Stop()
        build(sizes=sizes, before_poll=stop.at(at)).run(stop)
    assert ended(build(sizes=sizes).run()) == ended(whole)
