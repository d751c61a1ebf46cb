"""What becomes of records: outcomes, letters, columns, classes and limits.

That a model does not depend on how its events came, or on what was rejected between them, is in tests/invariants.
"""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from streammoe.errors import SourceError
from tests.batches import batch_of
from tests.unit.pipeline.streams import event, pipeline, run

FAR = {"a": 1e60, "b": 1, "y": 1}
"""Out of range."""

NO_NAMES = {"weight": None, "categorical": frozenset(), "timestamps": frozenset()}


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
    assert [letter.location["row"] for letter in processed.letters] == rejected
    assert np.flatnonzero(processed.bad).tolist() == rejected
    assert [letter.record for letter in processed.letters] == [batch.record(i).rstrip() for i in rejected]
    (letter,) = line.process(batch_of([good(0), FAR], "arrow")).letters
    assert (letter.format, json.loads(letter.record)) == ("jsonl", FAR), "which can be read again"


# --- columns --------------------------------------------------------------------------------------------------------


def test_columns_are_those_of_the_first_good_record_in_the_order_of_names():
    bad = [{"q": 1, **FAR}, {"q": 1, "y": 1e60}, {"q": [1], "y": 1}, {"y": 1}, b"{"]
    for sizes in ([1], ()):
        line = pipeline("regressor")
        result = run(line, [*bad, {"y": 1, "b": 2, "a": 3}, good(0, d=1.0)], "jsonl", sizes)
        assert line.model.feature_names == ["a", "b"]
        assert [row for row, *_ in result.letters] == list(range(5))
        assert result.letters[3] == (3, "no_features", "validate")


def test_listed_features_are_used_and_no_others_and_ignored_fields_may_hold_anything():
    line = pipeline("regressor", schema={"features": ("b", "missing", "a")})
    run(line, [{"e": "text", "a": 1, "b": 2, "y": 3}])
    assert (line.model.feature_names, line.model.awaited) == (["a", "b"], ["missing"])
    run(line, [{"e": "text", "a": 1, "b": 2, "missing": 5, "y": 3}])
    assert (line.model.feature_names, line.model.awaited) == (["a", "b", "missing"], [])
    for late, columns in ((False, ["a"]), (True, ["a", "k"])):
        line = pipeline("regressor", schema={"ignore": ("id", "note"), "late_columns": late})
        records = [{"id": "x-1", "a": 1, "note": [1], "y": 3}, {"id": math.nan, "a": 1, "k": 1, "note": "x", "y": 3}]
        assert run(line, records).outcomes["learned"] == 2
        assert line.model.fields == columns


def test_a_classifier_takes_the_classes_that_it_was_given_or_so_many():
    labels = ["v", "y", "x", "z", "y", "w"]
    events = [{**event("classifier", i), "label": label} for i, label in enumerate(labels)]
    events[0]["q"] = 1.0
    for arguments, rejected, known in (
        ({"classes": ("y", "x")}, [0, 3, 5], ["y", "x"]),
        ({"max_classes": 3}, [3, 5], ["v", "y", "x"]),
    ):
        line = pipeline("classifier", **arguments)
        assert run(line, events).letters == [(i, "unknown_class", "validate") for i in rejected]
        assert line.model.output_names == known
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
    changing = [good(i, **{f"n{i}": 1, f"m{i}": 1}) for i in range(300)]
    line = pipeline("regressor", schema=NO_NAMES)
    run(line, [good(0), *changing, good(1, **{f"k{i}": 1 for i in range(9_999)})], "jsonl", [1])
    said = [message for message in caplog.messages if "ignoring" in message]
    assert len(said) == 50
    assert max(map(len, said)) < 600
    assert len(line.columns._unknown) < 1000
