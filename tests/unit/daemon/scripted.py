"""A daemon over a scripted source, which keeps the order of everything that it does."""

import json
from collections import Counter
from typing import NamedTuple

from streammoe.daemon.checkpoints import Checkpoints
from streammoe.daemon.guards import BadRecordGuard
from streammoe.daemon.loop import Daemon
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.outputs import Outputs
from streammoe.daemon.run_state import RunState
from streammoe.estimators import MoERegressor
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.pipeline.writing import PredictionWriter
from streammoe.ports import SourceStatus
from streammoe.settings import CheckpointSettings
from tests.list_source import ListSource

SCHEMA = Schema(("y",))


def every(events, seconds=1e9, patience=0.0):
    """Return settings by which a checkpoint is due that often, and attempts end after some patience."""
    return CheckpointSettings(every_events=events, every_seconds=seconds, retry_seconds=patience)


NEVER = every(10**9)


class Stop:
    """Stands in for `StopFlag`."""

    requested = False

    def at(self, record):
        """Return a `before_poll` that requests the stop once this record is the next one."""
        return lambda following: setattr(self, "requested", following >= record)


class RecordingStore(CheckpointStore):
    """Keeps the metadata of every checkpoint."""

    def __init__(self, folder, steps):
        super().__init__(folder, keep=100)
        self.steps = steps
        self.saved = []

    def save(self, arrays, metadata):
        generation = super().save(arrays, metadata)
        self.saved.append(json.loads(json.dumps(metadata)))
        self.steps.append("saved")
        return generation

    @property
    def positions(self):
        """How many records were read by each checkpoint."""
        return [saved["positions"][0]["next"] for saved in self.saved]


class ScriptedSource(ListSource):
    """A script that also waits at its start, and may be at a position that no record has."""

    steps = None
    unanswered = 0
    """How many calls of `prepare` find nothing ready."""
    moved_to = None
    """What `position` says until the next batch."""
    on_prepare = None

    def prepare(self, timeout):
        if self.on_prepare is not None:
            self.on_prepare()
        self.unanswered -= 1
        return self.unanswered < 0

    @property
    def position(self):
        return self.moved_to

    def poll(self, timeout):
        batch = super().poll(timeout)
        if batch is not None:
            self.moved_to = None
        return batch

    def status(self):
        return SourceStatus(connected=self.unanswered < 0)

    def commit(self, position, generation):
        super().commit(position, generation)
        self.steps.append("committed")


def record_flushes(sink, steps, step):
    """Have a sink say when what it holds is durable."""
    flush = sink.flush
    sink.flush = lambda: (flush(), steps.append(step))


class Scripted(NamedTuple):
    """A daemon, what it is made of, and what it has done."""

    daemon: Daemon
    store: RecordingStore
    source: ScriptedSource
    steps: list[str]
    letters: DeadLetterFile

    def run(self, stop=None):
        return self.daemon.run(stop or Stop())

    def value(self, name, **labels):
        """Return a metric."""
        return self.daemon.metrics.registry.get_sample_value(f"streammoe_{name}", labels)


def build(
    root,
    opened,
    records,
    *,
    folder="state",
    sizes=(100,),
    saves=NEVER,
    max_ratio=0.5,
    is_predicting=False,
    **script,
):
    """Build a daemon that resumes from what the last one in the same folder has left."""
    steps = []
    store = RecordingStore(root / folder, steps)
    store.prepare()
    generation, found = store.latest() or (0, None)
    metadata = found.metadata if found else {"positions": [None], "counters": {"outcomes": {}, "reasons": {}}}
    model = MoERegressor.from_checkpoint(found.arrays, metadata["model"]) if found else MoERegressor(2, warmup=50)
    scores = PrequentialScores()
    if found:
        scores.restore(metadata["scores"], found.arrays)
    source = ScriptedSource(records, sizes=sizes, **script)
    source.steps = steps
    source.seek(metadata["positions"][0])
    letters = DeadLetterFile(root / "dead.jsonl")
    opened.callback(letters.close)
    record_flushes(letters, steps, "letters")
    writer = None
    if is_predicting:
        rows = JsonlPredictions(root / "rows.jsonl")
        opened.callback(rows.close)
        record_flushes(rows, steps, "rows")
        writer = PredictionWriter(rows, 0.9, gate=True)
    counters = metadata["counters"]
    state = RunState(
        Pipeline(model, SCHEMA, scores, writer),
        None,
        BadRecordGuard(max_ratio, found.arrays["guard.latest"] if found else None),
        None,
        {"version": "1", "revision": "", "settings": {"model": {}}},
        metadata["positions"][0],
        Counter(counters["outcomes"]),
        Counter(counters["reasons"]),
    )
    metrics = Metrics()
    outputs = Outputs(letters, writer and writer.sink, metrics.health.waits)
    checkpoints = Checkpoints(store, state, source, outputs, metrics, saves, generation)
    daemon = Daemon(source, state, outputs, checkpoints, metrics)
    return Scripted(daemon, store, source, steps, letters)
