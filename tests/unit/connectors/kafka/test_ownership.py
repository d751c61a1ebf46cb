"""Marks of owners in committed offsets, with an in-memory group and clocks that do not advance."""

from collections import Counter, deque
from types import SimpleNamespace

import pytest

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka import ownership
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.settings import ReadingSettings
from streammoe_connectors.kafka.source import KafkaSource

PARTITIONS = [TopicPartition("t", 0), TopicPartition("t", 1)]
POSITION = {"kind": "kafka", "topics": {"t": {"id": None, "partitions": {"0": 3, "1": 4}}}}


class Group:
    """A cluster, as far as its group goes."""

    def __init__(self):
        self.marks = {}
        self.failed_commits = deque()

    def committed(self, partitions):
        return {partition: self.marks[partition] for partition in partitions if partition in self.marks}

    def commit(self, offsets, metadata, *, wait=False):
        self.marks |= {partition: (offset, OffsetMetadata.parse(metadata)) for partition, offset in offsets.items()}

    def marked(self, owner, at, generation=1):
        self.commit({PARTITIONS[1]: 7}, OffsetMetadata(owner, at, generation).encode())


class Daemon(ownership.Ownership):
    def __init__(self, group, name, **settings):
        super().__init__(ReadingSettings(topics="t", group="g", **settings), name, Counter())
        self.group = group

    def starts(self):
        return self.check({partition: mark for partition, (_, mark) in self.group.marks.items()})

    def saves(self, generation=1):
        self.note(POSITION, generation)
        self.heartbeat(self.group)


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=1_000_000.0)
    for name in ("time", "monotonic"):
        monkeypatch.setattr(ownership.time, name, lambda: clock.now)
    return clock


@pytest.fixture
def group():
    return Group()


@pytest.mark.parametrize(("name", "age"), [("b", 31), ("a", 0), ("", 0)])
def test_an_old_mark_of_another_owner_holds_nobody_and_neither_does_ones_own_or_one_taken_back(clock, group, name, age):
    group.marked(name, clock.now - age)
    assert Daemon(group, "a", owner_seconds=30).starts()


@pytest.mark.parametrize("renewed", [False, True])
@pytest.mark.parametrize("age", [1, -3_600], ids=["fresh", "of a clock that is ahead"])
def test_another_mark_holds_while_one_waits_to_see_whether_it_is_renewed(clock, group, age, renewed):
    group.marked("b", clock.now - age)
    mine = Daemon(group, "a", owner_seconds=30)
    begun = clock.now
    for passed in (0, 10, 28):
        clock.now = begun + passed
        assert not mine.starts()
    clock.now = begun + 30
    if renewed:
        group.marked("b", clock.now - age)
        with pytest.raises(SourceError):
            mine.starts()
    else:
        assert mine.starts()
        mine.saves()
        assert group.marks[PARTITIONS[1]][1].owner == "a"


def test_a_twin_that_reads_a_copy_of_the_checkpoints_is_refused_and_its_original_goes_on(clock, group):
    original, twin = (Daemon(group, "a", owner_seconds=30) for _ in range(2))
    original.saves(7)
    assert twin.starts()
    begun = clock.now
    with pytest.raises(SourceError, match="copy"):  # noqa: PT012 - which of the rounds raises it is of no importance
        for second in range(1, 30):
            clock.now = begun + second
            original.saves(7 + second)
            twin.saves(7)
    clock.now += 30
    original.saves(40)


def restored():
    position = {**POSITION, "owner": "a", "group": "g", "shard": "0/1"}
    return KafkaSource.renamed(None, position)["owner"]


def test_one_that_was_restored_ends_before_it_reads_while_its_original_runs(clock, group):
    original, twin = Daemon(group, "a", owner_seconds=30), Daemon(group, restored(), owner_seconds=30)
    original.saves(7)
    assert not twin.starts()
    clock.now += 10
    original.heartbeat(group)
    with pytest.raises(SourceError):
        twin.starts()
    clock.now += 30
    original.saves(8)


def test_one_that_was_restored_takes_over_from_a_dead_original_which_may_not_come_back_while_it_runs(clock, group):
    Daemon(group, "a", owner_seconds=30).saves(7)  # and then it is killed
    twin = Daemon(group, restored(), owner_seconds=30)
    assert not twin.starts()
    clock.now += 30
    assert twin.starts()
    twin.saves(7)
    original = Daemon(group, "a", owner_seconds=30)
    assert not original.starts()
    clock.now += 10
    twin.heartbeat(group)
    with pytest.raises(SourceError):
        original.starts()
    assert twin._owner != restored()  # each restored one has a name of its own


def test_a_daemon_that_comes_back_reads_at_once_and_commits_when_its_own_mark_has_expired(clock, group):
    Daemon(group, "a", owner_seconds=30).saves(7)
    begun, again = clock.now, Daemon(group, "a", owner_seconds=30)
    assert again.starts()
    for passed, generation in [(1, 7), (29, 7), (31, 8)]:
        clock.now = begun + passed
        again.saves(8)
        assert group.marks[PARTITIONS[0]][1].checkpoint_generation == generation


def test_of_two_that_start_at_once_the_second_to_save_ends_once_the_first_does_again(clock, group):
    first, second = Daemon(group, "a"), Daemon(group, "b")
    first.saves()
    second.saves()
    assert group.marks[PARTITIONS[0]][1].owner == "a"
    clock.now += 1
    first.saves(2)
    with pytest.raises(SourceError):
        second.saves()


@pytest.mark.parametrize("saves", [True, False])
def test_a_partition_that_another_one_takes_is_noticed_also_where_it_saves_often(clock, group, saves):
    mine = Daemon(group, "a", owner_seconds=3)
    mine.saves()
    with pytest.raises(SourceError):  # noqa: PT012 - which of the rounds raises it is of no importance
        for _ in range(30):
            clock.now += 0.2
            group.marked("b", clock.now)
            if saves:
                mine.saves()
            else:
                mine.heartbeat(group)


def test_commits_that_fail_are_counted(clock, group):
    mine = Daemon(group, "a")
    mine.saves()
    group.failed_commits.extend(["no", "no"])
    mine.heartbeat(group)
    assert mine._counters["mirror_failed"] == 2
