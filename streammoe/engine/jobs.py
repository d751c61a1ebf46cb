"""Long computations in pieces, which are done all at once, or bit by bit between events.

A job is a generator that yields after each piece, with the multiply-adds that the piece has taken, roughly.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from streammoe.engine.interruption import FitCancelled, is_cancelled, uncancellable
from streammoe.engine.state import UnsoundError

T = TypeVar("T")
Job: TypeAlias = Generator[float, None, T]


def finished(job: Job[T]) -> T:
    """Do all pieces of a job and return its result."""
    with np.errstate(all="ignore"):  # the result is judged instead
        while True:
            try:
                next(job)
            except StopIteration as end:
                found: T = end.value
                return found


class Progress(Generic[T]):
    """A job that is done bit by bit.

    It depends on nothing but what it is made of, so models that are copies of each other may share it: what one has
    done need not be done again, and whether it has ended for a model depends only on the work that this model asks for.

    Args:
        make: makes the job; called again if a piece was interrupted, since such a job cannot be continued.
    """

    def __init__(self, make: Callable[[], Job[T]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._begin_again()

    def _begin_again(self) -> None:
        self._job: Job[T] | None = None
        self._done = 0.0
        self._has_ended = False
        self._result: Any = None
        self._error: UnsoundError | None = None

    def advance(self, work: float) -> bool:
        """Do pieces until they amount to this much work since the beginning; return whether less is the whole job.

        Raises:
            FitCancelled: a stop was requested before a piece; what was done is kept.
        """
        with self._lock:
            while not self._has_ended and self._done < work:
                if is_cancelled():
                    raise FitCancelled
                self._do_piece()
            return self._has_ended and self._done < work

    def result(self) -> T:
        """Return the result of a job that has ended.

        Raises:
            UnsoundError: it has none that is finite.
        """
        if self._error is not None:
            raise self._error
        found: T = self._result
        return found

    def _do_piece(self) -> None:
        if self._job is None:
            self._job = self._make()
        try:
            with np.errstate(all="ignore"), uncancellable():
                self._done += next(self._job)
        except StopIteration as end:
            self._has_ended, self._result = True, end.value
        except UnsoundError as error:
            self._has_ended, self._error = True, error
        except BaseException:
            self._begin_again()
            raise
