"""Values that name their schema in a registry, which may ask for a login, and may be encrypted."""

import json
import logging
import shutil
import ssl
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import trustme

from streammoe.errors import ConfigError, RetriableSourceError, SourceError
from streammoe_connectors.formats import registry as formats_registry
from tests.unit.connectors.kafka_records import batch_of, numbers, record, values_of

POINT = {"type": "record", "name": "Point", "fields": [{"name": n, "type": "int"} for n in "xy"]}
HOLDER = {**POINT, "name": "Holder", "fields": [{"name": "p", "type": "geo.Point"}, *POINT["fields"]]}
USER = {"username": "me"}


def values_at(address, **settings):
    address = address if "://" in address else f"http://{address}"
    return values_of(format="avro", schema_registry={"url": address, **settings})


def framed(number, datum=b"\2\4"):
    return record(b"\0" + number.to_bytes(4, "big") + datum)


def failure(values):
    with pytest.raises(SourceError) as caught:
        batch_of(values, framed(7))
    return caught.value


def is_read(values):
    return numbers(values, [framed(7)], "x") == [[1]]


# --- schemas ----------------------------------------------------------------------------------------------------------


def test_schemas_are_fetched_once_by_number_and_outlive_the_registry(registry):
    registry.has(7, POINT)
    registry.has(8, {**POINT, "fields": POINT["fields"][::-1]})
    values = values_at(registry.address)
    assert numbers(values, [framed(7), framed(8), framed(7)], "x") == [[1], [2], [1]]
    registry.answers = {}
    assert numbers(values, [framed(8)], "x") == [[2]]
    assert registry.asked == ["/schemas/ids/7", "/schemas/ids/8"]


def test_schemas_that_schemas_refer_to_are_fetched_too(registry):
    point = json.dumps({**POINT, "namespace": "geo", "fields": [{"name": "u", "type": "int"}]})
    registry.answers["/subjects/geo%2Fpoint/versions/3?deleted=false"] = (200, {"id": 3, "schema": point})
    for names in (["geo.Point"], ["geo.Point", "geo.Other"]):
        registry.answers["/schemas/ids/3?subject=geo%2Fpoint"] = (200, {"schema": point})
        registry.has(1, HOLDER, references=[{"name": name, "subject": "geo/point", "version": 3} for name in names])
        assert numbers(values_at(registry.address), [framed(1, b"\2\6\2")], "x") == [[3]]


def test_records_whose_schema_cannot_be_used_are_rejected_and_it_is_requested_once(registry):
    loop = {"id": 6, "schema": "{}", "references": [{"name": "a", "subject": "loop", "version": 1}]}
    registry.answers["/subjects/loop/versions/1?deleted=false"] = (200, loop)
    registry.answers["/schemas/ids/6?subject=loop"] = (200, loop)
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


# --- a registry that does not answer, or not as it should -------------------------------------------------------------


def test_a_registry_in_trouble_causes_no_rejection(registry, monkeypatch):
    values = values_at(registry.address)
    for status in (500, 429):
        registry.answers["/schemas/ids/7"] = (status, {"error_code": 50001})
        assert failure(values).retriable
    body = json.dumps({"schema": json.dumps(POINT)}).encode()
    registry.answers["/schemas/ids/7"] = (200, body[:20], ("Content-Length", str(len(body))))
    assert failure(values).retriable
    registry.has(7, POINT)
    assert is_read(values)
    monkeypatch.setitem(formats_registry._OPTIONS, "timeout", 0.02)
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as silent:
        addresses = [f"127.0.0.1:{silent.server_port}", registry.address]
        registry.close()
        for address in addresses:
            assert isinstance(failure(values_at(address)), RetriableSourceError)


def test_each_server_that_is_no_registry_or_denies_access_stops_reading_and_gets_no_secret_further(registries):
    registry, other = registries(), registries()
    other.has(7, POINT)
    moved = ("Location", f"http://{other.address}/schemas/ids/7")
    for answer in [
        *((401, {"error_code": 40101}), (403, {"error_code": 40301}), (404, b"<html>hunter2</html>")),
        *((200, each) for each in (b"[" * 100_000, b"hello", [], {"schema": "{}", "references": [1]})),
        *((status, b"", moved) for status in (301, 307)),
    ]:
        registry.answers["/schemas/ids/7"] = answer
        error = failure(values_at(registry.address, **USER, password="hunter2"))
        assert not error.retriable, answer
        assert "hunter2" not in str(error)
    assert other.asked == []  # redirections are not followed


# --- logins -----------------------------------------------------------------------------------------------------------


def test_a_password_or_a_token_is_sent_and_one_that_is_replaced_in_its_file_from_then_on(registry, tmp_path):
    registry.has(7, POINT)
    file = tmp_path / "secret"
    for settings in (USER | {"password": {"file": str(file)}}, {"token": {"file": str(file)}}):
        file.write_text("a.b-c_d~e+f/g=\n")
        registry.answers["/schemas/ids/7"] = (401, {})
        values = values_at(registry.address, **settings)
        failure(values)
        file.write_text("new" if "token" in settings else "p@ss:wörd")
        registry.has(7, POINT)
        assert is_read(values)
        file.unlink()
        with pytest.raises(RetriableSourceError, match="schema_registry"):
            batch_of(values, framed(8))
    assert registry.logins == [
        *("Basic bWU6YS5iLWNfZH5lK2YvZz0=", "Basic bWU6cEBzczp3w7ZyZA=="),
        *("Bearer a.b-c_d~e+f/g=", "Bearer new"),
    ]


def test_secrets_that_are_missing_or_no_tokens_are_found_at_the_start(tmp_path):
    missing = {"file": str(tmp_path / "none")}
    for given in (USER | {"password": missing}, {"token": "hunter 2"}, {"token": "hunter2\nhunter3"}, {"token": ""}):
        with pytest.raises(ConfigError) as caught:
            values_at("127.0.0.1:1", **given)
        assert "hunter" not in str(caught.value)


def test_a_login_that_crosses_the_network_in_plain_text_is_warned_of(caplog):
    for address, exposed in [
        *(("http://registry.example", True), ("http://10.0.0.1:81", True), ("http://127.0.0.1.example", True)),
        *(("https://registry.example", False), ("http://localhost:1", False), ("http://[::1]:1", False)),
    ]:
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            values_at(address)
            values_at(address, token="hunter2")
        assert len(caplog.records) == exposed, address
        assert "hunter2" not in caplog.text


# --- TLS --------------------------------------------------------------------------------------------------------------


def encrypted(registries, authority, name="127.0.0.1"):
    """A registry with TLS, with a certificate for a name."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    registry = registries(context)
    registry.has(7, POINT)
    return registry


def test_a_registry_that_is_not_trusted_gets_no_login_until_another_certificate_is_in_the_file(registries, tmp_path):
    authority = trustme.CA()
    own, misnamed = encrypted(registries, authority), encrypted(registries, authority, "registry.example")
    right, path = tmp_path / "right.pem", tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(right))
    trustme.CA().cert_pem.write_to_path(str(path))
    made = [
        values_at(f"https://{registry.address}", **given, token="hunter2")
        for registry, given in ((own, {"cafile": str(path)}), (own, {}), (misnamed, {"cafile": str(right)}))
    ]
    for values in made:
        error = failure(values)
        assert "certificate verify failed" in str(error)
        assert "hunter2" not in str(error)
    assert own.asked == misnamed.asked == []
    shutil.copy(right, path)
    assert is_read(made[0])


def test_files_that_cannot_be_used_are_found_at_the_start(tmp_path):
    for name in ("cafile", "certfile"):
        for content in (None, "no certificate"):
            path = tmp_path / f"{name}-{content}"
            if content is not None:
                path.write_text(content)
            with pytest.raises(ConfigError, match=rf"^source\.schema_registry\.{'cafile' if content else name}"):
                values_at("https://127.0.0.1:1", **{name: str(path)})
