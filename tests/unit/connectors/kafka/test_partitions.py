"""What is known of a partition while it is read."""

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.merge import Hold
from streammoe_connectors.kafka.partitions import PartitionBuffer
from tests.unit.connectors.kafka_records import Row, columns


def test_a_gap_is_counted_once_and_markers_that_were_passed_are_none():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    assert [one.add(columns(Row(offset)), 0.0) for offset in (0, 3, 4)] == [0, 1, 0]
    one.advance_to(11)
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


def test_records_are_overdue_by_when_they_arrived_and_all_of_a_partition_that_is_known_to_be_ahead_and_full():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    for second in range(3):
        one.add(columns(Row(2 * second, b"12345"), Row(2 * second + 1, b"12345")), 100.0 + second)
    assert [one.count_overdue(now, 10.0, 1e9) for now in (109.9, 110.0, 111.5, 112.0)] == [0, 2, 4, 6]
    one.take(3)
    assert one.count_overdue(111.0, 10.0, 1e9) == 1
    assert one.count_overdue(112.0, 10.0, 1e9) == 3
    one.take(3)
    assert one.count_overdue(113.0, 10.0, 1e9) == 0
    one.add(columns(*(Row(6 + i, b"12345") for i in range(4))), 114.0)
    assert one.count_overdue(114.0, 10.0, 20.0) == 0, "there is room"
    assert one.count_overdue(114.0, 10.0, 19.0) == 4
    assert one.count_overdue(123.9, 10.0, 19.0) == 4, "it is still known to be"
    one.take(4)
    one.add(columns(*(Row(10 + i, b"12345") for i in range(4))), 140.0)
    assert one.count_overdue(140.0, 10.0, 19.0) == 0, "it is not known to be any more"
    one.clear()
    assert one.count_overdue(200.0, 10.0, 19.0) == 0


def test_an_end_that_was_asked_for_before_more_was_fetched_is_none():
    one = PartitionBuffer(TopicPartition("t", 0), 0, None)
    one.question()
    one.add(columns(Row(0), Row(1)), 0.0)
    one.update_stable_end(1, 1.0)
    one.update_end(1, 1.0)
    assert (one.at_end_since, one.end) == (None, 2)
    one.question()
    one.update_stable_end(2, 2.0)
    assert one.at_end_since == 2.0
