"""A daemon whose labels come later: stopped and killed anywhere, it ends where an undisturbed one does."""

import json
import random
from types import SimpleNamespace

import pytest

from streammoe.daemon.guards import BadRecordGuard
from streammoe.daemon.loop import CheckpointPolicy, Daemon
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.server import Health
from streammoe.estimators import MoERegressor
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.label_join import LabelJoin, Limits
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.testing import ListSource

SCHEMA = Schema(("y",), ignore=("id",))
LIMITS = Limits(120, expire_events=260)
RECORDS = 2_000


class KillError(Exception):
    """Stands in for the end of a process."""


def records():
    """Features and labels with delays of all lengths: some are too late, some never come, some are early or double."""
    rng = random.Random(5)
    due = []
    for i in range(RECORDS):
        a, b = rng.gauss(0, 1), rng.gauss(0, 1)
        features = {"id": i, "a": a if rng.random() < 0.99 else "no", "b": b}
        due.append((i, features))
        label = {"id": i, "y": 2 * a if b > 0 else b - 1}
        times = rng.choice([0, 1, 1, 1, 1, 1, 1, 1, 2])
        due += [(i + rng.choice([-2.5, 0.1, 3, 20, 60, 100, 200]), label) for _ in range(times)]
    return [json.dumps(record).encode() for _, record in sorted(due, key=lambda each: each[0])]


@pytest.fixture
def build(tmp_path):
    letters = DeadLetterFile(tmp_path / "dead.jsonl")

    def build(folder, *, sizes=(100,), every=10**9, **script):
        store = CheckpointStore(tmp_path / folder)
        store.prepare()
        generation, found = store.latest() or (0, None)
        metadata = found.metadata if found else {"positions": [None], "counters": {"outcomes": {}, "reasons": {}}}
        model = MoERegressor.from_checkpoint(found.arrays, metadata["model"]) if found else MoERegressor(2, warmup=100)
        scores = PrequentialScores.restore(metadata["scores"], found.arrays) if found else PrequentialScores()
        labels = LabelJoin("id", SCHEMA, LIMITS)
        if found:
            labels.restore(found.arrays)
        source = ListSource(records(), sizes=sizes, **script)
        source.seek(metadata["positions"][0])
        return Daemon(
            source=source,
            pipeline=Pipeline(model, SCHEMA, scores),
            store=store,
            dead_letters=letters,
            guard=BadRecordGuard(0.9, found.arrays["guard.latest"] if found else None),
            metrics=Metrics(),
            policy=CheckpointPolicy(every, 1e9),
            description={"version": "1", "settings": {"model": {}}},
            position=metadata["positions"][0],
            generation=generation,
            health=Health(60.0),
            outcomes=metadata["counters"]["outcomes"],
            reasons=metadata["counters"]["reasons"],
            labels=labels,
        )

    yield build
    letters.close()


def ended(summary):
    return {name: value for name, value in summary._asdict().items() if name in COMPARED}


COMPARED = ("events", "learned", "predicted_only", "rejected", "skipped", "pending", "expired", "state_digest")
GOING = SimpleNamespace(requested=False)


@pytest.mark.parametrize("sizes", [[20], [7, 90, 1]])
def test_kills_and_stops_show_in_nothing(build, sizes):
    whole = build("whole", sizes=[1000]).run(GOING)
    assert min(whole.learned, whole.rejected, whole.pending, whole.expired) > 10
    assert whole.predicted_only == 0
    rng = random.Random(sizes[0])
    n = len(records())
    for at in sorted(rng.sample(range(n), 6)):
        with pytest.raises(KillError):
            build("killed", sizes=sizes, every=150, failures={at: KillError()}).run(GOING)
    for at in sorted(rng.sample(range(n), 3)):
        stop = SimpleNamespace(requested=False)
        build(
            "killed", sizes=sizes, before_poll=lambda now, at=at, stop=stop: setattr(stop, "requested", now >= at)
        ).run(stop)
    assert ended(build("killed", sizes=sizes).run(GOING)) == ended(whole)


def test_metrics_show_what_waits_and_what_has_expired(build):
    daemon = build("whole")
    summary = daemon.run(GOING)
    value = daemon._metrics.registry.get_sample_value
    assert value("streammoe_pending_labels") == summary.pending
    for outcome in ("learned", "rejected", "expired", "predicted_only"):
        assert value("streammoe_events_total", {"outcome": outcome}) == getattr(summary, outcome)
    again = build("whole")
    assert again._metrics.registry.get_sample_value("streammoe_events_total", {"outcome": "expired"}) == summary.expired
    assert again.run(GOING).pending == summary.pending
