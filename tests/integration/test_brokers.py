"""What the other tests of this folder stand on: brokers that keep what they are given, and that fail when told to."""

import time

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    GroupAuthorizationFailedError,
    KafkaError,
    OffsetMetadataTooLargeError,
    OffsetOutOfRangeError,
)

from scripts import kafka_broker

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def read(consumer, count, seconds=20):
    """The values of the next records; fewer when they do not come in time."""
    found, deadline = [], time.monotonic() + seconds
    while len(found) < count and time.monotonic() < deadline:
        for records in consumer.poll(200).values():
            found += [record.value for record in records]
    return found


@pytest.fixture
def mock_consumer(mock_cluster):
    """Makes a consumer of the mock's topic `events`, from what its group has committed or the beginning."""
    made = []

    def factory(**settings):
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "fetch_max_wait_ms": 10, **settings}
        consumer = KafkaConsumer(**mock_cluster.client, reconnect_backoff_max_ms=200, **settings)
        made.append(consumer)
        consumer.assign([TopicPartition("events", 0)])
        return consumer

    yield factory
    for consumer in made:
        consumer.close()


@pytest.fixture
def ten(mock_cluster):
    """Ten records in the mock's topic `events`."""
    mock_cluster.create_topic("events")
    producer = KafkaProducer(**mock_cluster.client, enable_idempotence=False)
    sent = [producer.send("events", b"%d" % i, partition=0) for i in range(10)]
    producer.flush(20)
    producer.close()
    assert [future.get(0).offset for future in sent] == list(range(10))
    return [b"%d" % i for i in range(10)]


# --- the real one ----------------------------------------------------------------------------------------------------


def test_what_was_sent_is_read_with_all_that_belongs_to_it(topic, fill, topics):
    name = topic(partitions=2, configs={"cleanup.policy": "compact"})
    assert fill(name, ["a", b"b"], partition=1, timestamps=[1_000, 2_000], keys=[b"k", b"l"]) == [0, 1]
    assert fill(name, [None], partition=0, keys=[b"k"], headers=[[("trace", b"7")]]) == [0]
    tombstone, first, second = topics.read(name)
    assert (first.value, first.key, first.timestamp, first.partition) == (b"a", b"k", 1_000, 1)
    assert (second.value, second.offset, second.timestamp) == (b"b", 1, 2_000)
    assert (tombstone.value, tombstone.partition, list(tombstone.headers)) == (None, 0, [("trace", b"7")])


def test_two_topics_have_nothing_in_common(topic, fill, topics):
    one, other = topic(), topic()
    fill(one, ["a"])
    assert one != other
    assert topics.read(other) == []


def test_a_killed_broker_comes_back_with_its_data_at_the_same_address(broker_factory, topics_of):
    broker = broker_factory()
    topics = topics_of(broker)
    name = topics.create(partitions=2)
    topics.fill(name, map(str, range(1_000)), partition=1)
    group = {"bootstrap_servers": broker.address, "group_id": "g", "enable_auto_commit": False}
    consumer = KafkaConsumer(name, auto_offset_reset="earliest", **group)
    assert len(read(consumer, 1_000)) == 1_000
    consumer.commit()
    consumer.close()
    address, pid = broker.address, broker.pid

    broker.kill9()
    assert broker.pid is None
    assert not kafka_broker.answers(broker.port)
    broker.start()
    assert broker.pid != pid
    assert broker.address == address
    assert [record.value for record in topics.read(name)] == [b"%d" % i for i in range(1_000)]
    consumer = KafkaConsumer(**group)
    assert consumer.committed(TopicPartition(name, 1)) == 1_000
    consumer.close()

    assert topics.fill(name, ["more"], partition=1) == [1_000]  # by a client from before the kill
    broker.stop()
    assert broker.pid is None
    broker.start()
    assert len(topics.read(name)) == 1_001


def test_settings_of_kafka_can_be_given(broker_factory, topics_of):
    topics = topics_of(broker_factory(properties={"message.max.bytes": "1000"}))
    name = topics.create()
    with pytest.raises(KafkaError):
        topics.fill(name, [b"x" * 2_000])


def test_a_missing_topic_is_not_made_up(broker, topics):
    consumer = KafkaConsumer("no-such-topic", bootstrap_servers=broker.address)
    assert consumer.poll(500) == {}
    consumer.close()
    assert "no-such-topic" not in topics.names()


def test_a_port_that_is_taken_is_said_so(broker, tmp_path):
    other = kafka_broker.Broker(tmp_path, port=broker.port)
    with pytest.raises(kafka_broker.BrokerError, match=rf"127\.0\.0\.1:{broker.port} cannot be bound"):
        other.start()
    assert other.pid is None


def test_a_broker_that_ends_at_once_leaves_its_last_words(broker, tmp_path):
    other = kafka_broker.Broker(tmp_path, properties={"log.retention.hours": "soon"})
    with pytest.raises(kafka_broker.BrokerError, match="soon"):
        other.start()
    assert other.pid is None


# --- the mock --------------------------------------------------------------------------------------------------------


def test_an_injected_error_reaches_a_plain_consumer_once(mock_cluster, ten, mock_consumer):
    mock_cluster.fail("offset_fetch", GroupAuthorizationFailedError.errno)
    consumer = mock_consumer(group_id="g")
    with pytest.raises(GroupAuthorizationFailedError):
        read(consumer, 10)
    assert read(consumer, 10) == ten


def test_errors_are_given_in_order(mock_cluster, ten, mock_consumer):
    consumer = mock_consumer(group_id="g")
    errors = [OffsetMetadataTooLargeError, GroupAuthorizationFailedError]
    mock_cluster.fail("offset_commit", *[error.errno for error in errors])
    offsets = {TopicPartition("events", 0): OffsetAndMetadata(5, "", -1)}
    for error in errors:
        with pytest.raises(error):
            consumer.commit(offsets)
    consumer.commit(offsets)
    assert consumer.committed(TopicPartition("events", 0)) == 5


def test_errors_that_were_taken_back_reach_nobody(mock_cluster, ten, mock_consumer):
    mock_cluster.fail("offset_fetch", *[GroupAuthorizationFailedError.errno] * 5)
    mock_cluster.heal("offset_fetch")
    assert read(mock_consumer(group_id="g"), 10) == ten


def test_a_broker_that_is_down_is_silent_and_goes_on_when_it_is_up(mock_cluster, ten, mock_consumer):
    consumer = mock_consumer()
    assert read(consumer, 1)
    consumer.seek(TopicPartition("events", 0), 0)
    mock_cluster.down()
    assert read(consumer, 10, seconds=1) == []
    mock_cluster.up()
    assert read(consumer, 10) == ten


def test_a_delayed_broker_answers_late(mock_cluster, ten, mock_consumer):
    consumer = mock_consumer()
    assert read(consumer, 10) == ten
    mock_cluster.delay(1_500)
    consumer.seek(TopicPartition("events", 0), 0)
    assert read(consumer, 10, seconds=1) == []
    mock_cluster.delay(0)
    assert read(consumer, 10) == ten


def test_records_that_retention_took_are_out_of_range(mock_cluster, ten, mock_consumer):
    mock_cluster.trim("events", 0, 7)
    consumer = mock_consumer(auto_offset_reset="none")
    consumer.seek(TopicPartition("events", 0), 3)
    with pytest.raises(OffsetOutOfRangeError):
        read(consumer, 10)


def test_an_order_that_cannot_be_obeyed_is_an_error(mock_cluster):
    with pytest.raises(ValueError, match="down"):
        mock_cluster.down(9)
