"""Labels that come later: which record becomes what, what expires, and how events are counted.

tests/property cuts the stream anywhere.
"""

import json
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from streammoe.errors import SourceError
from streammoe.estimators import MoERegressor
from streammoe.options import Lags
from streammoe.pipeline.label_join import LabelJoin
from streammoe.pipeline.pipeline import Pipeline
from streammoe.pipeline.schema import Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.pipeline.writing import PredictionWriter
from streammoe.ports import EXPIRED, Unreadable
from streammoe.settings import Labels
from tests import batches
from tests.unit.pipeline import streams

SCHEMA = Schema(("y",), ignore=("id", "by"), weight="w")
PLENTY = Labels(key="id")


def batch_of(records, first=0, *, times=None, **more):
    times = None if times is None else np.array(times, np.int64)
    return replace(batches.batch_of(records, "jsonl", first), timestamps=times, **more)


def joining(limits=PLENTY, schema=SCHEMA):
    return LabelJoin(limits, schema)


def joined(join, records, first=0, **more):
    """Return what is passed on of these records: row, and the record as JSON or the reason for its rejection."""
    found = join.join(batch_of(records, first, **more))
    whys = {i: unreadable.reason for i, unreadable in found.unreadable.items()}
    return [(found.location(i)["row"], whys.get(i) or json.loads(found.record(i))) for i in range(len(found))]


A, B = {"id": 1, "a": 2.0}, {"id": 1, "a": 3.0}
LABEL, OTHER = {"id": 1, "y": 5.0}, {"id": 1, "y": 4.0}
EVENT = {"id": 1, "a": 2.0, "y": 5.0}
JOINED = {
    "features pass, and their label makes the event": ([A, LABEL], [(0, A), (0, EVENT)], 0),
    "an absent target may be null": ([{**A, "y": None}, LABEL], [(0, {**A, "y": None}), (0, EVENT)], 0),
    "a label that comes first waits for its features": ([LABEL, A], [(1, EVENT)], 0),
    "a complete event passes, also without a key": ([EVENT, {"a": 2, "y": 5}], [(0, EVENT), (1, {"a": 2, "y": 5})], 0),
    "ignored fields, nulls and weights make no event complete": ([{**LABEL, "by": "me", "w": 2.0, "a": None}], [], 1),
    "the newer of two features waits": ([A, B, LABEL], [(0, A), (1, B), (1, {**B, "y": 5.0})], 0),
    "a second label waits like an early one": ([A, LABEL, OTHER], [(0, A), (0, EVENT)], 1),
    "keys are equal however they are written": (
        [A, {"id": "1", "y": 5.0}, {"id": 1.0, "y": 4}],
        [(0, A), (0, EVENT)],
        1,
    ),
    "halves without a key": ([{"a": 2.0}, {"id": "", "a": 2.0}, {"y": 2.0}], [(i, "no_key") for i in range(3)], 0),
    "keys that are none": (
        [{"id": [1], "a": 2}, {"id": "k" * 257, "a": 2}],
        [(0, "wrong_type"), (1, "out_of_range")],
        0,
    ),
}


def test_what_becomes_of_records():
    for name, (records, expected, pending) in JOINED.items():
        join = joining()
        assert (joined(join, records), join.pending) == (expected, pending), name


def test_what_cannot_be_read_passes_as_it_is_and_other_formats_are_an_error():
    join = joining()
    for record in (b"{", b"[1]", b'{"id": 1, "a": "\xff"}', b""):
        found = join.join(batch_of([record]))
        assert (found.record(0), found.unreadable, join.pending) == (record, {}, 0)
    bad = Unreadable("malformed", "why", b"bytes")
    found = join.join(batch_of([LABEL, b"", {"id": 2, "a": 1}], unreadable={1: bad}))
    assert (len(found), dict(found.unreadable), found.location(0)["row"]) == (2, {0: bad}, 1)
    cut = batch_of([b'{"id'], 1, too_long=True)
    assert join.join(cut) is cut
    with pytest.raises(SourceError):
        join.join(batches.batch_of([A], "csv"))


# --- the event ------------------------------------------------------------------------------------------------------


def event_of(features, label):
    return joining().join(batch_of([features, label])).record(1)


def test_values_of_the_features_stay_except_for_target_and_weight():
    features = {"id": 1, "a": 2.0, "b": None, "w": 1.0, "by": "x"}
    label = {"id": "1", "a": 3.0, "b": 4.0, "c": 5.0, "w": 2.0, "by": "z", "y": 6.0}
    assert json.loads(event_of(features, label)) == features | {"c": 5.0, "w": 2.0, "y": 6.0}
    assert json.loads(event_of(features, {"id": 1, "w": None, "y": 1}))["w"] == 1.0
    event = event_of(b'{"id":1,"a":0.10000000000000000555,"b":1e400}', b' {"id":1, "y":1.50}')
    assert event == b'{"id":1,"a":0.10000000000000000555,"b":1e400,"y":1.50}', "as they were written"
    assert json.loads(event_of(b'{"id":1,"a":NaN,"\\ud800":2}', {"id": 1, "y": 1}))["\ud800"] == 2


def test_the_time_of_the_stream_begins_with_the_first_that_is_known_and_never_goes_back_also_over_a_restart(caplog):
    limits = Labels(key="id", max_pending=100, expire_seconds=1.0)
    before, after = joining(limits), joining(limits)
    joined(before, [A])
    joined(before, [{"id": 2, "a": 2.0}])
    assert len(caplog.records) == 1, "without times"
    joined(before, [{"id": 3, "a": 2.0}, {"id": 4, "a": 2.0}], times=[50_000, 100])
    after.restore(before.arrays())
    late = [{"id": i, "y": 1.0} for i in (1, 4, 2)]
    assert [len(joined(after, late[:2], times=[51_000] * 2)), joined(after, late[2:], times=[51_001])] == [2, []]


# --- with a pipeline ------------------------------------------------------------------------------------------------


def settled(join, line, batch):
    return join.process(batch, line)


def line_of(**more):
    return streams.pipeline("regressor", schema={"ignore": ("id", "by")}, warmup=3, **more)


def test_what_expires_is_a_letter_if_wanted_and_counts_as_expired_alone():
    for limits, later, named in [
        (Labels(key="id", max_pending=1), [{"id": 2, "a": 1.0}], "max_pending = 1"),
        (Labels(key="id", max_pending=9, expire_events=1), [{"a": 1.0, "y": 1.0}] * 2, "expire_events = 1"),
        (Labels(key="id", max_pending=9, expire_seconds=1.5), [{"a": 1.0, "y": 1.0}] * 2, "expire_seconds = 1.5"),
        (PLENTY, [B], "that key"),
    ]:
        first = [{"a": 1.0, "y": 1.0}, A]
        for keep in (False, True):
            join, line = LabelJoin(limits.model_copy(update={"keep_expired": keep}), SCHEMA), line_of()
            times = [0, 0, *(1_000 * (i + 1) for i in range(len(later)))]
            processed = settled(join, line, batch_of([*first, *later], times=times))
            assert (processed.outcomes["expired"], processed.outcomes["rejected"], processed.reasons) == (1, 0, {})
            assert not processed.bad.any()
            assert len(processed.letters) == keep
        (letter,) = processed.letters
        assert (letter.location["row"], letter.stage, letter.reason, letter.format) == (1, "join", EXPIRED, None)
        assert json.loads(letter.record) == A
        assert named in letter.detail


def test_predictions_have_a_row_when_features_come_and_one_when_their_label_does():
    kept = []
    line = line_of(predictions=PredictionWriter(SimpleNamespace(write=kept.append), 0.0, gate=False))
    full = [{"a": float(i), "y": 2.0 * i} for i in range(5)]
    early = [{"id": 2, "y": 2.0}, {"id": 2, "a": 1.0}]
    settled(joining(), line, batch_of([*full, A, full[0], LABEL, *early]))
    [rows] = kept
    assert [place["row"] for place in rows.locations[5:]] == [5, 6, 5, 9]
    assert rows.versions[5:].tolist() == [5, 5, 6, 7]
    np.testing.assert_array_equal(rows.targets[5:, 0], [math.nan, 0.0, 5.0, 2.0])
    assert np.isfinite(rows.losses[5:]).tolist() == [False, True, True, True]


# --- lags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("delay", "size"), [(1, 7), (3, 1), (40, 200)])
def test_a_late_event_is_learned_with_the_lags_that_its_prediction_saw(delay, size):
    """Labels come after so many more features; the reference holds each event back by itself."""
    arguments = {"n_experts": 2, "warmup": 30, "lags": Lags(2, ("a",)), "numeric": ("a",)}
    targets = [round(math.sin(i) + math.cos(i * i), 3) for i in range(90)]
    events = [{"a": round(math.cos(3 * i), 3)} for i in range(90)]
    reference, seen, predicted = MoERegressor(**arguments), [], []
    records = []
    for i in range(90 + delay):
        if i < 90:
            seen.append({**events[i], **reference.lags_of_next()})
            predicted.append(reference.predict_one(seen[i]))
            records.append({"id": i, **events[i], **({"y": None} if i % 2 else {})})
        if i >= delay:
            reference.learn_one(seen[i - delay], targets[i - delay])
            records.append({"id": i - delay, "y": targets[i - delay]})
    written = []
    schema = Schema(("y",), ignore=("id",), numeric=frozenset("a"))
    writer = PredictionWriter(SimpleNamespace(write=written.append), 0.0, gate=False)
    line = Pipeline(MoERegressor(**arguments), schema, PrequentialScores(), writer)
    join = LabelJoin(PLENTY, schema, 4)
    for start in range(0, len(records), size):
        assert not join.process(batch_of(records[start : start + size], start), line).letters
    assert line.model.state_digest() == reference.state_digest()
    ahead = np.concatenate([rows.predictions[np.isnan(rows.targets)] for rows in written])
    assert ahead.tolist() == predicted
