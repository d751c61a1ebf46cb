"""Predictions in one transaction with the position, on a real Kafka."""

import json
import time
import uuid

import numpy as np
import pytest
from kafka import KafkaConsumer, TopicPartition

from scripts.kafka_broker import free_port
from streammoe.errors import SinkError
from streammoe.ports import Predictions
from streammoe_connectors.kafka.offsets import parse_offset_metadata
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source import producer as kafka_producer
from streammoe_connectors.kafka.source import transactions as kafka_transactions

pytestmark = pytest.mark.integration


class Source(Connection):
    """What the sink wants to know of a Kafka source."""

    group: str
    shard: str = "0/1"


class Setup:
    """A topic to read, one to write, and a group."""

    def __init__(self, topics):
        self.topics = topics
        self.read = topics.create(partitions=2)
        self.written = topics.create(name="predictions", partitions=2)
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self.owner = "owner-1"
        self._opened = []

    def sink(self, **settings):
        chosen = KafkaPredictions.Settings(
            kind="kafka", topic=self.written, transactional=True, delivery_timeout_seconds=10.0, **settings
        )
        sink = KafkaPredictions(chosen, [Source(bootstrap_servers=self.topics.address, group=self.group)])
        self._opened.append(sink)
        return sink

    def recovered(self, sink, position):
        for _ in range(60):
            if (found := sink.recover(0.5, position)) is not None:
                return found.generation
        raise AssertionError("it was not told within 30 s")

    def position(self, *offsets, owner=None):
        partitions = {str(i): offset for i, offset in enumerate(offsets)}
        return {
            "kind": "kafka",
            "group": self.group,
            "owner": owner or self.owner,
            "topics": {self.read: {"id": "1", "partitions": partitions}},
        }

    def seen(self, isolation="read_committed"):
        found = self.topics.read(self.written, isolation_level=isolation)
        return sorted(json.loads(record.value)["model_version"] for record in found)

    def committed(self):
        consumer = KafkaConsumer(bootstrap_servers=self.topics.address, group_id=self.group)
        try:
            return [consumer.committed(TopicPartition(self.read, i), metadata=True) for i in (0, 1)]
        finally:
            consumer.close()

    def close(self):
        for sink in self._opened:
            sink.close()


@pytest.fixture
def setup(topics):
    setup = Setup(topics)
    yield setup
    setup.close()


def rows(first, n):
    return Predictions(
        places=[{"topic": "t", "partition": 0, "offset": i} for i in range(first, first + n)],
        versions=np.arange(first, first + n),
        predictions=np.zeros((n, 1)),
        targets=np.zeros((n, 1)),
        losses=np.zeros(n),
        outputs=("y",),
    )


def test_a_broker_that_is_not_there_at_the_start_is_waited_for_and_told(caplog, monkeypatch):
    monkeypatch.setattr(kafka_transactions, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(kafka_transactions, "SAY_SECONDS", 0.5)
    address = f"127.0.0.1:{free_port()}"
    settings = KafkaPredictions.Settings(kind="kafka", topic="rows", transactional=True)
    sink = KafkaPredictions(settings, [Source(bootstrap_servers=address, group="g")])
    try:
        for _ in range(20):
            assert sink.recover(0.1, None) is None
    finally:
        sink.close()
    told = [record.message for record in caplog.records if "says what is committed" in record.message]
    assert len(told) in {2, 3, 4}
    assert address in told[0]
    assert "waiting since" in told[0]


def test_predictions_are_seen_with_the_position_and_not_before(setup):
    sink = setup.sink()
    assert sink.transactional
    assert setup.recovered(sink, None) is None
    sink.commit(setup.position(0, 0), 1)
    sink.write(rows(0, 10))
    sink.flush()
    assert (setup.seen(), len(setup.seen("read_uncommitted"))) == ([], 10)
    assert [one.offset for one in setup.committed()] == [0, 0]
    sink.commit(setup.position(4, 6), 2)
    assert setup.seen() == list(range(10))
    assert [one.offset for one in setup.committed()] == [4, 6]
    assert {
        (parse_offset_metadata(one.metadata).owner, parse_offset_metadata(one.metadata).generation)
        for one in setup.committed()
    } == {("owner-1", 2)}
    sink.commit(setup.position(4, 6), 3)  # a checkpoint without events
    assert parse_offset_metadata(setup.committed()[0].metadata).generation == 3


def test_the_position_of_a_chain_is_committed_too(setup):
    sink = setup.sink()
    setup.recovered(sink, None)
    sink.commit({"kind": "chain", "positions": [{"kind": "file"}, setup.position(1, 2)]}, 1)
    assert [one.offset for one in setup.committed()] == [1, 2]


def test_a_good_end_lets_others_take_over_and_keeps_the_position(setup):
    sink = setup.sink()
    setup.recovered(sink, None)
    sink.write(rows(0, 10))
    sink.flush()
    sink.commit(setup.position(4, 6), 2)
    sink.close()
    found = setup.committed()
    assert [one.offset for one in found] == [4, 6]
    assert {
        (parse_offset_metadata(one.metadata).owner, parse_offset_metadata(one.metadata).generation) for one in found
    } == {("", 2)}
    assert setup.recovered(setup.sink(), setup.position(4, 6)) == 2
    assert setup.seen() == list(range(10))


def test_an_end_amid_a_transaction_lets_go_of_nothing(setup):
    sink = setup.sink()
    setup.recovered(sink, None)
    sink.commit(setup.position(4, 6), 2)
    sink.write(rows(0, 10))
    sink.close()
    assert {parse_offset_metadata(one.metadata).owner for one in setup.committed()} == {"owner-1"}
    assert setup.seen() == []


def test_a_restart_ends_what_was_left_open_and_is_told_the_generation(setup):
    first = setup.sink()
    setup.recovered(first, None)
    first.write(rows(0, 5))
    first.flush()
    first.commit(setup.position(5, 0), 7)
    first.write(rows(5, 5))
    first.flush()  # and then it is killed
    second = setup.sink()
    position = {"kind": "chain", "positions": [None, setup.position(10, 0)]}
    assert setup.recovered(second, position) == 7
    second.write(rows(5, 5))
    second.flush()
    second.commit(setup.position(10, 0), 8)
    assert setup.seen() == list(range(10))
    assert len(setup.seen("read_uncommitted")) == 15
    assert setup.recovered(setup.sink(), setup.position(10, 0)) == 8


def test_what_another_lineage_of_checkpoints_has_committed_does_not_count(setup):
    first = setup.sink()
    setup.recovered(first, None)
    first.commit(setup.position(5, 0), 57)
    assert setup.recovered(setup.sink(), setup.position(5, 0, owner="owner-2")) is None


def test_a_zombie_is_shut_out(setup):
    zombie = setup.sink()
    setup.recovered(zombie, None)
    zombie.write(rows(0, 5))
    zombie.flush()
    heir = setup.sink()
    setup.recovered(heir, None)
    with pytest.raises(
        SinkError, match=r"another daemon with transactional id 'streammoe-group-\w+-0/1' has taken over"
    ):
        zombie.commit(setup.position(5, 0), 1)
    another = setup.sink()
    setup.recovered(another, None)
    heir.write(rows(0, 5))
    with pytest.raises(SinkError, match="has taken over"):
        heir.flush()
    with pytest.raises(SinkError, match="has taken over"):
        heir.write(rows(5, 5))
    another.write(rows(0, 3))
    another.flush()
    another.commit(setup.position(3, 0), 1)
    assert setup.seen() == [0, 1, 2]


def test_a_transaction_that_is_open_for_too_long_names_the_settings(broker_factory, topics_of):
    own = broker_factory(properties={"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"})
    setup = Setup(topics_of(own))
    sink = setup.sink(transaction_timeout_seconds=10.0)
    setup.recovered(sink, None)
    sink.write(rows(0, 5))
    sink.flush()
    time.sleep(11.5)
    with pytest.raises(SinkError, match=r"open for 1\d s.*after 10 s; raise predictions.transaction_timeout_seconds"):
        sink.commit(setup.position(5, 0), 1)
    setup.close()
    assert setup.seen() == []


def test_a_time_out_that_brokers_do_not_allow_is_told(setup):
    with pytest.raises(SinkError, match=r"transaction_timeout_seconds: 1000 is more than the brokers allow"):
        setup.recovered(setup.sink(transaction_timeout_seconds=1000.0), None)


def test_a_broker_that_is_down_is_waited_for(broker_factory, topics_of):
    own = broker_factory()
    setup = Setup(topics_of(own))
    own.kill9()
    sink = setup.sink()
    started = time.monotonic()
    assert sink.recover(0.5, None) is None
    assert time.monotonic() - started < 1.5
    own.start()
    assert setup.recovered(sink, None) is None
    setup.close()


def test_a_commit_that_nobody_answers_ends(broker_factory, topics_of, monkeypatch):
    monkeypatch.setattr(kafka_producer, "_GRACE_SECONDS", 0.0)
    monkeypatch.setattr(kafka_producer, "SAY_SECONDS", 2.0)
    own = broker_factory()
    setup = Setup(topics_of(own))
    sink = setup.sink()
    setup.recovered(sink, None)
    sink.write(rows(0, 5))
    sink.flush()
    own.kill9()
    with pytest.raises(SinkError, match="more than 10 s"):
        sink.commit(setup.position(5, 0), 1)
    own.start()
    heir = setup.sink()
    assert setup.recovered(heir, setup.position(5, 0)) is None
    assert setup.seen() == []
    setup.close()
