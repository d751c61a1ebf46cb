"""Labels that come later: which record becomes what, what expires, and how events are counted."""

import json
import math
from itertools import accumulate

import numpy as np
import pytest

from streammoe.errors import SourceError
from streammoe.estimators import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.pipeline.label_join import LabelJoin, Limits, digest_with, label_arrays
from streammoe.pipeline.pipeline import Pipeline, PredictionWriter, Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from streammoe.ports import Batch, PredictionSink, Unreadable

SCHEMA = Schema(("y",), ignore=("id", "by"), weight="w")
PLENTY = Limits(1_000)


def batch_of(records, first=0, *, times=None, keys=None, **more):
    lines = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    lines = [line + b"\n" for line in lines]
    return Batch(
        block=b"".join(lines),
        ends=np.array(list(accumulate(map(len, lines))), np.int64),
        format="jsonl",
        columns=None,
        origin="here",
        place=lambda i: {"at": first + i},
        end={},
        timestamps=None if times is None else np.array(times, np.int64),
        keys=keys,
        **more,
    )


def joining(limits=PLENTY, schema=SCHEMA):
    return LabelJoin("id", schema, limits)


def joined(join, records, first=0, **more):
    """What goes on of these records: place, and the record as JSON, or the reason for which it is refused."""
    found = join.join(batch_of(records, first, **more))
    return [
        (
            found.place(i)["at"],
            found.unreadable[i].reason if i in found.unreadable else json.loads(found.record(i)),
        )
        for i in range(len(found))
    ]


A, B = {"id": 1, "a": 2.0}, {"id": 1, "a": 3.0}
LABEL, OTHER = {"id": 1, "y": 5.0}, {"id": 1, "y": 4.0}
EVENT = {"id": 1, "a": 2.0, "y": 5.0}
JOINED = {
    "features pass, and their label makes the event": (
        [A, {"id": 2, "a": 3.0}, LABEL],
        [(0, A), (1, {"id": 2, "a": 3.0}), (0, EVENT)],
        1,
    ),
    "an absent target may be null": ([{**A, "y": None}, LABEL], [(0, {**A, "y": None}), (0, EVENT)], 0),
    "or empty": ([{**A, "y": ""}, LABEL], [(0, {**A, "y": ""}), (0, EVENT)], 0),
    "a label that comes first waits for its features": ([LABEL, A], [(1, EVENT)], 0),
    "a complete event passes": ([EVENT], [(0, EVENT)], 0),
    "also without a key": ([{"a": 2.0, "y": 5.0}], [(0, {"a": 2.0, "y": 5.0})], 0),
    "or with one that is none": ([{"id": [], "a": 1, "y": 2}], [(0, {"id": [], "a": 1, "y": 2})], 0),
    "ignored fields, nulls and weights make no event complete": ([{**LABEL, "by": "me", "w": 2.0, "a": None}], [], 1),
    "a complete event under a pending key is its label": ([A, {**B, "y": 5.0}], [(0, A), (0, EVENT)], 0),
    "the newer of two features waits": ([A, B, LABEL], [(0, A), (1, B), (1, {**B, "y": 5.0})], 0),
    "the newer of two early labels waits": ([OTHER, LABEL, A], [(2, EVENT)], 0),
    "a second label waits like an early one": ([A, LABEL, OTHER], [(0, A), (0, EVENT)], 1),
    "a label that is not known yet replaces no features": (
        [A, {"id": 1, "y": None}, LABEL],
        [(0, A), (1, {"id": 1, "y": None}), (0, EVENT)],
        0,
    ),
    "equal keys are equal however they are written": (
        [A, {"id": "1", "y": 5.0}, {"id": 1.0, "y": 4.0}],
        [(0, A), (0, EVENT)],
        1,
    ),
    "features without a key": ([{"a": 2.0}], [(0, "no_key")], 0),
    "or whose key is null": ([{"id": None, "a": 2.0}], [(0, "no_key")], 0),
    "or empty key": ([{"id": "", "a": 2.0}], [(0, "no_key")], 0),
    "a label without a key": ([{"y": 2.0}], [(0, "no_key")], 0),
    "a key of a wrong type": ([{"id": [1], "a": 2.0}], [(0, "wrong_type")], 0),
    "a key that is too long": ([{"id": "k" * 257, "a": 2.0}], [(0, "out_of_range")], 0),
}


def test_what_becomes_of_records():
    for name, (records, expected, pending) in JOINED.items():
        for sizes in ([len(records)], [1]):
            join, found = joining(), []
            for first in range(0, len(records), sizes[0]):
                found += joined(join, records[first : first + sizes[0]], first)
            assert (found, join.pending) == (expected, pending), name


def test_features_and_targets_of_the_schema_decide_which_record_is_which():
    listed = joining(schema=Schema(("y",), features=("a", "id")))
    assert joined(listed, [{"id": 1, "y": 5.0, "other": 1}, {"id": 2, "y": 5.0, "a": 1}]) == [
        (1, {"id": 2, "y": 5.0, "a": 1})
    ]
    assert listed.pending == 1
    several = LabelJoin("id", Schema(("y", "z"), ignore=("id",)), PLENTY)
    passed = joined(several, [{"id": 1, "a": 2.0, "y": None}, {"id": 1, "z": 5.0}])
    assert passed[1] == (0, {"id": 1, "a": 2.0, "y": None, "z": 5.0})
    odd = LabelJoin('a "key"\n', Schema(("ü",)), PLENTY)
    passed = joined(odd, [{'a "key"\n': "x", "a": 1.0}, {'a "key"\n': "x", "ü": 2.0}])
    assert passed[1] == (0, {'a "key"\n': "x", "a": 1.0, "ü": 2.0})


def test_what_cannot_be_read_passes_as_it_is():
    join = joining()
    for record in (b"{", b"[1]", b"\xff", b'{"id": 1, "a": "\xff"}', b"", b'{"id": 01, "a": 1}'):
        found = join.join(batch_of([record]))
        assert (found.record(0), found.unreadable, join.pending) == (record, {}, 0)
    bad = Unreadable("malformed", "why", b"bytes")
    found = join.join(batch_of([{"id": 1, "y": 2.0}, b"", {"id": 2, "a": 1}], unreadable={1: bad}))
    assert (len(found), dict(found.unreadable), found.place(0)) == (2, {0: bad}, {"at": 1})


def test_a_record_that_is_too_long_passes_as_it_is_and_takes_its_time():
    join = joining(Limits(10, expire_events=1))
    joined(join, [{"id": 1, "a": 2.0}])
    cut = batch_of([b'{"id'], 1, too_long=True)
    assert join.join(cut) is cut
    assert joined(join, [{"id": 1, "y": 2.0}], 2) == []


def test_other_formats_are_an_error():
    csv = Batch(b"1,2\n", np.array([4]), "csv", ("id", "a"), "x.csv", lambda i: {"at": i}, {})
    with pytest.raises(SourceError):
        joining().join(csv)


# --- the event ------------------------------------------------------------------------------------------------------


def event_of(features, label):
    return joining().join(batch_of([features, label])).record(1)


def test_values_of_the_features_stay_except_for_target_and_weight():
    features = {"id": 1, "a": 2.0, "b": None, "w": 1.0, "by": "x"}
    label = {"id": "1", "a": 3.0, "b": 4.0, "c": 5.0, "w": 2.0, "by": "z", "y": 6.0}
    assert json.loads(event_of(features, label)) == features | {"c": 5.0, "w": 2.0, "y": 6.0}
    assert json.loads(event_of({**features, "w": 3.0}, {"id": 1, "w": None, "y": 1}))["w"] == 3.0


def test_values_are_those_that_were_written():
    event = event_of(b'{"id":1,"a":0.10000000000000000555,"b":1e400}', b' {"id":1, "y":1.50}')
    assert event == b'{"id":1,"a":0.10000000000000000555,"b":1e400,"y":1.50}'
    # What only the exact path reads is kept as well.
    features = rb'{"id": 1, "a": NaN, "b": 1e400, "c": -1e400, "\ud800": "\udfff", "n": [1, 2]}'
    event = event_of(features, b'{"id": 1, "y": -Infinity}')
    assert b"1e400" in event
    assert b"-1e400" in event
    read = json.loads(event)
    assert math.isnan(read["a"])
    assert (read["\ud800"], read["n"], read["y"]) == ("\udfff", [1, 2], -math.inf)


def test_place_key_and_time_go_along():
    join = joining()
    join.join(batch_of([{"id": 1, "a": 2.0}, {"id": 2, "a": 2.0}], times=[10, 20], keys=[b"k1", None]))
    found = join.join(batch_of([{"id": 3, "a": 3.0}, {"id": 1, "y": 5.0}], 2, times=[30, 40], keys=[b"k3", b"other"]))
    assert found.keys == [b"k3", b"k1"]
    assert found.timestamps.tolist() == [30, 40]
    assert found.place(1) == {"at": 0}
    found = join.join(batch_of([{"id": 2, "y": 5.0}, {"id": 3, "y": 5.0}], 4))
    assert (found.keys, found.timestamps) == ([None, b"k3"], None)


# --- expiry, which tests/property compares with a plain model ---------------------------------------------------------


def test_a_half_expires_after_so_many_records_or_seconds_of_theirs():
    for between, found in ((1, True), (2, False)):
        join = joining(Limits(100, expire_events=2))
        others = [{"a": 1.0, "y": 1.0}, b"{"][:between]  # rejected ones count
        passed = joined(join, [{"id": 1, "a": 2.0}])
        join.join(batch_of(others, 1))
        assert len(joined(join, [{"id": 1, "y": 5.0}], 3)) == len(passed) * found
        assert join.pending == (0 if found else 1)  # the label, which waits by itself
    for time, found in ((2_500, True), (2_501, False)):
        join = joining(Limits(100, expire_seconds=1.5))
        passed = joined(join, [{"id": 1, "a": 2.0}, {"id": 1, "y": 5.0}], times=[1_000, time])
        assert (len(passed) == 2) == found


def test_the_time_of_the_stream_never_goes_back():
    # The second one is late, and waits from the time that the stream had reached, also before a restart.
    records = [{"id": 1, "a": 2.0}, {"id": 2, "a": 2.0}, {"id": 1, "y": 1.0}, {"id": 2, "y": 1.0}]
    times = [5_000, 100, 6_000, 6_000]
    join = joining(Limits(100, expire_seconds=1.0))
    assert len(joined(join, records, times=times)) == 4
    before, after = (joining(Limits(100, expire_seconds=1.0)) for _ in range(2))
    joined(before, records[:1], times=times[:1])
    after.restore(before.arrays())
    assert len(joined(after, records[1:], 1, times=times[1:])) == 3


def test_time_that_is_not_known_begins_with_the_first_that_is():
    join = joining(Limits(100, expire_seconds=1.0))
    joined(join, [{"id": 1, "a": 2.0}, {"id": 2, "a": 2.0}])
    assert len(joined(join, [{"id": 3, "a": 2.0}, {"id": 1, "y": 1.0}], times=[50_000, 51_000])) == 2
    assert joined(join, [{"id": 2, "y": 1.0}], times=[51_001]) == []


def test_records_without_times_are_reported_once(caplog):
    join = joining(Limits(100, expire_seconds=1.0))
    joined(join, [{"id": 1, "a": 2.0}])
    joined(join, [{"id": 2, "a": 2.0}])
    assert len(caplog.records) == 1


def test_beyond_the_bound_the_oldest_goes_and_the_newer_of_two_with_one_key_is_the_youngest_of_all():
    join = joining(Limits(2))
    joined(join, [{"id": 1, "a": 1.0}, {"id": 2, "a": 2.0}, {"id": 1, "a": 3.0}, {"id": 3, "a": 4.0}])
    assert join.pending == 2
    found = joined(join, [{"id": 1, "y": 5.0}, {"id": 2, "y": 1.0}, {"id": 3, "y": 1.0}], 4)
    assert found == [(2, {"id": 1, "a": 3.0, "y": 5.0}), (3, {"id": 3, "a": 4.0, "y": 1.0})]


class Rows(PredictionSink):
    def __init__(self):
        self.rows = []

    def write(self, rows):
        targets = rows.targets if isinstance(rows.targets, list) else rows.targets[:, 0].tolist()
        columns = (rows.places, rows.versions.tolist(), targets, rows.losses.tolist())
        self.rows += zip(*columns, strict=True)


def settled(join, pipeline, batch):
    return join.settle(pipeline.process(join.join(batch)))


def counted(join, pipeline, *batches):
    """All outcomes, as a summary has them."""
    sums = {"pending": 0}
    for batch in batches:
        processed = settled(join, pipeline, batch)
        for outcome, events in processed.outcomes.items():
            sums[outcome] = sums.get(outcome, 0) + events
    sums["pending"] = join.pending
    return {outcome: events for outcome, events in sums.items() if events}


def pipeline_of(predictions=None, schema=SCHEMA):
    return Pipeline(MoERegressor(1, warmup=3), schema, PrequentialScores(), predictions)


class TestCounting:
    def test_every_event_counts_once(self):
        records = [
            {"id": 1, "a": 2.0},  # learned
            {"id": 2, "a": 2.0},  # expires for the next but one
            {"id": 3, "y": 2.0},  # waits
            {"id": 2, "a": 3.0},  # waits
            {"id": 1, "y": 1.0},
            {"a": 3.0, "y": 1.0},  # learned
            {"id": 4, "a": 5.0, "y": 1.0, "w": 0.0},  # predicted only
            {"a": 3.0},  # rejected
            b"{",  # rejected
        ]
        found = counted(joining(), pipeline_of(), batch_of(records))
        assert found == {"learned": 2, "predicted_only": 1, "rejected": 2, "pending": 2, "expired": 1}

    def test_features_that_are_refused_are_neither_pending_nor_expired(self):
        bad, label = {"id": 1, "a": "no"}, {"id": 1, "y": 1.0}
        good = {"a": 1.0, "y": 1.0}
        once, twice = joining(), joining()
        pipeline = pipeline_of()
        # The event is refused for the same reason, with a letter of its own that holds the label.
        assert counted(once, pipeline, batch_of([good, bad, label])) == {"learned": 1, "rejected": 2}
        assert counted(twice, pipeline, batch_of([good, bad]), batch_of([label])) == {"learned": 1, "rejected": 2}
        lost = joining(Limits(10, expire_events=1))
        assert counted(lost, pipeline, batch_of([bad]), batch_of([good]), batch_of([good])) == {
            "learned": 2,
            "rejected": 1,
        }
        lost = joining(Limits(10, expire_events=1))
        assert counted(lost, pipeline, batch_of([bad, good, good])) == {"learned": 2, "rejected": 1}

    def test_a_refused_event_is_in_the_letters_as_one_record(self):
        pipeline = pipeline_of()
        processed = settled(
            joining(), pipeline, batch_of([{"a": 1.0, "y": 1.0}, {"id": 1, "a": 2.0}, {"id": 1, "y": "?"}])
        )
        [letter] = processed.letters
        assert (letter.place, letter.reason, json.loads(letter.record)) == (
            {"at": 1},
            "wrong_type",
            {"id": 1, "a": 2.0, "y": "?"},
        )
        assert letter.format == "jsonl"
        [letter] = settled(joining(), pipeline_of(), batch_of([{"y": 1.0}])).letters
        assert (letter.reason, letter.format) == ("no_key", None)  # no replay could learn it

    def test_a_batch_of_early_labels_alone(self):
        batch = batch_of([{"id": 1, "y": 1.0}, {"id": 2, "y": 1.0}], skipped=3)
        assert counted(joining(), pipeline_of(), batch) == {"pending": 2, "skipped": 3}


def test_predictions_have_a_row_when_features_come_and_one_when_their_label_does():
    rows = Rows()
    pipeline = pipeline_of(PredictionWriter(rows, 0.0, gate=False))
    full = [{"a": float(i), "y": 2.0 * i} for i in range(5)]
    settled(joining(), pipeline, batch_of([*full, {"id": 1, "a": 1.0}, full[0], {"id": 1, "y": 2.0}]))
    (place, version, target, loss), *_, (place_2, version_2, target_2, loss_2) = rows.rows[5:]
    assert (place, version) == ({"at": 5}, 5)
    assert math.isnan(target)
    assert math.isnan(loss)
    assert (place_2, version_2, target_2) == ({"at": 5}, 6, 2.0)
    assert math.isfinite(loss_2)
    rows.rows.clear()
    settled(joining(), pipeline, batch_of([{"id": 1, "y": 2.0}, {"id": 1, "a": 1.0}]))
    assert [(place, target) for place, _, target, _ in rows.rows] == [({"at": 1}, 2.0)], "the label came first"


LEARNERS = {
    "regressor": (MoERegressor, ("y",), lambda i: {"y": math.cos(i)}),
    "outputs": (MoEMultiTargetRegressor, ("y", "z"), lambda i: {"y": math.cos(i), "z": math.sin(i)}),
    "classifier": (MoEClassifier, ("y",), lambda i: {"y": "low" if math.cos(i) < 0 else "high"}),
}


@pytest.mark.parametrize("kind", LEARNERS)
def test_what_is_learned_is_what_complete_events_in_the_order_of_their_labels_teach(kind):
    model, targets, target = LEARNERS[kind]
    schema = Schema(targets, ignore=("id",))
    features = [{"id": i, "a": math.sin(3 * i), "b": math.sin(7 * i)} for i in range(200)]
    labels = [{"id": i, **target(i)} for i in np.random.default_rng(0).permutation(200).tolist()]
    scores = ClassificationScores if kind == "classifier" else lambda: PrequentialScores(len(targets))

    def taught(records):
        pipeline = Pipeline(model(2, warmup=50), schema, scores())
        if kind == "outputs":
            pipeline.model.set_targets(targets)
        settled(LabelJoin("id", schema, PLENTY), pipeline, batch_of(records))
        return pipeline

    apart = taught([*features, *labels])
    whole = taught([features[label["id"]] | label for label in labels])
    assert apart.model.n == 200
    assert apart.model.state_digest() == whole.model.state_digest()
    assert apart.scores.to_json() == whole.scores.to_json()


class TestArrays:
    def busy(self, first=0):
        join = joining()
        pipeline = pipeline_of()
        records = [{"id": 1, "a": 2.0}, {"id": "two", "y": 2.0}, {"id": 3, "a": "no"}, {"id": 4, "a": 1.5}]
        settled(join, pipeline, batch_of(records, first, times=[5, 4, 9, 8], keys=[b"\xff", None, b"", b"k"]))
        return join, pipeline.model

    def test_a_restored_one_continues_alike(self):
        join, _ = self.busy()
        other = joining()
        other.restore({name: array.copy() for name, array in join.arrays().items()})
        assert (other.pending, join.pending) == (3, 3)
        rest = batch_of([{"id": "two", "a": 2.0}, {"id": 3, "y": 1.0}, {"id": 1, "y": 1.0}], 4)
        before, after = join.join(rest), other.join(rest)
        assert before.block == after.block
        assert (
            [before.place(i) for i in range(3)]
            == [after.place(i) for i in range(3)]
            == [{"at": at} for at in (4, 2, 0)]
        )
        assert before.keys == after.keys == [None, b"", b"\xff"]
        assert (other.pending, join.pending) == (1, 1)
        for name, array in join.arrays().items():
            assert array.tobytes() == other.arrays()[name].tobytes()

    def test_a_lower_bound_takes_effect_and_an_empty_one_can_be_kept(self):
        join, _ = self.busy()
        other = joining(Limits(2))
        other.restore(join.arrays())
        joined(other, [{"id": 9, "a": 1.0}])
        assert other.pending == 2
        empty = joining()
        empty.restore(joining().arrays())
        assert empty.pending == 0

    def test_the_digest_is_that_of_model_and_what_waits(self):
        join, model = self.busy()
        arrays = join.arrays()
        assert digest_with(model, {}) == model.state_digest()
        digest = digest_with(model, arrays)
        assert digest != model.state_digest()
        assert digest == digest_with(model, label_arrays({**model.arrays(), **arrays}))
        elsewhere, same = self.busy(first=100)
        assert digest_with(same, elsewhere.arrays()) == digest
        joined(join, [{"id": 4, "y": 1.0}])
        assert digest_with(model, join.arrays()) != digest
