"""What is known of a partition while it is read."""

import time

import pytest

from streammoe.errors import SourceError
from streammoe.ports import Partition
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.partitions import PartitionBuffer, check_position, position_of
from tests.unit.connectors.kafka_records import Row


def lane(offset=0, stop=None):
    return PartitionBuffer(Partition("t", 0), offset, stop)


def rows(*offsets):
    return [Row(offset) for offset in offsets]


def test_what_is_fetched_is_given_in_order_and_gaps_are_counted_once():
    one = lane()
    assert time.monotonic() - one.received_at < 60  # nothing stalls right at the start
    assert one.add(rows(0, 1, 2), 0.0) == 0
    assert [row.offset for row in one.give(2)] == [0, 1]
    assert (one.next, one.fetched, one.bytes, one.times.size) == (2, 3, 2, 1)
    one.give(1)
    assert (one.next, one.bytes) == (3, 0)
    assert one.add(rows(5, 6, 9), 0.0) == 2
    one.reach(11)  # markers that were passed are no gap
    assert one.add(rows(11), 0.0) == 0
    assert lane().add(rows(1, 2), 0.0) == 1


def test_others_wait_for_it_until_it_has_been_at_its_end_for_a_while():
    one = lane()
    assert one.holds(100.0, 0.5)
    one.at_end_since = 100.0
    assert one.holds(100.4, 0.5)
    assert not one.holds(100.5, 0.5)
    one.add(rows(0), 101.0)
    assert one.at_end_since is None
    assert one.holds(200.0, 0.5)
    one.at_end_since = 101.0  # as behind the last record at hand
    assert one.holds(101.4, 0.5)
    assert not one.holds(101.5, 0.5)


def test_after_a_jump_the_next_offset_is_there_once_the_rest_is_given():
    one = lane()
    one.add(rows(0, 1), 0.0)
    one.jump(50)
    assert (one.next, one.fetched) == (0, 50)
    one.give(2)
    assert one.next == 50


def test_a_position_holds_every_partition_topics_without_any_and_what_was_left():
    lanes = [PartitionBuffer(Partition("a", 0), 3), PartitionBuffer(Partition("a", 10), 4)]
    left = {"c": {"id": "id", "partitions": {"1": 9}}}
    position = position_of("g", "me", {"a": "id", "b": None}, lanes, {})
    assert position == {
        "kind": "kafka",
        "group": "g",
        "owner": "me",
        "topics": {"a": {"id": "id", "partitions": {"0": 3, "10": 4}}, "b": {"id": None, "partitions": {}}},
    }
    assert position_of("g", "me", {"a": "id", "b": None}, lanes, left) == position | {"left": left}
    assert offsets_of(position) == {Partition("a", 0): 3, Partition("a", 10): 4}
    for sound in (position, position | {"left": left}):
        check_position(sound)
    for wrong in (
        {"kind": "file"},
        {"kind": "kafka"},
        *(
            {"topics": topics}
            for topics in ({"a": 7}, {"a": {"partitions": {"x": 1}}}, {"a": {"partitions": {"0": "1"}}})
        ),
        {"owner": None},
        {"left": {"a": {"id": "1", "partitions": {"0": -1}}}},
        {"left": []},
    ):
        with pytest.raises(SourceError):
            check_position(wrong if "kind" in wrong else position | wrong)
