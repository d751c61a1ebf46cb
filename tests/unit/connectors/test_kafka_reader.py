"""The child's loop against a cluster that does as it is told."""

import os
import threading
import time
from queue import SimpleQueue
from typing import NamedTuple

import pytest

from streammoe.errors import RetriableSourceError
from streammoe.ports import Partition
from streammoe_connectors import kafka_reader
from streammoe_connectors.kafka_cluster import Unanswered
from streammoe_connectors.kafka_link import Inlet, Outlet
from streammoe_connectors.kafka_reader import Reader
from streammoe_connectors.kafka_source_settings import ReadingSettings

pytest.importorskip("kafka")


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
        self.unanswered = 0
        self.made = 0
        self.at = {}
        self.paused = set()


def cluster_of(script):
    class FakeCluster:
        asking_seconds = None

        def __init__(self, options, settings):
            script.made += 1
            if script.unanswered:
                script.unanswered -= 1
                raise Unanswered("nobody is there")

        def ask(self, topics):
            pass

        def partitions(self, topic):
            return list(script.logs)

        def topic_id(self, topic):
            return None

        def first_offsets(self, partitions):
            return dict.fromkeys(partitions, 0)

        def end_offsets(self, partitions):
            return {partition: len(script.logs[partition.partition]) for partition in partitions}

        def committed(self, partition):
            return None

        def assign(self, offsets):
            script.at = {partition.partition: at for partition, at in offsets.items()}
            if script.made > 1:
                script.deaf = set()

        def pause(self, partition):
            script.paused.add(partition.partition)

        def resume(self, partition):
            script.paused.discard(partition.partition)

        def poll(self, seconds):
            time.sleep(0.005)
            found = {}
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

    def start(**settings):
        settings = ReadingSettings(topics="t", group="g", **settings)
        order = {"settings": settings.model_dump(), "options": {}, "position": None, "owner": "me"}
        reader = Reader(order, Outlet(write), orders)
        threads.append(threading.Thread(target=reader.run))
        threads[0].start()
        inlet = Inlet(read)
        os.set_blocking(read, False)

        def until(wanted):
            deadline = time.monotonic() + 20
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


def test_records_are_kept_while_a_registry_does_not_answer(child):
    script, start = child
    script.logs[0] = [Row(0), Row(1)]
    reader, until = start()
    failures = [RetriableSourceError("the registry is down")] * 2
    block = reader._values.block

    def failing(records):
        if failures:
            raise failures.pop()
        return block(records)

    reader._values.block = failing
    batch = until(is_a("batch"))
    assert (batch["count"], batch["end"]["topics"]["t"]["partitions"]) == (2, {"0": 2})
    script.logs[0].append(Row(2))
    assert until(is_a("batch"))["count"] == 1


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
    assert status["happened"]["consumer_rebuilt"] == 1
    assert script.made == 2


def test_the_wait_for_a_registry_is_no_stall(child):
    script, start = child
    script.logs[0] = [Row(0)]
    reader, until = start(stall_seconds=0.2)
    block, began = reader._values.block, time.monotonic()

    def failing(records):
        if time.monotonic() < began + 3.0:
            script.logs[0].append(Row(len(script.logs[0])))
            raise RetriableSourceError("the registry is down")
        return block(records)

    reader._values.block = failing
    until(is_a("batch"))
    assert "consumer_rebuilt" not in reader._happened


def test_of_what_waits_for_another_partition_only_so_much_is_fetched(child):
    script, start = child
    script.logs = {0: [Row(i, b"x" * 10_000) for i in range(2_000)], 1: [Row(0, b"other", 1)]}
    script.deaf = {1}
    reader, until = start(buffer_bytes=1 << 20)
    until(is_a("ready"))
    deadline = time.monotonic() + 10
    while not script.paused:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert script.paused == {0}
    assert reader._lanes[Partition("t", 0)].bytes < 2 << 20
    script.deaf = set()
    found = 0
    while found < 2_001:
        found += until(is_a("batch"))["count"]
    assert script.at == {0: 2_000, 1: 1}
