"""The settings of a connection to Kafka, and of its source."""

import sys
from importlib import import_module

import pytest
from pydantic import ValidationError

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.settings import Connection, client_options
from streammoe_connectors.kafka.source_settings import KafkaSettings

LOGIN = {
    "bootstrap_servers": "a:1",
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "PLAIN",
    "sasl_plain_username": "u",
}
NEEDED = {"kind": "kafka", "bootstrap_servers": "a:1", "topics": "t", "group": "g"}


def refusal(model, **settings):
    with pytest.raises(ValidationError) as caught:
        model(**settings)
    (error,) = caught.value.errors()
    return ".".join(map(str, error["loc"])), error["msg"]


# --- the connection --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("servers", ["a:1,b:2", "a:1, b:2", ["a:1", "b:2"], ("a:1", "b:2")])
def test_servers_are_a_list_or_text_with_commas(servers):
    assert Connection(bootstrap_servers=servers).bootstrap_servers == ("a:1", "b:2")


@pytest.mark.parametrize("servers", ["", [], [""], 7, "http://a:1", "a:b:c", "u:p@a:1", [7]])
def test_what_are_no_addresses_is_refused(servers):
    assert refusal(Connection, bootstrap_servers=servers)[0] == "bootstrap_servers"


def test_an_address_may_be_of_ip_6():
    assert Connection(bootstrap_servers="[::1]:9092").bootstrap_servers == ("[::1]:9092",)


def test_a_plain_connection_needs_nothing_else():
    assert client_options(Connection(bootstrap_servers="a:1")) == {
        "bootstrap_servers": ["a:1"],
        "security_protocol": "PLAINTEXT",
        "client_id": "streammoe",
        "reconnect_backoff_max_ms": 1000,
    }


def test_a_password_is_in_the_options_and_nowhere_else():
    connection = Connection(**LOGIN, sasl_plain_password="hunter2", ssl_password="hunter3")
    assert client_options(connection)["sasl_plain_password"] == "hunter2"
    assert client_options(connection)["ssl_password"] == "hunter3"
    assert "hunter" not in f"{connection!r} {connection} {connection.model_dump()} {connection.model_dump_json()}"


def test_a_password_may_be_in_a_file(tmp_path):
    (tmp_path / "password").write_text("hunter 2 \n")
    connection = Connection(**LOGIN, sasl_plain_password_file=str(tmp_path / "password"))
    assert client_options(connection)["sasl_plain_password"] == "hunter 2 "


def test_a_password_may_be_in_the_environment(monkeypatch):
    monkeypatch.setenv("SECRET_OF_KAFKA", "hunter2")
    connection = Connection(**LOGIN, sasl_plain_password_env="SECRET_OF_KAFKA")
    assert client_options(connection)["sasl_plain_password"] == "hunter2"


def test_a_password_that_is_nowhere_is_told_by_its_place(tmp_path, monkeypatch):
    monkeypatch.delenv("SECRET_OF_KAFKA", raising=False)
    with pytest.raises(ConfigError, match=r"sasl_plain_password_env: .*'SECRET_OF_KAFKA'.* not set"):
        client_options(Connection(**LOGIN, sasl_plain_password_env="SECRET_OF_KAFKA"))
    with pytest.raises(ConfigError, match=r"password_file: .*nowhere cannot be read \(No such file"):
        client_options(Connection(**LOGIN, sasl_plain_password_file=str(tmp_path / "nowhere")))
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        client_options(Connection(**LOGIN, sasl_plain_password_file=str(tmp_path / "binary")))


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_a_certificate_that_is_nowhere_is_told_by_its_setting_and_path(tmp_path, name):
    path = tmp_path / "one.pem"
    connection = Connection(bootstrap_servers="a:1", security_protocol="SSL", **{name: str(path)})
    with pytest.raises(ConfigError, match=rf"^{name}: {path} cannot be read \(No such file"):
        client_options(connection)
    path.write_text("")
    assert client_options(connection)[name] == str(path)


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ({**LOGIN}, "sasl_plain_password_env"),
        ({**LOGIN, "sasl_plain_password": "x", "sasl_plain_password_file": "y"}, "sasl_plain_password_env"),
        ({"bootstrap_servers": "a", "ssl_password": "x", "ssl_password_env": "y"}, "ssl_password_env"),
        ({"bootstrap_servers": "a", "security_protocol": "SASL_SSL"}, "sasl_mechanism"),
        ({"bootstrap_servers": "a", "sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"},
         "sasl_mechanism"),
        ({"bootstrap_servers": "a", "ssl_cafile": "ca.pem"}, "ssl_cafile"),
        ({"bootstrap_servers": "a", "options": {"group_id": "g"}}, "options"),
        ({"bootstrap_servers": "a", "options": {"sasl_plain_password": "hunter2"}}, "options"),
        ({"bootstrap_servers": "a", "passwort": "x"}, "passwort"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_at_its_place(settings, place):
    found, message = refusal(Connection, **settings)
    assert found == place
    assert "hunter2" not in message


def test_further_options_are_handed_on():
    connection = Connection(
        bootstrap_servers="a:1", api_version=[2, 3], options={"ssl_ciphers": "x", "reconnect_backoff_max_ms": 5}
    )
    options = client_options(connection)
    assert (options["api_version"], options["ssl_ciphers"], options["reconnect_backoff_max_ms"]) == ((2, 3), "x", 5)


# --- the source ------------------------------------------------------------------------------------------------------


def test_one_topic_or_several():
    assert KafkaSettings(**NEEDED).topics == ("t",)
    assert KafkaSettings(**NEEDED | {"topics": ["t", "u"]}).topics == ("t", "u")


@pytest.mark.parametrize("topics", ["", [], ["t", "t"], "a*", ["a b"], 7, ".."])
def test_other_topics_are_refused(topics):
    assert refusal(KafkaSettings, **NEEDED | {"topics": topics})[0] == "topics"


def test_of_several_topics_the_wrong_one_is_named():
    assert "entry 2 is 'b*'" in refusal(KafkaSettings, **NEEDED | {"topics": ["a", "b*", "c"]})[1]


@pytest.mark.parametrize(
    ("start", "milliseconds"),
    [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:01.5+02:00", 1_500),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-02", 86_400_000),
        ("earliest", None),
        ("committed", None),
    ],
)
def test_a_start_may_be_a_time(start, milliseconds):
    assert KafkaSettings(**NEEDED, start=start).start_milliseconds == milliseconds


@pytest.mark.parametrize("start", ["yesterday", "", 7, "1969-12-31T00:00:00Z", "2026-13-01"])
def test_another_start_is_refused(start):
    assert refusal(KafkaSettings, **NEEDED, start=start)[0] == "start"


def test_a_shard_is_every_nth_partition():
    settings = KafkaSettings(**NEEDED, shard="1/3")
    assert [number for number in range(8) if settings.is_ours(number)] == [1, 4, 7]
    assert KafkaSettings(**NEEDED, shard={"index": 1, "of": 3}).shard == "1/3"
    assert all(KafkaSettings(**NEEDED).is_ours(number) for number in range(4))


@pytest.mark.parametrize("shard", ["3/3", "1", "a/b", "-1/3", {"index": 1}, {"index": 3, "of": 3}, 7, "0/0"])
def test_another_shard_is_refused(shard):
    assert refusal(KafkaSettings, **NEEDED, shard=shard)[0] == "shard"


@pytest.mark.parametrize("option", ["max_poll_records", "enable_auto_commit", "allow_auto_create_topics"])
def test_options_that_would_break_promises_are_refused(option):
    place, message = refusal(KafkaSettings, **NEEDED, options={option: 1})
    assert place == "options"
    assert option in message


def test_without_the_package_the_settings_are_checked_and_the_message_names_it(monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("kafka", "streammoe_connectors.kafka"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "kafka", None)  # its import fails
    source = import_module("streammoe_connectors.kafka").KafkaSource
    settings = source.Settings(**NEEDED)
    with pytest.raises(ConfigError, match="kafka-python"):
        source(settings)
