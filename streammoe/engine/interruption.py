"""Long computations that a signal can interrupt.

Python runs signal handlers in the main thread, between two steps of the interpreter, so a compiled call holds them up
for as long as it lasts. Long calls therefore run in a thread of their own, while the main thread waits for the result
or for a signal. This does not affect what is computed.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
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


def cancellable(stop_requested: Callable[[], bool]) -> AbstractContextManager[None]:
    """Let fits within the block raise `FitCancelled` half a second after `stop_requested` first returns true.

    Nearly all fits end within that time, and nothing is lost.
    """
    return _asking(_after_grace(stop_requested))


def uncancellable() -> AbstractContextManager[None]:
    """Let computations within the block finish even if a stop is requested."""
    return _asking(None)


@contextmanager
def _asking(stop_requested: Callable[[], bool] | None) -> Iterator[None]:
    token = _stop_requested.set(stop_requested)
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
    found: Future[T] = Future()
    asked, is_abandoned = _stop_requested.get(), threading.Event()

    def call() -> None:
        _stop_requested.set(lambda: is_abandoned.is_set() or (asked is not None and asked()))
        try:
            found.set_result(function(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
            found.set_exception(error)

    try:
        threading.Thread(target=copy_context().run, args=(call,), name=THREAD_NAME).start()
        while not wait([found], LOOK_SECONDS).done:
            if is_cancelled():
                raise FitCancelled
    except BaseException:
        is_abandoned.set()
        raise
    return found.result()


def has_abandoned_calls() -> bool:
    """Return whether an abandoned call is still running; the interpreter would wait for it at exit."""
    return any(thread.name == THREAD_NAME for thread in threading.enumerate())


def _after_grace(stop_requested: Callable[[], bool]) -> Callable[[], bool]:
    """Return a function that returns whether a stop was requested at least `GRACE_SECONDS` ago."""
    since = math.inf

    def asked() -> bool:
        nonlocal since
        if not stop_requested():
            return False
        now = time.monotonic()
        since = min(since, now)
        return now - since >= GRACE_SECONDS

    return asked
