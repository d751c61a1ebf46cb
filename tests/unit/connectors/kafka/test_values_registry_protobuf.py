"""Protobuf values that name their schema in a registry."""

import base64
from itertools import pairwise

import pytest
from confluent_kafka.schema_registry.confluent import meta_pb2
from confluent_kafka.schema_registry.confluent.type import decimal_pb2
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from streammoe.errors import SourceError
from tests.unit.connectors.kafka_records import batch_of, only, record, refusal, values_of

FILE, MESSAGE = descriptor_pb2.FileDescriptorProto, descriptor_pb2.DescriptorProto


def field(number, name, kind, of=None):
    return descriptor_pb2.FieldDescriptorProto(
        number=number, name=name, type=f"TYPE_{kind}", label="LABEL_OPTIONAL", type_name=of
    )


def file(name, package, dependency, *messages):
    syntax = "proto3"
    return FILE(name=name, package=package, syntax=syntax, dependency=dependency, message_type=messages)


UNIT = file("geo/unit.proto", "geo", [], MESSAGE(name="Unit", field=[field(1, "metres", "DOUBLE")]))
POINT = file(
    "geo/point.proto",
    "geo",
    ["geo/unit.proto"],
    MESSAGE(name="Point", field=[field(1, "x", "DOUBLE"), field(2, "unit", "MESSAGE", ".geo.Unit")]),
)
PROVIDED = ["google/protobuf/timestamp.proto", "confluent/meta.proto", "confluent/type/decimal.proto"]
ORDER = [
    field(1, "y", "DOUBLE"),
    field(2, "at", "MESSAGE", ".google.protobuf.Timestamp"),
    field(3, "where", "MESSAGE", ".geo.Point"),
    field(4, "price", "MESSAGE", ".confluent.type.Decimal"),
]
REASON = MESSAGE(name="Reason", field=[field(1, "code", "INT64")])
SHOP = file(
    "shop.proto",
    "shop",
    ["geo/point.proto", *PROVIDED],
    MESSAGE(name="Order", field=ORDER),
    MESSAGE(name="Refund", field=[field(1, "y", "DOUBLE")], nested_type=[REASON, MESSAGE(name="Empty")]),
)
POOL = descriptor_pool.DescriptorPool()
for module in (descriptor_pb2, timestamp_pb2, meta_pb2, decimal_pb2):
    POOL.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
for each in (UNIT, POINT, SHOP):
    POOL.Add(each)
Order, Reason = (
    message_factory.GetMessageClass(POOL.FindMessageTypeByName(name)) for name in ("shop.Order", "shop.Refund.Reason")
)
SERIALIZED = "?format=serialized"


def serialized(file):
    """What a registry gives for a file: it may not know by which name others import it."""
    copy = FILE.FromString(file.SerializeToString())
    copy.name = "default"
    return base64.b64encode(copy.SerializeToString()).decode()


def put(registry, number, file, *references, subject=None, **more):
    """Register a file, given as text or serialized, whose references are (path of the import, subject)."""
    listed = [{"name": name, "subject": subject, "version": 1} for name, subject in references]
    text = file if isinstance(file, str) else serialized(file)
    query = SERIALIZED if subject is None else f"?subject={subject}&format=serialized"
    answer = {"schemaType": "PROTOBUF", "schema": text, "references": listed, "id": number, **more}
    registry.answers[f"/schemas/ids/{number}{query}"] = (200, answer)
    if subject is not None:
        readable = answer | {"schema": 'syntax = "proto3";'}  # as it is where it is not asked for by number
        registry.answers[f"/subjects/{subject}/versions/1?deleted=false"] = (200, readable)


def shop(registry, number=7, file=SHOP):
    """Put the schema of `Order`, which refers to that of a point, and that to one of a unit."""
    put(registry, number, file, ("geo/point.proto", "geo/point"))
    put(registry, 3, POINT, ("geo/unit.proto", "unit"), subject="geo%2Fpoint")
    put(registry, 2, UNIT, subject="unit")


def values_at(registry, **settings):
    return values_of(format="protobuf", schema_registry={"url": f"http://{registry.address}"}, **settings)


def framed(number, rest):
    return b"\0" + number.to_bytes(4, "big") + rest


def order(**fields):
    return b"\0" + Order(**fields).SerializeToString()


FULL = {"y": 0.5, "where": {"x": 2.5, "unit": {"metres": 0.1}}, "at": {"seconds": 1}}
READ = {"y": 0.5, "at": "1970-01-01T00:00:01Z", "where": {"x": 2.5, "unit": {"metres": 0.1}}}


def test_a_message_is_read_by_its_schema_and_all_that_it_imports_which_are_fetched_once(registry):
    shop(registry)
    values = values_at(registry)
    assert only(values, framed(7, order(**FULL))) == READ
    asked = list(registry.asked)
    assert len(asked) == 5
    registry.answers = {}
    for indexes in (b"\0", b"\2\0"):
        assert only(values, framed(7, indexes + Order(y=1.0).SerializeToString())) == {"y": 1.0}
    assert only(values, framed(7, b"\2\2")) == {"y": 0}
    assert only(values, framed(7, b"\4\2\0" + Reason(code=-5).SerializeToString())) == {"code": -5}
    assert only(values, framed(7, b"\4\2\2")) == {}
    for indexes in (b"\2\4", b"\4\2\4", b"\4\0\0", b"\2\1", b"\1", b"\xff", b"\xfe\xff\xff\xff\x0f"):
        assert refusal(values, framed(7, indexes)) == (0, "malformed"), indexes
    for octets in (b"", b"\0\0\0\0\7", b"\1\0\0\0\7\0", framed(7, order(y=1.0)[:-1])):
        assert refusal(values, octets) == (0, "malformed"), octets
    assert registry.asked == asked


def test_only_the_message_of_the_settings_is_read_and_files_of_protobuf_itself_need_no_reference(registry):
    shop(registry)
    values = values_at(registry, message="shop.Refund.Reason")
    assert only(values, framed(7, b"\4\2\0")) == {"code": 0}
    assert refusal(values, framed(7, order(y=1.0))) == (0, "malformed")
    names = ("any", "api", "descriptor", "duration", "empty", "field_mask", "source_context", "struct", "wrappers")
    imports = [f"google/protobuf/{name}.proto" for name in names]
    put(registry, 1, file("a.proto", "", imports, MESSAGE(name="A")))
    assert only(values_at(registry), framed(1, b"\0")) == {}


def test_decimals_are_exact_and_hostile_ones_rejected(registry):
    shop(registry)
    values = values_at(registry)

    def block(octets, scale):
        return batch_of(values, record(framed(7, order(price={"value": octets, "scale": scale}))))

    for octets, scale, text in [(b"\x30\x39", 2, "123.45"), (b"\xff", 3, "-0.001"), (b"", 0, "0"), (b"\1", -3, "1E+3")]:
        assert f'"price":{text}}}'.encode() in block(octets, scale).block
    wide = 2**503 + 1
    assert f'"price":{wide}}}'.encode() in block(wide.to_bytes(64, "big"), 0).block
    assert block(b"\1" * 65, 0).unreadable
    assert b"1E-2147483647" in block(b"\1", 2**31 - 1).block
    elsewhere = FILE.FromString(SHOP.SerializeToString())
    elsewhere.dependency[3] = "confluent/types/decimal.proto"
    shop(registry, 8, elsewhere)
    assert only(values, framed(8, order(price={"value": b"\1", "scale": 1}))) == {"y": 0, "price": 0.1}


def test_a_registry_that_does_not_serialize_stops_reading(registry):
    for answer in [(200, {"schemaType": "PROTOBUF", "schema": 'syntax = "proto3";'}), (501, {"error_code": 501})]:
        registry.answers[f"/schemas/ids/7{SERIALIZED}"] = answer
        with pytest.raises(SourceError) as caught:
            batch_of(values_at(registry), record(framed(7, b"\0")))
        assert not caught.value.retriable, answer
    shop(registry)
    put(registry, 2, 'syntax = "proto3";', subject="unit")
    with pytest.raises(SourceError):
        batch_of(values_at(registry), record(framed(7, b"\0")))


def test_schemas_that_cannot_be_used_are_rejected_and_requested_once(registry):
    lacks_a_type = file("", "", [], MESSAGE(name="A", field=[field(1, "b", "MESSAGE", ".B")]))
    names = [f"M{i}" for i in range(3_000)]  # each of which holds the next one
    chain = [MESSAGE(name=one, field=[field(1, "n", "MESSAGE", f".{of}")]) for one, of in pairwise(names)]
    wrong = {
        "of another type": {"schemaType": "AVRO", "schema": "{}"},
        "no descriptor": {"schema": base64.b64encode(b"\xff\xff").decode()},
        "an import that is not registered": {"schema": serialized(FILE(dependency=["google/type/date.proto"]))},
        "an unknown type": {"schema": serialized(lacks_a_type)},
        "nested too deeply": {"schema": serialized(file("", "", [], *chain, MESSAGE(name=names[-1])))},
        "no message": {"schema": ""},
        "itself": {
            "schema": serialized(FILE(dependency=["a"])),
            "references": [{"name": "a", "subject": "loop", "version": 1}],
        },
    }
    put(registry, 6, FILE(dependency=["a"]), ("a", "loop"), subject="loop")
    for what, answer in wrong.items():
        put(registry, 5, "", **answer)
        values = values_at(registry)
        for _ in range(2):
            assert refusal(values, framed(5, b"\0")) == (0, "malformed"), what
        assert registry.asked.count(f"/schemas/ids/5{SERIALIZED}") == 1, what
        registry.asked.clear()
