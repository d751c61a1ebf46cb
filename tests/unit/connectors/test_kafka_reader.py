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
    """A log of one partition, and how the cluster behaves."""

    def __init__(self):
        self.log = []
        self.deaf = False
        self.unanswered = 0
        self.made = 0
        self.at = {}


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
            return [0]

        def topic_id(self, topic):
            return None

        def first_offsets(self, partitions):
            return dict.fromkeys(partitions, 0)

        def end_offsets(self, partitions):
            return dict.fromkeys(partitions, len(script.log))

        def committed(self, partition):
            return None

        def assign(self, offsets):
            script.at = dict(offsets)
            script.deaf = False

        def poll(self, seconds):
            time.sleep(0.005)
            at = script.at[Partition("t", 0)]
            rows = script.log[at:]
            if script.deaf or not rows:
                return {}
            script.at[Partition("t", 0)] = len(script.log)
            return {Partition("t", 0): rows}

        def fetched(self, partition):
            return script.at[partition]

        def log_end(self, partition):
            return script.at[partition]

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
    script.log = [Row(0), Row(1)]
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
    script.log.append(Row(2))
    assert until(is_a("batch"))["count"] == 1


def test_a_partition_of_which_nothing_comes_is_reported_and_the_consumer_built_anew_once(child):
    script, start = child
    script.log = [Row(0)]
    _, until = start(stall_seconds=0.5)
    until(is_a("batch"))
    script.deaf = True
    script.log.append(Row(1))
    stalled = until(lambda header: header["type"] == "status" and header["stalled"])
    assert stalled["stalled"] == [["t", 0]]
    assert until(is_a("batch"))["count"] == 1  # the new consumer hears
    status = until(lambda header: header["type"] == "status" and not header["stalled"])
    assert status["happened"]["consumer_rebuilt"] == 1
    assert script.made == 2
