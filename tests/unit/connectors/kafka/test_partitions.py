"""What is known of a partition while it is read."""

from typing import NamedTuple

import pytest

from streammoe.errors import SourceError
from streammoe.ports import Partition
from streammoe_connectors.kafka.partitions import PartitionBuffer, check_position, position_of


class Row(NamedTuple):
    offset: int
    value: bytes | None = b"x"
    timestamp: int | None = 0
    key: bytes | None = None
    headers: tuple = ()


def lane(offset=0, stop=None):
    return PartitionBuffer(Partition("t", 0), offset, stop)


def rows(*offsets):
    return [Row(offset) for offset in offsets]


def test_what_is_fetched_is_given_in_order():
    one = lane()
    assert one.add(rows(0, 1, 2), 0.0) == 0
    assert [row.offset for row in one.give(2)] == [0, 1]
    assert (one.next, one.fetched, one.bytes, one.times.size) == (2, 3, 1, 1)
    one.give(1)
    assert (one.next, one.bytes) == (3, 0)


def test_gaps_are_counted_once_and_markers_that_were_passed_are_none():
    for offsets, gaps in [([0, 1, 2], 0), ([1, 2], 1), ([0, 2], 1), ([3, 5, 6, 9], 3)]:
        assert lane().add(rows(*offsets), 0.0) == gaps
    one = lane()
    one.add(rows(0), 0.0)
    assert one.add(rows(5, 6), 0.0) == 1
    one.reach(8)
    assert one.add(rows(8), 0.0) == 0


def test_a_tombstone_is_passed_with_what_follows_it():
    one = lane()
    one.add([Row(0), Row(1, None), Row(2), Row(3, None)], 0.0)
    assert one.passed() == 0
    one.give(1)
    assert (one.next, one.passed()) == (1, 0)
    one.give(1)
    assert (one.next, one.passed()) == (4, 2)
    one.add([Row(4, None), Row(5, None)], 0.0)
    assert (one.next, one.passed(), one.passed()) == (6, 2, 0)


def test_nothing_is_read_at_its_stop_and_beyond():
    one = lane(stop=2)
    one.add(rows(0, 1, 2, 3), 0.0)
    assert one.complete
    assert len(one.give(9)) == 2
    assert one.next == 2


def test_a_stop_in_a_gap_is_reached():
    one = lane(stop=3)
    one.add(rows(0), 0.0)
    assert not one.complete
    one.add(rows(7), 0.0)
    assert one.complete
    one.give(1)
    assert one.next == 3


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


def test_a_position_holds_every_partition_and_topics_without_any():
    lanes = [PartitionBuffer(Partition("a", 0), 3), PartitionBuffer(Partition("a", 2), 4)]
    position = position_of("g", "me", {"a": "id", "b": None}, lanes, {})
    assert position == {
        "kind": "kafka",
        "group": "g",
        "owner": "me",
        "topics": {"a": {"id": "id", "partitions": {"0": 3, "2": 4}}, "b": {"id": None, "partitions": {}}},
    }
    check_position(position)
    left = {"c": {"id": "id", "partitions": {"1": 9}}}
    position = position_of("g", "me", {"a": "id", "b": None}, lanes, left)
    assert position["left"] == left
    check_position(position)


def test_another_position_is_refused():
    for position in [
        {"kind": "file"},
        {"kind": "kafka"},
        {"kind": "kafka", "topics": {"a": 7}, "owner": "me"},
        {"kind": "kafka", "topics": {"a": {"partitions": {"x": 1}}}, "owner": "me"},
        {"kind": "kafka", "topics": {"a": {"partitions": {"0": "1"}}}, "owner": "me"},
        {"kind": "kafka", "topics": {}, "owner": None},
        {"kind": "kafka", "topics": {}, "owner": "me", "left": {"a": {"id": "1", "partitions": {"0": -1}}}},
        {"kind": "kafka", "topics": {}, "owner": "me", "left": []},
    ]:
        with pytest.raises(SourceError):
            check_position(position)
