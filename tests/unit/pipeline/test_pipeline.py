"""What becomes of records, and that nothing depends on where their stream was cut or on what was rejected."""

import json
import math
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe.ports import Unreadable
from streammoe.testing.batches import batch_of
from streammoe_connectors.formats.records import no_records
from tests.pairs import pairwise_cases
from tests.unit.pipeline.streams import (
    FORMATS,
    KINDS,
    TARGETS,
    WARM_UP,
    event,
    features_of,
    pipeline,
    run,
)

LATE_COLUMNS = {"late_columns": True}
FAR = {"a": 1e60, "b": 1, "y": 1}
"""Out of range."""


def good(i, **more):
    return {"a": math.sin(3 * i), "b": math.cos(5 * i), "y": math.cos(i), **more}


# --- outcomes and reasons -------------------------------------------------------------------------------------------


def test_outcomes_add_up_and_letters_come_in_the_order_of_the_records():
    records = [FAR, b"{", good(0), FAR, {"a": 1, "b": 2}, b"{", good(1), {"b": None, "y": 3}]
    batch = replace(batch_of(records, "jsonl"), skipped=3)
    line = pipeline("regressor")
    processed = line.process(batch)
    assert processed.outcomes == {"learned": 3, "predicted_only": 1, "rejected": 4, "skipped": 3}
    assert processed.reasons == {"out_of_range": 2, "malformed": 2}
    rejected = [0, 1, 3, 5]
    assert [letter.place["row"] for letter in processed.letters] == rejected == np.flatnonzero(processed.bad).tolist()
    assert [letter.record for letter in processed.letters] == [batch.record(i).rstrip() for i in rejected]
    assert line.model.n == 3 == line.scores.log_loss.count


@pytest.mark.parametrize(("format", "instead"), [("jsonl", b"!"), ("csv", b'"')])
def test_what_the_source_could_not_read_is_rejected_for_the_reason_that_it_gave(format, instead):
    for at in (0, 1):
        records = [{"a": 1, "y": 2}] * 2
        records[at : at + 1] = [instead]
        batch = replace(batch_of(records, format), unreadable={at: Unreadable("no_key", "why", b"the record")})
        processed = pipeline("regressor").process(batch)
        assert (processed.outcomes["learned"], processed.outcomes["rejected"]) == (1, 1)
        [letter] = processed.letters
        assert (letter.place["row"], letter.reason, letter.detail) == (at, "no_key", "why")
        assert (letter.record, letter.format) == (b"the record", None), "no replay may learn it"


def test_rows_of_tables_become_letters_that_can_be_read_again():
    (letter,) = pipeline("regressor").process(batch_of([good(0), FAR], "arrow")).letters
    assert (letter.format, letter.columns) == ("jsonl", None)
    assert json.loads(letter.record) == FAR


# --- columns --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [{"q": 1, **FAR}, {"q": 1, "y": 1e60}, {"q": "x", "y": 1}, {"y": 1}, b"{"], ids=str)
@pytest.mark.parametrize("sizes", [[1], ()], ids=["one by one", "at once"])
def test_columns_are_those_of_the_first_good_record_in_the_order_of_names(bad, sizes):
    line = pipeline("regressor")
    result = run(line, [bad, bad, {"y": 1, "b": 2, "a": 3}, good(0, d=1.0)], "jsonl", sizes)
    assert line.model.feature_names == ["a", "b"]
    assert [row for row, *_ in result.letters] == [0, 1]
    assert ("no_features" in result.letters[0]) == (bad == {"y": 1})


def test_listed_features_are_used_and_no_others_and_ignored_fields_may_hold_anything():
    line = pipeline("regressor", schema={"features": ("b", "missing", "a")})
    run(line, [{"e": "text", "a": 1, "b": 2, "y": 3}])
    assert line.model.feature_names == ["a", "b", "missing"]
    for late, columns in ((False, ["a"]), (True, ["a", "k"])):
        line = pipeline("regressor", schema={"ignore": ("id", "note"), "late_columns": late})
        records = [{"id": "x-1", "a": 1, "note": [1], "y": 3}, {"id": math.nan, "a": 1, "k": 1, "note": "x", "y": 3}]
        assert run(line, records).outcomes["learned"] == 2
        assert line.model.fields == columns


def test_a_csv_without_the_target_is_an_error_whether_or_not_records_follow():
    line = pipeline("regressor")
    for header in (batch_of([{"a": 1, "b": 2}], "csv"), no_records("a.csv", {}, 0, "csv", ("a", "b"))):
        with pytest.raises(SourceError):
            line.process(header)
    assert line.model.feature_names == []
    assert not line.process(no_records("a.csv", {}, 2, "csv", ("a", "y"))).letters


# --- every kind of model, value and format --------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "format"), list(zip(KINDS, FORMATS, strict=True)))
def test_a_pipeline_learns_and_predicts_what_a_loop_over_events_does(kind, format):
    events = changed(kind, [], 20)
    line, loop = (pipeline(kind, schema=LATE_COLUMNS) for _ in range(2))
    run(line, events, format, [7])
    # The daemon has all fields of the first record before it has the first level.
    loop.model.set_columns(["a", "b", "c", "t"])
    errors = []
    for held in events:
        targets = {name: held[name] for name in TARGETS[kind]}
        y = targets if kind == "outputs" else held[TARGETS[kind][0]]
        if kind == "regressor":
            errors.append((y - loop.model.predict_one(features_of(held))) ** 2)
        loop.model.learn_one(features_of(held), y, held["w"])
    assert line.model.feature_names == loop.model.feature_names
    assert line.model.state_digest() == loop.model.state_digest()
    if kind == "regressor":
        assert line.scores.rmse()["running"] == pytest.approx(math.sqrt(np.mean(errors)), rel=1e-9)


CHANGES = [
    *[{"a": math.nan}, {"a": 1e60}, {"c": "violet"}, {"c": "violet", "a": 1e60}, {"c": None, "a": None}],
    *[{"w": 0}, {"w": 0.0, "c": "white"}, {"w": None}, {"w": -1.0}, {"w": 2e6, "c": "white"}, {"t": 1.8e12}],
    *[{"t": None}, {"k": None}, {"d": None}, {"k": 1e60}, {"k": math.nan}, {"d": "new", "c": "new"}],
]
OF_TARGETS = {
    "regressor": [{"y": None}, {"y": None, "c": "black"}, {"y": math.inf}, {"y": 1e60, "c": "black"}],
    "outputs": [{"y": None, "z": None}, {"y": None}, {"z": None, "c": "black"}, {"z": -1e60}],
    "classifier": [
        *[{"label": None}, {"label": None, "c": "black"}, {"label": "rare"}, {"label": "rare", "c": "black"}],
        *[{"label": "other", "w": 0}, {"label": "other", "a": 1e60}, {"label": "other", "w": -1}],
    ],
}
N = 45


def changed(kind, changes, late):
    """Return good events but for `changes`; from event `late` on they have two more columns."""
    events = [event(kind, i) for i in range(N)]
    for i in range(late, N):
        events[i] = {**events[i], "k": math.cos(i), "d": "even" if i % 2 else "odd"}
    for at, change in changes:
        events[at] |= change
    return events


@settings(max_examples=6)
@given(data=st.data())
def test_cuts_formats_and_rejected_records_leave_no_trace(data):
    kind = data.draw(st.sampled_from(KINDS))
    change = st.sampled_from([*CHANGES, *OF_TARGETS[kind]])
    changes = data.draw(st.lists(st.tuples(st.integers(0, N - 1), change), max_size=15))
    events = changed(kind, changes, data.draw(st.integers(1, N)))
    sizes = data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=6))
    arguments = {
        "schema": LATE_COLUMNS if data.draw(st.booleans()) else {},
        "warmup": data.draw(st.sampled_from([9, 30])),
    }
    if kind == "classifier":
        arguments["max_classes"] = data.draw(st.sampled_from([3, 4, 100]))
    whole, cut, clean = (pipeline(kind, **arguments) for _ in range(3))
    expected = run(whole, events)
    assert run(cut, events, data.draw(st.sampled_from(["csv", "arrow"])), sizes) == expected
    assert cut.model.feature_names == whole.model.feature_names
    assert cut.model.state_digest() == whole.model.state_digest()
    for name, average in whole.scores.averages.items():
        assert cut.scores.averages[name].means() == pytest.approx(average.means(), rel=1e-9)
    rejected = {row for row, *_ in expected.letters}
    run(clean, [held for i, held in enumerate(events) if i not in rejected], "jsonl", sizes)
    assert clean.model.state_digest() == whole.model.state_digest()


# --- what is not learned --------------------------------------------------------------------------------------------

PLACES = {"first": 0, "during warm-up": 15, "before it ends": WARM_UP - 1, "after it": WARM_UP}
OUT_OF_RANGE = ("out_of_range", "validate")
BAD_FEATURES = [
    *[({"a": math.nan}, "not_finite", "decode"), ({"a": 1e300}, *OUT_OF_RANGE)],
    *[({"a": 1e9}, *OUT_OF_RANGE), ({"t": 1.8e12}, *OUT_OF_RANGE)],  # beyond range_factor, in milliseconds
    *[({"a": [1.0]}, "wrong_type", "decode"), ({"w": -1.0}, "out_of_range", "decode")],
]
BAD_TARGETS = {
    "regressor": [({"y": math.inf}, "not_finite", "decode"), ({"y": -1e60}, *OUT_OF_RANGE)],
    "outputs": [({"z": -1e60}, *OUT_OF_RANGE), ({"z": None}, "partial_target", "decode")],
    "classifier": [({"label": "Low"}, "unknown_class", "validate"), ({"label": "l" * 257}, "out_of_range", "decode")],
}
ARGUMENTS = {"classifier": {"classes": ("some", "low", "high")}}


@cache
def undisturbed(kind):
    """The digest of a model that has learned the sound events alone."""
    line = pipeline(kind, **ARGUMENTS.get(kind, {}))
    run(line, [event(kind, i) for i in range(N)])
    return line.model.state_digest()


@pytest.mark.parametrize("case", pairwise_cases(kind=KINDS, format=FORMATS, place=PLACES, size=[1, N]))
def test_what_is_not_learned_brings_no_level_column_or_class_and_leaves_not_one_bit(case):
    kind, place = case["kind"], PLACES[case["place"]]
    expected = [*BAD_FEATURES, *BAD_TARGETS[kind]]
    # Even of a record that is only predicted the first one says which columns there are.
    new = {"c": "violet", "k": 0.5, "d": "odd"} if place else {}
    bad = [{**event(kind, 7), **new, **instead} for instead, *_ in expected]
    idle = [{**event(kind, 7), **new, **dict.fromkeys(TARGETS[kind])}, {**event(kind, 7), **new, "w": 0}]
    sound = [event(kind, i) for i in range(N)]
    line = pipeline(kind, schema=LATE_COLUMNS, **ARGUMENTS.get(kind, {}))
    result = run(line, [*sound[:place], *bad, *idle, *sound[place:]], case["format"], [case["size"]])
    assert result.letters == [(place + i, reason, stage) for i, (_, reason, stage) in enumerate(expected)]
    assert result.outcomes["predicted_only"] == len(idle)
    assert line.model.state_digest() == undisturbed(kind)


def test_a_classifier_takes_the_classes_that_it_was_given_or_so_many():
    labels = ["v", "y", "x", "z", "y", "w"]
    events = [{**event("classifier", i), "label": label} for i, label in enumerate(labels)]
    events[0]["q"] = 1.0
    for arguments, rejected, known in (
        ({"classes": ("y", "x")}, [0, 3, 5], ["y", "x"]),
        ({"max_classes": 3}, [3, 5], ["v", "y", "x"]),
    ):
        line = pipeline("classifier", **arguments)
        assert run(line, events, "csv").letters == [(i, "unknown_class", "validate") for i in rejected]
        assert line.model.class_labels == known
        assert ("q" in line.model.fields) == (0 not in rejected)


# --- limits ---------------------------------------------------------------------------------------------------------


def test_late_columns_join_up_to_a_limit():
    """Columns made up by a producer must not fill the memory, whether one by one or all at once."""
    one_by_one = [{"a": math.sin(i), f"k{i:03}": 1.0, "y": math.cos(i)} for i in range(30)]
    at_once = [{"a": math.sin(i), "y": math.cos(i)} for i in range(30)]
    at_once[3] |= {f"k{i:03}": 1.0 for i in range(500)}
    for events in (one_by_one, at_once):
        line = pipeline("regressor", schema={"late_columns": True, "max_columns": 7}, warmup=10)
        assert run(line, events, "jsonl", [11]).outcomes["learned"] == 30
        assert line.model.fields == ["a", *(f"k{i:03}" for i in range(6))]
    line = pipeline("regressor")
    run(line, at_once)
    assert line.model.fields == ["a"], "without permission"


def test_a_first_record_with_too_many_fields_makes_no_columns():
    wide = {**{f"k{i}": 1.0 for i in range(4)}, "y": 1.0}
    line = pipeline("regressor", schema={"max_columns": 3})
    result = run(line, [wide, wide, good(1), good(2), wide], "jsonl", [1, 4])
    # Later on, what else a record holds is ignored.
    assert result.letters == [(i, "too_many_columns", "decode") for i in (0, 1)]
    assert line.model.fields == ["a", "b"]
    header = pipeline("regressor", schema={"max_columns": 2})
    with pytest.raises(SourceError):
        run(header, [{**wide, "a": 1}], "csv")
    assert header.model.fields == []
    listed = pipeline("regressor", schema={"features": ("k0", "k1", "k2"), "max_columns": 2})
    assert run(listed, [wide], "csv").outcomes["learned"] == 1


def test_unknown_names_fill_neither_memory_nor_log(caplog):
    wide = {"y": 1.0, **{f"k{i}": 1 for i in range(9_999)}}
    changing = [good(i, **{f"n{i}": 1, f"m{i}": 1}) for i in range(300)]
    run(pipeline("regressor"), [good(0), *changing, wide], "jsonl", [1])
    assert len(caplog.records) == 50
    caplog.clear()
    line = pipeline("regressor")
    run(line, [good(0), wide], "jsonl", [1])
    assert len(caplog.messages) == 1
    assert len(caplog.text) < 600
    assert len(line._unknown) < 1000
