import json
import math
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import ConfigError
from streammoe.notation import Notations, tidied
from streammoe.pipeline.decoders import decoder
from tests.batches import roles_of
from tests.unit.connectors.kafka_records import batch_of, numbers, only, outcomes, record, values_of

WITH_TEXTS = roles_of(("x", "key", "city"), ("y",), categorical=frozenset({"key", "city"}))
GOOD = b'{"x":1,"y":2}'


def test_values_stand_in_the_block_as_they_are_unless_their_line_ends_divide_them():
    block = batch_of(values_of(), record(b'{"x":1}'), record(b'{\n"x": 2}\n'), record(b""))
    assert (block.block, block.ends.tolist(), block.unreadable) == (b'{"x":1}\n{\n"x": 2}\n\n\n', [8, 19, 20], {})
    pretty = json.dumps({"x": 1, "y": 2}, indent=2).replace("\n", "\r\n").encode() + b"\r\n"
    assert numbers(values_of(), [record(GOOD), record(pretty), record(GOOD + b"\n")], "x") == [[1], [1], [1]]
    csv = values_of(format="csv", columns=["x", "y"])
    given = [record(b"1,2\r\n"), record(b'"1\n",2'), record(b"1,2\n"), record(b"3,4\n5,6"), record(b"7,8")]
    assert numbers(csv, given, "x") == [[1], "wrong_type", [1], [3], [5], [7]]


def test_a_byte_order_mark_is_ignored_and_so_is_the_frame_of_a_registry_that_must_be_there():
    marked = [record(b"\xef\xbb\xbf" + GOOD), record(GOOD), record(b"\xef\xbb\xbf\xef\xbb\xbf" + GOOD)]
    assert numbers(values_of(), marked, "x") == [[1], [1], "malformed"]
    csv = values_of(format="csv", columns=["x", "y"])
    assert numbers(csv, [record(b"\xef\xbb\xbf1,2"), record(b"1,2")], "x") == [[1], [1]]
    framed = [b"\0\0\0\0\x07" + GOOD, b"\0\0\0\0\x07\xef\xbb\xbf" + GOOD, GOOD, b"\0\0\0\0", b"\1\0\0\0\x07" + GOOD]
    found = numbers(values_of(framing="confluent"), [*map(record, framed)], "x")
    assert found == [[1], [1], "malformed", "malformed", "malformed"]


cells = st.sampled_from([b"1", b"2.5", b"", b'"3"', b'"', b"a", b"\n", b"\r\n", b",", b"\xff", b"\0", b'"a,\nb"'])
lines = st.lists(cells, max_size=6).map(b"".join) | st.sampled_from(
    [b"1,2", b"1,2\n3,4", b'"1\n2",3', b"\xef\xbb\xbf1,2", b"nan,1"]
)
tokens = st.sampled_from(
    [b"{", b"}", b'"x"', b'"y"', b":", b",", b"1", b"-2e3", b"NaN", b"\n", b'"', b"[", b"\\", b"\xc3"]
)
objects = st.fixed_dictionaries({"x": st.floats(allow_nan=False, allow_infinity=False), "y": st.integers(-9, 9)}).map(
    lambda value: json.dumps(value, indent=1).encode()
)
texts = st.lists(tokens, max_size=8).map(b"".join) | objects | st.sampled_from([GOOD, GOOD + b"\n" + GOOD])
keys = st.none() | st.sampled_from([b"", b"k", b'"', b'a"b,c\n', b"\xff", b"\0", "ü€😀".encode()])


@pytest.mark.parametrize("format", ["jsonl", "csv"])
@settings(max_examples=50)
@given(data=st.data())
def test_what_becomes_of_a_value_does_not_depend_on_its_neighbours(format, data):
    values = values_of(format=format, key_field="key", columns=["x", "y"] if format == "csv" else None)
    given = data.draw(st.lists(st.tuples(lines if format == "csv" else texts, keys), min_size=1, max_size=8))
    records = [record(value, key=key) for value, key in given]
    block = batch_of(values, *records)
    assert block.ends.tolist() == sorted(set(block.ends.tolist()))
    assert block.ends[-1] == len(block.block)
    together = outcomes(values, records, WITH_TEXTS)
    alone = [outcomes(values, [single], WITH_TEXTS) for single in records]
    assert [together[i] for i in sorted(together)] == [found[i] for found in alone for i in sorted(found)]


def test_key_time_and_headers_go_into_the_object_unless_it_has_a_field_of_that_name():
    values = values_of(key_field="who", timestamp_field="when", header_fields=["a", "b"])
    headers = [("a", b"first"), ("c", b"\xff"), ("a", b"last")]
    given = {"key": 'ä"\\\n'.encode(), "timestamp": 1500, "headers": headers}
    assert only(values, GOOD, **given) == {"who": 'ä"\\\n', "when": 1.5, "a": "last", "x": 1, "y": 2}
    assert batch_of(values, record(GOOD)).block == GOOD + b"\n"
    given = [record(value, key=b"key") for value in (GOOD, b'{"x":null,"y":1}', b'{"y":1}')]
    first, second, third = numbers(values_of(key_field="x"), given, "x")
    assert (first, third) == ([1], "wrong_type")
    assert math.isnan(second[0])


def test_keys_and_headers_that_are_no_text_reject_nothing_and_stay_different():
    values = values_of(key_field="who", header_fields=["b"])
    for key, text in [(b"\0\0\0\xe4", "\0\0\0\\xe4"), (b"\0\0\0\xe5", "\0\0\0\\xe5"), (b"\xc3\xa4", "ä")]:
        assert only(values, GOOD, key=key, headers=[("b", key)]) == {"who": text, "b": text, "x": 1, "y": 2}
    assert only(values, GOOD, headers=[("b", None)]) == {"x": 1, "y": 2}
    csv = values_of(format="csv", columns=["x", "y"], key_field="who")
    assert batch_of(csv, record(b"1,2", key=b"\xe4,")).block == b'"\\xe4,",1,2\n'


@settings(max_examples=50)
@given(st.text(max_size=300).filter(lambda text: len(text) <= 256), st.integers(0, 2**53))
def test_fields_in_csv_come_back_as_they_were(text, timestamp):
    values = values_of(
        format="csv", columns=["x", "y"], key_field="key", timestamp_field="when", header_fields=["city"]
    )
    assert batch_of(values).columns == ("key", "when", "city", "x", "y")
    assert batch_of(values, record(b"1,2")).block == b",,,1,2\n"
    given = record(b"1,2", key=text.encode(), timestamp=timestamp, headers=[("city", text.encode())])
    batch = batch_of(values, given, given)
    missing = Notations(missing={"*": (), "key": (), "city": ()})
    wanted = roles_of(("key", "when", "city", "x"), ("y",), categorical=("key", "city"), notations=missing)
    decoded = decoder("csv").decode(batch, wanted)
    assert decoded.rejected == []
    held = text if tidied(text) else None
    assert decoded.texts == {0: [held] * 2, 2: [held] * 2}
    assert decoded.X[0].tolist() == pytest.approx([math.nan, timestamp / 1000, math.nan, 1], rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(("module", "package"), [("avro", "fastavro"), ("protobuf", "google.protobuf")])
def test_a_missing_package_is_a_problem_of_the_settings(monkeypatch, module, package):
    monkeypatch.delitem(sys.modules, f"streammoe_connectors.formats.{module}", raising=False)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ConfigError):
        values_of(format=module, schema_file="a", message="a.B" if module == "protobuf" else None)
