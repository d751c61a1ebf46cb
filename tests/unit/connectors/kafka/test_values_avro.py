import io
import json
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streammoe.errors import ConfigError
from streammoe.pipeline.decoders import Wanted, decoder
from tests.unit.connectors.kafka_records import batch_of, numbers, only, outcomes, record, refusal, values_of

EVENT = {
    "type": "record",
    "name": "Event",
    "namespace": "shop",
    "fields": [
        {"name": "x", "type": "double"},
        {"name": "n", "type": ["null", "long"]},
        {"name": "city", "type": ["null", "string"], "default": None},
        {"name": "ok", "type": "boolean"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "more", "type": {"type": "map", "values": ["null", "float", "shop.Event2"]}},
        {"name": "y", "type": "float"},
    ],
}
EVENT["fields"][5]["type"]["values"][2] = {
    "type": "record", "name": "Event2", "fields": [{"name": "a", "type": "int"}]
}  # fmt: skip
EXAMPLE = {
    "x": 0.1, "n": 2**53 + 1, "city": "Zürich\n", "ok": True, "tags": ["a", "b"], "more": {"k": {"a": -1}}, "y": 0.5
}  # fmt: skip


def datum(value, schema=EVENT):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), value)
    return stream.getvalue()


def record_of(**types):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}


def long(n):
    """A number as Avro writes it."""
    n = (n << 1) ^ (n >> 63)
    octets = []
    while n > 0x7F:
        octets.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*octets, n])


@pytest.fixture(scope="module")
def avro(tmp_path_factory):
    """Values of a schema."""

    def values(schema=EVENT, **settings):
        path = tmp_path_factory.mktemp("schemas") / "a.avsc"
        path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
        return values_of(format="avro", schema_file=str(path), **settings)

    return values


def test_records_become_json_objects(avro):
    values = avro()
    assert (values.format, values.columns) == ("jsonl", None)
    assert only(values, datum(EXAMPLE)) == EXAMPLE
    assert only(values, datum(EXAMPLE | {"n": None, "city": None})) == EXAMPLE | {"n": None, "city": None}


doubles, longs = st.floats(width=64), st.none() | st.integers(-(2**63), 2**63 - 1)


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "x": doubles,
                "n": longs,
                "city": st.none() | st.text(max_size=9),
                "ok": st.booleans(),
                "tags": st.lists(st.text(max_size=3), max_size=3),
                "more": st.dictionaries(
                    st.text(max_size=3), st.none() | st.fixed_dictionaries({"a": st.integers(0, 9)})
                ),
                "y": st.floats(width=32),
            }
        ),
        min_size=1,
        max_size=5,
    )
)
def test_what_was_written_is_read_to_the_last_bit(avro, events):
    found = numbers(avro(), [record(datum(event)) for event in events], "x", "ok")
    for event, read in zip(events, found, strict=True):
        if math.isfinite(event["x"]) and math.isfinite(event["y"]):
            assert struct.pack("2d", *read) == struct.pack("2d", event["x"], event["ok"])
        else:
            assert read == "not_finite"


def test_numbers_that_are_not_finite_are_refused_and_not_missing(avro):
    for x in (math.nan, math.inf, -math.inf):
        events = [EXAMPLE, EXAMPLE | {"more": {"k": x}}, EXAMPLE | {"x": x}, EXAMPLE | {"y": x}]
        found = numbers(avro(), [record(datum(event)) for event in events], "x")
        assert found == [[0.1], [0.1], "not_finite", "not_finite"]


LOGICAL = {
    "day": ("int", "date", date(2024, 2, 29), "2024-02-29"),
    "clock": ("int", "time-millis", time(1, 2, 3, 4000), "01:02:03.004000"),
    "milli": ("long", "timestamp-millis", datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00:00Z"),
    "micro": ("long", "timestamp-micros", datetime(999, 5, 1, 12, 0, 0, 7, UTC), "0999-05-01T12:00:00.000007Z"),
    "nano": ("long", "timestamp-nanos", -1, "1969-12-31T23:59:59.999999999Z"),
    "local": ("long", "local-timestamp-millis", datetime(2024, 5, 1, 12), "2024-05-01T12:00:00"),  # noqa: DTZ001
    "local_nano": ("long", "local-timestamp-nanos", 10**9, "1970-01-01T00:00:01Z"),
    "id": ("string", "uuid", UUID(int=7), "00000000-0000-0000-0000-000000000007"),
}


def test_logical_types_become_texts(avro):
    schema = record_of(
        **{name: {"type": kind, "logicalType": logical} for name, (kind, logical, _, _) in LOGICAL.items()}
    )
    given = {name: value for name, (_, _, value, _) in LOGICAL.items()}
    assert only(avro(schema), datum(given, schema)) == {name: text for name, (_, _, _, text) in LOGICAL.items()}


def test_times_are_read_as_what_they_are(avro):
    schema = record_of(t={"type": "long", "logicalType": "timestamp-millis"}, y="double")
    given = datum({"t": datetime(1970, 1, 2, 0, 0, 0, 500_000, UTC), "y": 1.0}, schema)
    assert numbers(avro(schema), [record(given)], "t", timestamps=frozenset("t")) == [[86400.5]]


@pytest.mark.parametrize("base", [{"type": "bytes"}, {"type": "fixed", "name": "F", "size": 9}], ids=["bytes", "fixed"])
def test_decimals_become_numbers_with_all_their_digits(avro, base):
    schema = record_of(d=base | {"logicalType": "decimal", "precision": 19, "scale": 2})
    for value in ("0.10", "-12345678901234567.89", "0.00"):
        given = datum({"d": Decimal(value)}, schema)
        assert avro(schema).block([record(given)]).block == b'{"d":%s}\n' % value.encode()


def test_a_huge_decimal_is_out_of_range(avro):
    schema = record_of(d={"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}, y="double")
    given = long(8000) + b"\x7f" * 8000 + bytes(8)
    assert numbers(avro(schema), [record(given)], "d") == ["out_of_range"]


def test_bytes_become_text_or_are_left_out(avro):
    kinds = {"a": "bytes", "b": {"type": "fixed", "name": "F", "size": 2}, "c": ["null", "bytes"], "d": "bytes"}
    schema = record_of(**kinds, e={"type": "array", "items": "bytes"}, f={"type": "map", "values": "bytes"})
    given = {"a": "ü".encode(), "b": b"\xff\xff", "c": b"\0", "d": b"", "e": [b"\xff", b"a"], "f": {"k": b"\xff"}}
    assert only(avro(schema), datum(given, schema)) == {"a": "ü", "d": "", "e": [None, "a"], "f": {}}


def test_unions_of_records_and_enumerations_are_unwrapped(avro):
    enum = {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}
    schema = [{"type": "record", "name": "A", "fields": [{"name": "e", "type": enum}]}, record_of(x="int")]
    values = avro(schema)
    assert [only(values, octets) for octets in (b"\0\2", b"\2\6")] == [{"e": "BLUE"}, {"x": 3}]


def test_key_and_headers_stand_beside_what_was_read(avro):
    values = avro(record_of(x="int"), key_field="k", timestamp_field="x", header_fields=["h"])
    given = {"key": b"\xc3\xbc", "timestamp": 5, "headers": [("h", b"1")]}
    assert only(values, b"\6", **given) == {"k": "ü", "x": 3, "h": "1"}
    assert only(avro(record_of(), key_field="k"), b"", key=b"a") == {"k": "a"}


# --- hostile bytes ----------------------------------------------------------------------------------------------------

HOSTILE = {
    "truncated": (EVENT, datum(EXAMPLE)[:-1]),
    "longer": (EVENT, datum(EXAMPLE) + b"\0"),
    "empty": (EVENT, b""),
    "negative length": (record_of(s="string"), long(-5) + b"hello"),
    "huge length": (record_of(s="bytes"), long(2**62) + b"hello"),
    "no utf-8": (record_of(s="string"), long(1) + b"\xff"),
    "no branch": (record_of(s=["null", "int"]), long(7)),
    "no symbol": (record_of(s={"type": "enum", "name": "E", "symbols": ["A"]}), long(1)),
    "huge array": (record_of(s={"type": "array", "items": "int"}), long(2**62) + b"\0" * 100),
    "huge block": (record_of(s={"type": "array", "items": "int"}), long(-(2**62)) + b"\0" * 100),
    "huge map": (record_of(s={"type": "map", "values": "null"}), long(2**62) + b"\0" * 100),
    "no date": (record_of(s={"type": "int", "logicalType": "date"}), long(2**30)),
    "no time": (record_of(s={"type": "int", "logicalType": "time-millis"}), long(2**30)),
    "no timestamp": (record_of(s={"type": "long", "logicalType": "timestamp-millis"}), long(2**62)),
    "no uuid": (record_of(s={"type": "string", "logicalType": "uuid"}), long(1) + b"a"),
}


def test_hostile_bytes_are_refused(avro):
    for case, (schema, octets) in HOSTILE.items():
        assert refusal(avro(schema), octets) == (0, "malformed"), case


def test_a_refused_value_stands_between_the_others(avro):
    values = avro()
    good = datum(EXAMPLE)
    given = [record(octets) for octets in (good, b"\n\0\n", good)]
    assert numbers(values, given, "x") == [[0.1], "malformed", [0.1]]
    assert batch_of(values, given).block.count(b"\n") == 5


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.integers(0, 10**9))
def test_any_bytes_are_read_or_refused(avro, soup, seed):
    octets = bytearray(datum(EXAMPLE))
    octets[seed % len(octets)] ^= 1 + seed % 255
    given = [record(value) for value in [*soup, bytes(octets)]]
    found = outcomes(avro(), given, Wanted(("x", "n", "city"), ("y",), categorical=frozenset({"city"})))
    assert len(found) == len(given)


# --- schemas ----------------------------------------------------------------------------------------------------------

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
NOTHING = {"type": "record", "name": "Nothing", "fields": [{"name": "a", "type": "null"}]}
DEEP = "int"
for _ in range(100):
    DEEP = {"type": "map", "values": DEEP}


UNUSABLE = [
    "{",
    "7",
    "{}",
    "[" * 100_000,
    '"string"',
    {"type": "record", "name": "A", "fields": [{"name": "a", "type": "B"}]},
    NODE,
    record_of(a={"type": "array", "items": "null"}),  # as many as one likes take no bytes
    record_of(a={"type": "array", "items": NOTHING}),
    record_of(a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
    record_of(a=DEEP),
]


def test_schemas_that_cannot_be_used_are_refused_at_once(avro, tmp_path):
    for schema in UNUSABLE:
        with pytest.raises(ConfigError) as caught:
            avro(schema)
        assert "source.schema_file" in str(caught.value), schema
    with pytest.raises(ConfigError):
        values_of(format="avro", schema_file=str(tmp_path / "none.avsc"))


def test_names_are_known_to_one_schema_only(avro):
    avro(record_of(a={"type": "fixed", "name": "Own", "size": 1}))
    with pytest.raises(ConfigError):
        avro(record_of(a="Own"))


def test_the_decoder_takes_every_value_whole(avro):
    batch = batch_of(avro(), [record(datum(EXAMPLE))] * 3)
    assert decoder("jsonl").names(batch, 1) == EXAMPLE
