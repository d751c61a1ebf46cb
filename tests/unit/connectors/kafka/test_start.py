"""Where reading begins, after what an earlier run has left."""

import pytest

from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.start import unassigned_offsets


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
