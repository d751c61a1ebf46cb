"""Each event counts once, though the folders of two shards may both contain it."""

import pytest

from streammoe.scaleout.overlap import overlapping
from streammoe.scaleout.shard import Shard
from streammoe_connectors.files.listing import file_at
from streammoe_connectors.kafka.position import check_position


def shard(n, position, digest=""):
    """One of n events, which its source has left at this position; equal digests are equal states."""
    return Shard(1, n, [position], digest or f"{n} at {position}", None)


def left_out(**shards):
    return set(overlapping(shards))


def kafka(owner="a", topic="t", topic_id="1", left=None, **partitions):
    """A position; partitions are given as p0=100."""

    def offsets(given):
        return {topic: {"id": topic_id, "partitions": {name[1:]: offset for name, offset in given.items()}}}

    more = {} if left is None else {"left": offsets(left)}
    position = {"kind": "kafka", "shard": "0/1", "group": "g", "owner": owner, "topics": offsets(partitions), **more}
    check_position(position)
    return position


def files(*read, head=b"a,b,y"):
    """A position, with the inode and the offset of each file."""
    return {"kind": "file", "files": [{**file_at("f", inode, head), "offset": offset} for inode, offset in read]}


@pytest.mark.parametrize("position", [{"kind": "x", "at": 3}, None, {"kind": "kafka", "topics": 3}])
def test_a_copy_counts_once_whatever_its_source(position):
    twin = shard(30, position, "same")
    found = overlapping({"north": twin, "south": shard(20, position), "twin": twin})
    assert found.keys() == {"twin"}
    assert "is in the same state at the same positions as shard north, which has learned" in found["twin"]
    assert "leave one of the two folders out" in found["twin"]


def test_of_two_that_go_on_from_a_copy_the_one_with_more_events_counts():
    north, twin = shard(30, kafka("a", p0=300)), shard(31, kafka("a", p0=310))
    assert left_out(north=north, twin=twin) == left_out(twin=twin, north=north) == {"north"}
    twin = shard(30, kafka("a", p0=310))  # of as many, the first
    assert (left_out(north=north, twin=twin), left_out(twin=twin, north=north)) == ({"twin"}, {"north"})


def test_what_overlaps_only_one_that_is_left_out_counts():
    west = shard(20, files((2, 200)))
    assert left_out(north=shard(40, files((1, 400))), south=shard(30, files((1, 100), (2, 200))), west=west) == {
        "south"
    }


def test_one_file_counts_once():
    found = left_out(
        north=shard(30, files((1, 300))),
        south=shard(20, files((2, 10), (1, 100))),
        west=shard(20, files((3, 100), (1, 0))),  # it has opened the first, and read none of it
        east=shard(20, files((1, 100), head=b"b,a,y")),  # another file, of another machine
    )
    assert found == {"south"}


LEGAL = {
    "partitions of one topic": (kafka("a", p0=30), kafka("b", p1=20)),
    "a partition that went on in the other": (kafka("a", p0=30), kafka("b", p0=50)),
    "a partition that was handed over before anything was read": (kafka("a", p0=0, p1=30), kafka("b", p0=20)),
    "a partition that is no longer its own": (kafka("a", p1=30, left={"p0": 20}), kafka("b", p0=20)),
    "another topic of this name": (kafka("a", p0=30), kafka("b", p0=20, topic_id="2")),
    "positions that nobody knows": ({"kind": "kafka", "topics": {}}, {"kind": "file", "files": [{"offset": [1]}]}),
    "sources that tell nothing": ({"kind": "stdin", "offset": 30}, {"kind": "stdin", "offset": 20}),
}


@pytest.mark.parametrize(("one", "other"), LEGAL.values(), ids=LEGAL)
def test_where_nothing_proves_that_events_count_twice_all_count(one, other):
    assert left_out(north=shard(30, one), south=shard(20, other)) == set()


@pytest.mark.parametrize("position", [kafka("a", p0=32), kafka("a", p1=10, left={"p0": 20})])
def test_two_that_have_learned_more_events_than_there_are_have_read_some_twice(position):
    found = overlapping({"north": shard(30, position), "south": shard(20, kafka("b", p0=30))})
    assert "has read the same events of partition 0 of topic 't'" in found["south"]
