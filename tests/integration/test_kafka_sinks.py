"""Predictions and dead letters in topics of a real Kafka."""

import json
import re
import threading

import numpy as np
import pytest
from kafka import KafkaAdminClient

from streammoe.errors import ConfigError, SinkError
from streammoe.ports import DeadLetter, Predictions
from streammoe_connectors.kafka.dead_letters import KafkaDeadLetters
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.source import producer as kafka_producer

pytestmark = pytest.mark.integration


def sink_to(address, topic, **settings):
    chosen = KafkaPredictions.Settings(
        kind="kafka", topic=topic, bootstrap_servers=address, delivery_timeout_seconds=10.0, **settings
    )
    return KafkaPredictions(chosen, [])


def letters_to(address, topic):
    chosen = KafkaDeadLetters.Settings(kind="kafka", topic=topic, bootstrap_servers=address)
    return KafkaDeadLetters(chosen, [])


def rows(first, n, *, keys=None, **others):
    """Predictions of the records from `first` on."""
    return Predictions(
        places=[{"path": "a.jsonl", "offset": i} for i in range(first, first + n)],
        versions=np.arange(first, first + n),
        predictions=np.arange(first, first + n)[:, None] + 0.5,
        targets=np.full((n, 1), 1.0),
        losses=np.where(np.arange(n) % 2, np.nan, 0.25),
        outputs=("y",),
        keys=keys,
        **others,
    )


@pytest.fixture
def closing():
    """Sinks that are closed at the end, also where the test fails."""
    opened = []

    def add(sink):
        opened.append(sink)
        return sink

    yield add
    for sink in opened:
        sink.close()


def versions(records):
    return [json.loads(record.value)["model_version"] for record in records]


# --- what arrives -----------------------------------------------------------------------------------------------------


def test_each_prediction_arrives_as_an_object_with_its_key(broker, topics, topic, closing):
    name = topic()
    sink = closing(sink_to(broker.address, name))
    sink.write(rows(0, 3, keys=[b"a", None, b"\xff"], gate=np.full((3, 2), 0.5)))
    sink.flush()
    first, second, third = topics.read(name)
    assert json.loads(first.value) == {
        "place": {"path": "a.jsonl", "offset": 0},
        "model_version": 0,
        "prediction": 0.5,
        "target": 1.0,
        "loss": 0.25,
        "gate": [0.5, 0.5],
    }
    assert json.loads(second.value)["loss"] is None
    assert [first.key, json.loads(second.key), third.key] == [b"a", {"path": "a.jsonl", "offset": 1}, b"\xff"]


def test_the_rows_of_a_key_are_in_one_partition_and_in_order(broker, topics, topic, closing):
    name = topic(partitions=3)
    sink = closing(sink_to(broker.address, name, compression="gzip"))
    for first in range(0, 900, 300):
        sink.write(rows(first, 300, keys=[b"key %d" % (i % 7) for i in range(first, first + 300)]))
    sink.flush()
    found = topics.read(name)
    assert len({(record.key, record.partition) for record in found}) == 7
    for key in {record.key for record in found}:
        those = versions(record for record in found if record.key == key)
        assert those == sorted(those)
    assert sorted(versions(found)) == list(range(900))


def test_java_clients_find_a_key_in_the_same_partition(broker, topics, topic, closing):
    name = topic(partitions=5)
    keys = [b"key %d" % i for i in range(50)]
    topics.fill(name, [b"theirs"] * 50, keys=keys)
    sink = closing(sink_to(broker.address, name))
    sink.write(rows(0, 50, keys=keys))
    sink.flush()
    assert len({(record.key, record.partition) for record in topics.read(name)}) == 50


def test_a_row_that_is_written_again_comes_to_the_same_partition(broker, topics, topic, closing):
    name = topic(partitions=4)
    for _ in range(2):
        sink = closing(sink_to(broker.address, name))
        sink.write(rows(0, 40))
        sink.flush()
    found = topics.read(name)
    assert len(found) == 80
    assert len({(record.key, record.partition) for record in found}) == 40
    assert len({record.partition for record in found}) == 4


def test_nothing_is_lost_or_doubled_while_the_broker_is_killed(broker_factory, topics_of, closing):
    own = broker_factory()
    topics = topics_of(own)
    name = topics.create(partitions=2)
    sink = closing(
        KafkaPredictions(
            KafkaPredictions.Settings(kind="kafka", topic=name, bootstrap_servers=own.address, linger_ms=0), []
        )
    )
    written = threading.Event()

    def kill():
        written.wait()
        own.kill9()
        own.start()

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for first in range(0, 40_000, 200):
            sink.write(rows(first, 200, keys=[b"%d" % (i % 16) for i in range(200)]))
            if first == 4_000:
                written.set()
        sink.flush()
    finally:
        written.set()
        killer.join()
    found = topics.read(name)
    assert sorted(versions(found)) == list(range(40_000))
    for partition in (0, 1):
        those = versions(record for record in found if record.partition == partition)
        assert those == sorted(those)


def test_what_waits_for_a_broker_is_bounded(broker_factory, topics_of, closing, monkeypatch):
    monkeypatch.setattr(kafka_producer, "MOST_UNACKNOWLEDGED", 100_000)
    own = broker_factory()
    name = topics_of(own).create()
    sink = closing(sink_to(own.address, name))
    sink.write(rows(0, 10))
    sink.flush()
    own.kill9()
    for first in range(0, 500, 100):
        sink.write(rows(first, 100))
    with pytest.raises(SinkError, match=r"has not acknowledged a record \(from .*offset.*nothing was lost"):
        sink.write(rows(500, 1_000))
    with pytest.raises(SinkError, match="has not acknowledged"):  # it does not recover behind one's back
        sink.flush()


def test_a_broker_that_is_not_there_at_the_start_is_waited_for(broker_factory, topics_of, closing, monkeypatch, caplog):
    monkeypatch.setattr(kafka_producer, "FIRST_SECONDS", 0.2)
    own = broker_factory()
    name = topics_of(own).create()
    own.kill9()
    chosen = KafkaPredictions.Settings(kind="kafka", topic=name, bootstrap_servers=own.address)
    sink = closing(KafkaPredictions(chosen, []))
    assert "no broker of" in caplog.text
    starter = threading.Timer(1.0, own.start)
    starter.start()
    sink.write(rows(0, 5))
    sink.flush()
    starter.join()
    assert versions(topics_of(own).read(name)) == [0, 1, 2, 3, 4]


# --- dead letters -----------------------------------------------------------------------------------------------------


def test_a_dead_letter_is_the_record_with_headers(broker, topics, topic, closing):
    name = topic()
    sink = closing(letters_to(broker.address, name))
    place = {"topic": "events", "partition": 0, "offset": 7}
    sink.write(
        [
            DeadLetter(place, "decode", "malformed", "bad \udcff, größer", b"\xff\x00", "csv", ("a", "ü"), "run", 12),
            DeadLetter({"path": "ä", "offset": 0}, "validate", "too_long", "so long", b""),
        ]
    )
    sink.flush()
    full, bare = topics.read(name)
    assert (full.value, json.loads(full.key)) == (b"\xff\x00", place)
    headers = {header: content.decode() for header, content in full.headers}
    assert json.loads(headers.pop("place")) == place
    assert json.loads(headers.pop("columns")) == ["a", "ü"]
    assert headers == {
        "stage": "decode",
        "reason": "malformed",
        "detail": "bad \\udcff, größer",
        "format": "csv",
        "run": "run",
        "events": "12",
    }
    assert bare.value == b""
    assert [header for header, _ in bare.headers] == ["place", "stage", "reason", "detail"]


# --- what cannot be written -------------------------------------------------------------------------------------------


def test_a_topic_that_is_not_there_is_told_at_the_start(broker):
    for make, section in ((sink_to, "predictions"), (letters_to, "dead_letters")):
        with pytest.raises(SinkError, match=rf"'nowhere' is not on 127.*create it, or mend {section}\.topic"):
            make(broker.address, "nowhere")


def test_a_letter_that_is_too_large_names_the_ways_out(broker, topics, topic, closing):
    name = topic(configs={"max.message.bytes": 20_000})
    sink = closing(letters_to(broker.address, name))
    fits = DeadLetter({"path": "a", "offset": 0}, "decode", "malformed", "bad", b"x" * 15_000)
    sink.write([fits] * 9)  # together more than the limit
    sink.flush()
    sink.write([fits, DeadLetter({"path": "a", "offset": 9}, "decode", "malformed", "bad", b"x" * 30_000)])
    with pytest.raises(SinkError) as raised:
        sink.flush()
    said = str(raised.value)
    assert '(from {"path": "a", "offset": 9})' in said
    size, proposed = (
        int(re.search(r"record of (\d+) bytes", said)[1]),
        int(re.search(r"max.message.bytes=(\d+)", said)[1]),
    )
    assert 30_000 < size < 31_000
    assert 'dead_letters.kind = "file"' in said
    admin = KafkaAdminClient(bootstrap_servers=broker.address)
    try:
        from kafka.admin import ConfigResource, ConfigResourceType

        admin.alter_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name, configs={"max.message.bytes": str(proposed)})]
        )
    finally:
        admin.close()
    again = closing(letters_to(broker.address, name))
    again.write([DeadLetter({"path": "a", "offset": 9}, "decode", "malformed", "bad", b"x" * 30_000)])
    again.flush()
    assert len(topics.read(name)[-1].value) == 30_000


def test_an_option_that_breaks_the_promise_is_refused(broker, topic):
    with pytest.raises(ConfigError, match="kafka-python refuses"):
        sink_to(broker.address, topic(), options={"retries": 0})
