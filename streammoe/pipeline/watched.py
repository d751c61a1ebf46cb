"""Sinks that show other threads how long they have kept their caller waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum, auto
from typing import Generic, TypeVar

from streammoe.errors import RetriableCheckpointError
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

    A wait begins with a call. If that has to be repeated, or fails for want of an answer, the wait goes on until a call
    is answered, also across a replacement of the sink.
    """

    def __init__(self) -> None:
        self.rejection: Callable[[], str] = str
        """Returns that of the sink, see `Sink.rejection`."""
        self._lock = threading.Lock()
        self._called_at: float | None = None
        self._unanswered_since: float | None = None
        self._ended = 0.0

    @property
    def seconds(self) -> float:
        """How long the wait has lasted; 0 if nobody waits."""
        return self._times[0]

    @property
    def total(self) -> float:
        """How long all waits together have lasted so far, the present one included."""
        return sum(self._times)

    @property
    def _times(self) -> tuple[float, float]:
        with self._lock:
            since = self._called_at if self._unanswered_since is None else self._unanswered_since
            return (0.0 if since is None else time.monotonic() - since), self._ended

    @contextmanager
    def call(self) -> Iterator[Callable[[Outcome], None]]:
        """Measure a call, and yield a function that tells its outcome, if it is not that the sink has answered."""
        outcome = Outcome.ANSWERED

        def tell(told: Outcome) -> None:
            nonlocal outcome
            outcome = told

        started = time.monotonic()
        with self._lock:
            self._called_at = started
        try:
            yield tell
        except RetriableCheckpointError:  # learning goes on, see `RetryPolicy`
            raise
        except BaseException:  # another sink takes its place, or the daemon ends
            outcome = Outcome.UNANSWERED
            raise
        finally:
            with self._lock:
                self._called_at = None
                since = started if self._unanswered_since is None else self._unanswered_since
                if outcome is Outcome.UNANSWERED:
                    self._unanswered_since = since
                elif outcome is Outcome.ANSWERED:
                    self._unanswered_since = None
                if self._unanswered_since is None:
                    self._ended += time.monotonic() - since


class _Watched(Generic[S]):
    """What both kinds of sinks have in common.

    Args:
        sink: does the work.
        wait: measures its calls.
    """

    def __init__(self, sink: S, wait: SinkWait) -> None:
        self._sink = sink
        self._wait = wait
        wait.rejection = lambda: sink.rejection

    @property
    def rejection(self) -> str:
        return self._sink.rejection

    def flush(self) -> None:
        with self._wait.call():
            self._sink.flush()

    @property
    def overdue(self) -> bool:
        return self._sink.overdue

    def begin_flush(self) -> Callable[[], None]:
        # It is completed in another thread, for which learning does not wait.
        with self._wait.call():
            return self._sink.begin_flush()

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
