import math
import struct

import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, duration_pb2, message_factory, timestamp_pb2, wrappers_pb2
from hypothesis import given
from hypothesis import strategies as st

from streammoe.errors import ConfigError
from streammoe.pipeline.decoders import Wanted
from tests.unit.connectors.kafka_records import numbers, only, outcomes, record, refusal, values_of

TYPES = descriptor_pb2.FieldDescriptorProto


def field(number, name, kind, *, label="LABEL_OPTIONAL", **more):
    return TYPES(number=number, name=name, type=f"TYPE_{kind}", label=label, **more)


def many(number, name, kind, **more):
    return field(number, name, kind, label="LABEL_REPEATED", **more)


SCALARS = [
    *("DOUBLE", "FLOAT", "INT32", "INT64", "UINT32", "UINT64", "SINT32", "SINT64"),
    *("FIXED32", "FIXED64", "SFIXED32", "SFIXED64", "BOOL", "STRING", "BYTES"),
]
MESSAGE = descriptor_pb2.DescriptorProto
ORDER = MESSAGE(
    name="Order",
    field=[
        *(field(i + 1, kind.lower(), kind) for i, kind in enumerate(SCALARS)),
        field(20, "color", "ENUM", type_name=".shop.Color"),
        field(21, "at", "MESSAGE", type_name=".google.protobuf.Timestamp"),
        field(22, "took", "MESSAGE", type_name=".google.protobuf.Duration"),
        field(23, "maybe", "MESSAGE", type_name=".google.protobuf.Int64Value"),
        field(24, "part", "MESSAGE", type_name=".shop.Order"),
        many(25, "numbers", "SINT64"),
        many(26, "parts", "MESSAGE", type_name=".shop.Order.Part"),
        many(27, "named", "MESSAGE", type_name=".shop.Order.NamedEntry"),
        field(28, "set", "DOUBLE", oneof_index=0, proto3_optional=True),
        many(29, "flags", "MESSAGE", type_name=".shop.Order.FlagsEntry"),
        field(30, "y", "DOUBLE"),
    ],
    nested_type=[
        MESSAGE(name="Part", field=[field(1, "camelCase", "INT64")]),
        MESSAGE(
            name="NamedEntry",
            field=[field(1, "key", "INT64"), field(2, "value", "MESSAGE", type_name=".shop.Order.Part")],
            options={"map_entry": True},
        ),
        MESSAGE(
            name="FlagsEntry",
            field=[field(1, "key", "BOOL"), field(2, "value", "DOUBLE")],
            options={"map_entry": True},
        ),
    ],
    oneof_decl=[{"name": "_set"}],
)
COLOR = descriptor_pb2.EnumDescriptorProto(
    name="Color", value=[{"name": "RED", "number": 0}, {"name": "BLUE", "number": 5}]
)
OLD = MESSAGE(
    name="Old",
    field=[
        field(1, "id", "INT32", label="LABEL_REQUIRED"),
        field(2, "text", "STRING"),
        field(3, "x", "DOUBLE", default_value="7"),
    ],
)


def own(proto):
    copy = descriptor_pb2.FileDescriptorProto()
    proto.DESCRIPTOR.CopyToProto(copy)
    return copy


FILES = [
    own(timestamp_pb2),
    own(duration_pb2),
    own(wrappers_pb2),
    descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=[f"google/protobuf/{name}.proto" for name in ("timestamp", "duration", "wrappers")],
        message_type=[MESSAGE(name="Other", field=[field(1, "x", "DOUBLE")]), ORDER],
        enum_type=[COLOR],
    ),
    descriptor_pb2.FileDescriptorProto(name="old.proto", syntax="proto2", message_type=[OLD]),
]


def message_type(name):
    pool = descriptor_pool.DescriptorPool()
    for file in FILES:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


Order, Old = message_type("shop.Order"), message_type("Old")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("schemas") / "shop.pb"
    path.write_bytes(descriptor_pb2.FileDescriptorSet(file=FILES).SerializeToString())
    return str(path)


@pytest.fixture(scope="module")
def protobuf(path):
    """Values of a message."""

    def values(message="shop.Order", **settings):
        return values_of(format="protobuf", schema_file=path, message=message, **settings)

    return values


EMPTY = (
    dict.fromkeys((kind.lower() for kind in SCALARS), 0)
    | {"bool": False, "string": "", "bytes": "", "color": "RED", "numbers": [], "parts": []}
    | {"named": {}, "flags": {}, "y": 0}
)


def test_fields_without_presence_are_there_and_others_only_if_set(protobuf):
    assert only(protobuf(), b"") == EMPTY
    assert only(protobuf(), Order(set=0.0).SerializeToString()) == EMPTY | {"set": 0}


def test_all_kinds_of_fields(protobuf):
    order = Order(
        double=0.1, int64=-(2**63), uint64=2**64 - 1, bool=True, string="ü\n", bytes=b"text", color=5,
        part={"int32": 1}, numbers=[-1, 2**62], parts=[{"camelCase": 3}], named={-4: {"camelCase": 5}},
        flags={True: 0.5}, maybe={"value": 2**53 + 1},
    )  # fmt: skip
    order.at.FromJsonString("2024-05-01T12:00:00.000000001Z")
    order.took.FromJsonString("-1.5s")
    assert only(protobuf(), order.SerializeToString()) == EMPTY | {
        "double": 0.1, "int64": -(2**63), "uint64": 2**64 - 1, "bool": True, "string": "ü\n", "bytes": "text",
        "color": "BLUE", "part": EMPTY | {"int32": 1}, "numbers": [-1, 2**62], "parts": [{"camelCase": 3}],
        "named": {"-4": {"camelCase": 5}}, "flags": {"true": 0.5}, "maybe": 2**53 + 1,
        "at": "2024-05-01T12:00:00.000000001Z", "took": -1.5,
    }  # fmt: skip


def test_bytes_that_are_no_text_are_left_out(protobuf):
    assert "bytes" not in only(protobuf(), Order(bytes=b"\xff").SerializeToString())


def test_an_enumeration_s_unknown_member_is_its_number(protobuf):
    assert only(protobuf(), Order(color=9).SerializeToString())["color"] == 9


def test_fields_that_the_schema_lacks_are_passed_over(protobuf):
    assert only(protobuf("shop.Other"), Order(double=1.5, string="a").SerializeToString()) == {"x": 1.5}


def test_defaults_of_fields_that_are_not_set_are_not_made_up(protobuf):
    assert only(protobuf("Old"), Old(id=3).SerializeToString()) == {"id": 3}


def test_key_and_headers_stand_beside_the_message(protobuf):
    values = protobuf("shop.Other", key_field="k", timestamp_field="x")
    assert only(values, struct.pack("<Bd", 9, 2.5), key=b"a", timestamp=1) == {"k": "a", "x": 2.5}


@given(st.lists(st.tuples(st.floats(), st.floats(width=32), st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=5))
def test_what_was_written_is_read_to_the_last_bit(protobuf, rows):
    given = [record(Order(double=a, float=b, int64=c, y=1).SerializeToString()) for a, b, c in rows]
    found = numbers(protobuf(), given, "double", "float", "int64")
    for row, read in zip(rows, found, strict=True):
        if all(map(math.isfinite, row)):
            assert struct.pack("3d", *read) == struct.pack("3d", *row)
        else:
            assert read == "not_finite"


def test_numbers_that_are_not_finite_are_refused_and_not_missing(protobuf):
    for x in (math.nan, math.inf, -math.inf):
        given = [Order(double=1), Order(double=x), Order(y=x), Order(float=x, double=2, parts=[{}])]
        found = numbers(protobuf(), [record(order.SerializeToString()) for order in given], "double")
        assert found == [[1], "not_finite", "not_finite", [2]]


# --- hostile bytes ----------------------------------------------------------------------------------------------------

GOOD = Order(double=1.5, string="text").SerializeToString()


def nested(levels):
    octets = b""
    for _ in range(levels):
        length = len(octets)
        size = b""
        while length > 0x7F:
            size += bytes([length & 0x7F | 0x80])
            length >>= 7
        octets = b"\xc2\x01" + size + bytes([length]) + octets
    return octets


def test_hostile_bytes_are_refused(protobuf):
    hostile = [GOOD[:-1], GOOD[:5], GOOD + b"\x0f", b"\xff", b"\0", b"r\x02\xff\xfe", b"r\xff\xff\xff\xff\x07a"]
    for octets in [*hostile, nested(101), nested(5000)]:
        assert refusal(protobuf(), octets) == (0, "malformed"), octets
    for at in [{"seconds": 2**62}, {"seconds": -(2**62)}, {"nanos": -1}, {"nanos": 10**9}]:  # times that are none
        assert refusal(protobuf(), Order(at=at).SerializeToString()) == (0, "malformed"), at
    lacks_a_required_field = Old(x=1).SerializePartialToString()
    assert refusal(protobuf("Old"), lacks_a_required_field) == (0, "malformed")


@given(st.lists(st.binary(max_size=60), min_size=1, max_size=4), st.integers(0, 10**9), st.booleans())
def test_any_bytes_are_read_or_refused(protobuf, soup, seed, framed):
    octets = bytearray(Order(double=1, part={"named": {1: {}}}, numbers=[1, 2], at={"seconds": 5}).SerializeToString())
    octets[seed % len(octets)] ^= 1 + seed % 255
    given = [record(b"\0\0\0\0\1\2\2" * framed + value) for value in [*soup, bytes(octets)]] + [record(soup[0])]
    values = protobuf(framing="confluent" if framed else "none")
    wanted = Wanted(("double", "int64", "string"), ("y",), categorical=frozenset({"string"}))
    assert len(outcomes(values, given, wanted)) == len(given)


# --- framing ----------------------------------------------------------------------------------------------------------


def test_what_stands_before_a_message_is_passed_over(protobuf):
    double = struct.pack("<Bd", 9, 2.5)
    for message, rest, found in [
        ("shop.Order", b"\2\2" + double, EMPTY | {"double": 2.5}),
        ("shop.Other", b"\0" + double, {"x": 2.5}),
        ("shop.Other", b"\2\0" + double, {"x": 2.5}),
        ("shop.Order.Part", b"\4\2\0", {"camelCase": 0}),
    ]:
        assert only(protobuf(message, framing="confluent"), b"\0\0\0\0\x07" + rest) == found


def test_other_framing_is_refused(protobuf):
    values = protobuf(framing="confluent")
    for octets in [
        b"",
        b"\0\0\0\0\1",
        b"\1\0\0\0\1\2\2",
        b"\0\0\0\0\1\0",
        b"\0\0\0\0\1\2\4",
        b"\0\0\0\0\1\2\1",
        b"\0\0\0\0\1\1",
        b"\0\0\0\0\1\xff\xff\xff\xff\x0f",
        b"\0\0\0\0\1\xff",
        b"\0\0\0\0\1\2",
        b"\0\0\0\0\1\x80\x80\x80\x80\x80\0",
        b"\0\0\0\0\1\2\2\xff",
    ]:
        assert refusal(values, octets) == (0, "malformed"), octets


# --- descriptors ------------------------------------------------------------------------------------------------------


def test_what_holds_no_such_message_is_refused(protobuf, tmp_path):
    with pytest.raises(ConfigError):
        protobuf("shop.order")
    for content in [None, b"\xff", descriptor_pb2.FileDescriptorSet(file=FILES[3:]).SerializeToString()]:  # no imports
        path = tmp_path / "a.pb"
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(ConfigError):
            values_of(format="protobuf", schema_file=str(path), message="shop.Order")
