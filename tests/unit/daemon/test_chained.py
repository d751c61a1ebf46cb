import json

import pytest

from streammoe.daemon.chained import ChainedSource
from streammoe.errors import ConfigError, SourceError
from streammoe.ports import Partition, SourceStatus
from streammoe.testing import ListSource


class Topic(ListSource):
    """Ends where others think that it goes on; knows where it began."""

    def __init__(self, *args, begins_at=None, answers=0, **script):
        super().__init__(*args, **script)
        self.begins_at = begins_at
        self.waits = answers

    def prepare(self, timeout):
        self.waits -= 1
        return self.waits < 0

    @property
    def position(self):
        return self.begins_at

    def status(self):
        return SourceStatus(
            ready=self.waits < 0,
            connected=self.waits < 0,
            positions={Partition("t", 0): 1},
            lags={Partition("t", 0): 2},
            stalled=[Partition("t", 0)],
            counters={"gap": 1},
        )


def numbers(*values):
    return [str(value).encode() for value in values]


def read(source, position=None):
    source.seek(position)
    while not source.prepare(0.0):
        pass
    batches = []
    while not source.finished:
        batch = source.poll(0.0)
        if batch is None:
            break
        batches.append(batch)
    return batches


def records(batches):
    return [int(batch.record(i)) for batch in batches for i in range(len(batch))]


def make(first=(1, 2, 3), second=(4, 5), **script):
    return ChainedSource([ListSource(numbers(*first), sizes=[2]), ListSource(numbers(*second), sizes=[1], **script)])


def test_each_source_is_read_to_its_end_before_the_next():
    source = make()
    assert records(read(source)) == [1, 2, 3, 4, 5]
    assert source.finished
    assert source.poll(0.0) is None


def test_every_position_goes_on_with_the_rest():
    whole = read(make())
    for cut, batch in enumerate(whole, start=1):
        position = json.loads(json.dumps(batch.end))
        assert records(read(make(), position)) == records(whole[cut:])


def test_a_source_may_be_added_behind_the_one_that_there_was():
    only = ListSource(numbers(1, 2, 3), sizes=[2])
    assert records(read(make(), read(only)[0].end)) == [3, 4, 5]


def test_a_source_that_is_missing_now_is_an_error():
    position = read(make())[-1].end
    with pytest.raises(SourceError, match="positions of 2 sources, and there are 1 now; name all of them again"):
        ChainedSource([ListSource([])]).seek(position)


def test_it_is_prepared_when_all_are():
    source = ChainedSource([ListSource(numbers(1)), Topic(numbers(2), answers=2, endless=True)])
    source.seek(None)
    assert not source.status().ready
    assert [source.prepare(0.0) for _ in range(3)] == [False, False, True]
    assert source.status().ready


def test_where_a_topic_begins_is_part_of_every_position():
    begins = {"kind": "list", "next": 1}
    source = ChainedSource([ListSource(numbers(1), sizes=[1]), Topic(numbers(2, 3), begins_at=begins, endless=True)])
    source.seek(None)
    assert source.prepare(0.0)
    assert source.position == {"kind": "chain", "positions": [None, begins]}
    assert source.poll(0.0).end["positions"][1] == begins


def test_sources_without_a_beginning_of_their_own_have_none_together():
    source = make()
    read(source)
    assert source.position is None


def test_only_the_last_may_be_endless():
    source = ChainedSource([ListSource(numbers(1), endless=True), ListSource(numbers(2))])
    source.seek(None)
    with pytest.raises(ConfigError, match=r"^source\.0: never ends.*put it last"):
        source.prepare(0.0)


def test_each_is_told_its_own_position():
    first, second = ListSource(numbers(1)), ListSource(numbers(2))
    source = ChainedSource([first, second])
    for batch in read(source):
        source.commit(batch.end, 1)
    assert first.commits == [{"kind": "list", "next": 1}] * 2
    assert second.commits == [{"kind": "list", "next": 1}]


def test_it_fares_as_all_of_them_do():
    source = ChainedSource([ListSource(numbers(1)), Topic(numbers(2))])
    read(source)
    partition = Partition("t", 0)
    assert source.status() == SourceStatus(True, True, {partition: 1}, {partition: 2}, [partition], {"gap": 1})


def test_all_are_closed():
    first, second = ListSource([]), ListSource([])
    ChainedSource([first, second]).close()
    assert first.closed
    assert second.closed
