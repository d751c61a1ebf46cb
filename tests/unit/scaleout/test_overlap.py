"""Each event counts once, though the folders of two shards may both contain it."""

import logging
import shutil

import pytest

from streammoe.persistence import CheckpointStore
from streammoe.scaleout import watcher
from streammoe.scaleout.watcher import Watcher
from streammoe_connectors.files.listing import file_at
from streammoe_connectors.kafka.position import check_position
from tests.unit.scaleout.shards import Daemon, Largest, learned


@pytest.fixture
def shards(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(watcher, "reduce_with_details", Largest())
    caplog.set_level(logging.INFO, logger="streammoe")
    (tmp_path / "out").mkdir()
    return Shards(tmp_path)


class Shards:
    def __init__(self, folder):
        self.folder = folder
        self.places = {}

    def add(self, name, n, position, draw=None):
        """Add a shard of n events, which its source has left at this position."""
        model = learned(draw or len(self.places) + 1, n=n)
        daemon = Daemon(self.folder / name, model, positions=[position])
        daemon.save()
        self.places[name] = self.folder / name
        return daemon

    def counting(self):
        """Return which shards a round counts, and which others overlap."""
        done = Watcher(self.places, CheckpointStore(self.folder / "out")).round()
        return set(done.newest.shards), {name for name, (reason, _) in done.problems.items() if reason == "overlapping"}


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
def test_a_copy_counts_once_whatever_its_source(shards, position, caplog):
    shards.add("north", 30, position)
    shards.add("south", 20, position)
    shutil.copytree(shards.folder / "north", shards.folder / "twin")
    shards.places["twin"] = shards.folder / "twin"
    assert shards.counting() == ({"north", "south"}, {"twin"})
    assert "shard twin is left out" in caplog.text
    assert "is in the same state at the same positions as shard north, which has learned" in caplog.text
    assert "leave one of the two folders out" in caplog.text


def test_of_two_that_go_on_from_a_copy_the_one_with_more_events_counts(shards):
    shards.add("north", 30, kafka("a", p0=300))
    twin = shards.add("twin", 31, kafka("a", p0=310))
    assert shards.counting() == ({"twin"}, {"north"})
    shards.places = dict(reversed(shards.places.items()))
    assert shards.counting() == ({"twin"}, {"north"})
    twin.model, twin.n = learned(2), 30
    twin.save()
    assert shards.counting() == ({"twin"}, {"north"})  # of as many, the first
    shards.places = dict(reversed(shards.places.items()))
    assert shards.counting() == ({"north"}, {"twin"})


def test_what_overlaps_only_one_that_is_left_out_counts(shards):
    shards.add("north", 40, files((1, 400)))
    shards.add("south", 30, files((1, 100), (2, 200)))
    shards.add("west", 20, files((2, 200)))
    assert shards.counting() == ({"north", "west"}, {"south"})


def test_one_file_counts_once(shards):
    shards.add("north", 30, files((1, 300)))
    shards.add("south", 20, files((2, 10), (1, 100)))
    shards.add("west", 20, files((3, 100), (1, 0)))  # it has opened the first, and read none of it
    shards.add("east", 20, files((1, 100), head=b"b,a,y"))  # another file, of another machine
    assert shards.counting() == ({"north", "west", "east"}, {"south"})


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
def test_where_nothing_proves_that_events_count_twice_all_count(shards, one, other):
    shards.add("north", 30, one)
    shards.add("south", 20, other)
    assert shards.counting() == ({"north", "south"}, set())


@pytest.mark.parametrize("position", [kafka("a", p0=32), kafka("a", p1=10, left={"p0": 20})])
def test_two_that_have_learned_more_events_than_there_are_have_read_some_twice(shards, position, caplog):
    shards.add("north", 30, position)
    shards.add("south", 20, kafka("b", p0=30))
    assert shards.counting() == ({"north"}, {"south"})
    assert "has read the same events of partition 0 of topic 't'" in caplog.text
