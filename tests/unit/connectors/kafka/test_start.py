"""Where reading begins, after what an earlier run has left."""

from collections import Counter
from contextlib import nullcontext

import pytest

from streammoe.errors import SourceError
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.start import start_offsets, unassigned_offsets


def topic(identity, **offsets):
    return {"id": identity, "partitions": {number.removeprefix("p"): offset for number, offset in offsets.items()}}


@pytest.mark.parametrize(
    ("id_before", "left"),
    [("one", topic("one", p1=11, p3=13, p5=25)), ("created before", topic("one", p3=13, p5=25))],
)
def test_partitions_that_were_left_at_different_times_all_stay_known(id_before, left):
    settings = ReadingSettings(topics="t", group="g", shard="0/2")
    position = {"left": {"t": topic(id_before, p1=11, p5=15)}, "topics": {"t": topic("one", p0=10, p3=13, p5=25)}}
    assert unassigned_offsets(settings, position) == {"t": left}


def test_what_is_read_again_is_no_longer_left():
    position = {"left": {"t": topic("one", p1=11)}, "topics": {"t": topic("one", p0=10)}}
    assert unassigned_offsets(ReadingSettings(topics="t", group="g"), position) == {}


class Nothing:
    """A cluster without partitions."""

    def beginning_offsets(self, partitions):
        return {}


def test_a_position_of_another_shard_is_rejected_unless_the_division_is_another_one():
    def start(of, now):
        position = {"topics": {"t": topic("one", p0=1)}, "shard": of}
        return start_offsets(Nothing(), ReadingSettings(topics="t", group="g", shard=now), position, [], Counter())

    with pytest.raises(SourceError, match=r"0/3.*1/3"):
        start("0/3", "1/3")
    for of, now in (("0/2", "1/3"), ("0/2", "0/1")):
        with pytest.raises(SourceError, match="fewer partitions") if now == "0/1" else nullcontext():
            assert start(of, now) == {}
