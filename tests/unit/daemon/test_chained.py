import json

import pytest

from streammoe.daemon.chained import ChainedSource
from streammoe.ports import SourceStatus, TopicPartition
from tests.list_source import ListSource

PARTITION = TopicPartition("t", 0)


class Topic(ListSource):
    """Knows where it began, and has to be waited for."""

    def __init__(self, *args, begins_at=None, waits=0, **script):
        super().__init__(*args, **script)
        self.begins_at = begins_at
        self.waits = waits

    def prepare(self, timeout):
        self.waits -= 1
        return self.waits < 0

    @property
    def position(self):
        return self.begins_at

    def status(self):
        is_ready = self.waits < 0
        return SourceStatus(is_ready, is_ready, {PARTITION: 1}, {PARTITION: 2}, [PARTITION], {"gap": 1}, {PARTITION: 3})


def numbers(*values):
    return [str(value).encode() for value in values]


def read(source, position=None):
    source.seek(position)
    while not source.prepare(0.0):
        pass
    batches = []
    while (batch := source.poll(0.0)) is not None:
        batches.append(batch)
    return batches


def records(batches):
    return [int(batch.record(i)) for batch in batches for i in range(len(batch))]


@pytest.fixture
def parts():
    return [ListSource(numbers(1, 2, 3), sizes=[2]), ListSource(numbers(4, 5), sizes=[1])]


def test_each_source_is_read_to_its_end_learns_its_own_position_and_is_closed(parts):
    source = ChainedSource(parts)
    batches = read(source)
    assert records(batches) == [1, 2, 3, 4, 5]
    assert source.finished
    assert source.position is None, "none of them has a beginning of its own"
    for batch in batches:
        source.commit(batch.end, 1)
    assert [[commit["next"] for commit in part.commits] for part in parts] == [[2, 3, 3, 3], [1, 2]]
    source.close()
    assert [part.closed for part in parts] == [True, True]


def test_reading_resumes_from_every_position_and_from_one_of_the_first_source_alone():
    def chain():
        return ChainedSource([ListSource(numbers(1, 2, 3), sizes=[2]), ListSource(numbers(4, 5), sizes=[1])])

    whole = read(chain())
    for cut, batch in enumerate(whole, start=1):
        position = json.loads(json.dumps(batch.end))
        assert records(read(chain(), position)) == records(whole[cut:])
    alone = read(ListSource(numbers(1, 2, 3), sizes=[2]))
    assert records(read(chain(), alone[0].end)) == [3, 4, 5]


def test_it_is_ready_when_all_are_and_where_a_topic_begins_is_part_of_every_position():
    begins = {"kind": "list", "next": 1}
    topic = Topic(numbers(2, 3), begins_at=begins, waits=2, endless=True)
    source = ChainedSource([ListSource(numbers(1), sizes=[1]), topic])
    source.seek(None)
    assert not source.status().ready
    assert [source.prepare(0.0) for _ in range(3)] == [False, False, True]
    assert source.status() == SourceStatus(
        True, True, {PARTITION: 1}, {PARTITION: 2}, [PARTITION], {"gap": 1}, {PARTITION: 3}
    )
    assert source.position == {"kind": "chain", "positions": [None, begins]}
    assert source.poll(0.0).end["positions"][1] == begins
