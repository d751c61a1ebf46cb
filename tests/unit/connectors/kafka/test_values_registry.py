import json
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from streammoe.errors import RetriableSourceError, SourceError
from streammoe_connectors.formats import schema_registry
from tests.unit.connectors.kafka_records import columns, numbers, record, values_of

POINT = {"type": "record", "name": "Point", "fields": [{"name": n, "type": "int"} for n in "xy"]}
HOLDER = {**POINT, "name": "Holder", "fields": [{"name": "p", "type": "geo.Point"}, *POINT["fields"]]}


def values_at(address):
    return values_of(format="avro", schema_registry=f"http://{address}")


def framed(number, datum=b"\2\4"):
    return record(b"\0" + number.to_bytes(4, "big") + datum)


def test_schemas_are_fetched_once_by_number_and_outlive_the_registry(registry):
    registry.has(7, POINT)
    registry.has(8, {**POINT, "fields": POINT["fields"][::-1]})
    values = values_at(registry.address)
    assert numbers(values, [framed(7), framed(8), framed(7)], "x") == [[1], [2], [1]]
    registry.answers = {}
    assert numbers(values, [framed(8)], "x") == [[2]]
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"]


def test_schemas_that_schemas_refer_to_are_fetched_too(registry):
    registry.has(1, HOLDER, references=[{"name": "geo.Point", "subject": "geo/point", "version": 3}])
    point = json.dumps({**POINT, "namespace": "geo", "fields": [{"name": "u", "type": "int"}]})
    registry.answers["/subjects/geo%2Fpoint/versions/3"] = (200, {"schema": point})
    assert numbers(values_at(registry.address), [framed(1, b"\2\6\2")], "x") == [[3]]
    both = [{"name": name, "subject": "geo/point", "version": 3} for name in ("geo.Point", "geo.Other")]
    registry.has(1, HOLDER, references=both)
    assert numbers(values_at(registry.address), [framed(1, b"\2\6\2")], "x") == [[3]]


def test_records_whose_schema_cannot_be_used_are_rejected_and_it_is_requested_once(registry):
    loop = {"schema": "{}", "references": [{"subject": "loop", "version": 1}]}
    registry.answers["/subjects/loop/versions/1"] = (200, loop)
    for answer in [{"schema": json.dumps(POINT), "schemaType": "JSON"}, {"schema": "no json"}, loop]:
        registry.answers["/schemas/ids/5"] = (200, answer)
        values = values_at(registry.address)
        assert numbers(values, [framed(5)], "x") == ["malformed"], answer
        asked = len(registry.asked)
        assert numbers(values, [framed(5)], "x") == ["malformed"]
        assert len(registry.asked) == asked


def test_bad_values_are_rejected_and_an_unknown_schema_is_requested_again_after_a_while(registry, monkeypatch):
    registry.has(7, POINT)
    values = values_at(registry.address)
    bad = [b"", b"\0\0\0\0", b"\1\0\0\0\7\2\4", b"\0\0\0\0\7\2", b"\0\0\0\0\7\2\4\0"]
    given = [framed(7), *map(record, bad), framed(9), framed(7)]
    assert numbers(values, given, "x") == [[1], *["malformed"] * 6, [1]]
    registry.has(9, POINT)
    assert numbers(values, [framed(9)], "x") == ["malformed"]
    now = time.monotonic
    monkeypatch.setattr(time, "monotonic", lambda: now() + 61)
    assert numbers(values, [framed(9)], "x") == [[1]]
    assert len(registry.asked) == 3


def test_a_registry_in_trouble_causes_no_rejection(registry, monkeypatch):
    values = values_at(registry.address)
    for status in (500, 429):
        registry.answers["/schemas/ids/7"] = (status, {"error_code": 50001})
        with pytest.raises(RetriableSourceError):
            values.block(columns(framed(7)))
    registry.has(7, POINT)
    assert numbers(values, [framed(7)], "x") == [[1]]
    monkeypatch.setattr(schema_registry, "_TIMEOUT_SECONDS", 0.02)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:
        addresses = [f"127.0.0.1:{silent.server_port}", registry.address]
        registry.close()
        for address in addresses:
            with pytest.raises(RetriableSourceError):
                values_at(address).block(columns(framed(7)))


def test_a_server_that_is_no_registry_or_denies_access_stops_reading(registry):
    registry.has(8, POINT)
    moved = ("Location", f"http://{registry.address}/schemas/ids/8")
    for answer in [
        *((401, {"error_code": 40101}), (404, b"<html>"), (200, b"[" * 100_000), (200, [])),
        (200, {"schema": "{}", "references": [1]}),
        (200, json.dumps({"schema": json.dumps(POINT)}).encode() + b" " * (1 << 22)),  # too much
        *((status, b"", moved) for status in (301, 307)),
    ]:
        registry.answers["/schemas/ids/7"] = answer
        with pytest.raises(SourceError) as caught:
            values_at(registry.address).block(columns(framed(7)))
        assert not caught.value.retriable, answer
    assert set(registry.asked) == {"/schemas/ids/7"}  # redirections are not followed


def test_user_and_password_are_sent_and_never_shown(registry):
    registry.has(7, POINT)
    values = values_at(f"me:p%40ss%3A@{registry.address}/")
    assert numbers(values, [framed(7)], "x") == [[1]]
    assert registry.logins == ["Basic bWU6cEBzczo="]
    registry.answers = {"/schemas/ids/8": (401, {}), "/schemas/ids/9": (500, {})}
    messages = [values.block(columns(framed(10))).rejected[0][1]]
    for number in (8, 9):
        with pytest.raises(SourceError, match=registry.address) as caught:
            values.block(columns(framed(number)))
        messages.append(str(caught.value))
    assert not [message for message in messages if "p%40ss" in message or "p@ss" in message]
