"""What is known of a partition while it is read."""

import time
from collections import Counter

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.order import Hold, Limits, Order, PartitionBuffer
from streammoe_connectors.kafka.settings import ReadingSettings
from streammoe_connectors.kafka.survey import Stalls
from tests.unit.connectors.kafka_records import Row, columns


def test_a_gap_is_counted_once_and_markers_that_were_passed_are_none():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    assert [one.add(columns(Row(offset)), 0.0) for offset in (0, 3, 4)] == [0, 1, 0]
    one.advance_to(11, 0.0)
    assert one.add(columns(Row(11)), 0.0) == 0


def test_others_wait_for_it_until_it_has_been_at_its_end_for_a_while():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    assert one.hold(100.0, 0.5) is Hold.UNBOUNDED
    one.mark_at_end(100.0)
    assert one.hold(100.4, 0.5) is Hold.BOUNDED
    assert one.hold(100.5, 0.5) is Hold.NONE
    one.add(columns(Row(0)), 101.0)
    assert one.at_end_since is None
    assert one.hold(200.0, 0.5) is Hold.BOUNDED, "its backlog is over for good"
    one.seek(7)
    assert one.hold(200.0, 0.5) is Hold.UNBOUNDED, "and this is another one"


def test_records_are_overdue_by_when_they_arrived():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    for second in range(3):
        one.add(columns(Row(2 * second), Row(2 * second + 1)), 100.0 + second)
    assert [one.count_overdue(now, 10.0) for now in (109.9, 110.0, 111.5, 112.0)] == [0, 2, 4, 6]
    one.take(3)
    assert one.count_overdue(111.0, 10.0) == 1


def test_an_end_that_was_asked_for_before_more_was_fetched_is_none():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    one.add(columns(Row(0), Row(1)), 1e9)
    one.update(Limits(0, 1, 1, 0, asked_at=1e9 - 1), 1e9 + 1)
    assert (one.at_end_since, one.end) == (None, 2)
    one.update(Limits(0, 2, 2, 0, asked_at=1e9 + 1), 1e9 + 2)
    assert one.at_end_since == 1e9 + 2


def test_a_partition_whose_clock_is_ahead_is_passed_after_a_while_though_the_other_never_pauses(caplog):
    order = Order(ReadingSettings(topics="t", group="g", order_wait_ms=1_000, idle_ms=60_000), Counter())
    steady, ahead = buffers = [PartitionBuffer(TopicPartition("t", number), 0) for number in (0, 1)]
    for one in buffers:
        one.mark_at_end(0.0)
    ahead.add(columns(Row(0, b"ahead", 9_000_000), Row(1, None, 9_000_001)), 0.5)
    taken = []
    for i in range(4):
        steady.add(columns(Row(i, b"%d" % i, i)), 0.5 * i)
        taken.append(order.take(buffers, 0.5 * i)["value"].tolist())
    assert taken == [[b"0"], [b"1"], [b"2"], [b"3", b"ahead", None]]
    assert order._counters["passed_early"] == 2
    [said] = [record.getMessage() for record in caplog.records]
    assert "topic t, partition 1" in said


# --- partitions that are held up --------------------------------------------------------------------------------------

LONGEST = 60.0


class Watched:
    """A partition that ends in an open transaction, and looks at it."""

    def __init__(self):
        self.stalls = Stalls(ReadingSettings(topics="t", group="g", stall_seconds=LONGEST))
        self.now = time.monotonic()
        self.buffer = PartitionBuffer(TopicPartition("t", 0), 0)

    def after(self, seconds, end, stable_end, held_up_at=0.0):
        """Whether there is a stall so many seconds later, when the cluster says so of its ends."""
        self.now += seconds
        self.buffer.update(Limits(0, stable_end, end, 0, asked_at=self.now), self.now)
        return self.stalls.check([self.buffer], (), 0.0, held_up_at, self.now)


def test_a_transaction_that_stays_open_is_reported_once_and_is_no_stall(caplog):
    one = Watched()
    assert not one.after(1_000, end=0, stable_end=0), "it was idle for long, which is nothing"
    for _ in range(59):
        assert not one.after(1, end=9, stable_end=0)
    assert caplog.records == []
    for _ in range(9):
        assert not one.after(2, end=9, stable_end=0)
    [said] = [record.getMessage() for record in caplog.records]
    assert all(words in said for words in ("topic t, partition 0", "offset 0 ", "9 records"))
    assert one.stalls.partitions == {one.buffer.partition: "transaction"}
    one.buffer.add(columns(Row(0), Row(1)), one.now)
    assert not one.after(1, end=9, stable_end=2)
    assert not one.after(LONGEST, end=9, stable_end=2)
    assert len(caplog.records) == 2, "the next one is reported, too"


def test_a_transaction_is_reported_however_busy_the_daemon_is():
    one = Watched()
    one.after(0, end=9, stable_end=0)
    one.after(LONGEST, end=9, stable_end=0, held_up_at=one.now + LONGEST)
    assert one.stalls.partitions == {TopicPartition("t", 0): "transaction"}


def test_what_could_be_read_and_is_not_is_a_stall_unless_something_else_held_it_up():
    one = Watched()
    one.after(0, end=9, stable_end=9)
    assert not one.after(LONGEST, end=9, stable_end=9, held_up_at=one.now + 1)
    assert one.after(LONGEST, end=9, stable_end=9)
    assert one.stalls.partitions == {one.buffer.partition: "records"}
