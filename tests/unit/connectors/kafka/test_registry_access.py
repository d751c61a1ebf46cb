"""Logins to schema registries, and certificates: what is sent to whom, and what is said where access fails."""

import json
import logging
import ssl

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from pydantic import ValidationError

from streammoe.errors import ConfigError, RetriableSourceError, SourceError
from streammoe.secrets import revealed
from streammoe_connectors.formats import schema_registry
from streammoe_connectors.kafka.source_settings import KafkaSettings, ReadingSettings
from tests.unit.connectors.kafka_records import columns, numbers, record, values_of

POINT = {"type": "record", "name": "Point", "fields": [{"name": n, "type": "int"} for n in "xy"]}
VALUE = record(b"\0\0\0\0\7\2\4")
NEEDED = {"kind": "kafka", "bootstrap_servers": "a:1", "topics": "t", "group": "g", "format": "avro"}


def values_at(address, **settings):
    return values_of(format="avro", schema_registry=address, **settings)


def is_read(values):
    return numbers(values, [VALUE], "x") == [[1]]


def failure(values):
    """The error that stops reading, or with which it is tried again."""
    with pytest.raises(SourceError) as caught:
        values.block(columns(VALUE))
    return caught.value


# --- logins -----------------------------------------------------------------------------------------------------------


def test_user_and_password_or_a_token_are_sent_from_wherever_they_are(registry, tmp_path, monkeypatch):
    registry.has(7, POINT)
    monkeypatch.setenv("SECRET", "p@ss:wörd")
    (tmp_path / "secret").write_text("p@ss:wörd\n")
    user = {"schema_registry_username": "me"}
    address = f"http://{registry.address}"
    for given in [
        user | {"schema_registry_password": "p@ss:wörd"},
        user | {"schema_registry_password_env": "SECRET"},
        user | {"schema_registry_password_file": str(tmp_path / "secret")},
    ]:
        assert is_read(values_at(address, **given))
    monkeypatch.setenv("SECRET", "a.b-c_d~e+f/g=")
    (tmp_path / "secret").write_text("a.b-c_d~e+f/g=\n")
    for given in [
        {"schema_registry_token": "a.b-c_d~e+f/g="},
        {"schema_registry_token_env": "SECRET"},
        {"schema_registry_token_file": str(tmp_path / "secret")},
    ]:
        assert is_read(values_at(address, **given))
    assert registry.logins == ["Basic bWU6cEBzczp3w7ZyZA=="] * 3 + ["Bearer a.b-c_d~e+f/g="] * 3


def test_a_token_that_is_replaced_in_its_file_is_sent_from_then_on(registry, tmp_path):
    registry.has(7, POINT)
    token = tmp_path / "token"
    token.write_text("old")
    values = values_at(f"http://{registry.address}", schema_registry_token_file=str(token))
    values.block(columns(record(b"\0\0\0\0\1")))
    token.write_text("new")
    assert is_read(values)
    assert registry.logins == ["Bearer old", "Bearer new"]


def test_secrets_that_are_missing_or_no_tokens_are_found_at_the_start(tmp_path, monkeypatch):
    monkeypatch.delenv("SECRET", raising=False)
    user = {"schema_registry_username": "me"}
    (tmp_path / "token").write_text("hunter2\nhunter3")
    for given in [
        user | {"schema_registry_password_env": "SECRET"},
        user | {"schema_registry_password_file": str(tmp_path / "none")},
        {"schema_registry_token_file": str(tmp_path / "token")},
        {"schema_registry_token": "hunter 2"},
        {"schema_registry_token": ""},
    ]:
        with pytest.raises(ConfigError) as caught:
            values_at("http://127.0.0.1:1", **given)
        assert "hunter" not in str(caught.value)


SECRETS = {
    "schema_registry_username": "me",
    "schema_registry_password": "hunter2",
    "schema_registry_certfile": "c.pem",
    "schema_registry_key_password": "hunter4",
}


def test_secrets_reach_the_process_that_reads_and_are_shown_nowhere():
    for secrets in (SECRETS, {"schema_registry_token": "hunter3"}):
        settings = KafkaSettings(**NEEDED, schema_registry="https://h:1", **secrets)
        assert "hunter" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
        sent = ReadingSettings.model_validate(json.loads(json.dumps(revealed(settings, ReadingSettings.model_fields))))
        for name, value in secrets.items():
            got = getattr(sent, name)
            assert (got if isinstance(got, str) else got.get_secret_value()) == value


WRONG = {
    "schema_registry": [
        {"schema_registry_token": "hunter2"},
        {"schema_registry_cafile": "ca.pem"},
        {"schema_registry": "http://h:1", "schema_registry_cafile": "ca.pem"},
        {"schema_registry": "http://u:hunter2@h:1", "schema_registry_token": "hunter2"},
        {"schema_registry": "https://h:1", "format": "jsonl"},
    ],
    "schema_registry_username": [
        {"schema_registry_username": "a:b", "schema_registry_password": "hunter2"},
        {"schema_registry_username": "me"},
        {"schema_registry_password": "hunter2"},
        {**SECRETS, "schema_registry_token": "hunter2"},
    ],
    "schema_registry_password_env": [{**SECRETS, "schema_registry_password_env": "A"}],
    "schema_registry_token_env": [{"schema_registry_token": "hunter2", "schema_registry_token_file": "a"}],
    "schema_registry_keyfile": [{"schema_registry_keyfile": "key.pem"}],
    "schema_registry_key_password_env": [{"schema_registry_key_password": "hunter2"}],
}


@pytest.mark.parametrize("place", WRONG)
def test_settings_that_contradict_each_other_are_rejected_by_location(place):
    for settings in WRONG[place]:
        given = {"schema_registry": "https://h:1"} if place != "schema_registry" else {}
        with pytest.raises(ValidationError) as caught:
            KafkaSettings(**NEEDED | given | settings)
        (error,) = caught.value.errors()
        assert ".".join(map(str, error["loc"])) == place, settings
        assert "hunter2" not in error["msg"]


def test_a_redirect_takes_the_login_nowhere(registries):
    registry, other = registries(), registries()
    other.has(7, POINT)
    for status in (301, 302, 303, 307, 308):
        registry.answers["/schemas/ids/7"] = (status, b"", ("Location", f"http://{other.address}/schemas/ids/7"))
        values = values_at(f"http://{registry.address}", schema_registry_token="hunter2")
        error = failure(values)
        assert not error.retriable
        assert "hunter2" not in str(error)
    assert other.asked == []


def test_no_proxy_sees_what_stays_on_this_machine(registries, monkeypatch):
    registry, proxy = registries(), registries()
    registry.has(7, POINT)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.setenv("http_proxy", f"http://{proxy.address}")
    assert is_read(values_at(f"http://{registry.address}", schema_registry_token="t"))
    values_at("http://registry.example").block(columns(VALUE))
    assert proxy.asked == ["http://registry.example/schemas/ids/7"]


def test_each_way_to_be_turned_away_has_a_message_of_its_own_without_secrets(registry):
    user = {"schema_registry_username": "me", "schema_registry_password": "hunter2"}
    answers = [(401, {"error_code": 40101}), (403, {"error_code": 40301}), (404, b"<html>hunter2</html>"), (302, b"")]
    found = set()
    for given in ({}, user):
        for answer in answers:
            registry.answers["/schemas/ids/7"] = answer
            error = failure(values_at(f"http://{registry.address}", **given))
            assert not error.retriable
            assert "hunter2" not in str(error)
            found.add(str(error))
    assert len(found) == 5  # of 401 there are two


def test_a_login_that_crosses_the_network_in_plain_text_is_warned_of_once(monkeypatch, caplog):
    answer = schema_registry.Response(200, json.dumps({"schema": json.dumps(POINT)}).encode())
    monkeypatch.setattr(schema_registry.HttpClient, "send", lambda *_: answer)
    for address, exposed in [
        *(("http://registry.example", True), ("http://10.0.0.1:81", True), ("http://127.0.0.1.example", True)),
        *(("https://registry.example", False), ("http://localhost:1", False), ("http://[::1]:1", False)),
    ]:
        caplog.clear()
        values = values_at(address, schema_registry_token="hunter2")
        with caplog.at_level(logging.WARNING):
            values.block(columns(VALUE, record(b"\0\0\0\0\x08\2\4")))
        assert len(caplog.records) == exposed, address
        assert "hunter2" not in caplog.text
    assert values_at("http://registry.example").block(columns(VALUE))
    assert len(caplog.records) == 0


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


@pytest.fixture(scope="module")
def files(tmp_path_factory, authority):
    """Paths of certificates and keys: the authority's, a client's with an encrypted key, and those of another one."""
    folder = tmp_path_factory.mktemp("certificates")
    stranger = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca"))
    stranger.cert_pem.write_to_path(str(folder / "other-ca"))
    for name, issuer in (("client", authority), ("stranger", stranger)):
        issued = issuer.issue_cert("client@streammoe.example")
        issued.cert_chain_pems[0].write_to_path(str(folder / name))
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        encryption = BestAvailableEncryption(b"hunter2")
        pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        (folder / f"{name}.key").write_bytes(pem)
        issued.private_key_and_cert_chain_pem.write_to_path(str(folder / f"{name}.both"))
    (folder / "empty").write_text("no certificate")
    return {path.name: str(path) for path in folder.iterdir()}


@pytest.fixture
def encrypted(registries, authority):
    """Makes a registry with TLS, with a certificate for a name; clients may have to have one, too."""

    def make(name="127.0.0.1", *, clients=False):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert(name).configure_cert(context)
        if clients:
            context.verify_mode = ssl.CERT_REQUIRED
            authority.configure_trust(context)
        registry = registries(context)
        registry.has(7, POINT)
        return registry

    return make


def client(files, name="client", password="hunter2"):
    return {
        "schema_registry_cafile": files["ca"],
        "schema_registry_certfile": files[name],
        "schema_registry_keyfile": files[f"{name}.key"],
        "schema_registry_key_password": password,
    }


def test_a_registry_that_wants_a_certificate_gets_it(encrypted, files):
    registry = encrypted(clients=True)
    address = f"https://{registry.address}"
    assert is_read(values_at(address, **client(files), schema_registry_token="t"))
    both = {"schema_registry_cafile": files["ca"], "schema_registry_certfile": files["client.both"]}
    assert is_read(values_at(address, **both))
    assert registry.logins == ["Bearer t", None]


@pytest.mark.parametrize("version", ["TLSv1_2", "TLSv1_3"])
def test_who_has_none_or_that_of_a_stranger_is_turned_away_and_told_so(encrypted, files, version):
    registry = encrypted(clients=True)
    registry.context.minimum_version = registry.context.maximum_version = ssl.TLSVersion[version]
    for given in ({"schema_registry_cafile": files["ca"]}, client(files, "stranger")):
        error = failure(values_at(f"https://{registry.address}", **given))
        assert "certificate of this client" in str(error)
        # From 1.3 on the server closes the connection while the request is on its way, and what it says may be lost.
        assert not error.retriable or version == "TLSv1_3"
    assert registry.asked == []


def test_a_registry_that_is_not_trusted_gets_no_login(encrypted, files):
    own, misnamed = encrypted(), encrypted("registry.example")
    wrong = {"schema_registry_cafile": files["other-ca"]}
    right = {"schema_registry_cafile": files["ca"]}
    for registry, given in ((own, {}), (own, wrong), (misnamed, right)):
        error = failure(values_at(f"https://{registry.address}", **given, schema_registry_token="hunter2"))
        assert not error.retriable, error
        assert "source.schema_registry_cafile" in str(error)
        assert "hunter2" not in str(error)
        assert registry.asked == []
    assert is_read(values_at(f"https://{own.address}", **right))


def test_a_port_without_tls_is_told_from_one_that_is_silent(registry, encrypted, files):
    error = failure(values_at(f"https://{registry.address}"))
    assert not error.retriable, error
    registry.close()
    assert isinstance(failure(values_at(f"https://{registry.address}")), RetriableSourceError)


def test_files_that_cannot_be_used_are_found_at_the_start(files):
    for given, place in [
        ({"schema_registry_cafile": files["empty"]}, "cafile"),
        ({"schema_registry_cafile": files["empty"] + "-none"}, "cafile"),
        ({"schema_registry_certfile": files["empty"]}, "certfile"),
        ({"schema_registry_certfile": files["client"]}, "certfile"),  # without a key
        (client(files, password="hunter3"), "certfile"),
        (client(files) | {"schema_registry_keyfile": files["stranger.key"]}, "certfile"),
        (client(files) | {"schema_registry_keyfile": files["empty"] + "-none"}, "keyfile"),
    ]:
        with pytest.raises(ConfigError) as caught:
            values_at("https://127.0.0.1:1", **given)
        assert str(caught.value).startswith(f"source.schema_registry_{place}")
        assert "hunter" not in str(caught.value)


# --- limits -----------------------------------------------------------------------------------------------------------


def test_an_answer_that_ends_early_or_trickles_is_tried_again(registry, monkeypatch):
    monkeypatch.setattr(schema_registry, "_TIMEOUT_SECONDS", 0.2)
    body = json.dumps({"schema": json.dumps(POINT)}).encode()
    registry.answers["/schemas/ids/7"] = (200, body[:20], ("Content-Length", str(len(body))))
    assert failure(values_at(f"http://{registry.address}")).retriable
    registry.has(7, POINT)
    registry.trickles = True
    assert failure(values_at(f"http://{registry.address}")).retriable
