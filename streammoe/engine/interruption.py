"""Long computations that a signal can interrupt.

Python runs signal handlers in the main thread, between two steps of the interpreter, so a compiled call holds them up
for as long as it lasts. Long calls therefore run in a thread of their own, while the main thread waits for the result
or for a signal. What is computed does not depend on this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

LONG = 2e7
"""Multiply-adds from which a call gets a thread: about a hundredth of a second, against which a thread costs little."""
LOOK_SECONDS = 0.05
"""Between two looks whether a stop was requested while a call runs."""
GRACE_SECONDS = 0.5
"""For a fit to end by itself once a stop is requested."""
THREAD_NAME = "streammoe-fit"

P = ParamSpec("P")
T = TypeVar("T")

_stop_requested: ContextVar[Callable[[], bool] | None] = ContextVar("stop_requested", default=None)


class FitCancelled(BaseException):
    """A stop was requested during a fit, which is given up.

    Whoever asked for a fit within `cancellable` catches it, and restores what learning had changed by then.
    """


@contextmanager
def cancellable(stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Let fits within the block raise `FitCancelled` half a second after `stop_requested` first returns true.

    Nearly all fits end before that, and nothing is lost.
    """
    token = _stop_requested.set(_Grace(stop_requested))
    try:
        yield
    finally:
        _stop_requested.reset(token)


@contextmanager
def uncancellable() -> Iterator[None]:
    """Let what the block computes come to its end, although a stop is requested."""
    token = _stop_requested.set(None)
    try:
        yield
    finally:
        _stop_requested.reset(token)


def is_cancelled() -> bool:
    """Whether a stop is requested of the fits that run here."""
    stop_requested = _stop_requested.get()
    return stop_requested is not None and stop_requested()


def interruptible(work: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function so that a signal need not wait for its end.

    On a signal handler's exception, and on a stop, the call is abandoned: it may go on for a while and write to the
    arrays that it was given, so they must belong to the fit alone.

    Args:
        work: multiply-adds that the call takes, roughly; a short one is simply made.
        function: to call with the other arguments.

    Raises:
        FitCancelled: a stop was requested before the call or during it.
    """
    if is_cancelled():
        raise FitCancelled
    # Only the main thread receives signals.
    if work < LONG or threading.current_thread() is not threading.main_thread():
        return function(*args, **kwargs)
    call = _Call(lambda: function(*args, **kwargs))
    found: T = call.result()
    return found


def is_running_on() -> bool:
    """Whether an abandoned call has yet to end; the interpreter would wait for it at its exit."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


class _Grace:
    """Whether a stop was requested `GRACE_SECONDS` ago, or earlier."""

    def __init__(self, stop_requested: Callable[[], bool]) -> None:
        self._stop_requested = stop_requested
        self._since: float | None = None

    def __call__(self) -> bool:
        if not self._stop_requested():
            return False
        now = time.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since >= GRACE_SECONDS


class _Call:
    """A call in a thread of its own, with the caller's context variables."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._ended = threading.Event()
        self._is_abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """What the function returns."""
        context = copy_context()
        asked = _stop_requested.get()
        context.run(_stop_requested.set, lambda: self._is_abandoned or (asked is not None and asked()))
        try:
            threading.Thread(target=context.run, args=(self._run,), name=THREAD_NAME).start()
            while not self._ended.wait(LOOK_SECONDS):
                if is_cancelled():
                    raise FitCancelled
        except BaseException:
            self._is_abandoned = True
            raise
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            self._error = error
        finally:
            self._ended.set()
