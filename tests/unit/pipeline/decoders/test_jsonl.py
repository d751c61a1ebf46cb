import math

import numpy as np
import pytest

from streammoe.errors import InvalidEvent
from streammoe.pipeline.decoders import Wanted, decoder
from streammoe.ports import Batch


def batch_of(*records):
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    return Batch(b"".join(records), ends, "jsonl", None, "events.jsonl", lambda i: {"offset": i}, {})


def decode(*records, columns=("a", "b"), targets=("y",), ignore=None, **wanted):
    return decoder("jsonl").decode(batch_of(*records), Wanted(columns, targets, **wanted), ignore)


def reasons(*records):
    return [bad.reason for bad in decode(*records).rejected]


def test_numbers_booleans_and_nulls():
    decoded = decode(b'{"y":3,"b":2.5,"a":1,"other":"x"}\n', b'{"a":true,"b":false,"y":null}\r\n', b"{}")
    np.testing.assert_array_equal(decoded.X, [[1, 2.5], [1, 0], [math.nan, math.nan]])
    np.testing.assert_array_equal(decoded.Y, [[3], [math.nan], [math.nan]])
    assert decoded.rows.tolist() == [0, 1, 2]
    assert decoded.X.flags.c_contiguous


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'"1"', "wrong_type"),
        (b'"abc"', "wrong_type"),
        (b"[1]", "wrong_type"),
        (b"{}", "wrong_type"),
        (b"NaN", "not_finite"),
        (b"-Infinity", "not_finite"),
        (b'"NaN"', "not_finite"),
        (b"1e999", "out_of_range"),
        (b"9" * 400, "out_of_range"),
        (b"9" * 10_000, "out_of_range"),
        (b"01", "malformed"),
        (b"+1", "malformed"),
        (b"1.", "malformed"),
        (b"", "malformed"),
    ],
)
@pytest.mark.parametrize("name", ["a", "y"])
def test_a_bad_value_refuses_its_record_only(value, reason, name):
    decoded = decode(b'{"a":1}\n', b'{"%s":%s}\n' % (name.encode(), value), b'{"a":2}\n')
    assert decoded.rows.tolist() == [0, 2]
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(1, reason)]
    assert name in decoded.rejected[0].detail
    assert len(decoded.rejected[0].detail) < 250


@pytest.mark.parametrize(
    "record",
    [b"nonsense\n", b"[1]\n", b"null\n", b'{"a":1}{"a":2}\n', b'{"a":1\n', b'{"c":"\xff"}\n', b'{"\xff":1}\n', b"\0\n"],
)
def test_a_record_that_is_no_object_is_malformed(record):
    assert reasons(b'{"a":1}\n', record, b'{"a":2}\n') == ["malformed"]


def test_lines_that_only_together_are_objects_are_malformed():
    """A parser of whole blocks reads three objects in these three lines."""
    assert reasons(b'{"a":1}{"a":2}\n', b'{"a":\n', b"3}\n") == ["malformed"] * 3


def test_of_a_repeated_key_the_last_value_counts():
    assert decode(b'{"a":1,"a":2}\n', b'{"a":"x","a":3}\n').X[:, 0].tolist() == [2, 3]
    assert reasons(b'{"a":1,"a":"x"}\n') == ["wrong_type"]


def test_what_is_not_asked_for_may_be_any_json_that_python_writes():
    decoded = decode(
        b'{"a":1,"c":NaN}\n', b'{"a":2,"c":1e999}\n', b'{"a":3,"c":"\\ud800"}\n', '{"a":4,"ü":"ß"}\n'.encode()
    )
    assert decoded.X[:, 0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("depth", [150, 900, 100_000])
@pytest.mark.parametrize("brackets", [(b"[", b"]"), (b'{"a":', b"}")])
def test_deep_nesting_is_malformed_and_stops_nothing(depth, brackets):
    opening, closing = brackets
    deep = b'{"c":' + opening * depth + b"1" + closing * depth + b"}\n"
    decoded = decode(b'{"a":1}\n', deep, b'{"c":' + opening * depth + b"\n")
    assert decoded.rows.tolist() == [0]
    assert [bad.reason for bad in decoded.rejected] == ["malformed"] * 2
    assert "nested" in decoded.rejected[0].detail


def test_many_brackets_beside_each_other_or_in_text_are_not_deep():
    record = b'{"a":1,"c":[' + b"[],{}," * 300 + b'0],"d":"' + b"[{" * 300 + b'\\""}\n'
    assert decode(record).X[0, 0] == 1


@pytest.mark.parametrize("name", ["é", 'say "a"', "back\\slash", "", "tab\t"])
def test_any_name_can_be_a_feature(name):
    import json

    decoded = decode(json.dumps({name: 7}).encode(), columns=(name,), targets=())
    assert decoded.X.tolist() == [[7]]


def test_a_name_may_be_feature_and_target():
    decoded = decode(b'{"a":1}', columns=("a", "a"), targets=("a",))
    assert (decoded.X.tolist(), decoded.Y.tolist()) == ([[1, 1]], [[1]])


def test_names_gives_raw_values():
    batch = batch_of(b'{"a":3,"c":"x","d":[1.5,null]}\n', b"[]\n")
    assert decoder("jsonl").names(batch, 0) == {"a": 3, "c": "x", "d": [1.5, None]}
    with pytest.raises(InvalidEvent) as caught:
        decoder("jsonl").names(batch, 1)
    assert caught.value.reason == "malformed"


def test_labels_categories_times_and_weights():
    decoded = decode(
        b'{"a":1,"c":"red","t":"2024-05-01","y":true,"w":2}\n',
        b'{"c":"","t":null}\n',
        b'{"a":2,"c":3.0,"t":1.5,"y":0.5,"w":0}\n',
        columns=("c", "a", "t"),
        targets=(),
        label="y",
        weight="w",
        categorical=frozenset("c"),
        timestamps=frozenset("t"),
    )
    np.testing.assert_array_equal(
        decoded.X, [[math.nan, 1, 1714521600], [math.nan, math.nan, math.nan], [math.nan, 2, 1.5]]
    )
    assert decoded.texts == {0: ["red", None, "3"]}
    assert decoded.labels == ["true", None, "0.5"]
    assert decoded.weights.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"[1]", "wrong_type"),
        (b'"\\ud800"', "wrong_type"),
        (b"NaN", "not_finite"),
        (b'"%s"' % (b"x" * 257), "out_of_range"),
        (b"1e300", "out_of_range"),
        (b"1e400", "out_of_range"),
    ],
)
def test_a_bad_label_refuses_its_record_only(value, reason):
    decoded = decode(b'{"y":"a"}\n', b'{"y":%s}\n' % value, b'{"y":"b"}\n', targets=(), label="y")
    assert decoded.labels == ["a", "b"]
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(1, reason)]


def test_events_with_some_of_their_targets_are_refused():
    assert [
        (bad.index, bad.reason) for bad in decode(b'{"y":1}', b'{"y":1,"z":2}', b"{}", targets=("y", "z")).rejected
    ] == [(0, "partial_target")]


# --- late columns ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", [b'{"a":1,"skip":"x"}\n', b'{"late":null,"a":1}\n', b'{"b":2,"skip":[{}]}\n'])
@pytest.mark.parametrize("n", [0, 3])
def test_reading_stops_before_the_first_value_of_a_new_field(before, n):
    records = [before] * n + [b'{"late":"2024-05-01","a":1,"y":0}\n', b"bad"]
    decoded = decode(*records, ignore={"skip", 'odd "name"'}, timestamps=frozenset({"late"}))
    assert decoded.first_new == (n, {"late": "2024-05-01"})
    assert decoded.rows.tolist() == list(range(n))
    assert decoded.rejected == []


def test_without_leave_to_grow_new_fields_are_ignored():
    decoded = decode(b'{"a":1,"late":2}\n')
    assert (decoded.first_new, decoded.rows.tolist()) == (None, [0])


def test_a_refused_record_brings_no_field():
    values = [b'"a":"x","late":1}', b'"late":"abc"}', b'"late":1', b'"a":1,"late":null}', b'"late":[]}']
    records = [b'{"y":0,' + value + b"\n" for value in values]
    decoded = decode(*records, ignore=())
    assert decoded.first_new is None
    assert [bad.index for bad in decoded.rejected] == [0, 1, 2, 4]
    assert decode(*records, ignore=(), categorical=frozenset({"late"})).first_new == (1, {"late": "abc"})


def test_events_that_are_not_learned_bring_no_field_but_are_refused_for_one_that_cannot_be_read():
    records = [b'{"late":1}\n', b'{"late":1,"y":null,"l":"x"}\n', b'{"late":1,"y":1,"l":"x","w":0}\n', b'{"late":[]}\n']
    records += [b'{"late":1,"y":1}\n', b'{"late":2,"y":1,"l":"x","w":2}\n']
    decoded = decode(*records, ignore=(), label="l", weight="w")
    assert decoded.first_new == (5, {"late": 2})
    assert decoded.rows.tolist() == [0, 1, 2, 4]
    assert [(bad.index, bad.reason) for bad in decoded.rejected] == [(3, "wrong_type")]


def test_always_other_fields_that_are_null_are_no_columns():
    decoded = decode(*(b'{"a":%d,"n%d":null}\n' % (i, i) for i in range(200)), ignore=())
    assert decoded.X[:, 0].tolist() == list(range(200))
    assert decoded.first_new is None
