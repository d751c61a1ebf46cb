"""The settings of a connection to Kafka, of its source, its sinks and `streammoe produce`; no broker is asked."""

import pytest
from pydantic import ValidationError

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.kafka.delivery import borrowed
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.producer import place_key
from streammoe_connectors.kafka.settings import Connection, client_options
from streammoe_connectors.kafka.source import KafkaSource
from streammoe_connectors.kafka.source_settings import KafkaSettings
from streammoe_connectors.kafka.topic import Topic

SERVER = {"bootstrap_servers": "a:1"}
LOGIN = {**SERVER, "security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "u"}
NEEDED = {"kind": "kafka", **SERVER, "topics": "t", "group": "g"}


def sound(name, values):
    """What each value of a setting becomes."""
    return [getattr(KafkaSettings(**NEEDED | {name: value}), name) for value in values]


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


def test_a_password_is_in_the_options_and_nowhere_else():
    connection = Connection(**LOGIN, sasl_plain_password="hunter2", ssl_password="hunter3")
    options = client_options(connection)
    assert (options["sasl_plain_password"], options["ssl_password"]) == ("hunter2", "hunter3")
    assert "hunter" not in f"{connection!r} {connection} {connection.model_dump()} {connection.model_dump_json()}"
    shown = KafkaSettings(**NEEDED, format="avro", schema_registry="https://me:hunter2@h:1/a")
    assert "hunter" not in repr(shown) + str(shown) + shown.model_dump_json()
    assert shown.model_dump()["schema_registry"] == "https://h:1/a"


def test_a_password_may_be_in_a_file_or_in_the_environment(tmp_path, monkeypatch):
    (tmp_path / "password").write_text("hunter 2 \n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    from_file = Connection(**LOGIN, sasl_plain_password_file=str(tmp_path / "password"))
    assert client_options(from_file)["sasl_plain_password"] == "hunter 2 "
    from_environment = Connection(**LOGIN, sasl_plain_password_env="SECRET_OF_KAFKA")
    monkeypatch.setenv("SECRET_OF_KAFKA", "hunter2")
    assert client_options(from_environment)["sasl_plain_password"] == "hunter2"
    monkeypatch.delenv("SECRET_OF_KAFKA")
    nowhere = [Connection(**LOGIN, sasl_plain_password_file=str(tmp_path / name)) for name in ("nowhere", "binary")]
    for connection in [from_environment, *nowhere]:
        with pytest.raises(ConfigError):
            client_options(connection)


# --- what is sound, and what is not -----------------------------------------------------------------------------------


def test_values_may_be_written_in_several_ways():
    lists = ["a:1,b:2", "a:1, b:2", ["a:1", "b:2"], ("a:1", "b:2")]
    assert set(sound("bootstrap_servers", lists)) == {("a:1", "b:2")}
    assert sound("bootstrap_servers", ["[::1]:9092"]) == [("[::1]:9092",)]
    assert sound("topics", ["t", ["t", "u"]]) == [("t",), ("t", "u")]
    assert sound("shard", ["1/3", {"index": 1, "of": 3}]) == ["1/3", "1/3"]
    assert [n for n in range(8) if KafkaSettings(**NEEDED, shard="1/3").is_ours(n)] == [1, 4, 7]
    assert all(KafkaSettings(**NEEDED).is_ours(n) for n in range(4))
    for start, milliseconds in [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:01.5+02:00", 1_500),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-02", 86_400_000),
        ("earliest", None),
        ("committed", None),
    ]:
        assert KafkaSettings(**NEEDED, start=start).start_milliseconds == milliseconds


AVRO, PROTOBUF = {"format": "avro", "schema_file": "a"}, {"format": "protobuf", "schema_file": "a", "message": "a.B"}
CSV = {"format": "csv", "columns": ["a"]}
REGISTRIES = ["file:///etc/passwd", "h:8081", "http://", "http://h:no", "http://h/?a=b", "http://h /", "http://ü"]
WRONG = {
    "sasl_plain_password_env": [LOGIN, {**LOGIN, "sasl_plain_password": "x", "sasl_plain_password_file": "y"}],
    "ssl_password_env": [{"ssl_password": "x", "ssl_password_env": "y"}],
    "sasl_mechanism": [
        {"security_protocol": "SASL_SSL"},
        {**LOGIN, "security_protocol": "SSL", "sasl_plain_password": "p"},
    ],
    "ssl_cafile": [{"ssl_cafile": "ca.pem"}],
    "options": [
        *({"options": {option: 1}} for option in ("group_id", "max_poll_records", "enable_auto_commit")),
        {"options": {"sasl_plain_password": "hunter2"}},
    ],
    "passwort": [{"passwort": "hunter2"}],
    "bootstrap_servers": [
        {"bootstrap_servers": servers} for servers in ("", [], [""], 7, "http://a:1", "a:b:c", "u:p@a:1", [7])
    ],
    "topics": [{"topics": topics} for topics in ("", [], ["t", "t"], "a*", ["a b"], 7, "..")],
    "start": [{"start": start} for start in ("yesterday", "", 7, "1969-12-31T00:00:00Z", "2026-13-01")],
    "shard": [{"shard": shard} for shard in ("3/3", "1", "a/b", "-1/3", {"index": 1}, 7, "0/0")],
    "format": [{"format": "xml"}],
    "columns": [
        {"format": "csv"},
        *(CSV | {"columns": names} for names in ([], ["a", "a"], ["a", ""])),
        {"columns": ["a"]},
    ],
    "schema_file": [
        *({"schema_file": "a"}, {"format": "avro"}, {"format": "protobuf", "message": "a.B"}),
        AVRO | {"schema_registry": "http://h"},
    ],
    "schema_registry": [
        PROTOBUF | {"schema_registry": "http://h"},
        *(
            {"format": "avro", "schema_registry": at}
            for at in (*REGISTRIES, "http://h\n", "http://ü", f"http://{'a' * 70}")
        ),
    ],
    "message": [PROTOBUF | {"message": None}, AVRO | {"message": "a.B"}],
    "framing": [AVRO | {"framing": "confluent"}],
    "timestamp_field": [{"key_field": "a", "timestamp_field": "a"}],
    "key_field": [CSV | {"key_field": "a"}],
    "header_fields": [{"key_field": "a", "header_fields": ["b", "a"]}],
}


def test_what_is_wrong_or_does_not_go_together_is_refused_at_its_place():
    for place, cases in WRONG.items():
        for settings in cases:
            with pytest.raises(ValidationError) as caught:
                KafkaSettings(**NEEDED | settings)
            (error,) = caught.value.errors()
            assert ".".join(map(str, error["loc"])) == place, settings
            assert "hunter2" not in error["msg"]


# --- sinks -----------------------------------------------------------------------------------------------------------

FILE = FileSource.Settings(kind="file", path="a.jsonl")
TOPIC = KafkaSource.Settings(**NEEDED)
COMMON = """
    schema.target = "y"
    source = { kind = "kafka", topics = "t", group = "g", bootstrap_servers = "there:1" }
    predictions = { kind = "kafka", topic = "p", gate = false, interval = 0.5 }
    dead_letters = { kind = "kafka", topic = "d", max_ratio = 0.1 }
"""


def predictions(**settings):
    return KafkaPredictions.Settings(**{"kind": "kafka", "topic": "p"} | settings)


def test_a_sink_takes_the_connection_of_the_first_kafka_source_unless_it_has_one():
    assert borrowed(predictions(), "predictions", [FILE, TOPIC]) is TOPIC
    own = predictions(topic="t", bootstrap_servers="here:1")
    assert borrowed(own, "predictions", [FILE, TOPIC]) is own
    KafkaPredictions.check(own, [TOPIC], None)  # another cluster may have a topic of the same name


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("dead_letters.topic=t", "dead_letters.topic"),
        ("predictions.topic=a b", "predictions.topic"),
        ("predictions.transactional_id=x", "predictions.transactional_id"),
        ("predictions.compression=rar", "predictions.compression"),
        ("dead_letters.transactional=true", "dead_letters.transactional"),
    ],
)
def test_what_does_not_go_together_is_found_without_a_broker(tmp_path, flag, named):
    (tmp_path / "config.toml").write_text(COMMON)
    settings = load_settings(tmp_path / "config.toml", environment={})
    assert (settings.predictions.gate, settings.predictions.topic, settings.dead_letters.max_ratio) == (False, "p", 0.1)
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path / "config.toml", environment={}, overrides=[flag])
    assert named in str(caught.value)


def test_a_place_is_a_key():
    assert place_key({"path": "ä", "offset": 3}) == '{"path":"ä","offset":3}'.encode()


def test_settings_of_produce_are_those_of_the_file(tmp_path):
    path = tmp_path / "client.toml"
    path.write_text('security_protocol = "SASL_SSL"\nsasl_plain_password = "geheim"\nlinger_ms = 7')
    expected = {"security_protocol": "SASL_SSL", "sasl_plain_password": "geheim", "linger_ms": 7}
    assert (Topic.settings(path), Topic.settings(None)) == (expected, {})
    for text in ('acks = "geheim"', 'security_protocol = ["geheim"]'):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            Topic.settings(path)
        assert "geheim" not in str(caught.value)
