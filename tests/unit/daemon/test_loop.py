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
from streammoe.daemon.loop import CheckpointPolicy
from streammoe.errors import CheckpointError, RetriableCheckpointError, SinkError, SourceError, TooManyBadRecords
from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.ports import SourceStatus
from tests.unit.daemon.scripted import Stop, settle

GOOD = [b'{"a": %.4f, "y": %.4f}' % (math.sin(i), math.cos(i)) for i in range(3000)]
BAD = b"{"
SAVED = ["letters", "saved", "committed"]


def every(events, seconds=1e9):
    return CheckpointPolicy(events, seconds)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr("streammoe.daemon.loop.time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


# --- how it begins --------------------------------------------------------------------------------------------------


def test_it_waits_for_the_source_and_is_not_ready_meanwhile(build):
    ran = build(GOOD[:100])
    ran.source.unanswered = 3
    seen = []
    ran.source.on_prepare = lambda: seen.append((ran.daemon._health.ready, ran.value("source_connected")))
    ran.source._before_poll = lambda _: seen.append(ran.daemon._health.ready)
    assert ran.run().events == 100
    assert seen == [(False, 0.0)] * 4 + [True]
    assert ran.value("source_connected") == 1.0
    assert not ran.daemon._health.ready, "it has ended"


def test_a_stop_while_it_waits_changes_no_checkpoint(build):
    build(GOOD[:100]).run()
    ran = build(GOOD[:200])
    ran.daemon._on_begin = lambda: ran.steps.append("begun")
    ran.source.unanswered = 10**9
    stop = Stop()
    ran.source.on_prepare = lambda: setattr(stop, "requested", True)
    assert ran.run(stop).events == 100
    assert ran.steps == []
    assert ran.source.commits == [], "it was never reached"


def test_a_resumed_source_learns_from_which_checkpoint_and_where_it_had_to_move_is_saved_first(build):
    build(GOOD[:100]).run()
    ran = build(GOOD[:200])
    ran.daemon._on_begin = lambda: ran.steps.append("begun")
    ran.run()
    assert [commit["next"] for commit in ran.source.commits] == [100, 200]
    assert ran.steps == ["begun", "committed", *SAVED]
    ran = build(GOOD[:200])
    ran.daemon._on_begin = lambda: ran.steps.append("begun")
    ran.source.moved_to = {"kind": "list", "next": 0}
    ran.source._before_poll = lambda _: ran.steps.append("polled")
    ran.run()
    assert ran.steps == ["begun", *SAVED], "nothing is left to read"
    assert ran.store.positions == [0]


def test_where_reading_begins_is_saved_before_anything_is_read(build):
    ran = build(GOOD[:100])
    ran.source.moved_to = {"kind": "list", "next": 0}
    ran.source._before_poll = lambda _: ran.steps.append("polled")
    ran.run()
    assert ran.steps == [*SAVED, "polled", *SAVED]
    assert ran.store.positions == [0, 100]


def test_where_a_source_had_to_move_is_saved_though_nothing_comes(build):
    ran = build(GOOD[:300], pauses=[100])
    moved = {"kind": "list", "next": 100, "moved": True}
    ran.source._before_poll = lambda at: setattr(ran.source, "moved_to", moved if at == 100 else None)
    ran.run()
    assert [saved["positions"][0] for saved in ran.store.saved] == [moved, {"kind": "list", "next": 300}]


# --- when it saves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "script", "policy", "positions"),
    [
        (GOOD[:1000], {}, every(250), [300, 600, 900, 1000]),
        # Rejected and blank records count towards it, too.
        ([BAD] * 150 + GOOD[:150], {"blank": {110: 60}, "sizes": [50]}, every(250), [200, 300]),
        (GOOD[:300], {}, every(10**9), [300]),
        (GOOD[:300], {"pauses": {0, 100, 150}}, every(10**9), [300]),
    ],
    ids=["events", "rejected and blank", "end", "pauses are no end"],
)
def test_a_checkpoint_is_due_after_so_many_events_and_at_the_end(build, clock, records, script, policy, positions):
    ran = build(records, policy=policy, max_ratio=1.0, **script)
    summary = ran.run()
    assert ran.store.positions == positions
    assert summary.checkpoint == str(ran.store.path(len(positions)))
    assert summary.state_digest == ran.store.saved[-1]["state_digest"] == ran.daemon.model.state_digest()


def test_a_checkpoint_is_due_after_so_many_seconds(build, clock):
    def tick(_):
        clock.now += 4.0

    ran = build(GOOD[:1000], policy=every(10**9, 10.0), before_poll=tick)
    ran.run()
    assert ran.store.positions == [300, 600, 900, 1000]


def test_events_wait_no_longer_than_the_policy_says_when_no_more_come_and_time_alone_saves_nothing(build, clock):
    stop = Stop()
    saved = []

    def tick(following):
        if len(saved) >= 2:  # the first checkpoint of an endless source comes at once
            clock.now += 4.0
        saved.append((following, list(ran.store.positions)))
        stop.requested = len(saved) == 20

    ran = build(GOOD[:200], policy=every(10**9, 10.0), before_poll=tick, endless=True)
    ran.run(stop)
    assert saved[2] == (200, [100])
    assert (200, [100, 200]) in saved
    assert ran.store.positions == [100, 200]


def test_an_endless_source_has_a_checkpoint_after_its_first_batch(build):
    """Only that knows which file was being read, should it be rotated away before the next one is due."""
    stop = Stop()
    ran = build(GOOD[:1000], endless=True)
    ran.source.settle = None
    polled = []
    ran.source._before_poll = lambda at: (polled.append((at, ran.store.positions)), stop.at(900)(at))
    ran.run(stop)
    assert polled[1] == (100, [100])
    assert ran.store.positions == [100, 1000]


def test_a_run_without_new_events_leaves_a_checkpoint_and_a_summary(build):
    for records, events in (([], 0), (GOOD[:300], 300), (GOOD[:300], 300)):
        ran = build(records)
        summary = ran.run()
        assert (summary.events, ran.store.generations()[-1:]) == (events, [int(summary.checkpoint[-24:-12])])
        assert ran.steps[-3:] == SAVED[: 3 if records else 2]
        assert (summary.scores["rmse"] is None) == (not events)


def test_a_stop_finishes_the_batch_and_saves_it(build):
    stop = Stop()
    ran = build(GOOD[:1000], before_poll=stop.at(200))
    assert ran.run(stop).learned == 300
    assert ran.store.positions == [300]
    assert build(GOOD).run(stop).events == 300, "asked for before the start, it reads nothing"


# --- in which order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_transactional", [False, True])
def test_letters_and_rows_are_durable_then_the_state_is_then_the_source_is_told(
    build, tmp_path, monkeypatch, is_transactional
):
    ran = build([*GOOD[:50], BAD, *GOOD[50:300]], policy=every(1), is_predicting=True, sizes=[100, 100, 101])
    if is_transactional:

        def commit(_, position, generation):
            assert ran.store.confirmed == generation - 1, "only then is it known to be committed"
            ran.source.commit(position, generation)

        monkeypatch.setattr(JsonlPredictions, "transactional", True)
        monkeypatch.setattr(JsonlPredictions, "commit", commit, raising=False)
    seen = []
    save = ran.store.save

    def look(arrays, metadata):
        lines = [(tmp_path / name).read_bytes().count(b"\n") for name in ("dead.jsonl", "rows.jsonl")]
        seen.append((lines, metadata["counters"]["outcomes"]["rejected"], metadata["n"], threading.current_thread()))
        return save(arrays, metadata)

    ran.store.save = look
    ran.run()
    assert ran.steps == ["letters", "rows", "saved", "committed"] * 3
    assert [each[:3] for each in seen] == [([1, 99], 1, 99), ([1, 199], 1, 199), ([1, 300], 1, 300)]
    assert ran.store.confirmed == 3 * is_transactional
    # What is predicted while learning goes on would fall into the transaction that belongs to this state.
    assert [each[3] is threading.main_thread() for each in seen[:2]] == [is_transactional] * 2
    assert ran.source.commits == [saved["positions"][0] for saved in ran.store.saved]


# --- when saving fails ----------------------------------------------------------------------------------------------


class Full:
    """A disk that takes nothing for some attempts."""

    def __init__(self, ran, attempts, error=None):
        self.save, self.left, self.error = ran.store.save, attempts, error or RetriableCheckpointError("no room")
        ran.store.save = self

    def __call__(self, arrays, metadata):
        if self.left:
            self.left -= 1
            raise self.error
        return self.save(arrays, metadata)


@pytest.fixture
def at_once(monkeypatch):
    """Attempts follow each other without a pause."""
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 0.0)
    monkeypatch.setattr("streammoe.daemon.loop.RETRY_LOOK_SECONDS", 0.0)


def test_learning_goes_on_while_nothing_can_be_saved(build, at_once):
    ran = build(GOOD[:1000], policy=every(200), patience=1e9)
    Full(ran, 3)
    unsaved = []
    ran.source._before_poll = lambda _: unsaved.append(ran.daemon._health.unsaved)
    whole = ran.run()
    assert whole.learned == 1000
    assert ran.store.positions[-1] == 1000
    assert ran.store.positions[0] >= 500, "each failed attempt is known before the next batch at the earliest"
    assert unsaved.count("no room") >= 2
    assert ran.value("checkpoint_failures_total") == 3
    assert build(GOOD[:1000]).run().state_digest == whole.state_digest


def test_at_the_end_of_the_source_saving_is_tried_again_too(build, at_once):
    ran = build(GOOD[:100], patience=1e9)
    Full(ran, 3)
    ran.run()
    assert ran.store.positions == [100]


def test_before_a_fault_of_the_source_is_told_what_came_before_is_saved_however_often_that_fails(build, at_once):
    ran = build(GOOD[:300], failures={250: SourceError("the disk is gone")}, patience=1e9)
    Full(ran, 2)
    with pytest.raises(SourceError):
        ran.run()
    assert ran.store.positions == [250]
    assert build(GOOD[:300]).run().learned == 300


def test_where_a_source_had_to_move_is_saved_in_the_end(build, at_once, monkeypatch):
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 1e6)  # no attempt before the end
    moved = {"kind": "list", "next": 100, "moved": True}
    stop = Stop()
    ran = build(GOOD[:100], patience=1e9, endless=True, policy=every(1))
    saved = ran.store.save

    def full_from_the_second_on(arrays, metadata):
        if len(ran.store.saved) == 1 and not stop.requested:
            raise RetriableCheckpointError("no room")
        return saved(arrays, metadata)

    ran.store.save = full_from_the_second_on

    def move(at):
        stop.requested = ran.daemon._retries.failing
        ran.source.moved_to = moved if at == 100 else None

    ran.source._before_poll = move
    ran.run(stop)
    assert [found["positions"][0] for found in ran.store.saved] == [{"kind": "list", "next": 100}, moved]


def test_whoever_asks_to_stop_does_not_wait_for_the_disk(build, at_once):
    stop = Stop()
    ran = build(GOOD[:1000], patience=1e9, before_poll=stop.at(200))
    full = Full(ran, 10**9)
    with pytest.raises(RetriableCheckpointError):
        ran.run(stop)
    assert full.left == 10**9 - 1


def test_a_wait_at_the_end_is_ended_by_a_stop(build, at_once, monkeypatch):
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 1e6)
    stop = Stop()
    ran = build(GOOD[:100], patience=1e9)
    full = Full(ran, 10**9)
    looks = itertools.count()

    def look():
        stop.requested = next(looks) > 4
        return SourceStatus()

    ran.source.status = look
    with pytest.raises(RetriableCheckpointError):
        ran.run(stop)
    assert full.left == 10**9 - 2


@pytest.mark.parametrize("error", [CheckpointError("another process"), SinkError("no topic"), ZeroDivisionError()])
def test_what_goes_wrong_beside_the_learning_ends_it(build, at_once, error):
    ran = build(GOOD[:1000], policy=every(100), patience=1e9)
    full = Full(ran, 10, error)
    with pytest.raises(type(error)):
        ran.run()
    assert full.left == 9, "what is for good is not tried again"
    assert ran.source.commits == []
    assert ran.daemon.model.n == 200, "the batch that was learned when it became known"


def test_learning_waits_once_memory_holds_enough_of_what_cannot_be_written(build, at_once, monkeypatch):
    monkeypatch.setattr("streammoe.persistence.append_log.MOST_WAITING", 20_000)
    monkeypatch.setattr("streammoe.daemon.checkpointer.FIRST_PAUSE", 0.01)
    ran = build(GOOD[:2000], is_predicting=True, patience=1e9)
    lines = ran.daemon._pipeline.predictions.sink._lines
    drain, attempts, held = lines._drain, [], []

    def full():
        attempts.append(len(lines._waiting))
        if len(attempts) < 4:
            raise OSError(28, "No space left on device")
        drain()

    monkeypatch.setattr(lines, "_drain", full)
    ran.source._before_poll = lambda _: held.append(len(lines._waiting))
    ran.run()
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
    ran = build(GOOD[:600], is_predicting=True)
    ran.source._before_poll = lambda at: at == 300 and ran.daemon.reconfigure(SETTINGS, judging=False)
    ran.run()
    assert ran.store.positions == [400, 500, 600], "nothing is saved for settings that judge nothing"
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
    ran.run()
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
    ran.run()
    assert ran.daemon.model.range_factor == 1e6
    assert ran.store.positions == [600]


def test_a_clock_that_jumps_changes_nothing(build, monkeypatch):
    """The time of day may be set back and forth; what is due, alive or waited for goes by a clock that only runs on."""
    calm = build(GOOD[:1000], folder="calm", policy=every(10**9, 3600.0), is_predicting=True)
    digest = calm.run().state_digest
    jumps = itertools.cycle([0.0, 4e9, -1e9, 86_400.0, 1.7e9])
    monkeypatch.setattr(time, "time", lambda: next(jumps))
    ran = build(GOOD[:1000], policy=every(10**9, 3600.0), is_predicting=True)
    assert ran.run().state_digest == digest
    assert ran.store.positions == calm.store.positions == [1000], "no checkpoint is due early, nor late"
    assert all(ran.daemon._health.alive for _ in range(5))


# --- checkpoints that are written while learning goes on ------------------------------------------------------------


@pytest.fixture
def held(build):
    """A daemon whose checkpoints are written once `let` is set, which is at record `let_at`."""

    def held(records, *, events=100, let_at=None, **script):
        let, began, seen = threading.Event(), threading.Event(), []

        def look(following):
            if following == let_at:
                let.set()
                settle(ran.daemon)
            if ran.daemon._writer.busy:
                assert began.wait(10)  # so that it is known where the other thread is
            seen.append(list(ran.steps))

        ran = build(records, policy=every(events), before_poll=look, **script)
        ran.source.settle = None
        save = ran.store.save

        def wait(arrays, metadata):
            began.set()
            assert let.wait(10)
            return save(arrays, metadata)

        ran.store.save = wait
        return ran, let, seen

    return held


def test_one_that_is_due_waits_for_the_one_under_way_and_holds_all_that_came(held):
    ran, _, seen = held(GOOD[:500], let_at=400)
    ran.run()
    # What comes to an end between two polls is told to the source after the second one.
    assert seen[:5] == [[], ["letters"], ["letters"], ["letters"], ["letters", "saved"]]
    assert ran.steps == SAVED * 2
    assert ran.store.positions == [saved["n"] for saved in ran.store.saved] == [100, 500]
    assert [commit["next"] for commit in ran.source.commits] == [100, 500]


def test_what_was_learned_meanwhile_counts_towards_the_next_one(held):
    ran, *_ = held(GOOD[:600], events=300, let_at=400)
    ran.run()
    assert ran.store.positions == [300, 600]


@pytest.mark.parametrize("end", ["stop", "source", "failure"])
def test_one_under_way_is_waited_for_at_the_end(held, end):
    stop = Stop()
    failures = {100: SourceError("gone")} if end == "failure" else {}
    ran, let, _ = held(GOOD[:200], sizes=[200] if end == "source" else [100], failures=failures)
    poll = ran.source.poll

    def polled(timeout):
        batch = poll(timeout)
        stop.requested = end == "stop"
        threading.Timer(0.1, let.set).start()  # while the daemon waits at its end
        return batch

    ran.source.poll = polled
    if end == "failure":
        with pytest.raises(SourceError):
            ran.run(stop)
    else:
        ran.run(stop)
    assert ran.store.positions == [200 if end == "source" else 100]
    assert ran.steps == SAVED


def test_a_wide_state_waits_one_turn_for_memory_and_no_more(build, monkeypatch):
    monkeypatch.setattr("streammoe.daemon.checkpointer._MUCH", 1)
    ran = build(GOOD[:1000], policy=every(100))
    ran.run()
    # Each one, since the windows of the scores grow.
    assert ran.store.positions == [200, 400, 600, 800, 1000]
    assert ran.value("checkpoint_pause_seconds_count") == ran.value("checkpoint_seconds_count") == 5


# --- restarts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "stops"), [([20], [0, 100]), ([7, 90, 1], [40, 60, 700, 800, 900])], ids=str)
def test_stops_and_restarts_show_in_nothing(build, sizes, stops):
    records = [BAD, *GOOD[:400], b'{"a": 1e60, "y": 1}', b'{"a": 1}', *GOOD[400:1000], BAD]
    for at in stops:
        stop = Stop()
        build(records, sizes=sizes, before_poll=stop.at(at)).run(stop)
    interrupted = build(records, sizes=sizes)
    whole = build(records, folder="whole", sizes=[1000])
    summaries = [
        {name: value for name, value in ran.run()._asdict().items() if name not in {"events_per_second", "checkpoint"}}
        for ran in (interrupted, whole)
    ]
    scores = [summary.pop("scores") for summary in summaries]
    assert summaries[0] == summaries[1]
    assert scores[0] == pytest.approx(scores[1], rel=1e-9)
    counts = {"learned": 1000, "predicted_only": 1, "rejected": 3}
    assert {name: summaries[0][name] for name in counts} == counts
    assert {name: interrupted.value("events_total", outcome=name) for name in counts} == counts
    assert interrupted.value("rejected_total", reason="malformed") == 2
    assert interrupted.value("model_events") == 1000
    assert interrupted.value("checkpoint_seconds_count") == 1
    assert interrupted.value("source_progress_ratio") == 1


def test_the_summary_adds_up_and_is_json(build):
    records = [*GOOD[:100], BAD, b'{"a": 1}', *GOOD[100:200]]
    summary = build(records, blank={3: 4}).run()
    found = json.loads(json.dumps(summary.flat(), allow_nan=False))
    parts = ("learned", "predicted_only", "rejected", "skipped", "pending", "expired")
    assert [found[part] for part in parts] == [200, 1, 1, 4, 0, 0]
    assert found["events"] == sum(found[part] for part in parts) == 206
    assert np.isfinite([found["rmse"], found["log_loss"], found["baseline_rmse"]]).all()


# --- trouble --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("at", "error"), [(0, SourceError("the header lacks the target")), (200, ZeroDivisionError())])
def test_a_source_that_fails_at_once_or_by_a_bug_leaves_no_checkpoint(build, at, error):
    ran = build(GOOD[:300], failures={at: error})
    with pytest.raises(type(error)):
        ran.run()
    assert ran.store.generations() == []


def test_too_many_bad_records_save_nothing_keep_the_letters_and_once_mended_nothing_is_lost(build, tmp_path):
    ran = build([*GOOD[:1500], *[BAD] * 1500], policy=every(1000))
    with pytest.raises(TooManyBadRecords):
        ran.run()
    assert ran.store.positions == [1000, 2000]
    letters = [json.loads(line)["place"]["index"] for line in (tmp_path / "dead.jsonl").read_text().splitlines()]
    assert letters == list(range(1500, 2100))
    summary = build(GOOD).run()
    assert (summary.learned, summary.rejected) == (2500, 500)


def test_restarts_do_not_carry_a_bad_deploy_past_the_window(build):
    # A supervisor starts the daemon again and again; each start must not have another 1,000 records to bin.
    records = [*GOOD[:1500], *[BAD] * 10_000]
    for _ in range(4):
        ran = build(records, policy=every(100), endless=True)
        with pytest.raises(TooManyBadRecords):
            ran.run()
        assert ran.store.latest()[1].metadata["positions"][0]["next"] <= 2500


def test_the_first_rejection_of_each_kind_is_logged_and_the_others_are_not(build, caplog):
    records = [*[BAD] * 20, *GOOD[:100], *[b'{"a": 1e60, "y": 1}'] * 20, *[BAD] * 20]
    with caplog.at_level(logging.WARNING, "streammoe.daemon"):
        build(records, sizes=[5]).run()
    assert len(caplog.records) == 2
