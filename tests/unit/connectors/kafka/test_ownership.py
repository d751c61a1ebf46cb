"""Marks of owners in committed offsets, with an in-memory group and clocks that do not advance."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka import ownership
from streammoe_connectors.kafka.librdkafka.options import metadata_of
from streammoe_connectors.kafka.offsets import OffsetMetadata
from streammoe_connectors.kafka.source_settings import ReadingSettings

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
POSITION = {"kind": "kafka", "topics": {"t": {"id": None, "partitions": {"0": 3, "1": 4}}}}


class Group:
    """A cluster, as far as its group goes."""

    def __init__(self):
        self.marks = {}
        self.failed = []

    def committed(self, partition):
        return self.marks.get(partition)

    def commit(self, offsets, metadata, *, wait_ms=0):
        self.marks |= {partition: (offset, OffsetMetadata.parse(metadata)) for partition, offset in offsets.items()}

    def failed_commits(self):
        found, self.failed = self.failed, []
        return found


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1_000_000.0)
    for name in ("time", "monotonic"):
        monkeypatch.setattr(ownership.time, name, lambda: clock.now)
    return clock


@pytest.fixture
def group():
    return Group()


def owner(name, **settings):
    return ownership.Ownership(ReadingSettings(topics="t", group="g", **settings), name, ownership.Counter())


@pytest.mark.parametrize(("name", "age", "held"), [("b", 29, True), ("b", 31, False), ("a", 0, False), ("", 0, False)])
def test_a_fresh_mark_of_another_owner_holds(clock, group, name, age, held):
    group.commit({PARTITIONS[1]: 7}, OffsetMetadata(name, clock.now - age, 1).encode())
    with pytest.raises(SourceError) if held else nullcontext():
        owner("a", owner_seconds=30).check(group, PARTITIONS)


def test_a_commit_leaves_a_mark_that_is_renewed_and_taken_back(clock, group):
    mine = owner("a", owner_seconds=30)
    mine.commit(group, POSITION, 7, is_connected=True)
    assert list(group.marks.values()) == [(offset, OffsetMetadata("a", clock.now, 7)) for offset in (3, 4)]
    began = clock.now
    for passed, answers, renewed in [(9, True, began), (11, False, began), (11, True, began + 11)]:
        clock.now = began + passed
        mine.heartbeat(group, is_connected=answers)
        assert group.marks[PARTITIONS[0]][1].committed_at == renewed
    mine.release(group)
    assert [(offset, mark.owner, mark.checkpoint_generation) for offset, mark in group.marks.values()] == [
        (3, "", 7),
        (4, "", 7),
    ]


def test_of_two_that_start_at_once_the_second_to_save_ends(clock, group):
    first, second = owner("a"), owner("b")
    first.commit(group, POSITION, 1, is_connected=True)
    with pytest.raises(SourceError):
        second.commit(group, POSITION, 1, is_connected=True)


@pytest.mark.parametrize("saves", [True, False])
def test_a_partition_that_another_one_takes_is_noticed_also_where_it_saves_often(clock, group, saves):
    mine = owner("a", owner_seconds=3)
    mine.commit(group, POSITION, 1, is_connected=True)
    with pytest.raises(SourceError):  # noqa: PT012 - which of the rounds raises it is of no importance
        for _ in range(30):
            clock.now += 0.2
            group.commit({PARTITIONS[1]: 9}, OffsetMetadata("b", clock.now, 1).encode())
            if saves:
                mine.commit(group, POSITION, 1, is_connected=True)
            else:
                mine.heartbeat(group, is_connected=True)


def test_commits_that_fail_are_counted(clock, group):
    mine = owner("a")
    mine.commit(group, POSITION, 1, is_connected=True)
    group.failed = ["no", "no"]
    mine.heartbeat(group, is_connected=True)
    assert mine._counters["mirror_failed"] == 2


def test_a_mark_is_read_whatever_follows_it():
    mark = OffsetMetadata("me", 1.5, 7)
    for behind in ("", "\0", "\ufffd}{", '{"owner":"you","at":2,"generation":1}'):
        assert OffsetMetadata.parse(mark.encode() + behind) == mark
    for other in (None, "", "somebody's note", "}", '{"owner":1}'):
        assert OffsetMetadata.parse(other) is None


def test_librdkafka_metadata_that_are_no_text_are_read_up_to_where_they_are_none():
    class Committed:
        @property
        def metadata(self):
            return (OffsetMetadata("me", 1.5, 7).encode().encode() + b"\xa0x").decode()

    assert OffsetMetadata.parse(metadata_of(Committed())) == OffsetMetadata("me", 1.5, 7)
