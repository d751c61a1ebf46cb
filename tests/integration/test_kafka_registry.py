"""Values that name their schema in a registry, read by the source's own process."""

import base64
import json

from google.protobuf import descriptor_pb2, duration_pb2

from tests.integration.kafka_clients import opened, settings_of, take
from tests.unit.connectors.registry import Registry


def test_the_process_that_reads_logs_in_and_waits_for_a_registry_that_is_out_of_order(broker, topics):
    content = descriptor_pb2.FileDescriptorProto.FromString(duration_pb2.DESCRIPTOR.serialized_pb)
    content.name, content.package = "default", "shop"  # two numbers, under a name of its own
    schema = base64.b64encode(content.SerializeToString()).decode()
    path = "/schemas/ids/7?format=serialized"
    name = topics.create()
    topics.fill(name, [b"\0\0\0\0\7\0\x08\5", b"\0\0\0\0\7\2\2", b"\0\0\0\0\7\2\0\x10\6"])
    registry = Registry()
    try:
        registry.answers[path] = (503, {"error_code": 50001})
        settings = settings_of(
            broker.address,
            name,
            format="protobuf",
            schema_registry={"url": f"http://{registry.address}", "token": "hunter2"},
        )
        with opened(settings) as source:
            while not registry.asked:
                assert source.poll(0.1) is None
            registry.answers[path] = (200, {"schemaType": "PROTOBUF", "schema": schema})
            (first, _, last), batch = take(source, 3)
        assert [json.loads(value) for value in (first, last)] == [
            {"seconds": 5, "nanos": 0},
            {"seconds": 0, "nanos": 6},
        ]
        assert batch.unreadable.keys() == {1}
        assert set(registry.logins) == {"Bearer hunter2"}
        assert b"hunter2" not in repr(settings).encode()
    finally:
        registry.close()
