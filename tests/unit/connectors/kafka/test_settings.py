"""The settings of a connection to Kafka, of its source, its sinks and `streammoe produce`; no broker is asked."""

import pytest
from pydantic import ValidationError

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.kafka import kafka_python, librdkafka
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.kafka_python import client_options
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source import KafkaSource
from streammoe_connectors.kafka.source_settings import KafkaSettings
from streammoe_connectors.kafka.topic_sink import connection_for
from streammoe_connectors.kafka.topic_writer import TopicWriter

SERVER = {"bootstrap_servers": "a:1"}
LOGIN = {**SERVER, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "u"}
NEEDED = {"kind": "kafka", **SERVER, "topics": "t", "group": "g"}


# --- the connection --------------------------------------------------------------------------------------------------


def test_a_plain_connection_needs_nothing_else_and_further_options_are_handed_on():
    plain = {
        "bootstrap_servers": ["a:1"],
        "security_protocol": "PLAINTEXT",
        "client_id": "streammoe",
        "reconnect_backoff_max_ms": 1000,
    }
    assert client_options(Connection(**SERVER)) == plain
    more = {"ssl_ciphers": "x", "reconnect_backoff_max_ms": 5}
    connection = Connection(**SERVER, api_version=[2, 3], options=more)
    assert client_options(connection) == plain | more | {"api_version": (2, 3)}


def test_librdkafka_has_the_same_settings_by_its_own_names():
    connection = Connection(
        **LOGIN | {"bootstrap_servers": "a:1,b:2", "client_id": "me"},
        client="librdkafka",
        sasl_plain_password="p",
        ssl_password="q",
        options={"fetch.min.bytes": 9},
    )
    options = librdkafka.client_options(connection)
    assert options.pop("reconnect.backoff.max.ms") == 1000
    assert options.pop("socket.keepalive.enable")
    assert options == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "p",
        "ssl.key.password": "q",
        "client.id": "me",
        "fetch.min.bytes": 9,
    }
    # Each is one of its options: it rejects others.
    for files in ({}, {"ssl_cafile": __file__, "ssl_certfile": __file__, "ssl_keyfile": __file__}):
        known = librdkafka.client_options(Connection(**LOGIN, client="librdkafka", sasl_plain_password="p", **files))
        with pytest.raises(ConfigError, match="No such configuration property") as caught:
            librdkafka.create_producer({**known, "no.such.option": 1}, Delivery(), None)
        assert "no.such.option" in str(caught.value)


def test_a_password_is_in_the_options_and_nowhere_else():
    connection = Connection(**LOGIN, sasl_plain_password="hunter2", ssl_password="hunter3")
    options = client_options(connection)
    assert (options["sasl_plain_password"], options["ssl_password"]) == ("hunter2", "hunter3")
    for client in (kafka_python, librdkafka):
        lent = client.client_options(connection)
        assert client.secrets_of(lent) == ["hunter2", "hunter3"]
    assert "hunter" not in f"{connection!r} {connection} {connection.model_dump()} {connection.model_dump_json()}"
    shown = KafkaSettings(**NEEDED, format="avro", schema_registry="https://me:hunter2@h:1/a")
    assert "hunter" not in repr(shown) + str(shown) + shown.model_dump_json()
    assert shown.model_dump()["schema_registry"] == "https://h:1/a"


def test_a_password_may_be_in_a_file_or_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("hunter 2 \n")
    from_file = Connection(**LOGIN, sasl_plain_password_file=str(tmp_path / "password"))
    assert client_options(from_file)["sasl_plain_password"] == "hunter 2 "
    from_environment = Connection(**LOGIN, sasl_plain_password_env="SECRET_OF_KAFKA")
    monkeypatch.setenv("SECRET_OF_KAFKA", "hunter2")
    assert client_options(from_environment)["sasl_plain_password"] == "hunter2"


# --- what is sound, and what is not -----------------------------------------------------------------------------------


def test_values_may_be_written_in_several_ways():
    for name, value, meant in [
        *(("bootstrap_servers", servers, ("a:1", "b:2")) for servers in ("a:1, b:2", ["a:1", "b:2"])),
        ("bootstrap_servers", "[::1]:9092", ("[::1]:9092",)),
        *(("topics", "t", ("t",)), ("topics", ["t", "u"], ("t", "u"))),
        *(("shard", "1/3", "1/3"), ("shard", {"index": 1, "of": 3}, "1/3")),
    ]:
        assert getattr(KafkaSettings(**NEEDED | {name: value}), name) == meant
    assert [n for n in range(8) if KafkaSettings(**NEEDED, shard="1/3").is_in_shard(n)] == [1, 4, 7]
    starts = {"1970-01-01T02:00:01.5+02:00": 1_500, "1970-01-01T00:00:01": 1_000, "1970-01-02": 86_400_000}
    for start, milliseconds in (starts | {"earliest": None}).items():
        assert KafkaSettings(**NEEDED, start=start).start_timestamp_ms == milliseconds


AVRO, PROTOBUF = {"format": "avro", "schema_file": "a"}, {"format": "protobuf", "schema_file": "a", "message": "a.B"}
CSV = {"format": "csv", "columns": ["a"]}
WRONG = {
    "sasl_plain_password_env": [LOGIN, {**LOGIN, "sasl_plain_password": "x", "sasl_plain_password_file": "y"}],
    "sasl_mechanism": [
        {"security_protocol": "SASL_SSL"},
        {**LOGIN, "security_protocol": "SSL", "sasl_plain_password": "p"},
    ],
    "ssl_cafile": [{"ssl_cafile": "ca.pem"}],
    "options": [
        {"options": {"group_id": 1}},
        {"options": {"sasl_plain_password": "hunter2"}},
        {"client": "librdkafka", "options": {"sasl.password": "hunter2"}},
        {"client": "librdkafka", "options": {"plugin.library.paths": "/tmp/x.so"}},
        {"client": "librdkafka", "options": {"sasl.kerberos.kinit.cmd": "rm -rf /"}},
        {"client": "librdkafka", "options": {"sasl.kerberos.principal": "me; touch /tmp/x"}},
        {"client": "librdkafka", "options": {"test.mock.num.brokers": 1}},
        {"client": "librdkafka", "options": {"max.partition.fetch.bytes": 9}},
    ],
    "client": [{"client": "java"}],
    "api_version": [{"client": "librdkafka", "api_version": [2, 3]}],
    "passwort": [{"passwort": "hunter2"}],
    "bootstrap_servers": [{"bootstrap_servers": servers} for servers in ("", 7, "http://a:1", "a:b:c", "u:p@a:1")],
    "topics": [{"topics": topics} for topics in ([], ["t", "t"], "a*")],
    "topics_pattern": [
        {"topics_pattern": "a"},
        {"topics": None},
        *({"topics": None, "topics_pattern": pattern} for pattern in ("", "(", "a{2}{3}", "a" * 501, 7)),
    ],
    "start": [{"start": start} for start in ("yesterday", "1969-12-31T00:00:00Z")],
    "shard": [{"shard": shard} for shard in ("3/3", "1", {"index": 1})],
    "format": [{"format": "xml"}],
    "columns": [{"format": "csv"}, CSV | {"columns": ["a", "a"]}, {"columns": ["a"]}],
    "schema_file": [
        *({"schema_file": "a"}, {"format": "avro"}, {"format": "protobuf"}),
        *(settings | {"schema_registry": "http://h"} for settings in (AVRO, PROTOBUF)),
    ],
    "schema_registry": [
        *(settings | {"schema_registry": "http://h"} for settings in ({"format": "jsonl"}, CSV)),
        *({"format": "avro", "schema_registry": at} for at in ("file:///etc/passwd", "h:8081", "http://h:no")),
    ],
    "message": [PROTOBUF | {"message": None}, AVRO | {"message": "a.B"}],
    "framing": [AVRO | {"framing": "confluent"}, CSV | {"framing": "confluent"}],
    "timestamp_field": [{"key_field": "a", "timestamp_field": "a"}],
    "key_field": [CSV | {"key_field": "a"}],
    "header_fields": [{"key_field": "a", "header_fields": ["b", "a"]}],
}


def test_invalid_or_incompatible_settings_are_rejected_by_location():
    for place, cases in WRONG.items():
        for settings in cases:
            with pytest.raises(ValidationError) as caught:
                KafkaSettings(**NEEDED | settings)
            (error,) = caught.value.errors()
            assert ".".join(map(str, error["loc"])) == place, settings
            assert "hunter2" not in error["msg"]


def test_a_pattern_matches_whole_names_and_none_of_kafkas_own():
    settings = KafkaSettings(**NEEDED | {"topics": None, "topics_pattern": "_*a|b."})
    topics = ("a", "_a", "__a", "ab", "b", "b1", "xb1")
    assert [topic for topic in topics if settings.reads(topic)] == ["a", "_a", "b1"]


# --- sinks -----------------------------------------------------------------------------------------------------------

FILE = FileSource.Settings(kind="file", path="a.jsonl")
TOPIC = KafkaSource.Settings(**NEEDED)
COMMON = """
    schema.target = "y"
    source = { kind = "kafka", topics = "t", group = "g", bootstrap_servers = "there:1" }
    predictions = { kind = "kafka", topic = "p", gate = false, interval = 0.5 }
    dead_letters = { kind = "kafka", topic = "d", max_ratio = 0.1 }
"""


def test_a_sink_takes_the_connection_of_the_first_kafka_source_unless_it_has_one():
    lent = KafkaPredictions.Settings(kind="kafka", topic="p")
    assert connection_for(lent, "predictions", [FILE, TOPIC]) is TOPIC
    own = KafkaPredictions.Settings(kind="kafka", topic="t", bootstrap_servers="here:1")
    assert connection_for(own, "predictions", [FILE, TOPIC]) is own
    KafkaPredictions.check(own, [TOPIC], None)  # another cluster may have a topic of the same name


def test_what_does_not_go_together_is_found_without_a_broker(tmp_path):
    (tmp_path / "config.toml").write_text(COMMON)
    settings = load_settings(tmp_path / "config.toml", environment={})
    assert (settings.predictions.gate, settings.predictions.topic, settings.dead_letters.max_ratio) == (False, "p", 0.1)
    for flag in ("dead_letters.topic=t", "predictions.transactional_id=x", "dead_letters.transactional=true"):
        with pytest.raises(ConfigError, match=flag.partition("=")[0]):
            load_settings(tmp_path / "config.toml", environment={}, overrides=[flag])


def test_no_sink_writes_to_a_topic_that_matches(tmp_path):
    config = tmp_path / "config.toml"
    config.write_text(COMMON.replace('topics = "t"', 'topics_pattern = "t.*"'))
    for topic, is_read in (("t9", True), ("9t", False)):
        if is_read:
            with pytest.raises(ConfigError, match=r"dead_letters\.topic"):
                load_settings(config, environment={}, overrides=[f"dead_letters.topic={topic}"])
        else:
            load_settings(config, environment={}, overrides=[f"dead_letters.topic={topic}"])


def test_settings_of_produce_are_those_of_the_file(tmp_path):
    path = tmp_path / "client.toml"
    path.write_text('security_protocol = "SASL_SSL"\nsasl_plain_password = "geheim"\nlinger_ms = 7')
    expected = {"security_protocol": "SASL_SSL", "sasl_plain_password": "geheim", "linger_ms": 7}
    assert (TopicWriter.settings(path), TopicWriter.settings(None)) == (expected, {})
    for text in ('acks = "geheim"', 'security_protocol = ["geheim"]'):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            TopicWriter.settings(path)
        assert "geheim" not in str(caught.value)
