"""The child's loop against a cluster that follows a script, with short intervals in place of seconds."""

import os
import select
import threading
import time

import pytest

from streammoe.errors import RetriableSourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka import reader as kafka_reader
from streammoe_connectors.kafka import survey as kafka_survey
from streammoe_connectors.kafka.consumer import FIRST, ClusterUnavailableError, OffsetsLostError, TopicDescription
from streammoe_connectors.kafka.frames import Close, Fetched, Finished, Inlet, Moved, Outlet, Start, Status
from streammoe_connectors.kafka.reader import Reader
from streammoe_connectors.kafka.source_settings import ReadingSettings
from tests.kafka_lab.lab import PATIENCE, wait_until
from tests.unit.connectors.kafka_records import Row, columns

SOON = 0.03
"""Seconds between two looks of the reader at the clock, and until the cluster knows of a new topic."""


class Script:
    """A cluster that holds the topic `t`, and behaves as its attributes say."""

    def __init__(self):
        self.logs = {0: []}
        self.first = {}
        self.failed_commits = ()
        self.deaf = set()
        self.id = None
        self.dead = set()
        """Partitions whose leader does not answer."""
        self.made = 0
        self.at = {}
        self.paused = set()

    def end(self, number):
        log = self.logs.get(number)
        return log[-1].offset + 1 if log else 0

    def create_consumer(self, options, settings):
        self.made += 1
        return self

    def describe(self, topics):
        return {"t": TopicDescription(self.id, {number: number for number in self.logs})}

    def offsets(self, partitions, time, *, stable=False):
        if self.dead.intersection(partition.partition for partition in partitions):
            raise ClusterUnavailableError("no answer")
        found = self.first.get if time == FIRST else lambda number, _: self.end(number)
        return {partition: found(partition.partition, 0) for partition in partitions}

    def committed(self, partitions):
        return {}

    def commit(self, offsets, metadata, *, wait_ms=0):
        pass

    def assign(self, offsets):
        self.at = {partition.partition: at for partition, at in offsets.items()}
        self.paused = set()
        if self.made > 1:
            self.deaf = set()

    def pause(self, partition):
        self.paused.add(partition.partition)

    def resume(self, partition):
        self.paused.discard(partition.partition)

    def poll(self, seconds):
        time.sleep(0.005)
        reading = {number: at for number, at in self.at.items() if number not in self.deaf | self.paused | self.dead}
        lost = [n for n, at in reading.items() if not self.first.get(n, 0) <= at <= self.end(n)]
        if lost:
            raise OffsetsLostError([TopicPartition("t", number) for number in lost])
        found = {}
        for number, at in reading.items():
            rows = [row for row in self.logs.get(number, []) if row.offset >= at][:100]
            if rows:
                self.at[number] = rows[-1].offset + 1
                found[TopicPartition("t", number)] = columns(*rows)
        return found

    def topic_id(self, topic):
        return self.id

    def place(self, partition):
        number = partition.partition
        return self.at.get(number), None if number in self.deaf | self.dead else self.end(number)

    def close(self):
        pass


@pytest.fixture
def child(monkeypatch):
    """Starts a reader in a thread; gives it, and a function that returns the next message that is wanted."""
    script = Script()
    monkeypatch.setattr(kafka_reader, "load_client", lambda _: script)
    for name in ("_ENDS_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(kafka_survey, name, SOON / 3)
    for name in ("_MISSING_PAUSE_SECONDS", "_PAUSE_SECONDS", "_REGISTRY_PAUSE_SECONDS"):
        monkeypatch.setattr(kafka_reader, name, SOON / 3)
    monkeypatch.setattr(kafka_reader, "_TICK_SECONDS", SOON)
    (read, write), (looked, shown), (heard, said) = os.pipe(), os.pipe(), os.pipe()
    for descriptor in (read, looked, heard):
        os.set_blocking(descriptor, False)
    threads = []

    def start(position=None, **settings):
        settings = ReadingSettings(**{"topics": "t", "group": "g", **settings})
        first = Start(settings.model_dump(), "scripted", {"security_protocol": "SASL_SSL"}, position, "me")
        pipes = Inlet(heard), Outlet(write), Outlet(shown)
        reader = Reader(first, *pipes)
        threads.append(threading.Thread(target=reader.run))
        threads[0].start()
        inlets = {read: Inlet(read), looked: Inlet(looked)}

        def until(kind, wanted=lambda _: True):
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                messages = [message for inlet in inlets.values() if (message := inlet.next()) is not None]
                if found := [message for message in messages if isinstance(message, kind) and wanted(message)]:
                    return found[0]
                if not messages:
                    select.select(list(inlets), [], [], 1)
            raise AssertionError("it did not come")

        return reader, until

    yield script, start
    Outlet(said).send(Close())
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for descriptor in (read, write, looked, shown, heard, said):
        os.close(descriptor)


def count(batch):
    return len(batch.numbers)


def take(until, left):
    """Wait for so many records."""
    while left > 0:
        left -= count(until(Fetched))


def offsets(position):
    return position["topics"]["t"]["partitions"]


def buffer_of(reader, number):
    return reader._assignment.buffers[TopicPartition("t", number)]


def test_gaps_are_counted_tombstones_passed_and_nothing_beyond_the_stop_is_read(child):
    script, start = child
    script.logs[0] = [Row(0), Row(3), Row(4, None), Row(5), Row(6, None)]
    reader, until = start(until="end", max_poll_records=2)
    assert until(Moved).remaining == 7
    script.logs[0] = [*script.logs[0], Row(7)]
    found = [until(Fetched) for _ in range(3)]
    assert [(offsets(batch.end)["0"], count(batch), batch.skipped) for batch in found] == [
        (4, 2, 0),
        (6, 1, 1),
        (7, 0, 1),
    ]
    until(Finished)
    assert reader._counters["gap"] == 1


def test_records_are_kept_while_a_registry_does_not_answer_which_is_no_stall(child):
    script, start = child
    script.logs[0] = []
    reader, until = start(stall_seconds=0.1)
    block, calls = reader._values.block, []

    def failing(records):
        calls.append(records)
        if len(calls) < 7:  # which takes longer than a stall
            script.logs[0].append(Row(len(script.logs[0])))
            raise RetriableSourceError("the registry is down")
        return block(records)

    reader._values.block = failing
    script.logs[0] = [Row(0), Row(1)]
    take(until, 8)
    assert "consumer_rebuilt" not in reader._counters


def test_a_partition_of_which_nothing_comes_is_reported_and_the_consumer_built_again_once(child):
    script, start = child
    script.logs[0] = [Row(0)]
    _, until = start(stall_seconds=0.1)
    take(until, 1)
    script.deaf = {0}
    script.logs[0].append(Row(1))
    assert until(Status, lambda status: status.stalled).stalled == [("t", 0)]
    take(until, 1)  # the new consumer hears
    assert until(Status, lambda status: not status.stalled).counters["consumer_rebuilt"] == 1
    assert script.made == 2


@pytest.mark.parametrize(("policy", "at"), [("earliest", {"0": 0, "1": 0}), ("latest", {"0": 1, "1": 2})])
def test_a_topic_created_again_is_left_once_even_where_an_offset_is_missed_first(child, policy, at):
    script, start = child
    script.id = "one"
    script.logs = {0: [Row(i) for i in range(5)], 1: [Row(i) for i in range(5)]}
    reader, until = start(on_lost=policy)
    take(until, 10)
    script.dead = {1}  # until then nothing can be said of the topic as a whole
    script.logs, script.id = {0: [Row(0)], 1: [Row(0), Row(1)]}, "two"
    wait_until(lambda: reader._assignment.lost, "it is missed")
    for _ in range(3):
        until(Status)
    script.dead = set()
    moved = until(Moved, lambda moved: moved.position["topics"]["t"]["id"] == "two")
    assert offsets(moved.position) == at
    script.logs[0].append(Row(1))
    take(until, 4 if policy == "earliest" else 1)
    assert reader._counters["offset_reset"] == 2


@pytest.mark.parametrize("recreated", [False, True])
def test_what_was_fetched_is_given_when_its_topic_expires_and_not_when_it_is_created_again(child, recreated):
    script, start = child
    script.id = "one"
    script.logs = {0: [Row(i, b"{}", i) for i in range(4)], 1: []}
    script.deaf = {1}  # for which the records of the other one wait
    reader, until = start(on_lost="earliest", discover_seconds=0.01)
    until(Moved)
    wait_until(lambda: len(buffer_of(reader, 0).records) == 4, "they are fetched")
    if recreated:
        script.logs[0] = [Row(0)]
        script.id = "two"
    else:
        script.first = {0: 7}
        script.logs[0] += [Row(i, b"{}", i) for i in range(4, 9)]
    assert offsets(until(Moved).position) == {"0": 0, "1": 0}
    script.deaf = set()
    batch = until(Fetched)
    if recreated:
        assert count(batch) == 1
    else:
        assert count(batch) >= 4
        assert offsets(batch.end)["0"] >= 7


def test_no_more_is_fetched_of_a_partition_that_waits_than_there_is_room_for(child):
    script, start = child
    script.logs = {0: [Row(i, b"x" * 10_000) for i in range(300)], 1: [Row(0, b"other", 1)]}
    script.deaf = {1}
    reader, until = start(buffer_bytes=1 << 20)
    until(Moved)
    wait_until(lambda: script.paused, "it is held back")
    assert script.paused == {0}
    assert buffer_of(reader, 0).n_bytes < 2 << 20
    held_back = until(Status, lambda status: status.held_back[TopicPartition("t", 0)] > 50).held_back
    assert held_back[TopicPartition("t", 1)] == 0
    script.deaf = set()
    take(until, 301)
    assert script.at == {0: 300, 1: 1}
