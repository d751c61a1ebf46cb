"""Sinks that show other threads how long they have kept their caller waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Generic, TypeVar

from streammoe.ports import DeadLetter, DeadLetterSink, Position, Predictions, PredictionSink, Recovered, Sink

S = TypeVar("S", bound=Sink)


class Outcome(Enum):
    """What a call that returns says of the sink."""

    ANSWERED = auto()
    UNKNOWN = auto()
    """It may only have buffered."""
    UNANSWERED = auto()
    """The call is to be repeated."""


class SinkWait:
    """How long the callers of a sink have been waiting for its answer.

    A wait begins with a call. If that fails or has to be repeated, the wait goes on until a call is answered, also
    across a replacement of the sink. Calls may overlap, since a flush may be completed in another thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: dict[object, float] = {}
        self._unanswered_since: float | None = None

    @property
    def seconds(self) -> float:
        """How long the longest wait has lasted; 0 if nobody waits."""
        with self._lock:
            since = list(self._calls.values())
            if self._unanswered_since is not None:
                since.append(self._unanswered_since)
        return time.monotonic() - min(since) if since else 0.0

    @contextmanager
    def call(self) -> Iterator[Callable[[Outcome], None]]:
        """Measure a call, and yield a function that tells its outcome, if it is not that the sink has answered."""
        outcome = Outcome.ANSWERED

        def tell(told: Outcome) -> None:
            nonlocal outcome
            outcome = told

        key, started = object(), time.monotonic()
        with self._lock:
            self._calls[key] = started
        try:
            yield tell
        except BaseException:  # the call is repeated, maybe of another sink, or the daemon ends
            outcome = Outcome.UNANSWERED
            raise
        finally:
            with self._lock:
                del self._calls[key]
                if outcome is Outcome.ANSWERED:
                    self._unanswered_since = None
                elif outcome is Outcome.UNANSWERED and self._unanswered_since is None:
                    self._unanswered_since = started


class _Watched(Generic[S]):
    """What both kinds of sinks have in common.

    Args:
        sink: does the work.
        wait: measures its calls.
    """

    def __init__(self, sink: S, wait: SinkWait) -> None:
        self._sink = sink
        self._wait = wait

    def flush(self) -> None:
        with self._wait.call():
            self._sink.flush()

    @property
    def overdue(self) -> bool:
        return self._sink.overdue

    def begin_flush(self) -> Callable[[], None]:
        with self._wait.call():
            complete = self._sink.begin_flush()

        def completed() -> None:
            with self._wait.call():
                complete()

        return completed

    def close(self) -> None:
        self._sink.close()


class WatchedDeadLetters(_Watched[DeadLetterSink], DeadLetterSink):
    """A sink for rejected records whose calls are measured."""

    def write(self, letters: list[DeadLetter]) -> None:
        with self._wait.call() as tell:
            self._sink.write(letters)
            tell(Outcome.UNKNOWN)


class WatchedPredictions(_Watched[PredictionSink], PredictionSink):
    """A sink for predictions whose calls are measured."""

    def write(self, rows: Predictions) -> None:
        with self._wait.call() as tell:
            self._sink.write(rows)
            tell(Outcome.UNKNOWN)

    def position(self) -> Position | None:
        return self._sink.position()

    def restore(self, position: Position) -> Callable[[], None]:
        return self._sink.restore(position)

    @property
    def transactional(self) -> bool:
        return self._sink.transactional

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        with self._wait.call() as tell:
            recovered = self._sink.recover(timeout, position)
            if recovered is None:
                tell(Outcome.UNANSWERED)
        return recovered

    def commit(self, position: Position, generation: int) -> None:
        with self._wait.call():
            self._sink.commit(position, generation)
