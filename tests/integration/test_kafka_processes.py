"""What processes do to each other: owners, crashes, signals."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition

from streammoe import ports
from streammoe.errors import SourceError
from streammoe_connectors.kafka import source as kafka_source
from streammoe_connectors.kafka.clients import load_client
from streammoe_connectors.kafka.consumer import ClusterUnavailableError
from streammoe_connectors.kafka.offsets import OffsetMetadata
from streammoe_connectors.kafka.settings import Connection, client_options
from streammoe_connectors.kafka.source_settings import ReadingSettings
from tests.integration.kafka_clients import opened, polled_until, settings_of, take
from tests.kafka_lab.lab import Daemon, wait_until


@pytest.fixture
def group_of(broker):
    """What a group has committed of partition 0, to be read and written from outside."""
    made = []

    class Group:
        def __init__(self, topic, group):
            self.partition = TopicPartition(topic, 0)
            self.consumer = KafkaConsumer(bootstrap_servers=broker.address, group_id=group, enable_auto_commit=False)
            self.consumer.assign([self.partition])
            made.append(self.consumer)

        @property
        def mirror(self):
            found = self.consumer.committed(self.partition, metadata=True)
            return None if found is None else (found.offset, OffsetMetadata.parse(found.metadata))

        def write(self, offset, owner, at):
            self.consumer.commit({self.partition: OffsetAndMetadata(offset, OffsetMetadata(owner, at, 1).encode(), -1)})

    yield Group
    for consumer in made:
        consumer.close()


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.both_clients
def test_a_checkpoint_is_mirrored_and_holds_its_partitions_until_the_end_or_until_they_are_taken(topics, group_of):
    name = topics.create()
    topics.fill(name, ["a", "b"])
    settings = settings_of(topics.address, name, owner_seconds=3)
    group = group_of(name, settings.group)
    with opened(settings) as source:
        _, batch = take(source, 2)
        assert group.mirror is None
        source.commit(batch.end, 7)
        wait_until(lambda: group.mirror, "it is committed")
        offset, mirror = group.mirror
        assert (offset, mirror.owner, mirror.checkpoint_generation) == (2, batch.end["owner"], 7)
        with pytest.raises(SourceError), opened(settings):
            pass
        with opened(settings, batch.end):  # as it comes back after a crash
            pass
    offset, mirror = group.mirror
    assert (offset, mirror.owner, mirror.checkpoint_generation) == (2, "", 7)
    with opened(settings) as source:
        assert source.position is not None
        source.commit(take(source, 2)[1].end, 1)
        wait_until(lambda: group.mirror[1].owner, "it is committed")
        group.write(0, "somebody", time.time() + 60)
        with pytest.raises(SourceError):
            source.poll(60.0)


@pytest.mark.both_clients
def test_marks_of_either_client_are_read_by_the_other(topics, client):
    other = "librdkafka" if client == "kafka-python" else "kafka-python"
    name, group = topics.create(partitions=8), f"group-{uuid.uuid4().hex[:8]}"
    partitions = [ports.TopicPartition(name, number) for number in range(8)]
    settings = ReadingSettings(topics=name, group=group)
    connection = Connection(bootstrap_servers=topics.address)

    def options_of(client):
        return client_options(connection)

    writer = load_client(client).create_consumer(options_of(client), settings)
    reader = load_client(other).create_consumer(options_of(other), settings)
    try:
        # Of all lengths, since clients take memory in steps.
        marks = {tp: OffsetMetadata("m" * (5 * tp.partition), 1.5, 7) for tp in partitions}
        for partition, mark in marks.items():
            writer.commit({partition: partition.partition}, mark.encode(), wait_ms=10_000)
        assert not writer.failed_commits
        for _ in range(3):
            assert reader.committed(partitions) == {tp: (tp.partition, marks[tp]) for tp in partitions}
    finally:
        writer.close()
        reader.close()


@pytest.mark.both_clients
def test_offsets_that_a_transaction_holds_are_waited_for(topics, client, monkeypatch):
    monkeypatch.setattr("streammoe_connectors.kafka.kafka_python.consumer.REQUEST_TIMEOUT_MS", 1_500)
    monkeypatch.setattr("streammoe_connectors.kafka.librdkafka.consumer._REQUEST_TIMEOUT", 1.5)
    name, group = topics.create(), f"group-{uuid.uuid4().hex[:8]}"
    producer = KafkaProducer(bootstrap_servers=topics.address, transactional_id=group)
    options = client_options(Connection(bootstrap_servers=topics.address))
    consumer = load_client(client).create_consumer(options, ReadingSettings(topics=name, group=group))
    try:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send_offsets_to_transaction({TopicPartition(name, 0): OffsetAndMetadata(5, "", -1)}, group)
        with pytest.raises(ClusterUnavailableError):
            consumer.committed([ports.TopicPartition(name, 0)])
        producer.commit_transaction()
        wait_until(lambda: consumer.committed([ports.TopicPartition(name, 0)]), "it is visible")
        assert consumer.committed([ports.TopicPartition(name, 0)]) == {(name, 0): (5, None)}
    finally:
        producer.close()
        consumer.close()


def test_a_child_that_is_killed_ends_the_daemon(topics):
    with opened(settings_of(topics.address, topics.create())) as source:
        os.kill(source._process.pid, signal.SIGKILL)
        with pytest.raises(SourceError):
            source.poll(60.0)


SCRIPT = """
import sys, time
from streammoe_connectors.kafka.source import KafkaSource
source = KafkaSource(KafkaSource.Settings(
    kind="kafka", bootstrap_servers=sys.argv[1], topics=sys.argv[2], group=sys.argv[2]))
source.seek(None)
while not source.prepare(0.5):
    pass
print(source._process.pid, flush=True)
time.sleep(1000)
"""


def test_a_daemon_that_is_killed_leaves_no_child(topics):
    name = topics.create()
    topics.fill(name, [b"x" * 1_000] * 4_000)  # more than a pipe holds, so that the child waits to write
    command = [sys.executable, "-c", SCRIPT, topics.address, name]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        try:
            child = int(daemon.stdout.readline())
            assert alive(child)
        finally:
            daemon.kill()
        wait_until(lambda: not alive(child), "the child has ended")


def test_signals_to_the_whole_group_end_it_in_good_order_or_not_at_all(topics, group_of, tmp_path):
    name = topics.create()
    topics.fill(name, [json.dumps({"x": i, "y": i}) for i in range(50)])
    daemon = Daemon(tmp_path / f"group-{name}", topics.address, name)
    group = group_of(name, f"group-{name}")
    process = daemon.start()
    wait_until(lambda: group.mirror, "the first checkpoint")
    os.killpg(process.pid, signal.SIGHUP)
    wait_until(lambda: "the settings" in daemon.said, "they are read again")
    os.killpg(process.pid, signal.SIGTERM)
    summary = daemon.end(process)
    offset, mirror = group.mirror
    assert (offset, mirror.owner) == (summary["learned"], "")


def test_a_child_that_hangs_holds_nothing_up_and_is_reported(topics, caplog, monkeypatch):
    monkeypatch.setattr(kafka_source, "_HANG_SECONDS", 5.0)
    monkeypatch.setattr("streammoe_connectors.kafka.process._CLOSE_TIMEOUT_SECONDS", 1.0)
    name = topics.create()
    with opened(settings_of(topics.address, name)) as source:
        polled_until(source, lambda: source.status().connected, "it is connected")
        child = source._process.pid
        os.kill(child, signal.SIGSTOP)
        rescue = threading.Timer(60.0, os.kill, (child, signal.SIGCONT))  # for a commit that waits
        rescue.start()
        for generation in range(5_000):
            source.commit(source.position, generation)
        assert not rescue.finished.is_set()
        rescue.cancel()
        with caplog.at_level(logging.WARNING):
            polled_until(source, lambda: not source.status().connected, "it is noticed")
        assert [record.levelname for record in caplog.records].count("WARNING") == 1
        os.kill(child, signal.SIGCONT)
        topics.fill(name, ["a"])
        assert take(source, 1)[0] == [b"a"]
        polled_until(source, lambda: source.status().connected, "it is connected again")
        os.kill(child, signal.SIGSTOP)
    assert not alive(child)
