"""What becomes of records, and that nothing depends on where their stream was cut."""

import json
import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe.estimators import MoERegressor
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import PrequentialScores
from streammoe.ports import Unreadable
from streammoe.testing import ListSource
from streammoe_connectors.formats.records import no_records
from tests.unit.pipeline import streams

TARGETS = ("y",)


def pipeline(features=None, ignore=(), **arguments):
    model = MoERegressor(2, **({"warmup": 40, "warmup_restarts": 1, "standardize": True} | arguments))
    return Pipeline(model, Schema(TARGETS, features, ignore), PrequentialScores())


def batches(records, format="jsonl", columns=None, sizes=(), **script):
    source = ListSource(records, format=format, columns=columns, sizes=sizes, **script)
    source.seek(None)
    while not source.finished:
        yield source.poll(0.0)


def stream(line, records, **script):
    """Everything that a pipeline has to say about these records."""
    fresh = line.model.state_digest()
    outcomes, reasons, letters, bad = Counter(), Counter(), [], []
    for batch in batches(records, **script):
        processed = line.process(batch)
        assert len(processed.bad) == len(batch)
        # Checked at once, since the memory of a model that took up a refused record is not to be trusted any more.
        assert line.model.feature_names or line.model.state_digest() == fresh, "refused records left a trace"
        outcomes.update(processed.outcomes)
        reasons.update(processed.reasons)
        letters += processed.letters
        bad += processed.bad.tolist()
    return outcomes, reasons, letters, bad


def good(i):
    a, b = math.sin(3 * i), math.cos(5 * i)
    return b'{"a": %.4f, "b": %.4f, "y": %.4f}' % (a, b, 2 * a if a > 0 else b)


# --- outcomes and reasons -------------------------------------------------------------------------------------------


def test_what_became_of_records_adds_up():
    records = [good(0), b"{", b'{"a": 1, "b": 2}', good(1), b'{"a": 1e60, "y": 1}', b'{"b": null, "y": 3}']
    line = pipeline()
    outcomes, reasons, letters, _ = stream(line, records, blank={0: 2, 3: 1}, sizes=[2, 3])
    assert outcomes == {"learned": 3, "predicted_only": 1, "rejected": 2, "skipped": 3}
    assert outcomes.total() == len(records) + 3
    assert reasons.total() == len(letters) == outcomes["rejected"]
    assert line.model.n == outcomes["learned"] == line.scores.log_loss.count


def test_letters_come_in_the_order_of_the_records():
    records = [b'{"a": 1e60, "b": 1, "y": 1}', b"{", good(0), b'{"a": 1e60, "b": 1, "y": 1}', b"{", good(1), b"{"]
    *_, letters, bad = stream(pipeline(), records)
    assert [letter.place["index"] for letter in letters] == [0, 1, 3, 4, 6] == np.flatnonzero(bad).tolist()
    assert [letter.record for letter in letters] == [records[i] for i in (0, 1, 3, 4, 6)]


@pytest.mark.parametrize(("sound", "instead"), [(b'{"a": 1, "y": 2}', b"!"), (b"1,2", b'"')], ids=["jsonl", "csv"])
def test_what_the_source_could_not_read_is_rejected_for_the_reason_that_it_gave(sound, instead):
    for at in (0, 1):
        lines = [sound + b"\n"] * 2
        lines[at] = instead + b"\n"
        script = {"format": "jsonl" if sound[:1] == b"{" else "csv", "columns": ("a", "y")}
        (batch,) = batches([line[:-1] for line in lines], **script)
        processed = pipeline().process(replace(batch, unreadable={at: Unreadable("no_key", "why", sound)}))
        assert (processed.outcomes["learned"], processed.outcomes["rejected"]) == (1, 1)
        [letter] = processed.letters
        assert (letter.place["index"], letter.reason, letter.detail) == (at, "no_key", "why")
        assert (letter.record, letter.format) == (sound, None), "no replay may learn it"


def test_the_scores_are_those_of_predictions_made_before_learning():
    line, twin = pipeline(), pipeline()
    stream(line, [good(i) for i in range(100)], sizes=[9])
    errors = []
    for i in range(100):
        (batch,) = batches([good(i)])
        values = json.loads(good(i))
        y = values.pop("y")
        errors.append((y - twin.model.predict_one(values)) ** 2)
        twin.process(batch)
    assert line.scores.rmse()["running"] == pytest.approx(math.sqrt(np.mean(errors)), rel=1e-9)


# --- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_first_good_record_in_the_order_of_names():
    line = pipeline()
    stream(line, [b'{"z": "bad", "c": 1, "y": 2}', b'{"b": 1, "y": 2, "a": 3}', b'{"d": 1, "y": 2}'])
    assert line.model.feature_names == ["a", "b"]


def test_a_rejected_first_record_leaves_no_trace_in_the_columns():
    for bad in (b'{"q": 1, "a": 1e60, "y": 1}', b'{"q": 1, "y": 1e60}', b'{"q": "x", "y": 1}', b'{"y": 1}', b"{"):
        for sizes in ([1], [2], [10]):
            line = pipeline()
            outcomes, reasons, letters, _ = stream(line, [bad, bad, *map(good, range(5))], sizes=sizes)
            assert line.model.feature_names == ["a", "b"]
            assert (outcomes["rejected"], outcomes["learned"]) == (2, 5)
            assert [letter.place["index"] for letter in letters] == [0, 1]
            assert (reasons == {"no_features": 2}) == (bad == b'{"y": 1}')


def test_listed_features_are_used_and_no_others_and_ignored_fields_may_hold_anything():
    line = pipeline(features=("b", "missing", "a"))
    stream(line, [b'{"c": "text", "a": 1, "b": 2, "y": 3}'])
    assert line.model.feature_names == ["a", "b", "missing"]
    assert line.model.n == 1
    for late, columns in ((False, ["a"]), (True, ["a", "d"])):
        line = Pipeline(MoERegressor(2), Schema(TARGETS, None, ("id", "note"), late_columns=late), PrequentialScores())
        records = [b'{"id": "x-1", "a": 1, "note": [1], "y": 3}', b'{"id": NaN, "a": 1, "d": 1, "note": "x", "y": 3}']
        outcomes, *_ = stream(line, records)
        assert line.model.fields == columns
        assert outcomes["learned"] == 2


def test_a_csv_without_the_target_is_an_error_whether_or_not_records_follow():
    (batch,) = batches([b"1,2"], format="csv", columns=("a", "b"))
    line = pipeline()
    for header in (batch, no_records("a.csv", {}, 0, "csv", ("a", "b"))):
        with pytest.raises(SourceError):
            line.process(header)
    assert line.model.feature_names == []
    assert not line.process(no_records("a.csv", {}, 2, "csv", ("a", "y"))).letters


def test_csv_files_with_their_columns_in_another_order_are_the_same_events():
    one, other = pipeline(), pipeline()
    stream(one, [b"1,2,3", b"4,,6"], format="csv", columns=("a", "b", "y"))
    stream(other, [b"3,2,1", b"6,,4"], format="csv", columns=("y", "b", "a"))
    assert one.model.state_digest() == other.model.state_digest()


# --- every kind of model, value and format --------------------------------------------------------------------------

LATE_COLUMNS = {"late_columns": True}
CHANGES = [
    {"a": math.nan},
    {"a": 1e60},
    {"c": "violet"},
    {"c": "violet", "a": 1e60},
    {"c": None, "a": None},
    {"w": 0},
    {"w": 0.0, "c": "white"},
    {"w": None},
    {"w": -1.0},
    {"w": 2e6, "c": "white"},
    {"t": 1.8e12},
    {"t": None},
]
OF_TARGETS = {
    "regressor": [{"y": None}, {"y": None, "c": "black"}, {"y": math.inf}, {"y": 1e60, "c": "black"}],
    "outputs": [{"y": None, "z": None}, {"y": None}, {"z": None, "c": "black"}, {"z": -1e60}],
    "classifier": [
        {"label": None},
        {"label": None, "c": "black"},
        {"label": "rare"},
        {"label": "rare", "c": "black"},
        {"label": "other", "w": 0},
        {"label": "other", "a": 1e60},
        {"label": "other", "w": -1},
    ],
}
OF_LATE_COLUMNS = [
    {"k": None, "d": None},
    {"k": None},
    {"d": None},
    {"k": 1e60},
    {"k": math.nan},
    {"w": 0},
    {"d": "new", "c": "new"},
]


def changed(kind, changes, late, late_changes):
    """Good events but for `changes`; from event `late` on they have two more columns, with changes of their own."""
    events = [streams.event(kind, i) for i in range(60)]
    for at, change in changes:
        events[at] |= change
    for i in range(late, 60):
        events[i] = {**events[i], "k": math.cos(i), "d": "even" if i % 2 else "odd"}
    for at, change in late_changes:
        if late + at < 60:
            events[late + at] |= change
    return events


def changes_for(kind):
    return st.lists(st.tuples(st.integers(0, 59), st.sampled_from([*CHANGES, *OF_TARGETS[kind]])), max_size=12)


def check_that_cuts_and_formats_show_in_nothing(data):
    kind = data.draw(st.sampled_from(streams.KINDS))
    late_changes = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(OF_LATE_COLUMNS)), max_size=5)
    events = changed(kind, data.draw(changes_for(kind)), data.draw(st.integers(1, 60)), data.draw(late_changes))
    sizes = data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=6))
    arguments = {
        "schema": LATE_COLUMNS if data.draw(st.booleans()) else {},
        "warmup": data.draw(st.sampled_from([9, 40])),
    }
    if kind == "classifier":
        arguments["max_classes"] = data.draw(st.sampled_from([3, 4, 100]))
    whole, in_csv, in_arrow, clean = (streams.pipeline(kind, **arguments) for _ in range(4))
    expected = streams.run(whole, streams.stream_of(events, "jsonl"))
    for line, written in ((in_csv, "csv"), (in_arrow, "arrow")):
        found = streams.run(line, streams.stream_of(events, written, sizes))
        assert line.model.feature_names == whole.model.feature_names
        assert line.model.state_digest() == whole.model.state_digest()
        assert (found.outcomes, found.letters) == (expected.outcomes, expected.letters)
        for name, average in whole.scores.averages.items():
            assert line.scores.averages[name].means() == pytest.approx(average.means(), rel=1e-9)
    # What was rejected is as if it had never come.
    rejected = {row for row, _, _ in expected.letters}
    streams.run(clean, streams.stream_of([held for i, held in enumerate(events) if i not in rejected], "jsonl", sizes))
    assert clean.model.state_digest() == whole.model.state_digest()
    assert whole.model.is_finite()


@settings(deadline=None, max_examples=10)
@given(data=st.data())
def test_cuts_and_formats_show_in_nothing(data):
    check_that_cuts_and_formats_show_in_nothing(data)


@pytest.mark.exhaustive
@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_cuts_and_formats_show_in_nothing_whatever_comes(data):
    check_that_cuts_and_formats_show_in_nothing(data)


@pytest.mark.parametrize(("kind", "format"), list(zip(streams.KINDS, streams.FORMATS, strict=True)))
def test_a_pipeline_learns_what_a_loop_over_events_does(kind, format):
    events = changed(kind, [], 30, [])
    line, loop = (streams.pipeline(kind, schema=LATE_COLUMNS) for _ in range(2))
    streams.run(line, streams.stream_of(events, format, [7]))
    # The daemon has all fields of the first record before it has the first level.
    loop.model.set_columns(["a", "b", "c", "t"])
    for held in events:
        targets = {name: held[name] for name in streams.TARGETS[kind]}
        x = {name: value for name, value in held.items() if name not in {*targets, "w"}}
        loop.model.learn_one(x, targets if kind == "outputs" else next(iter(targets.values())), held["w"])
    assert line.model.feature_names == loop.model.feature_names
    assert line.model.state_digest() == loop.model.state_digest()


@pytest.mark.parametrize(("kind", "at"), [("regressor", 39), ("outputs", 3), ("classifier", 40)])
def test_what_comes_late_in_one_event_comes_together_or_not_at_all(kind, at):
    news = {"k": 0.5, "d": "odd", "c": "violet"} | ({"label": "rare"} if kind == "classifier" else {})
    none = dict.fromkeys(streams.TARGETS[kind])
    without = [streams.event(kind, i) for i in range(60)]
    for bad in ({"a": 1e60}, {"w": -1.0}, {"k": 1e60}, {"k": "x"}, {"d": []}, {"w": 0}, none):
        clean, line = (streams.pipeline(kind, schema=LATE_COLUMNS) for _ in range(2))
        streams.run(clean, streams.stream_of(without, "jsonl"))
        idle = {**streams.event(kind, 5), **news, **bad}
        streams.run(line, streams.stream_of([*without[:at], idle, *without[at:]], "jsonl"))
        assert line.model.state_digest() == clean.model.state_digest(), bad
    line = streams.pipeline(kind, schema=LATE_COLUMNS)
    streams.run(line, streams.stream_of([*without[:at], {**streams.event(kind, 5), **news}, *without[at:]], "jsonl"))
    assert set(line.model.feature_names) - set(clean.model.feature_names) == {"k", "d=odd", "c=violet"}
    if kind == "classifier":
        assert set(line.model.class_labels) - set(clean.model.class_labels) == {"rare"}


def test_a_column_that_comes_late_joins_only_where_it_may():
    events = changed("regressor", [], 30, [(0, {"k": 1e60})])
    for late, columns in ((True, ["a", "b", "c", "t", "d", "k"]), (False, ["a", "b", "c", "t"])):
        line = streams.pipeline("regressor", schema={"late_columns": late})
        streams.run(line, streams.stream_of(events, "csv", [9]))
        assert line.model.fields == columns


def test_a_classifier_with_given_classes_takes_no_others_and_one_without_so_many_only():
    events = [{**streams.event("classifier", i), "label": label} for i, label in enumerate(["x", "y", "z", "x", "v"])]
    fixed = streams.pipeline("classifier", classes=("y", "x"))
    assert streams.run(fixed, streams.stream_of(events, "csv")).letters == [
        (2, "unknown_class", "validate"),
        (4, "unknown_class", "validate"),
    ]
    full = streams.pipeline("classifier", max_classes=3)
    assert streams.run(full, streams.stream_of(events, "csv")).letters == [(4, "unknown_class", "validate")]
    assert full.model.class_labels == ["x", "y", "z"]


def test_an_unknown_class_in_the_first_record_leaves_no_columns():
    events = [{**streams.event("classifier", 0), "q": 1.0, "label": "v"}, streams.event("classifier", 1)]
    line = streams.pipeline("classifier", classes=("low", "some", "high"))
    assert streams.run(line, streams.stream_of(events, "jsonl")).letters == [(0, "unknown_class", "validate")]
    assert line.model.fields == ["a", "b", "c", "t"]


def test_late_columns_join_up_to_a_limit():
    """Columns made up by a producer must not fill the memory, whether one by one or all at once."""
    one_by_one = [{"a": math.sin(i), f"k{i:03}": 1.0, "y": math.cos(i)} for i in range(30)]
    at_once = [{"a": math.sin(i), "y": math.cos(i)} for i in range(30)]
    at_once[3] |= {f"k{i:03}": 1.0 for i in range(500)}
    for events in (one_by_one, at_once):
        model = MoERegressor(2, warmup=10, warmup_restarts=1)
        line = Pipeline(model, Schema(TARGETS, late_columns=True, max_columns=7), PrequentialScores())
        outcomes, *_ = stream(line, [json.dumps(held).encode() for held in events], sizes=[11])
        assert model.fields == ["a", *(f"k{i:03}" for i in range(6))]
        assert outcomes["learned"] == 30


def test_a_first_record_with_too_many_fields_makes_no_columns():
    wide = json.dumps({**{f"k{i}": 1.0 for i in range(4)}, "y": 1.0}).encode()
    line = Pipeline(MoERegressor(2, warmup=0), Schema(TARGETS, max_columns=3), PrequentialScores())
    outcomes, reasons, *_ = stream(line, [wide, wide, good(1), good(2), wide], sizes=[1, 4])
    assert (outcomes["learned"], outcomes["rejected"]) == (3, 2)  # later on, what else a record holds is ignored
    assert dict(reasons) == {"too_many_columns": 2}
    assert line.model.fields == ["a", "b"]


def test_a_header_with_too_many_columns_stops():
    columns = ("a", "b", "c", "d", "y")
    line = Pipeline(MoERegressor(2, warmup=0), Schema(TARGETS, ignore=("d",), max_columns=2), PrequentialScores())
    with pytest.raises(SourceError):
        stream(line, [b"1,2,3,4,5"], format="csv", columns=columns)
    assert line.model.fields == []
    listed = Pipeline(MoERegressor(2, warmup=0), Schema(TARGETS, ("a", "b", "c"), max_columns=2), PrequentialScores())
    outcomes, *_ = stream(listed, [b"1,2,3,4,5"], format="csv", columns=columns)
    assert outcomes["learned"] == 1


def test_made_up_names_fill_neither_memory_nor_log(caplog):
    records = [good(0), *(json.dumps({"a": 1.0, "y": 1.0, f"n{i}": 1, f"m{i}": 1}).encode() for i in range(300))]
    wide = json.dumps({"y": 1.0, **{f"k{i}": 1 for i in range(9_999)}}).encode()
    stream(pipeline(), [*records, wide], sizes=[1])
    assert len(caplog.records) == 50
    caplog.clear()
    line = pipeline()
    stream(line, [good(0), wide], sizes=[1])
    (message,) = caplog.messages
    assert len(message) < 500
    assert len(line._unknown) < 1000
