"""The settings of a connection to Kafka, of its source, its sinks and `streammoe produce`; no broker is asked."""

import pytest
from pydantic import ValidationError

from streammoe.configuration import load_settings
from streammoe.errors import ConfigError
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.kafka.dead_letters import KafkaDeadLetters
from streammoe_connectors.kafka.delivery import borrowed
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.producer import place_key
from streammoe_connectors.kafka.settings import Connection, client_options
from streammoe_connectors.kafka.source import KafkaSource
from streammoe_connectors.kafka.source_settings import KafkaSettings
from streammoe_connectors.kafka.topic import Topic

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


def test_servers_are_a_list_or_text_with_commas():
    for servers in ["a:1,b:2", "a:1, b:2", ["a:1", "b:2"], ("a:1", "b:2")]:
        assert Connection(bootstrap_servers=servers).bootstrap_servers == ("a:1", "b:2")
    assert Connection(bootstrap_servers="[::1]:9092").bootstrap_servers == ("[::1]:9092",)
    for servers in ["", [], [""], 7, "http://a:1", "a:b:c", "u:p@a:1", [7]]:
        assert refusal(Connection, bootstrap_servers=servers)[0] == "bootstrap_servers", servers


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


@pytest.mark.parametrize("name", ["ssl_cafile", "ssl_certfile", "ssl_keyfile"])
def test_a_certificate_must_be_there(tmp_path, name):
    path = tmp_path / "one.pem"
    connection = Connection(bootstrap_servers="a:1", security_protocol="SSL", **{name: str(path)})
    with pytest.raises(ConfigError):
        client_options(connection)
    path.write_text("")
    assert client_options(connection)[name] == str(path)


WRONG = [
    (LOGIN, "sasl_plain_password_env"),
    ({**LOGIN, "sasl_plain_password": "x", "sasl_plain_password_file": "y"}, "sasl_plain_password_env"),
    ({"ssl_password": "x", "ssl_password_env": "y"}, "ssl_password_env"),
    ({"security_protocol": "SASL_SSL"}, "sasl_mechanism"),
    ({"sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "p"}, "sasl_mechanism"),
    ({"ssl_cafile": "ca.pem"}, "ssl_cafile"),
    ({"options": {"group_id": "g"}}, "options"),
    ({"options": {"sasl_plain_password": "hunter2"}}, "options"),
    ({"passwort": "x"}, "passwort"),
]


def test_what_does_not_go_together_is_refused_at_its_place():
    for settings, place in WRONG:
        found, message = refusal(Connection, **{"bootstrap_servers": "a", **settings})
        assert found == place
        assert "hunter2" not in message


def test_further_options_are_handed_on():
    connection = Connection(
        bootstrap_servers="a:1", api_version=[2, 3], options={"ssl_ciphers": "x", "reconnect_backoff_max_ms": 5}
    )
    options = client_options(connection)
    assert (options["api_version"], options["ssl_ciphers"], options["reconnect_backoff_max_ms"]) == ((2, 3), "x", 5)


# --- the source ------------------------------------------------------------------------------------------------------


def test_topics_are_one_or_several():
    assert KafkaSettings(**NEEDED).topics == ("t",)
    assert KafkaSettings(**NEEDED | {"topics": ["t", "u"]}).topics == ("t", "u")
    for topics in ["", [], ["t", "t"], "a*", ["a b"], 7, "..", ["a", "b*", "c"]]:
        assert refusal(KafkaSettings, **NEEDED | {"topics": topics})[0] == "topics", topics


def test_a_start_is_a_word_or_a_time():
    for start, milliseconds in [
        ("1970-01-01T00:00:01Z", 1_000),
        ("1970-01-01T02:00:01.5+02:00", 1_500),
        ("1970-01-01T00:00:01", 1_000),
        ("1970-01-02", 86_400_000),
        ("earliest", None),
        ("committed", None),
    ]:
        assert KafkaSettings(**NEEDED, start=start).start_milliseconds == milliseconds
    for start in ["yesterday", "", 7, "1969-12-31T00:00:00Z", "2026-13-01"]:
        assert refusal(KafkaSettings, **NEEDED, start=start)[0] == "start", start


def test_a_shard_is_every_nth_partition():
    settings = KafkaSettings(**NEEDED, shard="1/3")
    assert [number for number in range(8) if settings.is_ours(number)] == [1, 4, 7]
    assert KafkaSettings(**NEEDED, shard={"index": 1, "of": 3}).shard == "1/3"
    assert all(KafkaSettings(**NEEDED).is_ours(number) for number in range(4))
    for shard in ["3/3", "1", "a/b", "-1/3", {"index": 1}, {"index": 3, "of": 3}, 7, "0/0"]:
        assert refusal(KafkaSettings, **NEEDED, shard=shard)[0] == "shard", shard


@pytest.mark.parametrize("option", ["max_poll_records", "enable_auto_commit", "allow_auto_create_topics"])
def test_options_that_would_break_promises_are_refused(option):
    place, message = refusal(KafkaSettings, **NEEDED, options={option: 1})
    assert place == "options"
    assert option in message


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
    return KafkaPredictions.Settings(kind="kafka", topic="p", **settings)


def test_a_sink_takes_the_connection_of_the_first_kafka_source_unless_it_has_one():
    assert borrowed(predictions(), "predictions", [FILE, TOPIC]) is TOPIC
    own = predictions(bootstrap_servers="here:1")
    assert borrowed(own, "predictions", [FILE, TOPIC]) is own
    for sink in (KafkaPredictions, KafkaDeadLetters):
        with pytest.raises(ConfigError):
            sink(sink.Settings(kind="kafka", topic="p"), [FILE])


def test_another_cluster_may_have_a_topic_of_the_same_name():
    settings = KafkaPredictions.Settings(kind="kafka", topic="t", bootstrap_servers="elsewhere:1")
    KafkaPredictions.check(settings, [TOPIC], None)


@pytest.mark.parametrize(
    ("settings", "sources"),
    [
        ({"security_protocol": "SSL", "client_id": "me"}, [TOPIC]),  # half a connection
        ({"bootstrap_servers": "here:1", "options": {"fetch_max_bytes": 9}}, []),  # of consumers
        ({"bootstrap_servers": "here:1", "transactional": True}, [FILE]),  # without a group
    ],
)
def test_sinks_that_cannot_be_are_refused_before_any_broker_is_asked(settings, sources):
    with pytest.raises(ConfigError):
        KafkaPredictions(predictions(**settings), sources)


@pytest.mark.parametrize(
    ("flag", "named"),
    [
        ("predictions.topic=t", "predictions.topic"),
        ("dead_letters.topic=t", "dead_letters.topic"),
        ("predictions.topic=a b", "predictions.topic"),
        ("predictions.transactional=true; checkpoint.keep=1", "checkpoint.keep"),
        ("predictions.transactional=true; checkpoint.every_seconds=301", "predictions.transaction_timeout_seconds"),
        ("predictions.transactional_id=x", "predictions.transactional_id"),
        ("predictions.transaction_timeout_seconds=1.0", "predictions.transaction_timeout_seconds"),
        ("predictions.compression=rar", "predictions.compression"),
        ("predictions.gates=true", "predictions.gates"),
        ("dead_letters.transactional=true", "dead_letters.transactional"),
    ],
)
def test_what_does_not_go_together_is_found_without_a_broker(tmp_path, flag, named):
    (tmp_path / "config.toml").write_text(COMMON)
    settings = load_settings(tmp_path / "config.toml", environment={})
    assert (settings.predictions.gate, settings.predictions.topic, settings.dead_letters.max_ratio) == (False, "p", 0.1)
    with pytest.raises(ConfigError) as caught:
        load_settings(tmp_path / "config.toml", environment={}, overrides=flag.split("; "))
    assert named in str(caught.value)


def test_a_place_is_a_key():
    assert place_key({"path": "ä", "offset": 3}) == '{"path":"ä","offset":3}'.encode()


# --- produce ---------------------------------------------------------------------------------------------------------


def test_settings_of_produce_are_those_of_the_file_and_mistakes_are_reported_without_their_values(tmp_path):
    path, secret = tmp_path / "client.toml", "geheim"
    path.write_text(f'security_protocol = "SASL_SSL"\nsasl_plain_password = "{secret}"\nlinger_ms = 7')
    expected = {"security_protocol": "SASL_SSL", "sasl_plain_password": secret, "linger_ms": 7}
    assert (Topic.settings(path), Topic.settings(None)) == (expected, {})
    for text in [
        f'sasl_password = "{secret}"',
        f'acks = "{secret}"',
        f"sasl_plain_password = {secret}",
        f'security_protocol = "{secret}"',
        f'security_protocol = ["{secret}"]',
    ]:
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            Topic.settings(path)
        assert secret not in str(caught.value)
    with pytest.raises(ConfigError):
        Topic.settings(tmp_path / "nothing.toml")
