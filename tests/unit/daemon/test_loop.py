"""The learning loop on a scripted source: when it saves, in which order, and what it does when things go wrong.

One long file, as the loop is: all its tests share one scripted source.
"""

import json
import logging
import math
from types import SimpleNamespace

import pytest
from pydantic import create_model

from streammoe.errors import CheckpointError, RetriableCheckpointError, SinkError, SourceError, TooManyBadRecords
from streammoe.fields import Section
from streammoe.pipeline.predictions import JsonlPredictions, RestartPlan
from streammoe.settings import reader
from tests.unit.daemon.scripted import Stop, every

GOOD = [b'{"a": %.4f, "y": %.4f}' % (math.sin(i), math.cos(i)) for i in range(3000)]
BAD = b"{"
SAVED = ["letters", "saved", "committed"]
LASTING = every(10**9, patience=1e9)
"""Nothing is due before the end, and attempts do not end."""


@pytest.fixture
def clock(monkeypatch):
    """The time of checkpoints, which passes while they wait."""
    clock = SimpleNamespace(now=1000.0)

    def sleep(seconds):
        clock.now += seconds

    monkeypatch.setattr("streammoe.daemon.checkpoints.time", SimpleNamespace(monotonic=lambda: clock.now, sleep=sleep))
    return clock


# --- how it begins --------------------------------------------------------------------------------------------------


def test_it_waits_for_the_source_and_is_not_ready_meanwhile(build):
    ran = build(GOOD[:100])
    ran.source.unanswered = 3
    seen = []
    ran.source.on_prepare = lambda: seen.append((ran.daemon.metrics.health.ready, ran.value("source_connected")))
    ran.source._before_poll = lambda _: seen.append(ran.daemon.metrics.health.ready)
    assert ran.run().events == 100
    assert seen == [(False, 0.0)] * 4 + [True]
    assert ran.value("source_connected") == 1.0
    assert not ran.daemon.metrics.health.ready, "it has ended"
    resumed = build(GOOD[:200])
    resumed.source.unanswered = 10**9
    stop = Stop()
    resumed.source.on_prepare = lambda: setattr(stop, "requested", True)
    assert resumed.run(stop).events == 100
    assert (resumed.steps, resumed.source.commits) == ([], []), "a stop while it waits changes nothing"


def test_where_reading_begins_is_saved_before_anything_is_read(build):
    ran = build(GOOD[:100])
    ran.source.moved_to = {"kind": "list", "next": 0}
    ran.source._before_poll = lambda _: ran.steps.append("polled")
    ran.run()
    assert ran.steps == [*SAVED, "polled", *SAVED]
    assert ran.store.positions == [0, 100]
    assert [entry["event"] for entry in ran.store.saved[-1]["history"]] == ["fitted"]
    resumed = build(GOOD[:200])
    resumed.daemon.checkpoints._restart = RestartPlan(lambda: resumed.steps.append("begun"))
    resumed.run()
    assert [commit["next"] for commit in resumed.source.commits] == [100, 200], "it learns where it resumes"
    assert resumed.steps == ["begun", "committed", *SAVED]


def test_where_a_source_had_to_move_is_saved_though_nothing_comes(build):
    ran = build(GOOD[:300], pauses=[100])
    moved = {"kind": "list", "next": 100, "moved": True}
    ran.source._before_poll = lambda at: setattr(ran.source, "moved_to", moved if at == 100 else None)
    ran.run()
    assert [saved["positions"][0] for saved in ran.store.saved] == [moved, {"kind": "list", "next": 300}]
    noted = ran.store.saved[-1]["history"][-1]
    assert (noted["event"], noted["n"], json.loads(noted["to"])) == ("moved", 100, moved)


# --- when it saves --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("records", "script", "events", "positions"),
    [
        (GOOD[:1000], {}, 250, [300, 600, 900, 1000]),
        # Rejected and blank records count towards it, too.
        ([BAD] * 150 + GOOD[:150], {"blank": {110: 60}, "sizes": [50]}, 250, [200, 300]),
        (GOOD[:300], {"pauses": {0, 100, 150}}, 10**9, [300]),
    ],
    ids=["events", "rejected and blank", "end"],
)
def test_a_checkpoint_is_due_after_so_many_events_and_at_the_end(build, clock, records, script, events, positions):
    ran = build(records, saves=every(events), max_ratio=1.0, **script)
    summary = ran.run()
    assert ran.store.positions == positions
    assert summary.checkpoint == str(ran.store.path(len(positions)))
    assert summary.state_digest == ran.store.saved[-1]["state_digest"] == ran.daemon.model.state_digest()


def test_a_checkpoint_is_due_after_so_many_seconds_and_time_alone_saves_nothing(build, clock):
    stop = Stop()

    def tick(following):
        clock.now += 4.0
        stop.requested = clock.now > 1100.0

    ran = build(GOOD[:1000], saves=every(10**9, 10.0), before_poll=tick, endless=True)
    ran.run(stop)
    assert ran.store.positions == [100, 400, 700, 1000]
    assert ran.daemon.metrics.health.saved_at == 1040.0, "from when its age is counted"


def test_where_a_checkpoint_takes_long_learning_has_as_much_time_until_the_next_one(build, clock):
    stop = Stop()

    def tick(following):
        clock.now += 0.25
        stop.requested = following > 100

    ran = build(GOOD[:1000], sizes=(1,), saves=every(10**9, 1.0), before_poll=tick, endless=True)
    save = ran.store.save

    def slow(*content):
        clock.now += 5.0
        return save(*content)

    ran.store.save = slow
    ran.run(stop)
    assert ran.store.positions[:5] == [1, 21, 41, 61, 81]


def test_an_endless_source_has_a_checkpoint_after_its_first_batch(build):
    """Only that knows which file was being read, should it be rotated away before the next one is due."""
    stop = Stop()
    ran = build(GOOD[:1000], endless=True)
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


# --- in which order -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_transactional", [False, True])
def test_letters_and_rows_are_durable_then_the_state_is_then_the_source_learns_of_it(
    build, tmp_path, monkeypatch, is_transactional
):
    ran = build([*GOOD[:50], BAD, *GOOD[50:300]], saves=every(1), is_predicting=True, sizes=[100, 100, 101])
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
        seen.append((lines, metadata["counters"]["outcomes"]["rejected"], metadata["n"]))
        return save(arrays, metadata)

    ran.store.save = look
    ran.run()
    assert ran.steps == ["letters", "rows", "saved", "committed"] * 3
    assert seen == [([1, 99], 1, 99), ([1, 199], 1, 199), ([1, 300], 1, 300)]
    assert ran.store.confirmed == 3 * is_transactional
    assert ran.source.commits == [saved["positions"][0] for saved in ran.store.saved]


# --- when saving fails ----------------------------------------------------------------------------------------------


class Full:
    """A disk that takes nothing for some attempts, each of which is noted with the time."""

    def __init__(self, ran, clock, attempts, error=None):
        self.ran, self.clock, self.save, self.left = ran, clock, ran.store.save, attempts
        self.error, self.tried = error or RetriableCheckpointError("no room"), []
        self.unsaved = []
        ran.store.save = self

    def __call__(self, arrays, metadata):
        self.tried.append(self.clock.now - 1000.0)
        self.unsaved.append(self.ran.daemon.metrics.health.unsaved)
        if self.left:
            self.left -= 1
            raise self.error
        return self.save(arrays, metadata)


def test_learning_waits_while_nothing_can_be_saved(build, clock):
    ran = build(GOOD[:1000], saves=every(200, patience=100.0))
    full = Full(ran, clock, 6)
    whole = ran.run()
    assert full.tried[:7] == pytest.approx([0, 1, 3, 7, 15, 31, 61], abs=1.0), "the longest pause is half a minute"
    assert ran.store.positions == [200, 400, 600, 800, 1000]
    assert full.unsaved == ["", *["no room"] * 6, *[""] * 4], "which probes show"
    assert (ran.value("checkpoint_failures_total"), ran.daemon.metrics.health.unsaved) == (6, "")
    assert build(GOOD[:1000]).run().state_digest == whole.state_digest


def test_it_is_given_up_in_the_end_and_at_once_where_a_stop_is_requested_or_it_is_for_good(build, clock):
    ran = build(GOOD[:200], saves=every(100, patience=10.0))
    full = Full(ran, clock, 10**9)
    with pytest.raises(RetriableCheckpointError):
        ran.run()
    assert full.tried[-1] == pytest.approx(10.0, abs=0.2)
    assert ran.source.commits == []
    stop = Stop()
    ran = build(GOOD[:1000], saves=LASTING, before_poll=stop.at(200))
    full = Full(ran, clock, 10**9)
    with pytest.raises(RetriableCheckpointError):
        ran.run(stop)
    assert len(full.tried) == 1
    for error in (CheckpointError("another process"), SinkError("no topic"), ZeroDivisionError()):
        ran = build(GOOD[:1000], saves=every(100, patience=1e9))
        full = Full(ran, clock, 10, error)
        with pytest.raises(type(error)):
            ran.run()
        assert (full.left, ran.daemon.model.n) == (9, 100)


def test_a_fault_of_the_source_comes_after_what_was_read_before_it_is_saved(build, clock):
    ran = build(GOOD[:300], failures={250: SourceError("the disk is gone")}, saves=LASTING)
    Full(ran, clock, 2)
    with pytest.raises(SourceError):
        ran.run()
    assert ran.store.positions == [250]
    assert build(GOOD[:300]).run().learned == 300


def test_whether_the_source_is_connected_is_asked_at_each_scrape_not_at_the_last_poll(build):
    ran = build(GOOD[:200])
    ran.run()
    assert ran.value("source_connected") == 1
    ran.source.unanswered = 1
    assert ran.value("source_connected") == 0


# --- other settings while it runs -----------------------------------------------------------------------------------


SETTINGS = reader.from_tables(
    {
        "source": {"kind": "list"},
        "schema": {"target": "y"},
        "checkpoint": {"every_events": 100, "every_seconds": 1e9, "keep": 2, "retry_seconds": 7.0},
        "dead_letters": {"max_ratio": 0.25},
        "model": {"range_factor": 1e9},
        "predictions": {"kind": "file", "path": "p.jsonl", "interval": 0.0, "gate": False},
    },
    "a test",
    kinds=reader.Kinds({"list": create_model("L", __base__=Section, kind=(str, ...))}),
)


def test_other_settings_hold_from_the_next_batch_on(build, tmp_path):
    ran = build(GOOD[:600], is_predicting=True)
    ran.source._before_poll = lambda at: at == 300 and ran.daemon.reconfigure(SETTINGS, affects_events=False)
    ran.run()
    assert ran.store.positions == [400, 500, 600], "nothing is saved for settings that judge nothing"
    assert (ran.store.keep, ran.daemon.state.bad_records.max_ratio) == (2, 0.25)
    assert ran.daemon.model.range_factor == ran.store.saved[-1]["settings"]["model"]["range_factor"] == 1e9
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [("interval" in row, "gate" in row) for row in rows] == [(True, True)] * 300 + [(False, False)] * 300


def test_before_other_rules_hold_what_came_before_is_saved(build):
    """Else a crash would have it judged again, by the new ones."""
    ran = build(GOOD[:600])
    ran.source._before_poll = lambda at: at == 300 and ran.daemon.reconfigure(SETTINGS, affects_events=True)
    ran.run()
    assert ran.store.positions[0] == 300
    assert ran.store.saved[0]["settings"] == {"model": {}}


# --- trouble --------------------------------------------------------------------------------------------------------


def test_too_many_bad_records_save_nothing_keep_the_letters_and_once_mended_nothing_is_lost(build, tmp_path):
    ran = build([*GOOD[:1500], *[BAD] * 1500], saves=every(1000))
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
        ran = build(records, saves=every(100), endless=True)
        with pytest.raises(TooManyBadRecords):
            ran.run()
        assert ran.store.latest()[1].metadata["positions"][0]["next"] <= 2500


def test_the_first_rejection_of_each_kind_is_logged_and_the_others_are_not(build, caplog):
    records = [*[BAD] * 20, *GOOD[:100], *[b'{"a": 1e60, "y": 1}'] * 20, *[BAD] * 20]
    with caplog.at_level(logging.WARNING, "streammoe.daemon"):
        build(records, sizes=[5]).run()
    assert len(caplog.records) == 2
