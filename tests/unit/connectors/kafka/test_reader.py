"""The child's loop against a cluster that does as it is told."""

import logging
import os
import threading
import time
from collections import Counter
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Partition
from streammoe.testing.kafka.lab import PATIENCE, wait_until
from streammoe_connectors.kafka import reader as kafka_reader
from streammoe_connectors.kafka.child import Forward
from streammoe_connectors.kafka.cluster import Lost, Unanswered
from streammoe_connectors.kafka.frames import Inlet, Outlet
from streammoe_connectors.kafka.partitions import PartitionBuffer
from streammoe_connectors.kafka.reader import Reader
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.start import beginnings


class Row(NamedTuple):
    offset: int
    value: bytes | None = b"{}"
    timestamp: int | None = 0
    key: bytes | None = None
    headers: tuple = ()


class Script:
    """Logs of partitions, and how the cluster behaves."""

    def __init__(self):
        self.logs = {0: []}
        self.deaf = set()
        self.first = {}
        self.id = None
        self.next_id = None
        self.answered_at = 0.0
        self.unanswered = 0
        self.unanswered_offsets = 0
        self.made = 0
        self.at = {}
        self.seeks = []
        self.paused = set()

    def recreate(self, logs):
        """What holds these logs from now on has another id, of which is told a bit later."""
        self.answered_at = time.monotonic() + 0.3
        self.logs, self.next_id = logs, "two"


def cluster_of(script):
    class FakeCluster:
        @property
        def asking_seconds(self):
            if time.monotonic() < script.answered_at:
                return 0.1
            script.id = script.next_id
            return None

        def __init__(self, options, settings):
            script.made += 1
            if script.unanswered:
                script.unanswered -= 1
                raise Unanswered("nobody is there")

        def ask(self, topics):
            if script.id != script.next_id:
                script.answered_at = time.monotonic() + 0.3

        def partitions(self, topic):
            return list(script.logs)

        def topic_id(self, topic):
            return script.id

        def first_offsets(self, partitions):
            return {partition: script.first.get(partition.partition, 0) for partition in partitions}

        def end_offsets(self, partitions):
            if script.unanswered_offsets:
                script.unanswered_offsets -= 1
                raise Unanswered("not now")
            return {partition: len(script.logs[partition.partition]) for partition in partitions}

        def committed(self, partition):
            return None

        def assign(self, offsets):
            script.at = {partition.partition: at for partition, at in offsets.items()}
            if script.made > 1:
                script.deaf = set()

        def seek(self, partition, offset):
            script.seeks.append((partition.partition, offset))
            script.at[partition.partition] = offset

        def pause(self, partition):
            script.paused.add(partition.partition)

        def resume(self, partition):
            script.paused.discard(partition.partition)

        def poll(self, seconds):
            time.sleep(0.005)
            found = {}
            lost = [
                Partition("t", number)
                for number, at in script.at.items()
                if not script.first.get(number, 0) <= at <= len(script.logs.get(number, ()))
            ]
            if lost:
                raise Lost(lost)
            for number, log in script.logs.items():
                rows = log[script.at[number] :][:100]
                if rows and number not in script.deaf | script.paused:
                    script.at[number] += len(rows)
                    found[Partition("t", number)] = rows
            return found

        def fetched(self, partition):
            return script.at[partition.partition]

        def log_end(self, partition):
            return None if partition.partition in script.deaf else len(script.logs[partition.partition])

        def failed_commits(self):
            return []

        def close(self):
            pass

    return FakeCluster


@pytest.fixture
def child(monkeypatch):
    """Starts a reader in a thread: what it sends, by a function that gives the next frame of a type."""
    script = Script()
    monkeypatch.setattr(kafka_reader, "Cluster", cluster_of(script))
    read, write = os.pipe()
    orders = SimpleQueue()
    threads = []

    def start(position=None, **settings):
        settings = ReadingSettings(topics="t", group="g", **settings)
        order = {"settings": settings.model_dump(), "options": {}, "position": position, "owner": "me"}
        reader = Reader(order, Outlet(write), orders)
        threads.append(threading.Thread(target=reader.run))
        threads[0].start()
        inlet = Inlet(read)
        os.set_blocking(read, False)

        def until(wanted):
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                frame = inlet.next()
                if frame is None:
                    time.sleep(0.01)
                elif wanted(frame.header):
                    return frame.header
            raise AssertionError("it did not come")

        return reader, until

    yield script, start
    orders.put({"type": "close"})
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    os.close(read)
    os.close(write)


def is_a(kind):
    return lambda header: header["type"] == kind


def test_a_cluster_that_does_not_answer_is_tried_again(child):
    script, start = child
    script.unanswered = 2
    _, until = start()
    until(is_a("ready"))
    assert script.made == 3


def test_how_much_there_is_to_read_is_told_before_the_first_record(child):
    script, start = child
    script.logs[0] = [Row(i) for i in range(30)]
    _, until = start()
    until(is_a("ready"))
    assert until(lambda _: True)["ends"] == [["t", 0, 30]]


def test_a_daemon_that_takes_its_time_is_told_the_status_behind_what_it_takes(child):
    script, start = child
    script.logs[0] = [Row(i, b"x" * 10_000) for i in range(1_000)]
    _, until = start(max_poll_records=100)
    until(is_a("batch"))
    time.sleep(1.2)  # longer than from one look at the clock to the next, so that it is due while nothing is taken
    until(is_a("batch"))
    kinds = []
    while kinds.count("batch") < 2:
        kinds.append(until(lambda _: True)["type"])
    assert "status" in kinds


def test_records_are_kept_while_a_registry_does_not_answer_which_is_no_stall(child):
    script, start = child
    script.logs[0] = [Row(0), Row(1)]
    reader, until = start(stall_seconds=0.2)
    block, began = reader._values.block, time.monotonic()

    def failing(records):
        if time.monotonic() < began + 3.0:  # for some looks at partitions of which nothing comes
            script.logs[0].append(Row(len(script.logs[0])))
            raise RetriableSourceError("the registry is down")
        return block(records)

    reader._values.block = failing
    assert until(is_a("batch"))["count"] >= 2
    batch = until(is_a("batch"))
    while batch["end"]["topics"]["t"]["partitions"] != {"0": len(script.logs[0])}:
        batch = until(is_a("batch"))
    assert "consumer_rebuilt" not in reader._counters


def test_a_partition_of_which_nothing_comes_is_reported_and_the_consumer_built_anew_once(child):
    script, start = child
    script.logs[0] = [Row(0)]
    _, until = start(stall_seconds=0.5)
    until(is_a("batch"))
    script.deaf = {0}
    script.logs[0].append(Row(1))
    stalled = until(lambda header: header["type"] == "status" and header["stalled"])
    assert stalled["stalled"] == [["t", 0]]
    assert until(is_a("batch"))["count"] == 1  # the new consumer hears
    status = until(lambda header: header["type"] == "status" and not header["stalled"])
    assert status["counters"]["consumer_rebuilt"] == 1
    assert script.made == 2


def offsets(header):
    return header["position"]["topics"]["t"]["partitions"]


@pytest.mark.parametrize(("policy", "at"), [("earliest", {"0": 0, "1": 0}), ("latest", {"0": 1, "1": 2})])
def test_a_topic_created_again_is_left_once_even_where_an_offset_is_missed_first(child, policy, at):
    script, start = child
    script.id = script.next_id = "one"
    script.logs = {0: [Row(i) for i in range(5)], 1: [Row(i) for i in range(5)]}
    reader, until = start(on_lost=policy)
    found = 0
    while found < 10:
        found += until(is_a("batch"))["count"]
    script.unanswered_offsets = 2  # which must not be counted again
    script.recreate({0: [Row(0)], 1: [Row(0), Row(1)]})
    moved = until(is_a("moved"))
    assert offsets(moved) == at
    assert moved["position"]["topics"]["t"]["id"] == "two"
    script.logs[0].append(Row(1))
    more = 0
    while more < (4 if policy == "earliest" else 1):
        more += until(is_a("batch"))["count"]
    for _ in range(3):  # the ids are looked at about once a second, too
        until(is_a("status"))
    assert sorted(number for number, _ in script.seeks) == [0, 1]
    assert reader._counters["offset_reset"] == 2


def test_what_expires_while_it_is_read_is_left_and_told_before_a_record_comes(child):
    script, start = child
    script.logs[0] = [Row(i) for i in range(3)]
    reader, until = start(on_lost="latest")
    until(is_a("batch"))
    script.deaf = {0}
    script.logs[0] += [Row(i) for i in range(3, 9)]
    script.first = {0: 7}
    assert offsets(until(is_a("moved"))) == {"0": 9}
    assert reader._counters["offset_reset"] == 1


def test_where_it_moves_to_skips_nothing_that_was_fetched_and_not_given(child):
    script, start = child
    script.logs = {0: [Row(i, b"{}", i) for i in range(4)], 1: []}
    script.deaf = {1}  # for which the records of the other one wait
    reader, until = start(on_lost="earliest")
    until(is_a("ready"))
    wait_until(lambda: len(reader._lanes[Partition("t", 0)].records) == 4, "they are fetched")
    script.first = {0: 7}
    script.logs[0] += [Row(i, b"{}", i) for i in range(4, 9)]
    assert offsets(until(is_a("moved"))) == {"0": 0, "1": 0}
    script.deaf = set()
    batch = until(is_a("batch"))
    assert batch["count"] >= 4
    assert batch["end"]["topics"]["t"]["partitions"]["0"] >= 7


def test_what_was_fetched_of_a_topic_is_not_given_once_it_was_created_again(child):
    script, start = child
    script.id = script.next_id = "one"
    script.logs = {0: [Row(i, b"{}", i) for i in range(4)], 1: []}
    script.deaf = {1}  # for which the records of the other one wait
    reader, until = start(on_lost="earliest")
    until(is_a("ready"))
    wait_until(lambda: len(reader._lanes[Partition("t", 0)].records) == 4, "they are fetched")
    script.recreate({0: [Row(0)], 1: []})
    assert offsets(until(is_a("moved"))) == {"0": 0, "1": 0}
    script.deaf = set()
    assert until(is_a("batch"))["count"] == 1


def test_partitions_that_a_topic_created_again_lacks_are_named(child, caplog):
    script, start = child
    script.id = script.next_id = "one"
    script.logs = {0: [Row(0)], 1: [Row(0)]}
    _, until = start(on_lost="earliest", discover_seconds=0.5)
    found = 0
    while found < 2:
        found += until(is_a("batch"))["count"]
    script.recreate({0: []})
    assert offsets(until(is_a("moved"))) == {"0": 0}
    assert "t/1 (offset 1 was next)" in caplog.text


@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_partitions_of_a_position_that_a_topic_lacks_are_lost(caplog, policy):
    held = {"id": None, "partitions": {"0": 0, "3": 17}}
    position = {"kind": "kafka", "group": "g", "owner": "me", "topics": {"t": held}}
    settings = ReadingSettings(topics="t", group="g", on_lost=policy)
    cluster = cluster_of(Script())({}, settings)
    if policy == "fail":
        with pytest.raises(SourceError):
            beginnings(cluster, settings, position, [Partition("t", 0)], Counter())
    else:
        beginnings(cluster, settings, position, [Partition("t", 0)], Counter())
        assert "t/3 (offset 17 was next)" in caplog.text


def test_a_start_that_had_to_go_elsewhere_is_worth_a_checkpoint(child):
    script, start = child
    script.logs[0], script.first = [Row(i) for i in range(5)], {0: 3}
    held = {"id": None, "partitions": {"0": 1}}
    _, until = start({"kind": "kafka", "group": "g", "owner": "me", "topics": {"t": held}}, on_lost="latest")
    ready = until(is_a("ready"))
    assert (ready["pin"], offsets(ready)) == (True, {"0": 5})


def test_nothing_is_said_to_stall_right_at_the_start():
    assert time.monotonic() - PartitionBuffer(Partition("t", 0), 0).received_at < 1.0


def test_a_status_comes_every_second_though_nothing_changes(child):
    _, start = child
    _, until = start()
    first = until(lambda header: header["type"] == "status" and header["ends"])
    assert until(is_a("status")) == until(is_a("status")) == first


def test_why_the_client_cannot_connect_is_told_without_passwords(caplog):
    order = {"settings": ReadingSettings(topics="t", group="g").model_dump(), "position": None, "owner": "me"}
    options = {"sasl_plain_password": "hunter2"}
    read, write = os.pipe()
    reader = Reader(order | {"options": options}, Outlet(write), SimpleQueue())
    words = "<KafkaConnection node_id=0 [IPv4 (hunter2)]>: SaslHandshake failed: UnsupportedSaslMechanism of hunter2"
    record = logging.LogRecord("kafka.net.connection", logging.ERROR, "connection.py", 1, words, (), None)
    Forward(reader, options).emit(record)
    reader._put_off("nobody is there")
    os.close(read)
    os.close(write)
    assert "SaslHandshake failed: UnsupportedSaslMechanism of ***" in caplog.text
    assert "hunter2" not in caplog.text + reader.logs[0]["message"]


def test_of_what_waits_for_another_partition_only_so_much_is_fetched(child):
    script, start = child
    script.logs = {0: [Row(i, b"x" * 10_000) for i in range(2_000)], 1: [Row(0, b"other", 1)]}
    script.deaf = {1}
    reader, until = start(buffer_bytes=1 << 20)
    until(is_a("ready"))
    wait_until(lambda: script.paused, "it is held back")
    assert script.paused == {0}
    assert reader._lanes[Partition("t", 0)].bytes < 2 << 20
    script.deaf = set()
    found = 0
    while found < 2_001:
        found += until(is_a("batch"))["count"]
    assert script.at == {0: 2_000, 1: 1}
