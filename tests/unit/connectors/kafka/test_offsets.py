"""What stands beside committed offsets, and whose it is."""

from hypothesis import given
from hypothesis import strategies as st

from streammoe.ports import Partition
from streammoe_connectors.kafka.offsets import CommittedOffset, offset_metadata, offsets_of, parse_offset_metadata


@given(st.text(), st.integers(0, 10**9), st.floats(0, 4e9))
def test_what_is_written_is_read(owner, generation, now):
    mirror = parse_offset_metadata(offset_metadata(owner, generation, now))
    assert mirror == CommittedOffset(owner, round(now, 3), generation)
    assert len(offset_metadata("0123456789abcdef0123456789abcdef", 123_456, 1_790_000_000.123456)) < 120


def test_notes_of_other_tools_say_nothing():
    for text in [None, "", "a note", "{}", "[]", "7", '{"owner": 7, "at": 1, "generation": 2}', "\udcff"]:
        assert parse_offset_metadata(text) is None


def test_a_mark_of_a_clock_that_is_ahead_holds():
    assert CommittedOffset("a", 110.0, 1).is_held_by_another("b", 100.0, 30.0)


def test_offsets_are_those_of_the_position():
    position = {
        "kind": "kafka",
        "topics": {"a": {"id": None, "partitions": {"0": 3, "10": 4}}, "b": {"id": "x", "partitions": {}}},
    }
    assert offsets_of(position) == {Partition("a", 0): 3, Partition("a", 10): 4}
