"""The thread that reads, against a cluster that follows a script, with short intervals in place of seconds."""

import time
from collections import deque
from queue import Empty

import pytest

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Batch, TopicPartition
from streammoe_connectors.kafka import reader as kafka_reader
from streammoe_connectors.kafka import survey as kafka_survey
from streammoe_connectors.kafka.contract import FIRST, Cause, ClientError, OffsetsLostError, TopicDescription
from streammoe_connectors.kafka.reader import Moved, Reader
from streammoe_connectors.kafka.settings import KafkaSettings
from streammoe_connectors.kafka.values import Values
from tests.kafka_lab.lab import PATIENCE, wait_until
from tests.unit.connectors.kafka_records import Row, columns

SOON = 0.03
"""Seconds between two looks of the reader at the clock, and until the cluster knows of a new topic."""


class Script:
    """A cluster that holds the topic `t`, and behaves as its attributes say."""

    def __init__(self):
        self.logs = {0: []}
        self.first = {}
        self.failed_commits = deque()
        self.troubles = {}
        self.fails = None
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

    def create_consumer(self, connection, settings):
        if self.fails is not None:
            raise self.fails
        self.made += 1
        return self

    def describe(self, topics):
        return {"t": TopicDescription(self.id, {number: number for number in self.logs})}

    def offsets(self, partitions, time, *, stable=False):
        if self.dead.intersection(partition.partition for partition in partitions):
            raise ClientError(Cause.NO_ANSWER, "no answer")
        found = self.first.get if time == FIRST else lambda number, _: self.end(number)
        return {partition: found(partition.partition, 0) for partition in partitions}

    def committed(self, partitions):
        return {}

    def commit(self, offsets, metadata, *, wait=False):
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
def cluster(monkeypatch):
    """A script, and what starts a reader of it; that gives the reader, and a function that waits for what it finds."""
    script, readers = Script(), []
    monkeypatch.setattr(kafka_survey, "_ENDS_SECONDS", SOON)
    monkeypatch.setattr(kafka_reader, "_TICK_SECONDS", SOON)
    monkeypatch.setattr(kafka_reader, "_PAUSE_SECONDS", SOON / 3)

    def start(position=None, **settings):
        given = {"kind": "kafka", "bootstrap_servers": "there:1", "topics": "t", "group": "g"}
        settings = KafkaSettings(**given | settings)
        reader = Reader(settings, script, Values(settings), position, "me")
        readers.append(reader)
        reader.start()

        def until(kind, wanted=lambda _: True):
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                try:
                    found = reader.found.get(timeout=1.0)
                except Empty:
                    continue
                reader.wake.set()
                if isinstance(found, BaseException):
                    raise found
                if isinstance(found, kind) and wanted(found):
                    return found
            raise AssertionError("it did not come")

        return reader, until

    yield script, start
    for reader in readers:
        reader.closing = True
        reader.join(PATIENCE)
        assert not reader.is_alive()


def take(until, left):
    """Wait for so many records."""
    while left > 0:
        left -= len(until(Batch))


def offsets(position):
    return position["topics"]["t"]["partitions"]


def buffer_of(reader, number):
    return reader._assignment.buffers[TopicPartition("t", number)]


def test_gaps_are_counted_tombstones_passed_and_nothing_beyond_the_stop_is_read(cluster):
    script, start = cluster
    script.logs[0] = [Row(0), Row(3), Row(4, None), Row(5), Row(6, None)]
    reader, until = start(until="end", max_poll_records=2)
    assert until(Moved).remaining == 7
    script.logs[0] = [*script.logs[0], Row(7)]
    found = [until(Batch) for _ in range(3)]
    assert [(offsets(batch.end)["0"], len(batch), batch.skipped) for batch in found] == [
        (4, 2, 0),
        (6, 1, 1),
        (7, 0, 1),
    ]
    until(type(None))
    assert reader._counters["gap"] == 1


def test_records_are_kept_while_a_registry_does_not_answer_which_is_no_stall(cluster, monkeypatch):
    script, start = cluster
    script.logs[0] = []
    convert, calls = Values.batch, []

    def failing(*given):
        calls.append(given)
        if len(calls) < 7:  # which takes longer than a stall
            script.logs[0].append(Row(len(script.logs[0])))
            raise RetriableSourceError("the registry is down")
        return convert(*given)

    monkeypatch.setattr(Values, "batch", failing)
    reader, until = start(stall_seconds=0.1)
    script.logs[0] = [Row(0), Row(1)]
    take(until, 8)
    assert not reader._counters["consumer_rebuilt"]


def test_no_more_is_read_than_the_daemon_takes(cluster):
    script, start = cluster
    script.logs[0] = [Row(i) for i in range(100)]
    reader, until = start(max_poll_records=10)
    wait_until(lambda: reader.found.qsize() > 1, "it is ahead")
    for _ in range(3):
        at = reader.status_at
        wait_until(lambda at=at: reader.status_at > at, "it looks again")
    assert reader.found.qsize() < 4
    take(until, 100)


def test_a_partition_without_a_leader_is_named_however_busy_the_daemon_is(cluster):
    script, start = cluster
    script.logs = {0: [Row(i) for i in range(100)], 1: [Row(0)]}
    reader, _ = start(stall_seconds=0.3, max_poll_records=1)
    wait_until(lambda: reader.found.qsize() > 1, "it is ahead of a daemon that takes nothing")
    script.dead = {1}
    wait_until(lambda: reader.status.stalled == {TopicPartition("t", 1): "leader"}, "it is named")


def test_a_partition_of_which_nothing_comes_is_reported_and_the_consumer_built_again_once(cluster, caplog):
    script, start = cluster
    script.logs[0] = [Row(0)]
    reader, until = start(stall_seconds=0.1)
    take(until, 1)
    script.deaf = {0}
    script.logs[0].append(Row(1))
    take(until, 1)  # the new consumer hears
    wait_until(lambda: not reader.status.stalled, "it is none any more")
    assert "from topic t, partition 0, although there are more to read" in caplog.text
    assert (reader.status.counters["consumer_rebuilt"], script.made) == (1, 2)


def test_a_login_that_is_rejected_is_told_from_an_outage_and_what_may_not_be_read_ends_it(cluster, caplog):
    script, start = cluster
    script.fails = ClientError(Cause.REJECTED, "wrong password")
    reader, until = start()
    wait_until(lambda: "wrong password" in reader.status.refused, "it is told")
    script.fails = ClientError(Cause.NO_ANSWER, "connection refused")
    wait_until(lambda: not reader.status.refused, "it is an outage now")
    assert reader.status.counters["login_rejected"] == 1
    assert not reader.status.connected
    for said in ("wrong password", "connection refused"):
        assert sum(said in record.getMessage() for record in caplog.records) == 1
    script.fails = ClientError(Cause.NOT_AUTHORIZED, "topic t")
    with pytest.raises(SourceError, match="topic t"):
        until(Moved)


@pytest.mark.parametrize(("policy", "at"), [("earliest", {"0": 0, "1": 0}), ("latest", {"0": 1, "1": 2})])
def test_a_topic_created_again_is_left_once_even_where_an_offset_is_missed_first(cluster, policy, at):
    script, start = cluster
    script.id = "one"
    script.logs = {0: [Row(i) for i in range(5)], 1: [Row(i) for i in range(5)]}
    reader, until = start(on_lost=policy)
    take(until, 10)
    script.dead = {1}  # until then nothing can be said of the topic as a whole
    script.logs, script.id = {0: [Row(0)], 1: [Row(0), Row(1)]}, "two"
    wait_until(lambda: reader._assignment.lost, "it is missed")
    script.dead = set()
    moved = until(Moved, lambda moved: moved.position["topics"]["t"]["id"] == "two")
    assert offsets(moved.position) == at
    script.logs[0].append(Row(1))
    take(until, 4 if policy == "earliest" else 1)
    assert reader._counters["offset_reset"] == 2


@pytest.mark.parametrize("recreated", [False, True])
def test_what_was_fetched_is_given_when_its_topic_expires_and_not_when_it_is_created_again(cluster, recreated):
    script, start = cluster
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
    batch = until(Batch)
    if recreated:
        assert len(batch) == 1
    else:
        assert len(batch) >= 4
        assert offsets(batch.end)["0"] >= 7


def test_no_more_is_fetched_of_a_partition_that_waits_than_there_is_room_for(cluster):
    script, start = cluster
    script.logs = {0: [Row(i, b"x" * 10_000) for i in range(300)], 1: [Row(0, b"other", 1)]}
    script.deaf = {1}
    reader, until = start(buffer_bytes=1 << 20)
    until(Moved)
    wait_until(lambda: script.paused, "it is held back")
    assert script.paused == {0}
    assert buffer_of(reader, 0).n_bytes < 2 << 20
    wait_until(lambda: reader.status.held_back.get(TopicPartition("t", 0), 0) > 50, "that is told")
    assert reader.status.held_back[TopicPartition("t", 1)] == 0
    script.deaf = set()
    take(until, 301)
    assert script.at == {0: 300, 1: 1}
