"""What becomes of records, and that nothing depends on where their stream was cut."""

import json
import logging
import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import SourceError
from streammoe.estimators import MoERegressor
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import PrequentialScores
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


BAD = {
    b"what is this?": ("malformed", "decode"),
    b"[1, 2]": ("malformed", "decode"),
    b'{"a": "x", "b": 1, "y": 1}': ("wrong_type", "decode"),
    b'{"a": 1, "b": NaN, "y": 1}': ("not_finite", "decode"),
    b'{"a": 1, "b": 1, "y": Infinity}': ("not_finite", "decode"),
    b'{"a": 1, "b": 1e400, "y": 1}': ("out_of_range", "decode"),
    b'{"a": 1, "b": 1e60, "y": 1}': ("out_of_range", "validate"),
    b'{"a": 1, "b": 1, "y": -1e60}': ("out_of_range", "validate"),
    b'{"a": 1, "b": -1e9, "y": 1}': ("out_of_range", "validate"),
}


# --- outcomes and reasons -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", [0, 30, 60])
@pytest.mark.parametrize(("record", "expected"), BAD.items())
def test_a_bad_record_is_kept_with_its_reason_and_leaves_no_trace(record, expected, at):
    sound = [good(i) for i in range(60)]
    twin, line = pipeline(), pipeline()
    stream(twin, sound)
    outcomes, reasons, letters, bad = stream(line, [*sound[:at], record, *sound[at:]])
    assert line.model.state_digest() == twin.model.state_digest()
    assert line.scores.to_json() == twin.scores.to_json()
    assert (outcomes["learned"], outcomes["rejected"]) == (60, 1)
    assert reasons == {expected[0]: 1}
    assert [(letter.reason, letter.stage) for letter in letters] == [expected]
    assert letters[0].record == record
    assert letters[0].place["index"] == at
    assert np.flatnonzero(bad).tolist() == [at]


@pytest.mark.parametrize(
    ("record", "named"), [(b'{"a": "x", "b": 1, "y": 1}', "'a'"), (b'{"a": 1, "y": -1e60}', "1e+60")]
)
def test_the_detail_names_the_value(record, named):
    (letter,) = stream(pipeline(), [good(0), record])[2]
    assert named in letter.detail


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
    letters = stream(pipeline(), records)[2]
    assert [letter.place["index"] for letter in letters] == [0, 1, 3, 4, 6]


def test_an_event_without_target_is_predicted_and_changes_nothing():
    line = pipeline()
    stream(line, [good(i) for i in range(60)])
    before, scores = line.model.state_digest(), line.scores.to_json()
    outcomes, *_ = stream(line, [b'{"a": 0.5, "b": 0.5}', b'{"a": 0.5, "b": 0.5, "y": null}'])
    assert outcomes["predicted_only"] == 2
    assert line.model.state_digest() == before
    assert line.scores.to_json() == scores


def test_a_missing_value_is_no_bad_one():
    outcomes, *_ = stream(pipeline(), [good(0), b'{"a": 1, "y": 1}', b'{"y": 1}'])
    assert outcomes["learned"] == 3


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


@pytest.mark.parametrize(
    "bad", [b'{"q": 1, "a": 1e60, "y": 1}', b'{"q": 1, "y": 1e60}', b'{"q": "x", "y": 1}', b'{"y": 1}']
)
@pytest.mark.parametrize("sizes", [[1], [2], [10]])
def test_a_refused_first_record_leaves_no_trace_in_the_columns(bad, sizes):
    line = pipeline()
    outcomes, _, letters, _ = stream(line, [bad, bad, *map(good, range(5))], sizes=sizes)
    assert line.model.feature_names == ["a", "b"]
    assert (outcomes["rejected"], outcomes["learned"]) == (2, 5)
    assert [letter.place["index"] for letter in letters] == [0, 1]


def test_a_record_with_nothing_to_learn_from_has_a_reason_of_its_own():
    _, reasons, letters, _ = stream(pipeline(), [b'{"y": 1}', good(0)])
    assert reasons == {"no_features": 1}
    assert letters[0].stage == "validate"


@pytest.mark.parametrize("warmup", [40, 0])
def test_batches_without_any_good_record_at_the_beginning(warmup):
    line, twin = (pipeline(warmup=warmup, standardize=warmup > 0) for _ in range(2))
    sound = [good(i) for i in range(60)]
    outcomes, *_ = stream(line, [b"{"] * 7 + sound, sizes=[3])
    stream(twin, sound)
    assert outcomes["rejected"] == 7
    assert line.model.state_digest() == twin.model.state_digest()


def test_listed_features_are_used_and_no_others():
    line = pipeline(features=("b", "missing", "a"))
    stream(line, [b'{"c": "text", "a": 1, "b": 2, "y": 3}'])
    assert line.model.feature_names == ["a", "b", "missing"]
    assert line.model.n == 1


def test_ignored_fields_may_hold_anything():
    line = pipeline(ignore=("id", "note"))
    outcomes, *_ = stream(line, [b'{"id": "x-1", "a": 1, "note": [1], "y": 3}', b'{"id": NaN, "a": 1, "y": 3}'])
    assert line.model.feature_names == ["a"]
    assert outcomes["learned"] == 2


def test_a_csv_without_the_target_is_the_sources_fault():
    (batch,) = batches([b"1,2"], format="csv", columns=("a", "b"))
    line = pipeline()
    with pytest.raises(SourceError, match=r"no column 'y'.*'a', 'b'"):
        line.process(batch)
    assert line.model.feature_names == []


def test_csv_files_with_their_columns_in_another_order_are_the_same_events():
    one, other = pipeline(), pipeline()
    stream(one, [b"1,2,3", b"4,,6"], format="csv", columns=("a", "b", "y"))
    stream(other, [b"3,2,1", b"6,,4"], format="csv", columns=("y", "b", "a"))
    assert one.model.state_digest() == other.model.state_digest()


def test_csv_and_jsonl_of_the_same_events_are_the_same():
    one, other = pipeline(), pipeline()
    stream(one, [b"0.1,2,3", b"4,,1e-3"], format="csv", columns=("a", "b", "y"))
    stream(other, [b'{"a": 0.1, "b": 2, "y": 3}', b'{"y": 1e-3, "a": 4.0, "b": null}'])
    assert one.model.state_digest() == other.model.state_digest()


# --- cuts -----------------------------------------------------------------------------------------------------------

bad_records = st.lists(
    st.sampled_from([*BAD, b'{"y": 1}', b'{"q": 1, "y": 1e60}', b'{"a": 0.1, "b": 0.2}']), max_size=5
)


@settings(deadline=None, max_examples=60)
@given(
    beginning=bad_records,
    early=bad_records,
    middle=bad_records,
    end=bad_records,
    sizes=st.lists(st.integers(1, 80), min_size=1, max_size=8),
    warmup=st.sampled_from([0, 10, 40]),
)
def test_nothing_depends_on_where_the_stream_was_cut(beginning, early, middle, end, sizes, warmup):
    sound = [good(i) for i in range(70)]
    records = [*beginning, *sound[:5], *early, *sound[5:45], *middle, *sound[45:], *end]
    whole, cut = (pipeline(warmup=warmup, standardize=warmup > 0) for _ in range(2))
    expected = stream(whole, records)
    found = stream(cut, records, sizes=sizes)
    assert cut.model.feature_names == whole.model.feature_names
    assert cut.model.state_digest() == whole.model.state_digest()
    assert cut.model.convergence_residual == pytest.approx(whole.model.convergence_residual, nan_ok=True, rel=0)
    assert said(found) == said(expected)
    assert found[0].total() == len(records)
    assert cut.scores.rmse() == pytest.approx(whole.scores.rmse(), rel=1e-9)


def said(results):
    """Outcomes, reasons, letters in their order, and flags."""
    outcomes, reasons, letters, bad = results
    return outcomes, reasons, [(letter.place, letter.reason, letter.stage, letter.record) for letter in letters], bad


@settings(deadline=None, max_examples=20)
@given(
    rows=st.lists(
        st.sampled_from(
            [b"1,2,3", b"0.5,-1,0.25", b"1,2", b'1,"2,3', b"x,1,2", b"1,2,", b",,1", b"nan,1,1", b"1e60,1,1"]
        ),
        min_size=1,
        max_size=40,
    ),
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=5),
)
def test_nothing_depends_on_where_a_csv_was_cut(rows, sizes):
    whole, cut = pipeline(warmup=8), pipeline(warmup=8)
    script = {"format": "csv", "columns": ("a", "b", "y")}
    assert said(stream(cut, rows, sizes=sizes, **script)) == said(stream(whole, rows, **script))
    assert cut.model.state_digest() == whole.model.state_digest()


# --- every kind of model, value and format --------------------------------------------------------------------------

LATE_COLUMNS = {"late_columns": True}
FORMATS_AND_KINDS = list(product(streams.KINDS, streams.FORMATS))
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


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize(("kind", "format"), FORMATS_AND_KINDS)
@settings(deadline=None, max_examples=12)
@given(data=st.data())
def test_cuts_and_formats_show_in_nothing_whatever_comes(kind, format, data):
    late_changes = st.lists(st.tuples(st.integers(0, 6), st.sampled_from(OF_LATE_COLUMNS)), max_size=5)
    events = changed(kind, data.draw(changes_for(kind)), data.draw(st.integers(1, 60)), data.draw(late_changes))
    sizes = data.draw(st.lists(st.integers(1, 25), min_size=1, max_size=6))
    arguments = {
        "schema": LATE_COLUMNS if data.draw(st.booleans()) else {},
        "warmup": data.draw(st.sampled_from([9, 40])),
    }
    if kind == "classifier":
        arguments["max_classes"] = data.draw(st.sampled_from([3, 4, 100]))
    one_by_one, whole, cut, clean = (streams.pipeline(kind, **arguments) for _ in range(4))
    expected = streams.run(one_by_one, streams.stream_of(events, "jsonl", [1]))
    for line, stream in (
        (whole, streams.stream_of(events, format)),
        (cut, streams.stream_of(events, format, sizes)),
    ):
        found = streams.run(line, stream)
        assert line.model.feature_names == one_by_one.model.feature_names
        assert line.model.state_digest() == one_by_one.model.state_digest()
        assert found.outcomes == expected.outcomes
        assert found.letters == expected.letters
        for name, average in one_by_one.scores.averages.items():
            assert line.scores.averages[name].means() == pytest.approx(average.means(), rel=1e-9)
    # What was refused is as if it had never come.
    refused = {row for row, _, _ in expected.letters}
    streams.run(clean, streams.stream_of([held for i, held in enumerate(events) if i not in refused], "jsonl", sizes))
    assert clean.model.state_digest() == one_by_one.model.state_digest()
    assert one_by_one.model.is_finite()


@pytest.mark.parametrize(("kind", "format"), FORMATS_AND_KINDS)
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


@pytest.mark.sampled(one_in=9)
@pytest.mark.parametrize("kind", streams.KINDS)
@pytest.mark.parametrize("at", [3, 30, 39, 40, 50])
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


def test_a_column_that_comes_late_is_told_and_one_that_is_ignored_too(caplog):
    events = changed("regressor", [], 30, [(0, {"k": 1e60})])
    with caplog.at_level(logging.INFO, "streammoe.pipeline"):
        streams.run(streams.pipeline("regressor", schema=LATE_COLUMNS), streams.stream_of(events, "csv"))
    assert [record.getMessage() for record in caplog.records] == ["a.csv: 'd', 'k' joined the columns"]
    caplog.clear()
    line = streams.pipeline("regressor")
    streams.run(line, streams.stream_of(events, "csv", [9]))
    (record,) = caplog.records
    assert "ignoring 'd', 'k'" in record.getMessage()
    assert line.model.fields == ["a", "b", "c", "t"]


def test_fields_that_are_ignored_never_join():
    events = [streams.event("regressor", 0), {**streams.event("regressor", 1), "k": "text", "d": "odd"}]
    line = streams.pipeline("regressor", schema={**LATE_COLUMNS, "ignore": ("k",)})
    assert streams.run(line, streams.stream_of(events, "jsonl")).letters == []
    assert line.model.fields == ["a", "b", "c", "t", "d"]


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


def test_late_columns_join_up_to_a_limit(caplog):
    """Columns made up by a producer must not fill the memory."""
    records = [json.dumps({"a": math.sin(i), f"k{i}": 1.0, "y": math.cos(i)}).encode() for i in range(30)]
    model = MoERegressor(2, warmup=10, warmup_restarts=1)
    line = Pipeline(model, Schema(TARGETS, late_columns=True, max_columns=7), PrequentialScores())
    outcomes, *_ = stream(line, records, sizes=[11])
    assert model.fields == ["a", *(f"k{i}" for i in range(6))]
    assert outcomes["learned"] == 30
    assert caplog.text.count("as many as schema.max_columns allows") == 1


def test_a_record_cannot_bring_more_late_columns_than_there_is_room_for(caplog):
    records = [
        json.dumps({"a": math.sin(i), "y": math.cos(i), **({f"k{j:03}": 1.0 for j in range(500)} if i == 3 else {})})
        for i in range(30)
    ]
    model = MoERegressor(2, warmup=10, warmup_restarts=1)
    line = Pipeline(model, Schema(TARGETS, late_columns=True, max_columns=7), PrequentialScores())
    outcomes, *_ = stream(line, [record.encode() for record in records], sizes=[11])
    assert model.fields == ["a", *(f"k{i:03}" for i in range(6))]
    assert outcomes["learned"] == 30
    assert caplog.text.count("as many as schema.max_columns allows") == 1


def test_a_first_record_with_too_many_fields_makes_no_columns():
    wide = json.dumps({**{f"k{i}": 1.0 for i in range(4)}, "y": 1.0}).encode()
    line = Pipeline(MoERegressor(2, warmup=0), Schema(TARGETS, max_columns=3), PrequentialScores())
    outcomes, reasons, letters, _ = stream(line, [wide, wide, good(1), good(2), wide], sizes=[1, 4])
    assert (outcomes["learned"], outcomes["rejected"]) == (3, 2)  # later on, what else a record holds is ignored
    assert dict(reasons) == {"too_many_columns": 2}
    assert "has 4 columns beside its target, and schema.max_columns allows 3: list" in letters[0].detail
    assert line.model.fields == ["a", "b"]


def test_a_header_with_too_many_columns_stops():
    columns = ("a", "b", "c", "d", "y")
    line = Pipeline(MoERegressor(2, warmup=0), Schema(TARGETS, ignore=("d",), max_columns=2), PrequentialScores())
    with pytest.raises(SourceError, match=r"3 columns beside its target, and schema\.max_columns allows 2: list"):
        stream(line, [b"1,2,3,4,5"], format="csv", columns=columns)
    assert line.model.fields == []
    listed = Pipeline(MoERegressor(2, warmup=0), Schema(TARGETS, ("a", "b", "c"), max_columns=2), PrequentialScores())
    outcomes, *_ = stream(listed, [b"1,2,3,4,5"], format="csv", columns=columns)
    assert outcomes["learned"] == 1


def test_made_up_names_fill_neither_memory_nor_log(caplog):
    records = [good(0), *(json.dumps({"a": 1.0, "y": 1.0, f"n{i}": 1, f"m{i}": 1}).encode() for i in range(300))]
    line = pipeline()
    stream(line, [*records, json.dumps({"y": 1.0, **{f"k{i}": 1 for i in range(9_999)}}).encode()], sizes=[1])
    told = [entry for entry in caplog.records if "ignoring" in entry.getMessage()]
    assert len(told) == 50
    again = pipeline()
    stream(again, [good(0), json.dumps({"y": 1.0, **{f"k{i}": 1 for i in range(9_999)}}).encode()], sizes=[1])
    assert "'k1005' and 9989 others, which the first good record did not have" in caplog.text
    assert len(again._unknown) < 1000


def test_a_header_without_the_target_is_an_error_although_no_record_follows():
    line = pipeline()
    with pytest.raises(SourceError):
        line.process(no_records("a.csv", {}, 0, "csv", ("a", "b")))
    assert not line.process(no_records("a.csv", {}, 2, "csv", ("a", "y"))).letters
