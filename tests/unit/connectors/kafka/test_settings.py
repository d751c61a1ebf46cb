"""The settings of a connection to Kafka, of its source and its sinks; no broker is asked."""

import pytest
from pydantic import ValidationError

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.settings import KafkaSettings
from streammoe_connectors.kafka.source import KafkaSource
from streammoe_connectors.kafka.topic_sink import connection_for

SERVER = {"bootstrap_servers": "a:1"}
LOGIN = {**SERVER, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "u"}
TOKENS = {
    **SERVER,
    "security_protocol": "SASL_SSL",
    "sasl_mechanism": "OAUTHBEARER",
    "client": "librdkafka",
    "sasl_oauth_token_url": "https://login.example/token",
    "sasl_oauth_client_id": "me",
    "sasl_oauth_client_secret": "hunter2",
}
NEEDED = {"kind": "kafka", **SERVER, "topics": "t", "group": "g"}
REGISTRY = {
    "url": "https://h:1",
    "username": "me",
    "password": "hunter2",
    "certfile": "c.pem",
    "key_password": "hunter4",
}


@pytest.mark.parametrize("client", ["kafka-python", "librdkafka"])
def test_secrets_are_shown_nowhere(client):
    passwords = {"sasl_plain_password": "hunter2", "ssl_password": "hunter3", "client": client}
    for registry in (REGISTRY, {"url": "https://h:1", "token": "hunter3"}):
        settings = KafkaSettings(**NEEDED | LOGIN | passwords, format="avro", schema_registry=registry)
        assert "hunter" not in f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"


# --- what is sound, and what is not -----------------------------------------------------------------------------------


def test_values_may_be_written_in_several_ways():
    for name, value, meant in [
        *(("bootstrap_servers", servers, ("a:1", "b:2")) for servers in ("a:1, b:2", ["a:1", "b:2"])),
        ("bootstrap_servers", "[::1]:9092", ("[::1]:9092",)),
        *(("topics", "t", ("t",)), ("topics", ["t", "u"], ("t", "u"))),
    ]:
        assert getattr(KafkaSettings(**NEEDED | {name: value}), name) == meant
    third = KafkaSettings(**NEEDED, shard="1/3")
    assert [n for n in range(8) if third.reads_partition("t", n)] == [1, 4, 7]
    starts = {"1970-01-01T02:00:01.5+02:00": 1_500, "1970-01-01T00:00:01": 1_000, "1970-01-02": 86_400_000}
    for start, milliseconds in (starts | {"earliest": None}).items():
        assert KafkaSettings(**NEEDED, start=start).start_timestamp_ms == milliseconds


AVRO, PROTOBUF = {"format": "avro", "schema_file": "a"}, {"format": "protobuf", "schema_file": "a", "message": "a.B"}
CSV = {"format": "csv", "columns": ["a"]}


def at_registry(**settings):
    return {"format": "avro", "schema_registry": {"url": "https://h:1", **settings}}


WRONG = {
    "sasl_plain_password": [LOGIN, LOGIN | {"sasl_plain_password": 2_000_002}],
    "sasl_mechanism": [
        {"security_protocol": "SASL_SSL"},
        {**LOGIN, "security_protocol": "SSL", "sasl_plain_password": "p"},
    ],
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
    "client": [{"client": "java"}, TOKENS | {"client": "kafka-python"}],
    "sasl_oauth_token_url": [
        *(TOKENS | {"sasl_oauth_token_url": at} for at in ("http://login.example/token", "login.example")),
        TOKENS | {"sasl_oauth_token_url": "https://me:hunter2@login.example/token"},
        TOKENS | {"sasl_oauth_token_url": None},
        {"sasl_oauth_token_url": "https://login.example/token"},
    ],
    "sasl_oauth_client_secret": [TOKENS | {"sasl_oauth_client_secret": None}],
    "sasl_plain_username": [TOKENS | {"sasl_plain_username": "u"}],
    "passwort": [{"passwort": "hunter2"}],
    "bootstrap_servers": [{"bootstrap_servers": servers} for servers in ("", 7, "http://a:1", "a:b:c", "u:p@a:1")],
    "topics": [{"topics": topics} for topics in ([], ["t", "t"], "a*")],
    "topics_pattern": [
        {"topics_pattern": "a"},
        {"topics": None},
        *({"topics": None, "topics_pattern": pattern} for pattern in ("", "(", "a{2}{3}", "a" * 501, 7)),
    ],
    "shard": [{"shard": shard} for shard in ("3/3", "1", {"index": 1, "of": 3})],
    "columns": [{"format": "csv"}, CSV | {"columns": ["a", "a"]}, {"columns": ["a"]}],
    "schema_file": [
        *({"schema_file": "a"}, {"format": "avro"}, {"format": "protobuf"}),
        *(settings | {"schema_registry": {"url": "http://h"}} for settings in (AVRO, PROTOBUF)),
    ],
    "schema_registry": [
        *(settings | {"schema_registry": {"url": "http://h"}} for settings in ({"format": "jsonl"}, CSV)),
        {"format": "avro", "schema_registry": "https://h:1"},
    ],
    "schema_registry.url": [
        at_registry(url=url) for url in ("file:///etc/passwd", "h:8081", "http://h:no", "https://me:hunter2@h")
    ],
    "schema_registry.username": [at_registry(**REGISTRY | {"username": "a:b"})],
    "schema_registry.password": [at_registry(username="me"), at_registry(password="hunter2")],
    "schema_registry.token": [at_registry(**REGISTRY, token="hunter2")],
    "schema_registry.keyfile": [at_registry(keyfile="key.pem")],
    "schema_registry.key_password": [at_registry(key_password="hunter2")],
    "schema_registry.passwort": [at_registry(passwort="hunter2")],
    "message": [PROTOBUF | {"message": None}, AVRO | {"message": "a.B"}],
    "framing": [AVRO | {"framing": "confluent"}, CSV | {"framing": "confluent"}],
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


def test_a_sink_takes_the_connection_of_a_kafka_source_unless_it_has_one():
    lent = KafkaPredictions.Settings(kind="kafka", topic="p")
    assert connection_for(lent, "predictions", TOPIC) is TOPIC
    own = KafkaPredictions.Settings(kind="kafka", topic="t", bootstrap_servers="here:1")
    assert connection_for(own, "predictions", TOPIC) is own
    KafkaPredictions.check(own, TOPIC, None)  # another cluster may have a topic of the same name


def test_what_does_not_go_together_is_found_without_a_broker(tmp_path):
    (tmp_path / "config.toml").write_text(COMMON)
    settings = load_settings(tmp_path / "config.toml", environment={})
    assert (settings.predictions.gate, settings.predictions.topic, settings.dead_letters.max_ratio) == (False, "p", 0.1)
    for flag in ("dead_letters.topic=t", "predictions.transactional_id=x", "dead_letters.transactional=true"):
        with pytest.raises(ConfigError, match=flag.partition("=")[0]):
            load_settings(tmp_path / "config.toml", environment={}, overrides=[flag])
    (tmp_path / "config.toml").write_text(COMMON.replace('topics = "t"', 'topics_pattern = "t.*"'))
    load_settings(tmp_path / "config.toml", environment={}, overrides=["dead_letters.topic=9t"])
    with pytest.raises(ConfigError, match=r"dead_letters\.topic"):
        load_settings(tmp_path / "config.toml", environment={}, overrides=["dead_letters.topic=t9"])
