"""Long computations that a signal can interrupt.

Python runs signal handlers in the main thread, between two steps of the interpreter, so a compiled call holds them up
for as long as it lasts. Long calls therefore run in a thread of their own, while the main thread waits for the result
or for a signal. This does not affect what is computed.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, ParamSpec, TypeVar

LONG = 2e7
"""Multiply-adds from which a call gets a thread: about 10 ms, compared with which a thread costs little."""
LOOK_SECONDS = 0.05
"""How often to check for a requested stop while a call runs."""
GRACE_SECONDS = 0.5
"""Time that a fit has to finish once a stop is requested."""
THREAD_NAME = "streammoe-fit"

P = ParamSpec("P")
T = TypeVar("T")

_stop_requested: ContextVar[Callable[[], bool] | None] = ContextVar("stop_requested", default=None)


class FitCancelled(BaseException):
    """A fit was abandoned because a stop was requested.

    Code that fits within `cancellable` catches it, and restores what learning had changed by then.
    """


@contextmanager
def cancellable(stop_requested: Callable[[], bool]) -> Iterator[None]:
    """Let fits within the block raise `FitCancelled` half a second after `stop_requested` first returns true.

    Nearly all fits end within that time, and nothing is lost.
    """
    token = _stop_requested.set(_Grace(stop_requested))
    try:
        yield
    finally:
        _stop_requested.reset(token)


@contextmanager
def uncancellable() -> Iterator[None]:
    """Let computations within the block finish even if a stop is requested."""
    token = _stop_requested.set(None)
    try:
        yield
    finally:
        _stop_requested.reset(token)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let a block finish even if somebody presses Ctrl-C, perhaps again; its handler runs afterwards."""
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        yield
        return
    received: list[tuple[int, Any]] = []
    signal.signal(signal.SIGINT, lambda *arguments: received.append(arguments))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if received:
            handler(*received[0])


def is_cancelled() -> bool:
    """Return whether fits in this context should stop."""
    stop_requested = _stop_requested.get()
    return stop_requested is not None and stop_requested()


def interruptible(work: float, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call a function in such a way that signals are handled while it runs.

    When a signal handler raises, or a stop is requested, the call is abandoned: it may run on for a while and write to
    its arguments, so arrays among them must belong to the fit alone.

    Args:
        work: multiply-adds that the call takes, roughly; short calls are made directly.

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


def has_abandoned_calls() -> bool:
    """Return whether an abandoned call is still running; the interpreter would wait for it at exit."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


class _Grace:
    """A function that returns whether a stop was requested at least `GRACE_SECONDS` ago."""

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
    """A call in its own thread, with the caller's context variables."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._ended = threading.Event()
        self._is_abandoned = False
        self._value: Any = None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """Wait for the function's result and return it."""
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
