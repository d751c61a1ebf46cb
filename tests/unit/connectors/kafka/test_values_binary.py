"""Values in Avro and Protobuf become JSON that the decoder accepts or rejects like the originals."""

import io
import json
import math
import struct
from datetime import UTC, date, datetime, time
from decimal import Decimal
from uuid import UUID

import fastavro
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given, settings
from hypothesis import strategies as st

from streammoe.errors import ConfigError
from tests.batches import roles_of
from tests.unit.connectors.kafka_records import batch_of, numbers, only, outcomes, record, refusal, values_of

# --- Avro -------------------------------------------------------------------------------------------------------------


def record_of(**types):
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in types.items()]}


def logical(kind, name, **more):
    return {"type": kind, "logicalType": name, **more}


PLAIN = record_of(double="double", int64="long", bool="boolean", string="string", bytes="bytes", y="double")


def datum(schema, **fields):
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(schema), fields)
    return stream.getvalue()


def varint(n):
    """A number as both formats write it."""
    octets = []
    while n > 0x7F:
        octets.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*octets, n])


def long(n):
    """A number as Avro writes it."""
    return varint((n << 1) ^ (n >> 63))


@pytest.fixture(scope="module")
def avro(tmp_path_factory):
    """Values of a schema."""

    def values(schema=PLAIN, **settings):
        path = tmp_path_factory.mktemp("schemas") / "a.avsc"
        path.write_text(schema if isinstance(schema, str) else json.dumps(schema))
        return values_of(format="avro", schema_file=str(path), **settings)

    return values


# --- Protobuf ---------------------------------------------------------------------------------------------------------

MESSAGE, FILE = descriptor_pb2.DescriptorProto, descriptor_pb2.FileDescriptorProto


def field(number, name, kind, *, label="OPTIONAL", **more):
    return descriptor_pb2.FieldDescriptorProto(
        number=number, name=name, type=f"TYPE_{kind}", label=f"LABEL_{label}", **more
    )


SCALARS = ["DOUBLE", "FLOAT", "INT32", "INT64", "UINT64", "SINT32", "FIXED64", "BOOL", "STRING", "BYTES"]
MESSAGES = {
    "color": ("ENUM", ".shop.Color"),
    "at": ("MESSAGE", ".google.protobuf.Timestamp"),
    "took": ("MESSAGE", ".google.protobuf.Duration"),
    "maybe": ("MESSAGE", ".google.protobuf.Int64Value"),
    "part": ("MESSAGE", ".shop.Order"),
}
ORDER = MESSAGE(
    name="Order",
    field=[
        *(field(i + 1, kind.lower(), kind) for i, kind in enumerate(SCALARS)),
        *(field(i + 20, name, kind, type_name=of) for i, (name, (kind, of)) in enumerate(MESSAGES.items())),
        field(25, "numbers", "SINT64", label="REPEATED"),
        field(26, "parts", "MESSAGE", label="REPEATED", type_name=".shop.Order.Part"),
        field(27, "named", "MESSAGE", label="REPEATED", type_name=".shop.Order.NamedEntry"),
        field(28, "set", "DOUBLE", oneof_index=0, proto3_optional=True),
        field(30, "y", "DOUBLE"),
    ],
    nested_type=[
        MESSAGE(name="Part", field=[field(1, "camelCase", "INT64")]),
        MESSAGE(
            name="NamedEntry",
            field=[field(1, "key", "BOOL"), field(2, "value", "MESSAGE", type_name=".shop.Order.Part")],
            options={"map_entry": True},
        ),
    ],
    oneof_decl=[{"name": "_set"}],
)
COLOR = descriptor_pb2.EnumDescriptorProto(
    name="Color", value=[{"name": "RED", "number": 0}, {"name": "BLUE", "number": 5}]
)
OLD = MESSAGE(name="Old", field=[field(1, "id", "INT32", label="REQUIRED"), field(2, "x", "DOUBLE", default_value="7")])


FILES = [
    *(FILE.FromString(each.DESCRIPTOR.serialized_pb) for each in (timestamp_pb2, duration_pb2, wrappers_pb2)),
    FILE(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=[f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers")],
        message_type=[MESSAGE(name="Other", field=[field(1, "x", "DOUBLE")]), ORDER],
        enum_type=[COLOR],
    ),
    FILE(name="old.proto", syntax="proto2", message_type=[OLD]),
]
POOL = descriptor_pool.DescriptorPool()
for file in FILES:
    POOL.Add(file)
Order, Old = (message_factory.GetMessageClass(POOL.FindMessageTypeByName(name)) for name in ("shop.Order", "Old"))


def order(**fields):
    return Order(**fields).SerializeToString()


@pytest.fixture(scope="module")
def protobuf(tmp_path_factory):
    """Values of a message."""
    path = tmp_path_factory.mktemp("schemas") / "shop.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=FILES).SerializeToString())

    def values(message="shop.Order", **settings):
        return values_of(format="protobuf", schema_file=str(path), message=message, **settings)

    return values


# --- both -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["avro", "protobuf"])
def form(request, avro, protobuf):
    """Values of a format, and a function that encodes an event for them."""
    empty = {"double": 0.0, "int64": 0, "bool": False, "string": "", "bytes": b"", "y": 0.0}
    if request.param == "avro":
        return avro, lambda **fields: datum(PLAIN, **empty | fields)
    return protobuf, order


@settings(max_examples=40)
@given(st.lists(st.tuples(st.floats(), st.integers(-(2**63), 2**63 - 1), st.booleans()), min_size=1, max_size=5))
def test_what_was_written_is_read_to_the_last_bit(form, rows):
    values, encode = form
    given = [record(encode(double=a, int64=b, bool=c, y=1)) for a, b, c in rows]
    for row, read in zip(rows, numbers(values(), given, "double", "int64", "bool"), strict=True):
        if math.isnan(row[0]):
            assert math.isnan(read[0])
        elif math.isfinite(row[0]):
            assert struct.pack("3d", *read) == struct.pack("3d", *row)
        else:
            assert read == "not_finite"


def test_bytes_become_text_with_escapes_for_what_is_none(form):
    values, encode = form
    assert only(values(), encode(bytes="ü".encode()))["bytes"] == "ü"
    assert only(values(), encode(bytes=b"a\0\xff"))["bytes"] == "a\0\\xff"
    assert numbers(values(), [record(encode(bytes=b"\xff"))], "bytes") == ["wrong_type"]


@settings(max_examples=40)
@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.integers(0, 10**9))
def test_any_bytes_are_read_or_rejected(form, soup, seed):
    values, encode = form
    octets = bytearray(encode(double=1.0, string="text", int64=5))
    octets[seed % len(octets)] ^= 1 + seed % 255
    given = [record(value) for value in [*soup, bytes(octets)]]
    wanted = roles_of(("double", "int64", "string"), ("y",), categorical=frozenset({"string"}))
    assert len(outcomes(values(), given, wanted)) == len(given)


# --- what only Avro has -----------------------------------------------------------------------------------------------

ENUM = {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}
NESTED = record_of(
    n=["null", "long"],
    tags={"type": "array", "items": "bytes"},
    more={"type": "map", "values": ["null", "float", {**record_of(e=ENUM), "name": "R2"}]},
)
LOGICAL = {
    "day": ("int", "date", date(2024, 2, 29), "2024-02-29"),
    "clock": ("int", "time-millis", time(1, 2, 3, 4000), "01:02:03.004000"),
    "milli": ("long", "timestamp-millis", datetime(2024, 5, 1, 12, tzinfo=UTC), "2024-05-01T12:00:00Z"),
    "micro": ("long", "timestamp-micros", datetime(999, 5, 1, 12, 0, 0, 7, UTC), "0999-05-01T12:00:00.000007Z"),
    "nano": ("long", "timestamp-nanos", -1, "1969-12-31T23:59:59.999999999Z"),
    "local": ("long", "local-timestamp-millis", datetime(2024, 5, 1, 12), "2024-05-01T12:00:00"),  # noqa: DTZ001
    "local_nano": ("long", "local-timestamp-nanos", 10**9, "1970-01-01T00:00:01.000000000"),
    "id": ("string", "uuid", UUID(int=7), "00000000-0000-0000-0000-000000000007"),
}
DECIMAL = logical("bytes", "decimal", precision=19, scale=2)


def test_records_unions_and_logical_types_become_json(avro):
    given = {"n": 2**53 + 1, "tags": [b"\xff", b"a"], "more": {"k": {"e": "BLUE"}, "l": None}}
    assert only(avro(NESTED), datum(NESTED, **given)) == given | {"tags": ["\\xff", "a"]}
    without_bytes = record_of(x="double", y="double")
    assert numbers(avro(without_bytes), [record(datum(without_bytes, x=math.inf, y=1.0))], "x") == ["not_finite"]
    union = [record_of(e=ENUM), {**record_of(x="int"), "name": "Other"}]
    assert [only(avro(union), octets) for octets in (b"\0\2", b"\2\6")] == [{"e": "BLUE"}, {"x": 3}]
    schema = record_of(**{name: logical(kind, what) for name, (kind, what, _, _) in LOGICAL.items()})
    octets = datum(schema, **{name: value for name, (_, _, value, _) in LOGICAL.items()})
    assert only(avro(schema), octets) == {name: text for name, (*_, text) in LOGICAL.items()}


def test_decimals_become_the_next_numbers_or_are_rejected_and_times_are_read_as_times(avro):
    for base in (DECIMAL, DECIMAL | {"type": "fixed", "name": "F", "size": 9}):
        schema = record_of(d=base)
        for value in ("0.10", "-12345678901234567.89", "0.00"):
            assert only(avro(schema), datum(schema, d=Decimal(value))) == {"d": float(value)}
    whole = record_of(d=DECIMAL | {"scale": 0})
    assert only(avro(whole), datum(whole, d=Decimal(2**60 + 1))) == {"d": 2**60 + 1}
    huge = long(8000) + b"\x7f" * 8000 + bytes(8)
    assert numbers(avro(record_of(d=DECIMAL, y="double")), [record(huge)], "d") == ["not_finite"]
    schema = record_of(t=logical("long", "timestamp-millis"), y="double")
    octets = datum(schema, t=datetime(1970, 1, 2, 0, 0, 0, 500_000, UTC), y=1.0)
    assert numbers(avro(schema), [record(octets)], "t", timestamps=frozenset("t")) == [[86400.5]]


HOSTILE = [
    *((PLAIN, bytes(19)), (PLAIN, bytes(21)), (PLAIN, b"")),  # 20 would do
    (record_of(s="string"), long(-5) + b"hello"),
    (record_of(s="bytes"), long(2**62) + b"hello"),
    (record_of(s="string"), long(1) + b"\xff"),
    (record_of(s=["null", "int"]), long(7)),
    (record_of(s=ENUM), long(2)),
    *((record_of(s={"type": "array", "items": "int"}), long(count) + b"\0" * 100) for count in (2**62, -(2**62))),
    (record_of(s={"type": "map", "values": "null"}), long(2**62) + b"\0" * 100),
    (record_of(s=logical("int", "date")), long(2**30)),
    (record_of(s=logical("int", "time-millis")), long(2**30)),
    (record_of(s=logical("long", "timestamp-millis")), long(2**62)),
    (record_of(s=logical("string", "uuid")), long(1) + b"a"),
]


def test_hostile_avro_is_rejected(avro):
    assert batch_of(avro(), record(bytes(20))).unreadable == {}
    for schema, octets in HOSTILE:
        assert refusal(avro(schema), octets) == (0, "malformed"), schema


DEEP = "int"
for _ in range(100):
    DEEP = {"type": "map", "values": DEEP}
UNUSABLE = [
    *("{", "7", "{}", "[" * 100_000, '"string"'),
    record_of(a="B"),
    record_of(a=["null", "R"]),
    record_of(a={"type": "array", "items": "null"}),  # as many as one likes take no bytes
    record_of(a={"type": "array", "items": {**record_of(a="null"), "name": "Nothing"}}),
    record_of(a={"type": "array", "items": {"type": "fixed", "name": "F", "size": 0}}),
    record_of(a=DEEP),
]


def test_schemas_that_cannot_be_used_are_rejected_at_once(avro):
    avro(record_of(a={"type": "fixed", "name": "Own", "size": 1}))
    for schema in (*UNUSABLE, record_of(a="Own")):  # names are known to one schema only
        with pytest.raises(ConfigError) as caught:
            avro(schema)
        assert "source.schema_file" in str(caught.value), schema


# --- what only Protobuf has -------------------------------------------------------------------------------------------

EMPTY = (
    dict.fromkeys((kind.lower() for kind in SCALARS), 0)
    | {"bool": False, "string": "", "bytes": "", "color": "RED", "numbers": [], "parts": []}
    | {"named": {}, "y": 0}
)


def test_all_kinds_of_fields_and_those_with_presence_only_if_set(protobuf):
    full = Order(
        double=0.1, int64=-(2**63), uint64=2**64 - 1, bool=True, string="ü\n", bytes=b"text", color=5,
        part={"int32": 1}, numbers=[-1, 2**62], parts=[{"camelCase": 3}], named={True: {"camelCase": 5}},
        maybe={"value": 2**53 + 1},
    )  # fmt: skip
    full.at.FromJsonString("2024-05-01T12:00:00.000000001Z")
    full.took.FromJsonString("-1.5s")
    assert only(protobuf(), full.SerializeToString()) == EMPTY | {
        "double": 0.1, "int64": -(2**63), "uint64": 2**64 - 1, "bool": True, "string": "ü\n", "bytes": "text",
        "color": "BLUE", "part": EMPTY | {"int32": 1}, "numbers": [-1, 2**62], "parts": [{"camelCase": 3}],
        "named": {"true": {"camelCase": 5}}, "maybe": 2**53 + 1, "at": "2024-05-01T12:00:00.000000001Z", "took": -1.5,
    }  # fmt: skip
    assert only(protobuf(), b"") == EMPTY
    assert only(protobuf(), order(set=0.0)) == EMPTY | {"set": 0}
    assert only(protobuf(), order(color=9)) == EMPTY | {"color": 9}  # an unknown member is its number
    assert only(protobuf("shop.Other"), order(double=1.5, string="a")) == {"x": 1.5}  # without what its schema lacks
    assert only(protobuf("Old"), Old(id=3).SerializeToString()) == {"id": 3}  # without a default that was not set


PART = b"\xc2\x01"
"""The tag of the field `part`, in which a message may hold another."""


def nested(levels):
    octets = b""
    for _ in range(levels):
        octets = PART + varint(len(octets)) + octets
    return octets


def test_hostile_protobuf_is_rejected(protobuf):
    good = order(double=1.5, string="text")
    hostile = [good[:-1], good[:5], good + b"\x0f", b"\xff", b"\0", b"J\x02\xff\xfe", b"J\xff\xff\xff\xff\x07a"]
    times = [{"seconds": 2**62}, {"seconds": -(2**62)}, {"nanos": -1}, {"nanos": 10**9}]  # that are none
    for octets in [*hostile, nested(101), nested(5000), *(order(at=at) for at in times)]:
        assert refusal(protobuf(), octets) == (0, "malformed"), octets
    lacks_a_required_field = Old(x=1).SerializePartialToString()
    assert refusal(protobuf("Old"), lacks_a_required_field) == (0, "malformed")


def test_the_framing_of_registries_is_skipped_and_any_other_is_rejected(protobuf):
    double = struct.pack("<Bd", 9, 2.5)
    for message, rest, found in [
        ("shop.Order", b"\2\2" + double, EMPTY | {"double": 2.5}),
        ("shop.Other", b"\0" + double, {"x": 2.5}),
        ("shop.Other", b"\2\0" + double, {"x": 2.5}),
        ("shop.Order.Part", b"\4\2\0", {"camelCase": 0}),
    ]:
        assert only(protobuf(message, framing="confluent"), b"\0\0\0\0\x07" + rest) == found
    for octets in (b"", b"\0\0\0\0\1", b"\0\0\0\0\1\2\4", b"\1\0\0\0\1\2\2", b"\0\0\0\0\1\x80\x80\x80\x80\x80\0"):
        assert refusal(protobuf(framing="confluent"), octets) == (0, "malformed"), octets


def test_a_schema_without_such_a_message_is_rejected(protobuf, tmp_path):
    with pytest.raises(ConfigError):
        protobuf("shop.order")
    lacking = FILE(name="a.proto", message_type=[ORDER])  # what it refers to
    for content in [None, b"\xff", descriptor_pb2.FileDescriptorSet(file=[lacking]).SerializeToString()]:
        path = tmp_path / "a.pb"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError):
            values_of(format="protobuf", schema_file=str(path), message="Order" if content else "shop.Order")
