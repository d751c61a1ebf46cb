"""Predictions that another thread writes."""

import threading
from contextlib import suppress

import numpy as np
import pytest

from streammoe.pipeline.overlapped import MOST_WAITING, OverlappedPredictions
from streammoe.pipeline.predictions import JsonlPredictions
from streammoe.ports import PredictionSink
from tests.unit.pipeline.written_rows import lines, rows_from

PATIENCE = 30.0


class Slow(PredictionSink):
    """A sink that writes a row once it may, and notes what is called."""

    def __init__(self):
        self.called = []
        self.may_write = threading.Semaphore(0)
        self.failure = None

    def write(self, rows):
        assert self.may_write.acquire(timeout=PATIENCE)
        if self.failure is not None:
            raise self.failure
        self.called.append(("write", int(rows.versions[0])))

    def flush(self):
        self.called.append("flush")

    def position(self):
        self.called.append("position")
        return {"kind": "slow"}

    def close(self):
        self.called.append("close")


CALLS = {
    "flush": lambda sink: sink.flush(),
    "position": lambda sink: sink.position(),
    "close": lambda sink: sink.close(),
}
FAILING_CALLS = {**CALLS, "write": lambda sink: [sink.write(rows_from(n=1)) for _ in range(MOST_WAITING)]}


@pytest.mark.parametrize("call", CALLS)
def test_all_else_waits_for_what_was_written_before_in_order(call):
    inner = Slow()
    sink = OverlappedPredictions(inner)
    for version in range(3):
        sink.write(rows_from(version, n=1))
    assert inner.called == []
    calling = threading.Thread(target=CALLS[call], args=(sink,))
    calling.start()
    inner.may_write.release(2)
    calling.join(0.05)
    assert calling.is_alive()
    assert call not in inner.called
    inner.may_write.release()
    calling.join(PATIENCE)
    assert inner.called == [("write", 0), ("write", 1), ("write", 2), call]
    sink.close()


def test_only_so_many_writes_wait():
    inner = Slow()
    sink = OverlappedPredictions(inner)
    for version in range(MOST_WAITING):
        sink.write(rows_from(version, n=1))
    one_more = threading.Thread(target=sink.write, args=(rows_from(MOST_WAITING, n=1),))
    one_more.start()
    one_more.join(0.05)
    assert one_more.is_alive()
    inner.may_write.release(MOST_WAITING + 1)
    one_more.join(PATIENCE)
    sink.close()
    assert inner.called == [*(("write", version) for version in range(MOST_WAITING + 1)), "close"]


@pytest.mark.parametrize("call", FAILING_CALLS)
def test_a_failure_is_raised_by_a_later_call_and_the_sink_is_closed_all_the_same(call):
    inner = Slow()
    inner.failure = MemoryError("no room")
    inner.may_write.release(MOST_WAITING)
    sink = OverlappedPredictions(inner)
    sink.write(rows_from(n=1))
    with pytest.raises(MemoryError, match="no room"):
        FAILING_CALLS[call](sink)
    inner.failure = None
    with suppress(MemoryError):  # of rows that were under way
        sink.close()
    assert inner.called[-1] == "close"


def test_rows_are_those_of_the_sink_and_its_position_is_passed_on(tmp_path):
    sinks = [JsonlPredictions(tmp_path / "direct"), JsonlPredictions(tmp_path / "overlapped")]
    sinks[1] = OverlappedPredictions(sinks[1])
    for sink in sinks:
        for first in range(0, 20, 2):
            sink.write(rows_from(first, intervals=np.ones((2, 1, 2)).copy))
        sink.flush()
        position = sink.position()
        sink.write(rows_from(20))
        sink.flush()
        sink.close()
    assert lines(tmp_path / "overlapped") == lines(tmp_path / "direct")
    again = OverlappedPredictions(JsonlPredictions(tmp_path / "overlapped"))
    again.restore(position)()
    again.close()
    assert [row["model_version"] for row in lines(tmp_path / "overlapped")] == list(range(20))
