"""Where reading begins, after what an earlier run has left, and the positions of what is read."""

from collections import Counter
from contextlib import nullcontext

import pytest

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.assignment import Assignment
from streammoe_connectors.kafka.contract import TopicDescription
from streammoe_connectors.kafka.order import Limits
from streammoe_connectors.kafka.position import check_position, offsets_left, offsets_of
from streammoe_connectors.kafka.settings import ReadingSettings

LIMITS = Limits(0, 10, 12, 5)


def topic(identity, **offsets):
    return {"id": identity, "partitions": {number.removeprefix("p"): offset for number, offset in offsets.items()}}


def assignment(position=None, **settings):
    return Assignment(ReadingSettings(**{"topics": "t", "group": "g", **settings}), position, "me", Counter())


def at(*numbers):
    return {TopicPartition("t", number): LIMITS for number in numbers}


@pytest.mark.parametrize(
    ("id_before", "left"),
    [("one", topic("one", p1=11, p3=13, p5=25)), ("created before", topic("one", p3=13, p5=25))],
)
def test_partitions_that_were_left_at_different_times_all_stay_known(id_before, left):
    settings = ReadingSettings(topics="t", group="g", shard="0/2")
    position = {"left": {"t": topic(id_before, p1=11, p5=15)}, "topics": {"t": topic("one", p0=10, p3=13, p5=25)}}
    assert offsets_left(settings, position) == {"t": left}


def test_what_is_read_again_is_no_longer_left_and_goes_on_from_there():
    left = {"left": {"t": topic("one", p1=11)}, "topics": {"t": topic("one", p0=10)}, "shard": "0/2"}
    made = assignment(left)
    made.see({"t": TopicDescription("one", {0: 1, 1: 1})})
    made.settle(dict.fromkeys(made.wanted, Limits(0, 20, 20, 0)), {})
    assert made.position()["topics"] == {"t": topic("one", p0=10, p1=11)}
    assert "left" not in made.position()


def test_a_position_of_another_shard_is_rejected_unless_the_division_is_another_one():
    def start(of, now):
        made = assignment({"topics": {"t": topic("one", p0=1)}, "shard": of}, shard=now)
        assert made.see({"t": TopicDescription("one", {})})
        return made.settle({}, {})

    with pytest.raises(SourceError, match=r"0/3.*1/3"):
        start("0/3", "1/3")
    for of, now in (("0/2", "1/3"), ("0/2", "0/1")):
        with pytest.raises(SourceError, match="fewer partitions") if now == "0/1" else nullcontext():
            assert start(of, now) == []


def test_a_topic_created_again_is_begun_as_a_whole_and_until_then_the_position_is_that_of_the_old_one():
    before = {"topics": {"t": topic("one", p0=3, p1=4)}, "shard": "0/1"}
    made = assignment(before, on_lost="earliest")
    made.see({"t": TopicDescription("two", {0: 1, 1: None})})
    assert made.settle(at(0), {}) == []
    assert made.position()["topics"] == before["topics"]
    assert made.settle(at(0, 1), {}) == sorted(at(0, 1))
    assert made.position()["topics"] == {"t": topic("two", p0=0, p1=0)}


def test_a_first_start_at_the_end_waits_for_all_partitions_since_it_decides_for_all_later_ones():
    made = assignment(start="latest")
    made.see({"t": TopicDescription("one", {0: 1, 1: None})})
    assert made.settle(at(0), {}) == []
    assert made.position()["topics"] == {}
    made.settle(at(0, 1), {})
    made.see({"t": TopicDescription("one", {0: 1, 1: 1, 2: 1})})
    made.settle(at(2), {})
    assert made.position()["topics"] == {"t": topic("one", p0=10, p1=10, p2=0)}, "and a new one is read as a whole"


def test_a_position_holds_every_partition_topics_without_any_and_what_was_left():
    settings = {"topics": ("a", "b"), "shard": "0/2"}
    left = {"c": {"id": "id", "partitions": {"1": 9}}}
    topics = {"a": topic("id", p0=3, p10=4), "b": topic(None)}
    position = {"kind": "kafka", "group": "g", "owner": "me", "shard": "0/2", "topics": topics}
    described = {"a": TopicDescription("id", {0: 1, 1: 1, 10: None}), "b": TopicDescription(None, {1: 1})}
    for saved in (position, position | {"left": left}):
        made = assignment(saved, **settings)
        made.see(described)
        made.settle({TopicPartition("a", 0): LIMITS}, {})
        assert made.position() == saved
        check_position(saved)
    assert offsets_of(position) == {TopicPartition("a", 0): 3, TopicPartition("a", 10): 4}
    for wrong in (
        {"kind": "file"},
        {"topics": {"a": 7}},
        *({"topics": {"a": topic("id", **held)}} for held in ({"x": 1}, {"0": "1"}, {"0": True}, {"0": 1 << 63})),
        {"owner": None},
        {"pattern": 7},
        *({"shard": shard} for shard in (None, "0", "2/2", "0/0", "x/2", "-1/2")),
        {"left": {"a": {"id": "1", "partitions": {"0": -1}}}},
    ):
        with pytest.raises(SourceError):
            check_position(position | wrong)


# --- topics by a pattern ----------------------------------------------------------------------------------------------

PATTERN = "a[.].*"
MATCHING = {"topics": None, "topics_pattern": PATTERN}
HELD = {"kind": "kafka", "group": "g", "owner": "me", "shard": "0/1", "pattern": PATTERN}


def begun(made, **numbers):
    """Show topics, by the numbers of their only partitions, and begin what is to be read; return all positions."""
    described = {f"a.{name}": TopicDescription(None, {number: 1}) for name, number in numbers.items()}
    assert made.see(described)
    made.settle(dict.fromkeys(made.wanted, LIMITS), {})
    return {name: held["partitions"] for name, held in made.position()["topics"].items()}


@pytest.mark.parametrize(("before", "at"), [(PATTERN, 0), (None, 10), (".*", 10)])
def test_after_a_restart_what_has_come_is_new_and_what_the_settings_add_begins_as_they_say(before, at):
    position = HELD | {"pattern": before, "topics": {"a.x": topic(None, p0=5)}}
    made = assignment(position, start="latest", **MATCHING)
    assert begun(made, x=0, y=4) == {"a.x": {"0": 5}, "a.y": {"4": at}}
    assert begun(made, x=0, y=4, z=1)["a.z"] == {"1": 0}


@pytest.mark.parametrize("gone", ["while it is read", "before the start"])
@pytest.mark.parametrize("policy", ["fail", "earliest"])
def test_a_topic_that_matched_and_is_deleted_is_missed(gone, policy, caplog):
    topics = {"a.x": topic(None, p0=5), "a.y": topic(None, p4=3)}
    made = assignment(HELD | {"topics": topics}, on_lost=policy, **MATCHING)
    if gone == "while it is read":
        begun(made, x=0, y=4)
    described = {"a.x": TopicDescription(None, {0: 1})}
    assert [made.see(described) for _ in range(3)] == [False] * 3, "brokers may not know a new one yet"
    with pytest.raises(SourceError, match=r"a\.y") if policy == "fail" else nullcontext():
        assert made.see(described) == (gone == "before the start")
        assert "a.y" in caplog.text
        if gone == "before the start":
            assert begun(made, x=0) == {"a.x": {"0": 5}}
