"""Predictions that another thread writes."""

import threading
from contextlib import suppress

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


def call(sink, method):
    thread = threading.Thread(target=lambda: getattr(sink, method)(*[rows_from(9, n=1)] * (method == "write")))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive(), "it does not wait"
    return thread


@pytest.mark.parametrize("method", ["flush", "position", "close"])
def test_all_else_waits_for_what_was_written_before_in_order(method):
    inner = Slow()
    sink = OverlappedPredictions(inner)
    for version in range(3):
        sink.write(rows_from(version, n=1))
    calling = call(sink, method)
    inner.may_write.release(2)
    calling.join(0.05)
    assert calling.is_alive()
    inner.may_write.release()
    calling.join(PATIENCE)
    assert inner.called == [("write", 0), ("write", 1), ("write", 2), method]
    sink.close()


def test_only_so_many_writes_wait():
    inner = Slow()
    sink = OverlappedPredictions(inner)
    for version in range(MOST_WAITING):
        sink.write(rows_from(version, n=1))
    one_more = call(sink, "write")
    inner.may_write.release(MOST_WAITING + 1)
    one_more.join(PATIENCE)
    sink.close()
    assert inner.called == [*(("write", version) for version in (*range(MOST_WAITING), 9)), "close"]


@pytest.mark.parametrize("method", ["flush", "position", "close", "write"])
def test_a_failure_is_raised_by_a_later_call_and_the_sink_is_closed_all_the_same(method):
    inner = Slow()
    inner.failure = MemoryError("no room")
    inner.may_write.release(MOST_WAITING)
    sink = OverlappedPredictions(inner)
    sink.write(rows_from(n=1))
    with pytest.raises(MemoryError, match="no room"):  # noqa: PT012
        for _ in range(MOST_WAITING):
            getattr(sink, method)(*[rows_from(n=1)] * (method == "write"))
    inner.failure = None
    with suppress(MemoryError):  # of rows that were under way
        sink.close()
    assert inner.called[-1] == "close"


def test_its_position_is_that_of_the_sink(tmp_path):
    sink = OverlappedPredictions(JsonlPredictions(tmp_path / "rows"))
    for first in range(0, 20, 2):
        sink.write(rows_from(first))
    sink.flush()
    position = sink.position()
    sink.write(rows_from(20))
    sink.close()
    again = OverlappedPredictions(JsonlPredictions(tmp_path / "rows"))
    again.restore(position)()
    again.close()
    assert [row["model_version"] for row in lines(tmp_path / "rows")] == list(range(20))
