"""Predictions are written in a thread of their own while the next events are learned."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from streammoe.ports import Position, Predictions, PredictionSink

MOST_WAITING = 4
"""Calls of `write` that may wait, so that memory stays bounded where the sink is slower than learning."""
SIGNAL_CHECK_SECONDS = 0.5
"""Longest delay of a signal while waiting for another thread."""


def n_cores() -> int:
    """Return on how many cores this process may run."""
    # macOS does not restrict processes to cores.
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class OverlappedPredictions(PredictionSink):
    """A sink whose `write` returns at once; rows are encoded and written by another thread, in order.

    All else first waits until what was written before has reached the sink, so that its guarantees are the same, and no
    two of its methods run at the same time. An exception in the thread is raised by the next call.

    Args:
        sink: not transactional, and used by no other object.
    """

    def __init__(self, sink: PredictionSink) -> None:
        self._sink = sink
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="predictions")
        self._writing: deque[Future[None]] = deque()

    def write(self, rows: Predictions) -> None:
        self._wait(MOST_WAITING - 1)
        self._writing.append(self._thread.submit(self._sink.write, rows))

    def flush(self) -> None:
        self._wait()
        self._sink.flush()

    @property
    def overdue(self) -> bool:
        return self._sink.overdue  # asked after each batch, and rows of one more do no harm

    def position(self) -> Position | None:
        self._wait()
        return self._sink.position()

    def restore(self, position: Position) -> Callable[[], None]:
        return self._sink.restore(position)

    def close(self) -> None:
        try:
            self._wait()
        finally:
            self._thread.shutdown()
            self._sink.close()

    def _wait(self, most: int = 0) -> None:
        """Wait until at most so many writes are under way; raise the exception of one that failed."""
        while self._writing and (len(self._writing) > most or self._writing[0].done()):
            # Not `result` alone: a signal that arrives just before an unlimited wait is noticed only after it.
            while not self._writing[0].done():
                wait([self._writing[0]], SIGNAL_CHECK_SECONDS)
            self._writing.popleft().result()
