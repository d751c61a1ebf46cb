"""Which shard goes on with which partition, after a change of their number."""

import pytest

from streammoe.errors import SourceError
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.position import check_position
from streammoe_connectors.kafka.resharding import redistributed
from streammoe_connectors.kafka.source_settings import ReadingSettings


def position(shard="0/1", topics=None, **more):
    """A shard's; offsets by topic and number."""
    held = {topic: saved(offsets) for topic, offsets in (topics or {"t": {}}).items()}
    return {"kind": "kafka", "group": "g", "owner": f"of {shard}", "shard": shard, "topics": held, **more}


def saved(offsets, topic_id="one"):
    return {"id": topic_id, "partitions": {str(number): offset for number, offset in offsets.items()}}


TWO = [position("0/2", {"t": {0: 5, 2: 7}, "u": {0: 1}}), position("1/2", {"t": {1: 6, 3: 8}, "u": {}})]


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_each_partition_goes_to_the_one_shard_of_its_number_where_it_was(count):
    before = offsets_of(TWO[0]) | offsets_of(TWO[1])
    found = redistributed(TWO[::-1], count)
    after = {}
    for index, each in enumerate(found):
        check_position(each)
        settings = ReadingSettings(topics=["t", "u"], group="g", shard=each["shard"])
        assert (each["shard"], each["group"]) == (f"{index}/{count}", "g")
        assert all(settings.is_in_shard(number) for _, number in offsets_of(each))
        assert offsets_of(each).keys().isdisjoint(after)
        # Also without a partition: new ones of a known topic are read from their first record.
        assert {topic: held["id"] for topic, held in each["topics"].items()} == {"t": "one", "u": "one"}
        after |= offsets_of(each)
    assert after == before
    assert len({each["owner"] for each in [*found, *TWO]}) == count + 2


def test_what_is_not_read_stays_known_where_it_would_be():
    """The furthest of several positions counts, a partition that nobody reads yet begins where one has left it."""
    old = {"gone": saved({0: 3, 1: 4}, "old")}
    first = position("0/2", {"t": {0: 5}}, left={"t": saved({1: 2, 3: 9}), **old})
    second = position(
        "1/2", {"t": {1: 6}}, left={"t": saved({0: 99, 5: 3}, "created before"), "gone": saved({1: 7}, "old")}
    )
    found = redistributed([first, second], 3)
    assert [offsets_of(each) for each in found] == [{("t", 0): 5, ("t", 3): 9}, {("t", 1): 6}, {}]
    assert [each.get("left") for each in found] == [
        {"gone": saved({0: 3}, "old")},
        {"gone": saved({1: 7}, "old")},
        None,
    ]


ONE = position("0/2")
REFUSED = {
    "a shard is missing": [ONE],
    "one of another division": [ONE, position("1/3")],
    "twice the same": [ONE, position("1/2"), ONE],
    "no shard": [{name: value for name, value in ONE.items() if name != "shard"}, position("1/2")],
    "another group": [ONE, position("1/2", group="h")],
    "another topic": [ONE, position("1/2", {"u": {}})],
    "another topic of that name": [ONE, position("1/2") | {"topics": {"t": saved({}, "two")}}],
    "a partition of another shard": [ONE, position("1/2", {"t": {2: 5}})],
    "no position": [ONE, {"kind": "kafka"}],
    "another source": [{"kind": "file"}],
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_all_shards_of_one_stream_is_rejected(name):
    with pytest.raises(SourceError):
        redistributed(REFUSED[name], 3)


def test_a_topic_that_matches_and_not_all_shards_have_found_is_divided_like_others():
    found = redistributed([position("0/2", {"t": {0: 4}, "u": {}}, pattern="."), position("1/2", pattern=".")], 2)
    assert [each["pattern"] for each in found] == [".", "."]
    assert [each["topics"] for each in found] == [
        {"t": saved({0: 4}), "u": saved({})},
        {"t": saved({}), "u": saved({})},
    ]
    with pytest.raises(SourceError):
        redistributed([position("0/2", pattern="."), position("1/2", pattern="t")], 2)


def test_an_id_that_one_of_them_does_not_know_is_no_difference():
    other = position("1/2") | {"topics": {"t": saved({1: 5}, None)}}
    assert redistributed([position("0/2", {"t": {0: 4}}), other], 1)[0]["topics"] == {"t": saved({0: 4, 1: 5})}
