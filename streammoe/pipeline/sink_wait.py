"""How long a sink has kept its callers waiting, for other threads to see."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from streammoe.errors import RetriableCheckpointError


class SinkWait:
    """How long the callers of a sink have been waiting for its answer.

    A wait begins with a call. If that fails for want of an answer, the wait goes on until a call is answered, also
    across a replacement of the sink.
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
    def call(self, *, is_answer: bool = True) -> Iterator[None]:
        """Measure a call; unless it `is_answer`, the sink may only have buffered when it returns."""
        started, failed = time.monotonic(), False
        with self._lock:
            self._called_at = started
        try:
            yield
        except RetriableCheckpointError:  # it is called again, see `Checkpoints.save`
            raise
        except BaseException:  # another sink takes its place, or the daemon ends
            failed = True
            raise
        finally:
            with self._lock:
                self._called_at = None
                since = started if self._unanswered_since is None else self._unanswered_since
                if failed:
                    self._unanswered_since = since
                elif is_answer:
                    self._unanswered_since = None
                if self._unanswered_since is None:
                    self._ended += time.monotonic() - since
