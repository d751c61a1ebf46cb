"""Of the Kafka connector: what no broker is needed for."""

from collections import Counter
from unittest.mock import patch

import numpy as np
from confluent_kafka.schema_registry import Schema as RegisteredSchema
from confluent_kafka.schema_registry import SchemaRegistryClient, SchemaRegistryError
from kafka import errors

from streammoe.configuration import load_settings
from streammoe.ports import TopicPartition
from streammoe_connectors.files.source import FileSource
from streammoe_connectors.kafka import kafka_python, ownership
from streammoe_connectors.kafka.assignment import Assignment
from streammoe_connectors.kafka.contract import RECORD, Outgoing, TopicDescription
from streammoe_connectors.kafka.order import Limits
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.position import OffsetMetadata, check_position, check_shard
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.settings import (
    Connection,
    KafkaSettings,
    ReadingSettings,
    ValueSettings,
    connection_options,
)
from streammoe_connectors.kafka.values import Values

FIRST = TopicPartition("t", 0)
NOT_THERE = {"bootstrap_servers": "there:1", "security_protocol": "SSL"}


LIMITS = Limits(3, 5, 5, 5)


def _held(owner, *ats):
    """Return why a partition may not be read whose marks by this owner follow one another."""

    def case(_):
        with patch.object(ownership.time, "time", lambda: 0.0):
            mine = Ownership(_reading(), "a", Counter())
            for at in ats:
                mine.check({FIRST: OffsetMetadata(owner, at, 7)})

    return case


def _reads(*described, position=None, **settings):
    """Return what is said where the cluster describes topics so, by their ids and partitions, and has these records."""

    def case(_):
        made = Assignment(_reading(**settings), position, "o", Counter())
        for topics in described:
            made.see({topic: TopicDescription(*found) for topic, found in topics.items()})
        made.settle(dict.fromkeys(made.wanted, LIMITS), {})

    return case


def _from(number, offset):
    """Return the position of a daemon that reads one partition."""
    return {"topics": {"t": {"id": "one", "partitions": {number: offset}}}, "shard": "0/1"}


def _settings(*flags):
    def case(folder):
        (folder / "config.toml").write_text(
            'schema.target = "y"\n'
            'source = { kind = "kafka", topics = "t", group = "g", bootstrap_servers = "there:1" }\n'
            'predictions = { kind = "kafka", topic = "p" }\n'
        )
        load_settings(folder / "config.toml", overrides=flags, environment={})

    return case


def _reading(**settings):
    return ReadingSettings(**{"topics": "t", "group": "g", **settings})


def _sink(source=None, **settings):
    return lambda _: KafkaPredictions(KafkaPredictions.Settings(kind="kafka", topic="p", **settings), source)


def _explained(error, size=0, place=None, *, transactional=False):
    source = KafkaSettings(kind="kafka", bootstrap_servers="there:1", topics="t", group="g")
    with patch.object(KafkaPredictions, "_connect"):
        sink = KafkaPredictions(KafkaPredictions.Settings(kind="kafka", topic="p", transactional=transactional), source)
    record = None if place is None else Outgoing(b"x" * size, b"key", place)
    return lambda _: str(sink.as_sink_error(kafka_python.client_error(error), record))


def _of_a_transaction(error):
    return _explained(error, transactional=True)


def _password(_):
    login = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}
    connection_options(
        Connection(bootstrap_servers="there:1", **login, sasl_plain_password={"env": "NOT_SET_ANYWHERE"})
    )


def _registry(answer, *, kind="AVRO", **login):
    """Return what is said where a registry answers so: with a schema, an error, or a status and a code."""
    if isinstance(answer, int):
        answer = SchemaRegistryError(answer, -1, "geheim")

    def case(_):
        settings = ValueSettings.model_validate(
            {"format": kind.lower(), "schema_registry": {"url": "http://registry.example", **login}}
        )
        records = np.array([(0, 0, b"\0\0\0\0\7\0", None, (), None, 0, 0.0)], RECORD)
        with patch.object(SchemaRegistryClient, "get_schema", side_effect=[answer]):
            return "\n".join(each.detail for each in Values(settings).batch(records, {}, "t").unreadable.values())

    return case


FILE = FileSource.Settings(kind="file", path="a.jsonl")

CASES = {
    "servers that are no addresses": _settings("source.bootstrap_servers=http://a:1"),
    "half a login": _settings("source.security_protocol=SASL_SSL", "source.sasl_mechanism=PLAIN"),
    "an option that would break a promise": _settings('source.options={"enable_auto_commit" = true}'),
    "a topic that is none": _settings('source.topics=["a", "b*", "c"]'),
    "a pattern that is none": _settings("source.topics_pattern=(a"),
    "a topic and a pattern": _settings("source.topics_pattern=a"),
    "no topic": _reads(*4 * [{}]),
    "no topic that matches": _reads(*4 * [{}], topics=None, topics_pattern="orders[.].*"),
    "a topic that was deleted": _reads({"t": ("one", {})}, *4 * [{}]),
    "a start that is none": _settings("source.start=yesterday"),
    "a shard that is none": _settings("source.shard=3/3"),
    "a format that lacks something": _settings("source.format=csv"),
    "settings of another format": _settings("source.format=avro", "source.message=a.B", "source.schema_file=a"),
    "two fields of one name": _settings("source.key_field=a", "source.timestamp_field=a"),
    "predictions into what is read": _settings("predictions.topic=t"),
    "transactions without a second checkpoint": _settings("predictions.transactional=true", "checkpoint.keep=1"),
    "transactions that time out": _settings("predictions.transactional=true", "checkpoint.every_seconds=301"),
    "a password that is not in the environment": _password,
    "a certificate that is not there": lambda folder: connection_options(
        Connection(**NOT_THERE, ssl_cafile=str(folder / "ca.pem"))
    ),
    "predictions without a connection": _sink(FILE),
    "half a connection": _sink(security_protocol="SSL", client_id="me"),
    "an option that is none": _sink(bootstrap_servers="there:1", options={"fetch_max_byte": 9}),
    "transactions without a group": _sink(FILE, bootstrap_servers="there:1", transactional=True),
    "a schema that is not there": lambda folder: Values(
        ValueSettings(format="avro", schema_file=str(folder / "none.avsc"))
    ),
    "a registry's login without a registry": _settings("source.format=avro", "source.schema_registry.cafile=ca.pem"),
    "a registry that is no table": _settings("source.format=avro", "source.schema_registry=https://me:geheim@h"),
    "a password that is none": _settings("source.sasl_plain_password.fil=geheim"),
    "two logins to a registry": _settings(
        "source.format=avro",
        "source.schema_registry.url=https://h",
        "source.schema_registry.username=me",
        "source.schema_registry.password=geheim",
        "source.schema_registry.token.file=a",
    ),
    "half a login to a registry": _settings(
        "source.format=avro", "source.schema_registry.url=https://h", "source.schema_registry.username=me"
    ),
    "a certificate for a registry without TLS": _settings(
        "source.format=avro", "source.schema_registry.url=http://h", "source.schema_registry.cafile=a"
    ),
    "a registry's token that is none": _registry(200, token="two words"),
    "a registry that does not accept the login": _registry(401),
    "a registry that may not be read": _registry(403),
    "no registry": _registry(404),
    "a registry that is out of order": _registry(503),
    "a registry that does not respond": _registry(ConnectionError("Connection refused")),
    "a registry that is not one": _registry(ValueError("no JSON")),
    "a registry without that schema": _registry(SchemaRegistryError(404, 40403, "")),
    "a registry that does not serialize": _registry(RegisteredSchema("syntax = proto3;", "PROTOBUF"), kind="PROTOBUF"),
    "a registry's schema of another type": _registry(RegisteredSchema("{}", "JSON")),
    "a registry's schema that is not usable": _registry(RegisteredSchema("{}")),
    "a registry's certificate that is none": _registry(200, url="https://registry.example", cafile=__file__),
    "tokens without an endpoint": _settings("source.security_protocol=SASL_SSL", "source.sasl_mechanism=OAUTHBEARER"),
    "a client's secret that would cross the network in plain text": _settings(
        "source.security_protocol=SASL_SSL",
        "source.sasl_mechanism=OAUTHBEARER",
        "source.sasl_oauth_client_id=me",
        "source.sasl_oauth_client_secret=geheim",
        "source.sasl_oauth_token_url=http://login.example/token",
        "source.client=librdkafka",
    ),
    "tokens with kafka-python": _settings(
        "source.security_protocol=SASL_SSL",
        "source.sasl_mechanism=OAUTHBEARER",
        "source.sasl_oauth_client_id=me",
        "source.sasl_oauth_client_secret=geheim",
        "source.sasl_oauth_token_url=https://login.example/token",
    ),
    "a position of another source": lambda _: check_position({"kind": "file"}),
    "an offset that is lost": _reads({"t": ("one", {0: 1})}, position=_from("0", 1)),
    "an offset that is lost, going on": _reads({"t": ("one", {0: 1})}, position=_from("0", 1), on_lost="latest"),
    "a checkpoint of another shard": lambda _: check_shard(_reading(shard="1/3"), {"shard": "0/3", "topics": {}}),
    "a topic that was created again": _reads({"t": ("two", {0: 1})}, position=_from("0", 2)),
    "a topic that was created again with fewer partitions": _reads({"t": ("two", {0: 1})}, position=_from("3", 17)),
    "a second daemon that may be gone": _held("b", 0.0),
    "a second daemon": _held("b", 0.0, 1.0),
    "a second daemon with a copy of the checkpoint folder": _held("a", 0.0, 1.0),
    "a sink's topic that is not there": _explained(errors.UnknownTopicOrPartitionError()),
    "a sink's topic that may not be written": _explained(errors.TopicAuthorizationFailedError("p")),
    "a record that is too large": _explained(errors.MessageSizeTooLargeError(), 30_000, {"path": "a", "offset": 9}),
    "no acknowledgement": _explained(errors.KafkaTimeoutError("120 s"), 9, {"path": "a", "offset": 9}),
    "a zombie": _of_a_transaction(errors.ProducerFencedError()),
    "a transaction's time-out that brokers do not allow": _of_a_transaction(
        errors.KafkaError("InvalidTransactionTimeout")
    ),
}
