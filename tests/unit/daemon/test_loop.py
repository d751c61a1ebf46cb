"""The learning loop on a scripted source: when it saves, in which order, and what it does when things go wrong."""

import itertools
import json
import logging
import math
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from pydantic import create_model

from streammoe import settings
from streammoe.daemon.checkpointer import RetryPolicy
from streammoe.daemon.guards import BadRecordGuard
from streammoe.daemon.loop import CheckpointPolicy, Daemon
from streammoe.daemon.metrics import Metrics
from streammoe.daemon.server import Health
from streammoe.errors import CheckpointError, RetriableCheckpointError, SinkError, SourceError, TooManyBadRecords
from streammoe.estimators import MoERegressor
from streammoe.persistence import CheckpointStore
from streammoe.pipeline.dead_letters import DeadLetterFile
from streammoe.pipeline.pipeline import Pipeline, PredictionWriter, Schema
from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.pipeline.scores import PrequentialScores
from streammoe.ports import SourceStatus
from streammoe.testing import ListSource

GOOD = [b'{"a": %.4f, "y": %.4f}' % (math.sin(i), math.cos(i)) for i in range(3000)]
NEVER = CheckpointPolicy(10**9, 1e9)


class Asked:
    """Stands in for `StopFlag`."""

    requested = False


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("streammoe.daemon.loop.time", SimpleNamespace(monotonic=clock.monotonic))
    return clock


class Recorded(CheckpointStore):
    """Keeps the metadata of every checkpoint, and tells when it is written."""

    def __init__(self, folder, told):
        super().__init__(folder, keep=100)
        self.told = told
        self.saved = []

    def save(self, arrays, metadata):
        path = super().save(arrays, metadata)
        self.saved.append(json.loads(json.dumps(metadata)))
        self.told.append("saved")
        return path

    @property
    def positions(self):
        return [saved["positions"][0]["next"] for saved in self.saved]


class Told(ListSource):
    told = None
    unanswered = 0
    """How often whoever it reads from does not answer."""
    begins = None
    """What it says of where it begins."""
    on_prepare = None

    def prepare(self, timeout):
        if self.on_prepare is not None:
            self.on_prepare()
        self.unanswered -= 1
        return self.unanswered < 0

    @property
    def position(self):
        return self.begins

    written = None
    """Waits for a checkpoint that is written beside the learning, so that a test knows where it is."""

    def poll(self, timeout):
        if self.written is not None:
            self.written()
        batch = super().poll(timeout)
        if batch is not None:
            self.begins = None
        return batch

    def status(self):
        return SourceStatus(ready=self.unanswered < 0, connected=self.unanswered < 0)

    def commit(self, position, generation):
        super().commit(position, generation)
        self.told.append("committed")


class Letters(DeadLetterFile):
    told = None

    def begin_flush(self):
        sync = super().begin_flush()

        def told():
            sync()
            self.told.append("flushed")

        return told


class Rows(JsonlPredictions):
    told = None

    def begin_flush(self):
        sync = super().begin_flush()

        def told():
            sync()
            self.told.append("predicted")

        return told


def under_way(daemon):
    """Wait until no checkpoint is being written; what has become of it the daemon has still to find out."""
    if daemon._writer.busy:
        daemon._writer._under_way.exception()


@pytest.fixture
def build(tmp_path):
    """A daemon over some records; everything it does is told in order."""
    opened = []

    def build(
        records, *, sizes=(100,), policy=NEVER, max_ratio=0.5, metrics=None, predicting=False, patience=0.0, **script
    ):
        told = []
        store = Recorded(tmp_path / "state", told)
        store.prepare()
        generation, found = store.latest() or (0, None)
        metadata = found.metadata if found else {"positions": [None], "counters": {"outcomes": {}, "reasons": {}}}
        model = MoERegressor.from_checkpoint(found.arrays, metadata["model"]) if found else MoERegressor(2, warmup=50)
        scores = PrequentialScores.restore(metadata["scores"], found.arrays) if found else PrequentialScores()
        source = Told(records, sizes=sizes, **script)
        source.told = told
        source.written = lambda: under_way(daemon)
        source.seek(metadata["positions"][0])
        letters = Letters(tmp_path / "dead.jsonl")
        letters.told = told
        opened.append(letters)
        writer = None
        if predicting:
            rows = Rows(tmp_path / "rows.jsonl")
            rows.told = told
            opened.append(rows)
            writer = PredictionWriter(rows, 0.9, gate=True)
        daemon = Daemon(
            source=source,
            pipeline=Pipeline(model, Schema(("y",), None), scores, writer),
            store=store,
            dead_letters=letters,
            guard=BadRecordGuard(max_ratio, found.arrays["guard.latest"] if found else None),
            metrics=metrics or Metrics(),
            policy=policy,
            description={"version": "1", "settings": {"model": {}}},
            position=metadata["positions"][0],
            generation=generation,
            health=Health(60.0),
            retries=RetryPolicy(patience),
            outcomes=metadata["counters"]["outcomes"],
            reasons=metadata["counters"]["reasons"],
        )
        return SimpleNamespace(daemon=daemon, store=store, source=source, told=told, letters=letters)

    yield build
    for letters in opened:
        letters.close()


# --- how it begins --------------------------------------------------------------------------------------------------


def test_it_waits_for_the_source_and_is_not_ready_meanwhile(build):
    metrics = Metrics()
    ran = build(GOOD[:100], metrics=metrics)
    ran.source.unanswered = 3
    seen = []

    def look():
        seen.append((ran.daemon._health.ready, metrics.registry.get_sample_value("streammoe_source_connected")))

    ran.source.on_prepare = look
    ran.source._before_poll = lambda _: seen.append(ran.daemon._health.ready)
    assert ran.daemon.run(Asked()).events == 100
    assert seen == [(False, 0.0)] * 4 + [True]
    assert metrics.registry.get_sample_value("streammoe_source_connected") == 1.0
    assert not ran.daemon._health.ready, "it has ended"


def test_a_stop_while_it_waits_changes_no_checkpoint(build):
    build(GOOD[:100]).daemon.run(Asked())
    ran = build(GOOD[:200])
    ran.source.unanswered = 10**9
    stop = Asked()
    ran.source.on_prepare = lambda: setattr(stop, "requested", True)
    assert ran.daemon.run(stop).events == 100
    assert ran.store.positions[-1:] in ([], [100])
    assert ran.source.commits == [], "it was never reached"
    assert build(GOOD[:200]).daemon.run(Asked()).events == 200


def test_where_reading_begins_is_saved_before_anything_is_read(build):
    ran = build(GOOD[:100])
    ran.source.begins = {"kind": "list", "next": 0}
    polled = []
    ran.source._before_poll = lambda _: polled.append(list(ran.told))
    ran.daemon.run(Asked())
    assert polled[0] == ["flushed", "saved", "committed"]
    assert ran.store.positions == [0, 100]


def test_a_source_that_goes_on_is_told_from_which_checkpoint(build):
    build(GOOD[:100]).daemon.run(Asked())
    ran = build(GOOD[:200])
    ran.daemon.run(Asked())
    assert [commit["next"] for commit in ran.source.commits] == [100, 200]
    assert ran.store.positions == [200]


def test_where_a_source_had_to_go_on_is_saved_though_nothing_comes(build):
    ran = build(GOOD[:300], pauses=[100])
    moved = {"kind": "list", "next": 100, "moved": True}
    ran.source._before_poll = lambda at: setattr(ran.source, "begins", moved if at == 100 else None)
    ran.daemon.run(Asked())
    assert [saved["positions"][0] for saved in ran.store.saved] == [moved, {"kind": "list", "next": 300}]


def test_what_was_moved_to_at_the_end_is_saved_too(build):
    build(GOOD[:100]).daemon.run(Asked())
    ran = build(GOOD[:100])
    ran.source.begins = {"kind": "list", "next": 0}
    ran.daemon.run(Asked())
    assert ran.store.positions == [0]


def test_what_is_to_be_set_aside_stays_until_reading_can_begin(build):
    ran = build(GOOD[:100])
    ran.daemon._on_begin = lambda: ran.told.append("begun")
    ran.source.unanswered = 10**9
    stop = Asked()
    ran.source.on_prepare = lambda: setattr(stop, "requested", True)
    assert ran.daemon.run(stop).checkpoint == ""
    assert ran.told == []
    ran = build(GOOD[:100])
    ran.daemon._on_begin = lambda: ran.told.append("begun")
    ran.daemon.run(Asked())
    assert ran.told == ["begun", "flushed", "saved", "committed"]


# --- when it saves --------------------------------------------------------------------------------------------------


def test_a_checkpoint_is_due_after_so_many_events(build, clock):
    ran = build(GOOD[:1000], policy=CheckpointPolicy(250, 1e9))
    ran.daemon.run(Asked())
    assert ran.store.positions == [300, 600, 900, 1000]


def test_refused_and_blank_records_count_towards_it(build, clock):
    records = [b"{"] * 150 + GOOD[:150]
    ran = build(records, policy=CheckpointPolicy(250, 1e9), blank={110: 60}, sizes=[50], max_ratio=1.0)
    ran.daemon.run(Asked())
    assert ran.store.positions == [200, 300]


def test_a_checkpoint_is_due_after_so_many_seconds(build, clock):
    def tick(following):
        clock.now += 4.0

    ran = build(GOOD[:1000], policy=CheckpointPolicy(10**9, 10.0), before_poll=tick)
    ran.daemon.run(Asked())
    assert ran.store.positions == [300, 600, 900, 1000]


def test_an_endless_source_has_a_checkpoint_after_its_first_batch(build):
    """Only that knows which file was being read, should it be rotated away before the next one is due."""
    stop = Asked()

    def tick(following):
        stop.requested = following == 900

    ran = build(GOOD[:1000], policy=NEVER, before_poll=tick, endless=True)
    ran.daemon.run(stop)
    assert ran.store.positions == [100, 1000]


def test_time_alone_writes_nothing_new(build, clock):
    stop = Asked()

    def tick(following):
        clock.now += 100.0
        stop.requested = clock.now > 3000.0

    ran = build(GOOD[:100], policy=CheckpointPolicy(10**9, 10.0), before_poll=tick, endless=True)
    ran.daemon.run(stop)
    assert ran.store.positions == [100]


def test_events_wait_no_longer_than_the_policy_says_when_no_more_come(build, clock):
    stop = Asked()
    seen = []

    def tick(following):
        clock.now += 4.0
        seen.append((following, len(ran.store.saved)))
        stop.requested = len(seen) == 10

    ran = build(GOOD[:100], policy=CheckpointPolicy(10**9, 10.0), before_poll=tick, endless=True)
    ran.daemon.run(stop)
    assert (100, 1) in seen


def test_the_end_of_the_source_is_saved(build):
    ran = build(GOOD[:300])
    summary = ran.daemon.run(Asked())
    assert ran.store.positions == [300]
    assert summary.checkpoint == str(ran.store.path(1))
    assert summary.state_digest == ran.store.saved[0]["state_digest"] == ran.daemon.model.state_digest()


def test_a_run_without_new_events_leaves_a_checkpoint_too(build):
    build(GOOD[:300]).daemon.run(Asked())
    again = build(GOOD[:300])
    summary = again.daemon.run(Asked())
    assert (summary.learned, again.store.positions) == (300, [300])


def test_an_empty_source_leaves_a_checkpoint_to_inspect(build):
    ran = build([])
    assert ran.daemon.run(Asked()).checkpoint == str(ran.store.path(1))


def test_a_stop_finishes_the_batch_and_saves_it(build, caplog):
    stop = Asked()

    def ask(following):
        stop.requested = following == 200

    ran = build(GOOD[:1000], before_poll=ask)
    with caplog.at_level(logging.INFO, "streammoe.daemon"):
        summary = ran.daemon.run(stop)
    assert ran.store.positions == [300]
    assert summary.learned == 300
    assert "asked to stop" in caplog.text


def test_a_stop_asked_for_before_the_start_reads_nothing(build):
    stop = Asked()
    stop.requested = True
    ran = build(GOOD)
    assert ran.daemon.run(stop).events == 0


# --- in which order -------------------------------------------------------------------------------------------------


def test_letters_are_flushed_then_the_state_is_saved_then_the_source_is_told(build):
    ran = build([*GOOD[:50], b"{", *GOOD[50:200]], policy=CheckpointPolicy(1, 1e9))
    ran.daemon.run(Asked())
    assert ran.told == ["flushed", "saved", "committed"] * 3
    assert ran.source.commits == [saved["positions"][0] for saved in ran.store.saved]


def test_letters_of_a_checkpoint_are_on_disk_before_it(build, tmp_path):
    ran = build([*GOOD[:50], b"{", *GOOD[50:200]], policy=CheckpointPolicy(1, 1e9))
    seen = []
    save = ran.store.save

    def look(arrays, metadata):
        seen.append(((tmp_path / "dead.jsonl").read_text().count("\n"), metadata["counters"]["outcomes"]["rejected"]))
        return save(arrays, metadata)

    ran.store.save = look
    ran.daemon.run(Asked())
    assert seen == [(1, 1)] * 3


def test_predictions_are_flushed_before_the_state_is_saved(build, tmp_path):
    ran = build(GOOD[:300], policy=CheckpointPolicy(1, 1e9), predicting=True)
    seen = []
    save = ran.store.save

    def look(arrays, metadata):
        seen.append(((tmp_path / "rows.jsonl").read_bytes().count(b"\n"), metadata["n"]))
        return save(arrays, metadata)

    ran.store.save = look
    ran.daemon.run(Asked())
    assert ran.told == ["flushed", "predicted", "saved", "committed"] * 3
    assert seen == [(100, 100), (200, 200), (300, 300)]


@pytest.mark.parametrize("at", [0, 100, 500, 700])
def test_after_a_crash_rows_are_repeated_as_they_were(build, tmp_path, at):
    # In other batches, as a source may give them: those of a growing file depend on time.
    records = [*GOOD[:40], b"{", *GOOD[40:800], b'{"a": 0.5}', *GOOD[800:1000]]
    ran = build(records, policy=CheckpointPolicy(300, 1e9), predicting=True, failures={at: ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        ran.daemon.run(Asked())
    for file in (ran.letters, ran.daemon._pipeline.predictions.sink):
        file.close()
    build(records, predicting=True, sizes=[37, 61]).daemon.run(Asked())
    rows = {}
    repeated = 0
    for line in (tmp_path / "rows.jsonl").read_text().splitlines():
        row = json.loads(line)
        first = rows.setdefault(row["place"]["index"], row)
        assert first == row
        repeated += first is not row
    assert repeated == sum(i != 40 for i in range(at - at % 300, at))
    assert sorted(rows) == [i for i in range(len(records)) if i != 40]
    versions = [rows[i]["model_version"] for i in sorted(rows)]
    assert versions == sorted(versions)
    assert versions[-1] == 999


def test_a_checkpoint_that_fails_is_not_told_to_the_source(build, monkeypatch):
    ran = build(GOOD[:200])

    def fail(arrays, metadata):
        raise CheckpointError("no room")

    ran.store.save = fail
    with pytest.raises(CheckpointError):
        ran.daemon.run(Asked())
    assert ran.source.commits == []


# --- when saving fails ----------------------------------------------------------------------------------------------


class Full:
    """A disk that takes nothing for some attempts."""

    def __init__(self, ran, attempts):
        self.save, self.left = ran.store.save, attempts
        ran.store.save = self

    def __call__(self, arrays, metadata):
        if self.left:
            self.left -= 1
            raise RetriableCheckpointError("no room")
        return self.save(arrays, metadata)


@pytest.fixture
def at_once(monkeypatch):
    """Attempts follow each other without a pause."""
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 0.0)
    monkeypatch.setattr("streammoe.daemon.loop.RETRY_LOOK_SECONDS", 0.0)


def test_learning_goes_on_while_nothing_can_be_saved(build, at_once):
    metrics = Metrics()
    ran = build(GOOD[:1000], policy=CheckpointPolicy(200, 1e9), patience=1e9, metrics=metrics)
    Full(ran, 3)
    seen = []
    ran.source._before_poll = lambda at: seen.append((at, ran.daemon._health.unsaved))
    whole = ran.daemon.run(Asked())
    assert whole.learned == 1000
    assert ran.store.positions[-1] == 1000
    assert ran.store.positions[0] >= 500, "each failed attempt is told before the next batch at the earliest"
    assert len([at for at, why in seen if why == "no room"]) >= 2
    assert metrics.registry.get_sample_value("streammoe_checkpoint_failures_total") == 3
    assert build(GOOD[:1000]).daemon.run(Asked()).state_digest == whole.state_digest


def test_at_the_end_of_the_source_saving_is_tried_again_too(build, at_once):
    ran = build(GOOD[:100], patience=1e9)
    Full(ran, 3)
    ran.daemon.run(Asked())
    assert ran.store.positions == [100]


def test_before_a_fault_of_the_source_is_told_what_came_before_is_saved_however_often_that_fails(build, at_once):
    ran = build(GOOD[:300], failures={250: SourceError("the disk is gone")}, patience=1e9)
    Full(ran, 2)
    with pytest.raises(SourceError):
        ran.daemon.run(Asked())
    assert ran.store.positions == [250]


def test_where_a_source_had_to_go_on_is_saved_in_the_end(build, at_once, monkeypatch):
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 1e6)  # no attempt before the end
    moved = {"kind": "list", "next": 100, "moved": True}
    stop = Asked()
    ran = build(GOOD[:100], patience=1e9, endless=True, policy=CheckpointPolicy(1, 1e9))
    saved = ran.store.save

    def full_from_the_second_on(arrays, metadata):
        if len(ran.store.saved) == 1 and not stop.requested:
            raise RetriableCheckpointError("no room")
        return saved(arrays, metadata)

    ran.store.save = full_from_the_second_on

    def move(at):
        stop.requested = ran.daemon._retries.failing
        ran.source.begins = moved if at == 100 else None

    ran.source._before_poll = move
    ran.daemon.run(stop)
    assert [found["positions"][0] for found in ran.store.saved] == [{"kind": "list", "next": 100}, moved]


def test_whoever_asks_to_stop_does_not_wait_for_the_disk(build, at_once):
    stop = Asked()
    ran = build(GOOD[:1000], patience=1e9, before_poll=lambda at: setattr(stop, "requested", at == 200))
    full = Full(ran, 10**9)
    with pytest.raises(RetriableCheckpointError):
        ran.daemon.run(stop)
    assert full.left == 10**9 - 1


def test_a_wait_at_the_end_is_ended_by_a_stop(build, at_once, monkeypatch):
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 1e6)
    stop = Asked()
    ran = build(GOOD[:100], patience=1e9)
    full = Full(ran, 10**9)
    looked = []

    def look():
        looked.append(1)
        stop.requested = len(looked) > 5
        return SourceStatus()

    ran.source.status = look
    with pytest.raises(RetriableCheckpointError):
        ran.daemon.run(stop)
    assert full.left == 10**9 - 2


def test_what_is_for_good_is_not_tried_again(build, at_once):
    ran = build(GOOD[:300], policy=CheckpointPolicy(100, 1e9), patience=1e9)
    asked = []

    def taken(arrays, metadata):
        asked.append(1)
        raise CheckpointError("another process has the folder")

    ran.store.save = taken
    with pytest.raises(CheckpointError):
        ran.daemon.run(Asked())
    assert len(asked) == 1


def test_learning_waits_once_memory_holds_enough_of_what_cannot_be_written(build, at_once, monkeypatch):
    monkeypatch.setattr("streammoe.persistence.append_log.MOST_WAITING", 20_000)
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 0.01)
    ran = build(GOOD[:2000], predicting=True, patience=1e9)
    rows = ran.daemon._pipeline.predictions.sink
    drain, attempts, held = rows._lines._drain, [], []

    def full():
        attempts.append(len(rows._lines._waiting))
        if len(attempts) < 4:
            raise OSError(28, "No space left on device")
        drain()

    monkeypatch.setattr(rows._lines, "_drain", full)
    ran.source._before_poll = lambda _: held.append(len(rows._lines._waiting))
    ran.daemon.run(Asked())
    assert len(attempts) >= 4
    assert max(held) < 20_000 + 100 * 300, "no more than a batch beyond the bound"
    assert ran.store.positions[-1] == 2000


# --- other settings while it runs -----------------------------------------------------------------------------------


SETTINGS = settings.from_tables(
    {
        "source": {"kind": "list"},
        "schema": {"target": "y"},
        "checkpoint": {"every_events": 100, "every_seconds": 1e9, "keep": 2, "retry_seconds": 7.0},
        "dead_letters": {"max_ratio": 0.25},
        "metrics": {"alive_seconds": 5.0},
        "model": {"range_factor": 1e9},
        "predictions": {"kind": "file", "path": "p.jsonl", "interval": 0.0, "gate": False},
    },
    "a test",
    kinds=settings.Kinds({"list": create_model("L", __base__=settings.Section, kind=(str, ...))}),
)


def test_other_settings_hold_from_the_next_batch_on(build, tmp_path):
    ran = build(GOOD[:600], predicting=True)
    reached = []

    def change(at):
        if at == 300:
            ran.daemon.reconfigure(SETTINGS, judging=False)
            reached.append(list(ran.store.positions))

    ran.source._before_poll = change
    ran.daemon.run(Asked())
    assert reached == [[]], "nothing is saved for settings that judge nothing"
    assert ran.store.positions == [400, 500, 600]
    assert ran.store.keep == 2
    assert ran.daemon._retries.patience == 7.0
    assert ran.daemon._guard.max_ratio == 0.25
    assert ran.daemon._health.patience == 5.0
    assert ran.daemon.model.range_factor == 1e9
    assert ran.store.saved[-1]["settings"]["model"]["range_factor"] == 1e9
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [("interval" in row, "gate" in row) for row in rows] == [(True, True)] * 300 + [(False, False)] * 300


def test_before_other_rules_hold_what_came_before_is_saved(build):
    """Else a crash would have it judged again, by the new ones."""
    ran = build(GOOD[:600])
    ran.source._before_poll = lambda at: at == 300 and ran.daemon.reconfigure(SETTINGS, judging=True)
    ran.daemon.run(Asked())
    assert ran.store.positions[0] == 300
    assert ran.store.saved[0]["settings"] == {"model": {}}


def test_other_rules_do_not_hold_where_what_came_before_cannot_be_saved(build, at_once):
    ran = build(GOOD[:600], patience=1e9)
    Full(ran, 1)

    def change(at):
        if at == 300:
            with pytest.raises(RetriableCheckpointError):
                ran.daemon.reconfigure(SETTINGS, judging=True)

    ran.source._before_poll = change
    ran.daemon.run(Asked())
    assert ran.daemon.model.range_factor == 1e6
    assert ran.store.positions == [600]


# --- clocks ---------------------------------------------------------------------------------------------------------


def test_a_clock_that_jumps_changes_nothing(build, monkeypatch, tmp_path):
    """The time of day may be set back and forth; what is due, alive or waited for goes by a clock that only runs on."""
    calm = build(GOOD[:1000], policy=CheckpointPolicy(10**9, 3600.0), predicting=True)
    digest = calm.daemon.run(Asked()).state_digest
    assert calm.store.positions == [1000]
    for path in (tmp_path / "state").iterdir():
        path.unlink()
    jumps = itertools.cycle([0.0, 4e9, -1e9, 86_400.0, 1.7e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    ran = build(GOOD[:1000], policy=CheckpointPolicy(10**9, 3600.0), predicting=True)
    assert ran.daemon.run(Asked()).state_digest == digest
    assert ran.store.positions == [1000], "no checkpoint is due early, nor late"
    assert all(ran.daemon._health.alive for _ in range(5))


# --- beside the learning ----------------------------------------------------------------------------------------------


@pytest.fixture
def held(build):
    """A daemon whose checkpoints are written once `let` is set; at each poll `seen` gets what was told by then."""

    def held(records, *, every=100, let_at=None, **script):
        let, began, seen = threading.Event(), threading.Event(), []

        def look(following):
            if following == let_at:
                let.set()
                under_way(ran.daemon)
            if ran.daemon._writer.busy:
                assert began.wait(10)  # so that it is known where the other thread is
            seen.append((following, ran.store.positions, list(ran.told)))

        ran = build(records, policy=CheckpointPolicy(every, 1e9), before_poll=look, **script)
        ran.source.written = None
        save = ran.store.save

        def wait(arrays, metadata):
            began.set()
            assert let.wait(10)
            return save(arrays, metadata)

        ran.store.save = wait
        ran.let, ran.seen = let, seen
        return ran

    return held


def test_learning_goes_on_while_a_checkpoint_is_written(held):
    ran = held(GOOD[:500], let_at=400)
    ran.daemon.run(Asked())
    # What comes to an end between two polls is told to the source after the second one.
    assert [told for _, _, told in ran.seen[:4]] == [[], ["flushed"], ["flushed"], ["flushed"]]
    assert ran.seen[4] == (400, [100], ["flushed", "saved"])
    assert ran.told[:3] == ["flushed", "saved", "committed"]
    assert ran.store.saved[0]["n"] == 100
    assert ran.source.commits[0]["next"] == 100


def test_one_that_is_due_waits_for_the_one_under_way_and_holds_all_that_came(held):
    ran = held(GOOD[:500], let_at=400)
    ran.daemon.run(Asked())
    assert ran.store.positions == [100, 500]
    assert ran.told == ["flushed", "saved", "committed"] * 2


def test_what_was_learned_meanwhile_counts_towards_the_next_one(held):
    ran = held(GOOD[:600], every=300, let_at=400)
    ran.daemon.run(Asked())
    assert ran.store.positions == [300, 600]


@pytest.mark.parametrize("end", ["stop", "source", "failure"])
def test_one_under_way_is_waited_for_at_the_end(held, end):
    stop = Asked()
    failures = {100: SourceError("gone")} if end == "failure" else {}
    ran = held(GOOD[:200], sizes=[200] if end == "source" else [100], failures=failures)
    poll = ran.source.poll

    def polled(timeout):
        batch = poll(timeout)
        stop.requested = end == "stop"
        threading.Timer(0.1, ran.let.set).start()  # while the daemon waits at its end
        return batch

    ran.source.poll = polled
    if end == "failure":
        with pytest.raises(SourceError, match="gone"):
            ran.daemon.run(stop)
    else:
        ran.daemon.run(stop)
    assert ran.store.positions == [200 if end == "source" else 100]
    assert ran.told == ["flushed", "saved", "committed"]


@pytest.mark.parametrize("error", [CheckpointError("no room"), SinkError("no topic"), ZeroDivisionError()])
def test_what_goes_wrong_beside_the_learning_ends_it(build, error):
    ran = build(GOOD[:1000], policy=CheckpointPolicy(100, 1e9))

    def fail(arrays, metadata):
        raise error

    ran.store.save = fail
    with pytest.raises(type(error)):
        ran.daemon.run(Asked())
    assert ran.source.commits == []
    assert ran.daemon.model.n == 200, "the batch that was learned when it became known"


def test_where_predictions_are_transactional_learning_waits(build, monkeypatch):
    monkeypatch.setattr(Rows, "transactional", True)
    monkeypatch.setattr(Rows, "commit", lambda self, position, generation: self.told.append("committed"))
    ran = build(GOOD[:300], policy=CheckpointPolicy(100, 1e9), predicting=True)
    ran.source.written = None
    threads = []
    save = ran.store.save
    ran.store.save = lambda *content: (threads.append(threading.current_thread()), save(*content))[1]
    ran.daemon.run(Asked())
    assert threads == [threading.main_thread()] * 3
    assert ran.told == ["flushed", "predicted", "saved", "committed"] * 3


def test_before_a_source_without_end_goes_on_its_first_one_is_durable(build):
    stop = Asked()
    ran = build(GOOD[:300], before_poll=lambda at: setattr(stop, "requested", at == 200), endless=True)
    ran.source.written = None
    polled = []
    ran.source._before_poll = lambda at: (
        polled.append((at, ran.store.positions)),
        setattr(stop, "requested", at == 200),
    )
    ran.daemon.run(stop)
    assert polled[1] == (100, [100])


def test_a_wide_state_waits_one_turn_for_memory_and_no_more(build, monkeypatch):
    monkeypatch.setattr("streammoe.daemon.checkpointer._MUCH", 1)
    ran = build(GOOD[:1000], policy=CheckpointPolicy(100, 1e9))
    ran.daemon.run(Asked())
    # Each one, since the windows of the scores grow.
    assert ran.store.positions == [200, 400, 600, 800, 1000]


def test_how_long_learning_stood_still_is_shown(build):
    metrics = Metrics()
    build(GOOD[:300], policy=CheckpointPolicy(100, 1e9), metrics=metrics).daemon.run(Asked())
    value = metrics.registry.get_sample_value
    assert value("streammoe_checkpoint_pause_seconds_count") == value("streammoe_checkpoint_seconds_count") == 3


# --- going on -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stops", [[0], [100], [40, 60], [700, 800, 900]])
@pytest.mark.parametrize("sizes", [[20], [7, 90, 1]])
def test_stops_and_restarts_show_in_nothing(build, tmp_path, stops, sizes):
    records = [b"{", *GOOD[:400], b'{"a": 1e60, "y": 1}', b'{"a": 1}', *GOOD[400:1000], b"{"]
    for at in stops:
        stop = Asked()
        build(
            records, sizes=sizes, before_poll=lambda now, at=at, stop=stop: setattr(stop, "requested", now >= at)
        ).daemon.run(stop)
    interrupted = build(records, sizes=sizes).daemon.run(Asked())
    for file in (tmp_path / "state").iterdir():
        file.unlink()
    whole = build(records, sizes=[1000]).daemon.run(Asked())
    changing = {"events_per_second", "checkpoint", "scores"}
    same = [
        {name: value for name, value in it._asdict().items() if name not in changing} for it in (interrupted, whole)
    ]
    assert same[0] == same[1]
    assert interrupted.scores == pytest.approx(whole.scores, rel=1e-9)
    assert (whole.events, whole.learned, whole.predicted_only, whole.rejected) == (len(records), 1000, 1, 3)


def test_metrics_go_on_from_the_counters_of_the_checkpoint(build):
    build([*GOOD[:100], b"{"]).daemon.run(Asked())
    metrics = Metrics()
    build([*GOOD[:100], b"{", *GOOD[100:150]], metrics=metrics).daemon.run(Asked())
    value = metrics.registry.get_sample_value
    assert value("streammoe_events_total", {"outcome": "learned"}) == 150
    assert value("streammoe_events_total", {"outcome": "rejected"}) == 1
    assert value("streammoe_rejected_total", {"reason": "malformed"}) == 1
    assert value("streammoe_model_events") == 150
    assert value("streammoe_checkpoint_seconds_count") == 1
    assert value("streammoe_source_progress_ratio") == 1


def test_a_pause_of_the_source_is_no_end(build):
    assert build(GOOD[:300], pauses={0, 100, 150}).daemon.run(Asked()).learned == 300


# --- trouble --------------------------------------------------------------------------------------------------------


def test_a_source_that_fails_saves_what_was_learned_first(build):
    ran = build(GOOD[:300], failures={250: SourceError("the disk is gone")})
    with pytest.raises(SourceError, match="disk is gone"):
        ran.daemon.run(Asked())
    assert ran.store.positions == [250]
    assert ran.store.saved[0]["n"] == 250
    assert build(GOOD[:300]).daemon.run(Asked()).learned == 300


def test_a_source_that_fails_at_once_leaves_no_checkpoint_to_stand_in_the_way(build):
    ran = build(GOOD[:300], failures={0: SourceError("the header lacks the target")})
    with pytest.raises(SourceError):
        ran.daemon.run(Asked())
    assert ran.store.generations() == []


def test_anything_unforeseen_saves_nothing(build):
    ran = build(GOOD[:300], failures={200: ZeroDivisionError()})
    with pytest.raises(ZeroDivisionError):
        ran.daemon.run(Asked())
    assert ran.store.generations() == []


def letters_on_disk(tmp_path):
    return [json.loads(line)["place"]["index"] for line in (tmp_path / "dead.jsonl").read_text().splitlines()]


def test_too_many_bad_records_save_nothing_and_keep_the_letters(build, tmp_path):
    ran = build([*GOOD[:1500], *[b"{"] * 1500], policy=CheckpointPolicy(1000, 1e9))
    with pytest.raises(TooManyBadRecords, match=r"of 1000 records in a row"):
        ran.daemon.run(Asked())
    assert ran.store.positions == [1000, 2000]
    assert letters_on_disk(tmp_path) == list(range(1500, 2100))


def test_a_mended_producer_loses_nothing_that_came_after_the_last_checkpoint(build):
    policy = CheckpointPolicy(400, 1e9)
    with pytest.raises(TooManyBadRecords):
        build([*GOOD[:1500], *[b"{"] * 1500], policy=policy).daemon.run(Asked())
    summary = build(GOOD, policy=policy).daemon.run(Asked())
    assert summary.learned + summary.rejected == 3000
    assert summary.rejected <= 500


def test_restarts_do_not_carry_a_bad_deploy_past_the_window(build):
    # A supervisor starts the daemon again and again; each start must not have another 1,000 records to bin.
    records = [*GOOD[:1500], *[b"{"] * 10_000]
    ends = []
    for _ in range(4):
        ran = build(records, policy=CheckpointPolicy(100, 1e9))
        with pytest.raises(TooManyBadRecords):
            ran.daemon.run(Asked())
        ends.append(ran.store.latest()[1].metadata["positions"][0]["next"])
    assert max(ends) <= 2500


def test_the_first_refusal_of_each_kind_is_logged_and_the_others_are_not(build, caplog):
    records = [*[b"{"] * 20, *GOOD[:100], *[b'{"a": 1e60, "y": 1}'] * 20, *[b"{"] * 20]
    with caplog.at_level(logging.WARNING, "streammoe.daemon"):
        build(records, sizes=[5]).daemon.run(Asked())
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert "JSON" in said[0]
    assert "1e+60" in said[1]


# --- the summary ----------------------------------------------------------------------------------------------------


def test_the_summary_adds_up_and_is_json(build):
    records = [*GOOD[:100], b"{", b'{"a": 1}', *GOOD[100:200]]
    summary = build(records, blank={3: 4}).daemon.run(Asked())
    found = json.loads(json.dumps(summary.flat(), allow_nan=False))
    parts = ("learned", "predicted_only", "rejected", "skipped", "pending", "expired")
    assert [found[part] for part in parts] == [200, 1, 1, 4, 0, 0]
    assert found["events"] == sum(found[part] for part in parts) == 206
    assert np.isfinite([found["rmse"], found["log_loss"], found["baseline_rmse"]]).all()


def test_a_summary_of_nothing_has_no_scores(build):
    summary = build([]).daemon.run(Asked())
    assert summary.events == 0
    assert summary.scores == {"rmse": None, "log_loss": None, "baseline_rmse": None}
