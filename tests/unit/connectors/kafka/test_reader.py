"""The child's loop against a cluster that follows a script, with short intervals in place of seconds."""

import logging
import math
import os
import select
import threading
import time
from queue import SimpleQueue

import pytest

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka import reader as kafka_reader
from streammoe_connectors.kafka import survey as kafka_survey
from streammoe_connectors.kafka.consumer import FIRST, ClusterUnavailableError, OffsetsLostError, TopicDescription
from streammoe_connectors.kafka.frames import Inlet, Outlet
from streammoe_connectors.kafka.reader import Reader
from streammoe_connectors.kafka.source_settings import ReadingSettings
from tests.kafka_lab.lab import PATIENCE, wait_until
from tests.unit.connectors.kafka_records import Row, columns

SOON = 0.03
"""Seconds between two looks of the reader at the clock, and until the cluster knows of a new topic."""


class Script:
    """A cluster that holds the topic `t`, and behaves as its attributes say.

    Other topics are those that `topic_of` names for the numbers of their only partitions.
    """

    def __init__(self):
        self.logs = {0: []}
        self.topic_of = {}
        self.first = {}
        self.deaf = set()
        self.open_at = {}
        """Where the transaction begins that is open in a partition."""
        self.id = None
        self.unanswered = self.failing = 0
        self.silent = False
        self.leaderless = set()
        self.dead = set()
        """Partitions whose leader does not answer."""
        self.marks = {}
        self.made = 0
        self.at = {}
        self.assigned = []
        self.paused = set()

    def name(self, number):
        return self.topic_of.get(number, "t")

    def end(self, number):
        log = self.logs.get(number)
        return log[-1].offset + 1 if log else 0

    def stable_end(self, number):
        return self.open_at.get(number, self.end(number))

    def create_consumer(self, options, settings):
        self.made += 1
        self.reads = settings.reads
        if self.unanswered:
            self.unanswered -= 1
            raise ClusterUnavailableError("no broker responds")
        return self

    def describe(self, topics):
        if self.silent:
            raise ClusterUnavailableError("nothing answers")
        found = {}
        for number in filter(lambda number: self.reads(self.name(number)), self.logs):
            found.setdefault(self.name(number), {})[number] = None if number in self.leaderless else number
        wanted = found if topics is None else topics
        return {topic: TopicDescription(self.id, found[topic]) for topic in wanted if topic in found}

    def offsets(self, partitions, time, *, stable=False):
        numbers = {partition: partition.partition for partition in partitions}
        if self.silent or self.dead.intersection(numbers.values()):
            raise ClusterUnavailableError("no answer")
        if time == FIRST:
            return {partition: self.first.get(number, 0) for partition, number in numbers.items()}
        return {tp: self.stable_end(number) if stable else self.end(number) for tp, number in numbers.items()}

    def committed(self, partitions):
        return {partition: self.marks[partition] for partition in partitions if partition in self.marks}

    def commit(self, offsets, metadata, *, wait_ms=0):
        pass

    def assign(self, offsets):
        self.at = {partition.partition: at for partition, at in offsets.items()}
        self.assigned.append(dict(self.at))
        self.paused = set()
        if self.made > 1:
            self.deaf = set()

    def pause(self, partition):
        self.paused.add(partition.partition)

    def resume(self, partition):
        self.paused.discard(partition.partition)

    def poll(self, seconds):
        time.sleep(0.005)
        if self.failing:
            self.failing -= 1
            raise ClusterUnavailableError("a connection was closed")
        reading = {number: at for number, at in self.at.items() if number not in self.deaf | self.paused | self.dead}
        lost = [n for n, at in reading.items() if not self.first.get(n, 0) <= at <= self.end(n)]
        if lost:
            raise OffsetsLostError([TopicPartition(self.name(number), number) for number in lost])
        found = {}
        for number, at in reading.items():
            log = self.logs.get(number, [])
            rows = [row for row in log if at <= row.offset < self.stable_end(number)][:100]
            if rows:
                self.at[number] = rows[-1].offset + 1
                found[TopicPartition(self.name(number), number)] = columns(*rows)
        return found

    def topic_id(self, topic):
        return self.id

    def fetch_position(self, partition):
        return self.at.get(partition.partition)

    def high_watermark(self, partition):
        return None if partition.partition in self.deaf | self.dead else self.end(partition.partition)

    def failed_commits(self):
        return []

    def close(self):
        pass


@pytest.fixture
def child(monkeypatch):
    """Starts a reader in a thread; gives it, and a function that returns the next frame that is wanted."""
    script = Script()
    monkeypatch.setattr(kafka_reader, "load_client", lambda _: script)
    for name in ("_ENDS_SECONDS", "_RETRY_SECONDS"):
        monkeypatch.setattr(kafka_survey, name, SOON / 3)
    monkeypatch.setattr(kafka_reader, "_MISSING_PAUSE_SECONDS", SOON / 3)
    (read, write), (looked, shown) = os.pipe(), os.pipe()
    commands = SimpleQueue()
    threads = []

    def start(position=None, **settings):
        settings = ReadingSettings(**{"topics": "t", "group": "g", **settings})
        given = {
            "client": "scripted",
            "options": {"security_protocol": "SASL_SSL"},
            "position": position,
            "owner": "me",
        }
        start_command = {"settings": settings.model_dump(), **given}
        reader = Reader(start_command, Outlet(write), Outlet(shown), commands, tick_seconds=SOON, pause_seconds=0.005)
        threads.append(threading.Thread(target=reader.run))
        threads[0].start()
        inlets = {read: Inlet(read), looked: Inlet(looked)}
        for descriptor in inlets:
            os.set_blocking(descriptor, False)

        def until(wanted):
            deadline = time.monotonic() + PATIENCE
            while time.monotonic() < deadline:
                frames = [frame for inlet in inlets.values() if (frame := inlet.next()) is not None]
                found = [header for frame in frames if wanted(header := {"type": "status", **frame.header})]
                if found:
                    return found[0]
                if not frames:
                    select.select(list(inlets), [], [], 1)
            raise AssertionError("it did not come")

        return reader, until

    yield script, start
    commands.put({"type": "close"})
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    for descriptor in (read, write, looked, shown):
        os.close(descriptor)


@pytest.fixture
def failed(monkeypatch):
    """What ends readers."""
    found, run = [], Reader.run

    def watched(reader):
        try:
            run(reader)
        except SourceError as error:
            found.append(str(error))

    monkeypatch.setattr(Reader, "run", watched)
    return found


def is_a(kind):
    return lambda header: header["type"] == kind


def take(until, count):
    """Wait for so many records."""
    while count > 0:
        count -= until(is_a("batch"))["count"]


def offsets(header, end="position"):
    return header[end]["topics"]["t"]["partitions"]


def test_a_cluster_that_does_not_answer_is_asked_again_and_its_ends_come_before_the_first_record(child):
    script, start = child
    script.unanswered = 2
    script.logs[0] = [Row(i) for i in range(30)]
    _, until = start()
    assert until(lambda header: header.get("ends"))["ends"] == [["t", 0, 30]]
    assert script.made == 3
    take(until, 30)
    first = until(is_a("status"))
    assert until(is_a("status")) == until(is_a("status")) == first  # a sign of life, though nothing changes


def test_gaps_are_counted_tombstones_passed_and_nothing_beyond_the_stop_is_read(child):
    script, start = child
    script.logs[0] = [Row(0), Row(3), Row(4, None), Row(5), Row(6, None)]
    reader, until = start(until="end", max_poll_records=1)
    assert until(is_a("ready"))["total"] == 7
    script.logs[0] = [*script.logs[0], Row(7)]
    found = [until(is_a("batch")) for _ in range(3)]
    assert [(offsets(batch, "end")["0"], batch["skipped"], batch["n_consumed"]) for batch in found] == [
        *((1, 0, 1), (4, 0, 4), (7, 2, 7)),
    ]
    until(is_a("finished"))
    assert reader._counters["gap"] == 1


def test_events_of_one_value_are_never_divided_and_the_position_is_behind_all_of_them(child):
    script, start = child
    many = b'[{"a":1},{"a":2},{"a":3}]'
    script.logs[0] = [Row(0, many), Row(1, b"[]"), Row(2, b'{"a":4}'), Row(3, b'{"a":5}\n[]\n7\n[8]')]
    _, until = start(until="end", max_poll_records=1)
    found = [until(is_a("batch")) for _ in range(4)]
    # Of the last value the empty list is passed, 7 is for the decoder to reject, and the last line is rejected here.
    assert [(batch["count"], batch["skipped"], offsets(batch, "end")["0"]) for batch in found] == [
        *((3, 0, 1), (0, 1, 2), (1, 0, 3), (3, 1, 4)),
    ]
    assert [batch["numbers"] for batch in found] == [True, False, False, True]
    assert [[i for i, *_ in batch["rejected"]] for batch in found] == [[], [], [], [2]]
    until(is_a("finished"))


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
    assert until(lambda header: header["type"] == "status" and header["stalled"])["stalled"] == [["t", 0]]
    take(until, 1)  # the new consumer hears
    status = until(lambda header: header["type"] == "status" and not header["stalled"])
    assert status["counters"]["consumer_rebuilt"] == 1
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
        until(is_a("status"))
    script.dead = set()
    moved = until(is_a("moved"))
    assert offsets(moved) == at
    assert moved["position"]["topics"]["t"]["id"] == "two"
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
    until(is_a("ready"))
    wait_until(lambda: len(reader._assignment.buffers[TopicPartition("t", 0)].records) == 4, "they are fetched")
    if recreated:
        script.logs[0] = [Row(0)]
        script.id = "two"
    else:
        script.first = {0: 7}
        script.logs[0] += [Row(i, b"{}", i) for i in range(4, 9)]
    assert offsets(until(is_a("moved"))) == {"0": 0, "1": 0}
    script.deaf = set()
    batch = until(is_a("batch"))
    if recreated:
        assert batch["count"] == 1
    else:
        assert batch["count"] >= 4
        assert offsets(batch, "end")["0"] >= 7


# --- nodes that do not answer -----------------------------------------------------------------------------------------


def position_with(**partitions):
    held = {"id": None, "partitions": {number.removeprefix("p"): at for number, at in partitions.items()}}
    return {"kind": "kafka", "group": "g", "owner": "me", "shard": "0/1", "topics": {"t": held}}


@pytest.mark.parametrize("how", ["leaderless", "dead"])
def test_a_partition_that_does_not_answer_at_the_start_holds_up_no_other_and_is_read_once_later(child, how, caplog):
    script, start = child
    script.logs = {0: [Row(i) for i in range(5)], 1: [Row(i) for i in range(9)]}
    setattr(script, how, {1})
    _, until = start(position_with(p0=2, p1=4), stall_seconds=0.1)
    assert offsets(until(is_a("ready"))) == {"0": 2, "1": 4}
    take(until, 3)
    until(lambda header: header.get("stalled") == [["t", 1]])
    assert "topic t, partition 1" in caplog.text
    setattr(script, how, set())
    batch = until(is_a("batch"))
    assert (batch["count"], offsets(batch, "end")) == (5, {"0": 5, "1": 9})
    assert until(lambda header: header["type"] == "status" and not header["stalled"])["counters"] == {}


def test_a_first_start_at_the_end_waits_for_all_partitions_since_it_decides_for_all_later_ones(child):
    script, start = child
    script.logs = {0: [Row(0)], 1: [Row(i) for i in range(3)]}
    script.leaderless = {1}
    _, until = start(start="latest", stall_seconds=0.1)
    assert until(lambda header: header["type"] == "ready" or header.get("stalled"))["stalled"] == [["t", 1]]
    script.leaderless = set()
    assert offsets(until(is_a("ready"))) == {"0": 1, "1": 3}


def test_it_is_connected_again_only_after_a_request_that_succeeded(child, monkeypatch, caplog):
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(kafka_reader, "_SILENT_SECONDS", SOON)
    script, start = child
    _, until = start()
    until(is_a("ready"))
    script.silent = True
    until(lambda header: header["type"] == "status" and not header["connected"])
    for _ in range(5):  # polls without records succeed meanwhile
        assert not until(is_a("status"))["connected"]
    assert "responds again" not in caplog.text
    script.silent = False
    assert until(lambda header: header.get("connected"))["counters"]["reconnected"] == 1
    assert "responds again" in caplog.text


def test_a_poll_that_succeeds_is_no_answer(child, monkeypatch):
    script, start = child
    _, until = start()
    until(is_a("ready"))
    monkeypatch.setattr(kafka_survey.Survey, "look", lambda *_: None)  # nothing is asked for now
    script.failing = 1
    until(lambda header: header["type"] == "status" and not header["connected"])
    for _ in range(5):
        assert not until(is_a("status"))["connected"]


@pytest.mark.parametrize(
    ("logged", "said"),
    [
        ("[thrd:sasl_plaintext://a:1/bootstrap]: SASL authentication error: no", "SASL authentication error: no"),
        ("<KafkaConnection node_id=bootstrap-0>: Connection lost: socket disconnected", "brokers that reject a login"),
    ],
)
def test_a_login_that_is_rejected_is_named_and_tried_anew_with_a_new_consumer(child, monkeypatch, caplog, logged, said):
    for name in ("_SILENT_SECONDS", "_REBUILD_SECONDS"):
        monkeypatch.setattr(kafka_reader, name, SOON)
    script, start = child
    reader, until = start()
    until(lambda header: header.get("connected"))
    assert until(is_a("status"))["refused"] == ""
    script.silent = True
    outage = "[thrd:sasl_ssl://a:1/1]: sasl_ssl://a:1/1: Connect to ipv4#1 failed: Connection refused"
    reader.hear(outage)
    until(lambda header: header["type"] == "status" and not header["connected"] and not header["refused"])
    for each in (logged, outage):
        reader.hear(each)
    status = until(lambda header: header.get("refused"))
    assert said in status["refused"]
    assert status["counters"]["login_rejected"] == 1
    assert said in caplog.text
    wait_until(lambda: script.made > 2, "it is tried anew")
    script.silent = False
    assert until(lambda header: header.get("connected"))["refused"] == ""


def test_no_more_is_fetched_of_a_partition_that_waits_than_there_is_room_for(child):
    script, start = child
    script.logs = {0: [Row(i, b"x" * 10_000) for i in range(300)], 1: [Row(0, b"other", 1)]}
    script.deaf = {1}
    reader, until = start(buffer_bytes=1 << 20)
    until(is_a("ready"))
    wait_until(lambda: script.paused, "it is held back")
    assert script.paused == {0}
    assert reader._assignment.buffers[TopicPartition("t", 0)].n_bytes < 2 << 20
    script.deaf = set()
    take(until, 301)
    assert script.at == {0: 300, 1: 1}


# --- topics by a pattern ----------------------------------------------------------------------------------------------

MATCHING = {"topics": None, "topics_pattern": "a[.].*", "discover_seconds": 0.01}


def held(position):
    return {topic: saved["partitions"] for topic, saved in position["topics"].items()}


def test_topics_that_match_are_read_those_that_come_later_from_their_first_record(child):
    script, start = child
    script.topic_of = {0: "a.0", 1: "ba.1", 2: "a", 3: "__a.3"}
    script.logs = {number: [Row(i) for i in range(5)] for number in range(4)}
    reader, until = start(start="latest", **MATCHING)
    ready = until(is_a("ready"))
    assert (held(ready["position"]), ready["needs_checkpoint"]) == ({"a.0": {"0": 5}}, True)
    script.topic_of[4] = "a.4"
    script.logs[4] = [Row(i) for i in range(3)]
    batch = until(is_a("batch"))
    assert (batch["count"], held(batch["end"])) == (3, {"a.0": {"0": 5}, "a.4": {"4": 3}})
    assert reader._counters["partition_discovered"] == 1


@pytest.mark.parametrize(("before", "at"), [("a[.].*", 0), (None, 3), (".*", 3)])
def test_after_a_restart_what_has_come_is_new_and_what_the_settings_add_begins_as_they_say(child, before, at):
    script, start = child
    script.topic_of = {0: "a.0", 4: "a.4"}
    script.logs = {0: [Row(i) for i in range(5)], 4: [Row(i) for i in range(3)]}
    position = {"kind": "kafka", "group": "g", "owner": "me", "shard": "0/1"}
    position |= {"topics": {"a.0": {"id": None, "partitions": {"0": 5}}}, **({"pattern": before} if before else {})}
    _, until = start(position, start="latest", **MATCHING)
    ready = until(is_a("ready"))
    # What decides that has to be in a checkpoint before anything is read.
    assert (held(ready["position"]), ready["needs_checkpoint"]) == ({"a.0": {"0": 5}, "a.4": {"4": at}}, True)


@pytest.mark.parametrize("gone", ["while it is read", "before the start"])
@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_that_matched_and_is_deleted_is_missed(child, failed, monkeypatch, gone, policy):
    script, start = child
    script.topic_of = {0: "a.0", 4: "a.4"}
    script.logs = {0: [Row(i) for i in range(5)]}
    position = None
    if gone == "before the start":
        topics = {"a.0": {"id": None, "partitions": {"0": 0}}, "a.4": {"id": None, "partitions": {"4": 3}}}
        position = {"kind": "kafka", "group": "g", "owner": "me", "shard": "0/1", "pattern": "a[.].*", "topics": topics}
    else:
        script.logs[4] = [Row(0)]
    reader, until = start(position, on_lost=policy, **MATCHING)
    if gone == "while it is read":
        take(until, 6)
        del script.logs[4], script.at[4]
    if policy == "fail":
        wait_until(lambda: failed, "it ends")
        assert "a.4" in failed[0]
    elif gone == "before the start":
        assert held(until(is_a("ready"))["position"]) == {"a.0": {"0": 0}}
        take(until, 5)
    else:
        wait_until(lambda: reader._assignment._n_missing > 4, "it is missed")
        script.logs[0].append(Row(5))
        take(until, 1)


def test_a_pattern_that_no_topic_matches_is_an_error(child, failed):
    _, start = child
    start(topics=None, topics_pattern="[a-s]|t.")
    wait_until(lambda: failed, "it ends")


AHEAD = 3_600_000
"""Milliseconds by which the clock of a producer is ahead."""


def flow(script, reader):
    """Add a record to partition 0 whenever the last one has been read, from now on; return what ends that."""
    ended = threading.Event()

    def add():
        while not ended.is_set():
            count = len(script.logs[0])
            if script.at.get(0) == count:
                script.logs[0].append(Row(count, b"{}", count))
            time.sleep(0.002)

    thread = threading.Thread(target=add)
    thread.start()

    def end():
        ended.set()
        thread.join()

    return end


def read_of(until, partition):
    """Wait for a batch that passes a record of this partition; return the offset that it has come to."""
    at = until(lambda header: header["type"] == "batch" and offsets(header, "end")[str(partition)] > 0)
    return offsets(at, "end")[str(partition)]


def test_a_partition_whose_clock_is_ahead_is_passed_after_a_while_though_others_never_pause(child, caplog):
    script, start = child
    script.logs = {0: [], 1: []}
    reader, until = start(idle_ms=60_000, order_wait_ms=3_600_000)
    until(is_a("ready"))
    wait_until(lambda: reader._assignment.buffers[TopicPartition("t", 0)].was_at_end, "its backlog is over")
    end = flow(script, reader)
    try:
        script.logs[1] = [Row(i, b"{}", AHEAD + i) for i in range(5)]
        held = until(lambda header: header["type"] == "status" and ["t", 1, 5] in header["held_back"])
        assert ["t", 0, 5] not in held["held_back"]
        assert "passed_early" not in held["counters"]
        reader._order._settings = reader._settings.model_copy(update={"order_wait_ms": 50})
        assert read_of(until, 1) == 5
        status = until(lambda header: header["type"] == "status" and ["t", 1, 0] in header["held_back"])
        assert status["counters"]["passed_early"] == 5
        script.logs[1] = [*script.logs[1], *(Row(i, b"{}", AHEAD + i) for i in range(5, 8))]
        until(lambda header: header["type"] == "status" and header["counters"]["passed_early"] == 8)
    finally:
        end()
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1, "not once for each of them"
    assert "topic t, partition 1" in said[0]


def test_a_backlog_is_waited_for_however_long_it_takes(child):
    script, start = child
    script.logs = {0: [Row(i, b"{}", i) for i in range(3)], 1: [Row(i, b"{}", AHEAD + i) for i in range(5)]}
    script.deaf = {0}
    reader, until = start(order_wait_ms=0, idle_ms=0)
    ahead = reader._assignment.buffers
    wait_until(lambda: ahead and len(ahead[TopicPartition("t", 1)].records) == 5, "they are fetched")
    for _ in range(5):
        until(is_a("status"))
    assert len(ahead[TopicPartition("t", 1)].records) == 5
    script.deaf = set()
    batch = until(is_a("batch"))
    assert batch["count"] == 8
    assert "passed_early" not in reader._counters


def test_a_partition_that_is_known_to_be_ahead_is_not_slowed_down_to_what_there_is_room_for(child):
    script, start = child
    script.logs = {0: [], 1: []}
    reader, until = start(idle_ms=60_000, order_wait_ms=3_600_000, buffer_bytes=1 << 20)
    until(is_a("ready"))
    wait_until(lambda: reader._assignment.buffers[TopicPartition("t", 0)].was_at_end, "its backlog is over")
    end = flow(script, reader)
    try:
        reader._assignment.buffers[TopicPartition("t", 1)]._ahead_until = math.inf
        script.logs[1] = [Row(i, b"x" * 10_000, AHEAD + i) for i in range(3_000)]
        # Its share of the buffer has room for 52 of them, and without that knowledge so many would be read in an hour.
        until(lambda header: header["type"] == "batch" and offsets(header, "end")["1"] > 2_800)
    finally:
        end()


def ends(header):
    return {number: end for _, number, end in header["ends"]}


def test_records_behind_an_open_transaction_are_lag_and_one_that_stays_open_is_reported_once(child, caplog):
    script, start = child
    script.logs = {0: [Row(i) for i in range(5)], 1: [Row(0)]}
    script.open_at = {0: 3}
    _, until = start(stall_seconds=0.3)
    take(until, 4)
    until(lambda header: header["type"] == "status" and ends(header) == {0: 5, 1: 1})
    script.logs[0] = [*script.logs[0], *(Row(i) for i in range(5, 9))]
    until(lambda header: header["type"] == "status" and ends(header) == {0: 9, 1: 1})
    wait_until(lambda: caplog.records, "it is reported")
    for _ in range(15):  # some more looks
        until(is_a("status"))
    [said] = [record.getMessage() for record in caplog.records]
    assert "topic t, partition 0" in said
    assert "offset 3 " in said
    assert "6 records" in said
    status = until(is_a("status"))
    assert (status["stalled"], "consumer_rebuilt" in status["counters"]) == ([], False)
    script.open_at = {0: 7}  # the next one
    take(until, 4)
    wait_until(lambda: len(caplog.records) == 2, "that is reported, too")
    script.open_at = {}
    take(until, 2)


def test_a_transaction_is_not_reported_because_its_partition_was_idle_before(child, caplog):
    script, start = child
    script.logs = {0: [Row(0)]}
    _, until = start(stall_seconds=1.0)
    take(until, 1)
    for _ in range(40):  # it is idle for longer than a stall
        until(is_a("status"))
    script.open_at = {0: 1}
    script.logs[0] = [*script.logs[0], Row(1)]
    until(lambda header: header["type"] == "status" and ends(header) == {0: 2})
    for _ in range(3):
        until(is_a("status"))
    assert caplog.records == []
    wait_until(lambda: caplog.records, "now it has been open for long enough")
