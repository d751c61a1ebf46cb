"""How the sections of Kafka sinks become connections, before any broker is asked."""

import pytest

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.kafka.dead_letters import KafkaDeadLetters
from streammoe_connectors.kafka.delivery import borrowed
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.producer import place_key
from streammoe_connectors.kafka.source import KafkaSource

FILE = FileSource.Settings(kind="file", path="a.jsonl")
TOPIC = KafkaSource.Settings(kind="kafka", topics="t", group="g", bootstrap_servers="there:1")


def predictions(**settings):
    return KafkaPredictions.Settings(kind="kafka", topic="p", **settings)


def test_the_connection_is_that_of_the_first_kafka_source_unless_there_is_one():
    assert borrowed(predictions(), "predictions", [FILE, TOPIC]) is TOPIC
    own = predictions(bootstrap_servers="here:1")
    assert borrowed(own, "predictions", [FILE, TOPIC]) is own


def test_without_any_connection_the_setting_is_named():
    for sink, section in ((KafkaPredictions, "predictions"), (KafkaDeadLetters, "dead_letters")):
        with pytest.raises(ConfigError, match=rf"{section}\.bootstrap_servers: required"):
            sink(sink.Settings(kind="kafka", topic="p"), [FILE])


def test_half_a_connection_is_refused():
    with pytest.raises(ConfigError, match="bootstrap_servers: must be set together with client_id, security_protocol"):
        KafkaPredictions(predictions(security_protocol="SSL", client_id="me"), [TOPIC])


def test_an_option_that_producers_do_not_have_is_refused():
    with pytest.raises(ConfigError, match=r"predictions\.options: kafka-python's producers have no fetch_max_bytes"):
        KafkaPredictions(predictions(bootstrap_servers="here:1", options={"fetch_max_bytes": 9}), [])


def test_transactions_need_a_group():
    with pytest.raises(ConfigError, match=r"predictions\.transactional: must be false without a source of kind kafka"):
        KafkaPredictions(predictions(transactional=True, bootstrap_servers="here:1"), [FILE])


@pytest.mark.parametrize(
    ("flags", "rule"),
    [
        (["predictions.topic=t"], r"predictions\.topic: is 't', which the source reads"),
        (["dead_letters.kind=kafka", "dead_letters.topic=t"], r"dead_letters\.topic: is 't', which the source reads"),
        (["predictions.transactional=true", "checkpoint.keep=1"], r"checkpoint\.keep: must be at least 2"),
        (
            ["predictions.transactional=true", "checkpoint.every_seconds=301"],
            r"transaction_timeout_seconds: must be at least twice checkpoint\.every_seconds = 301, .*got 600",
        ),
        (["source.kind=file", "source.path=a.jsonl"], r"predictions\.bootstrap_servers: required"),
    ],
)
def test_what_does_not_go_together_is_found_without_a_broker(tmp_path, flags, rule):
    source = {"kind": "kafka", "topics": "t", "group": "g", "bootstrap_servers": "there:1"}
    if "source.kind=file" in flags:
        source = {}
    given = [f"source.{name}={value}" for name, value in source.items()]
    config = tmp_path / "config.toml"
    config.write_text('schema.target = "y"\npredictions = { kind = "kafka", topic = "p" }\n')
    with pytest.raises(ConfigError, match=rule):
        load_settings(config, overrides=[*given, *flags], environment={})


def test_another_cluster_may_have_a_topic_of_the_same_name():
    KafkaPredictions.check(
        KafkaPredictions.Settings(kind="kafka", topic="t", bootstrap_servers="elsewhere:1"), [TOPIC], None
    )


def test_a_place_is_a_key():
    assert place_key({"path": "ä", "offset": 3}) == '{"path":"ä","offset":3}'.encode()


@pytest.mark.parametrize(
    ("flag", "rule"),
    [
        ("predictions.topic=a b", "predictions.topic"),
        ("predictions.transactional_id=x", "must not be set unless predictions.transactional = true"),
        ("predictions.transaction_timeout_seconds=1.0", "predictions.transaction_timeout_seconds"),
        ("predictions.compression=rar", "predictions.compression"),
        ("predictions.gates=true", "did you mean gate"),
        ("dead_letters.transactional=true", "dead_letters.transactional: unknown setting"),
    ],
)
def test_settings_are_checked_with_those_that_all_kinds_share(tmp_path, flag, rule):
    (tmp_path / "config.toml").write_text("""
        schema.target = "y"
        source = { kind = "kafka", topics = "t", group = "g", bootstrap_servers = "there:1" }
        predictions = { kind = "kafka", topic = "p", gate = false, interval = 0.5 }
        dead_letters = { kind = "kafka", topic = "d", max_ratio = 0.1 }
    """)
    settings = load_settings(tmp_path / "config.toml", environment={})
    assert (settings.predictions.gate, settings.predictions.topic, settings.dead_letters.max_ratio) == (False, "p", 0.1)
    with pytest.raises(ConfigError, match=rule):
        load_settings(tmp_path / "config.toml", environment={}, overrides=[flag])
