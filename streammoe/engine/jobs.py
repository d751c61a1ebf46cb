"""Long computations that run either at once or in steps between events.

A job is a generator that yields after each step the approximate number of multiply-adds that the step took.
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


def run_job(job: Job[T]) -> T:
    """Run a job to its end and return its result."""
    with np.errstate(all="ignore"):  # the result is checked instead
        while True:
            try:
                next(job)
            except StopIteration as end:
                result: T = end.value
                return result


class StepwiseJob(Generic[T]):
    """A job that runs in steps.

    The job must be deterministic, so that copies of a model can share it: a step that ran for one copy is not repeated
    for the others, and whether the job has ended for a copy depends only on the work that this copy has asked for.

    Args:
        make: creates the job; called again if a step was interrupted, since a generator that raised cannot continue.
    """

    def __init__(self, make: Callable[[], Job[T]]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._job: Job[T] | None = None
        self._done = 0.0
        self._has_ended = False
        self._result: Any = None
        self._error: UnsoundError | None = None

    def advance(self, work: float) -> bool:
        """Run steps until their work amounts to `work` in total; return whether the job ended with less.

        Raises:
            FitCancelled: a stop was requested between two steps; what was computed so far is kept.
        """
        with self._lock:
            while not self._has_ended and self._done < work:
                if is_cancelled():
                    raise FitCancelled
                self._run_step()
            return self._has_ended and self._done < work

    def result(self) -> T:
        """Return the result of a job that has ended.

        Raises:
            UnsoundError: the job found no finite parameters.
        """
        if self._error is not None:
            raise self._error
        result: T = self._result
        return result

    def _run_step(self) -> None:
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
            self._reset()
            raise
