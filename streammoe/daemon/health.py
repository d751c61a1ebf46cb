"""What probes and metrics show of a daemon while its learning loop is busy, or waits for something."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from streammoe.pipeline.sink_wait import SinkWait
from streammoe.ports import SourceStatus

LOGGER = logging.getLogger("streammoe.daemon")
ALIVE_SECONDS = 300.0
"""How long one iteration of the loop may take. It must cover the longest one, such as a fit of a wide model; whoever
wants to wait longer says so where the probe is set up."""
SLOW_SECONDS = 10.0
"""How long a wait for a sink lasts before it is logged and the daemon is not ready any more."""


class Health:
    """The state behind probes and metrics that must be true at any time; all threads read it.

    It outlives a sink that is replaced within the process, and with it the waits for that sink and the time since the
    last durable checkpoint. An idle source is healthy: the loop iterates whether or not records arrive.

    Args:
        patience: seconds that one iteration of the loop may take, waits for sinks apart.
    """

    def __init__(self, patience: float = ALIVE_SECONDS) -> None:
        self.patience = patience
        self.ready = False
        """Whether state and position are restored and the source has responded."""
        self.unsaved = ""
        """Why nothing can be saved at present; empty if saving works."""
        self.source: Callable[[], SourceStatus] = partial(SourceStatus, connected=False)
        """Returns the status of the source."""
        self.saved_at = time.monotonic()
        """When (`time.monotonic`) the state of the last durable checkpoint was taken, or the start."""
        self.waits = {section: SinkWait() for section in ("predictions", "dead_letters")}
        """How long the sinks have kept the daemon waiting, by the sections of the settings that describe them."""
        self._beat_at = time.monotonic()

    def beat(self) -> None:
        """Record an iteration of the loop."""
        self._beat_at = time.monotonic()

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last iteration of the loop."""
        return time.monotonic() - self._beat_at

    @property
    def alive(self) -> bool:
        """Whether the last iteration of the loop is recent enough, or goes on as soon as a sink answers."""
        return self.silent_seconds <= self.patience or any(wait.seconds for wait in self.waits.values())

    @property
    def problem(self) -> str:
        """Why the daemon is not ready; empty if it is."""
        if self.unsaved:
            return f"nothing can be saved: {self.unsaved}"
        lasted = {section: wait.seconds for section, wait in self.waits.items()}
        slow = {section: seconds for section, seconds in lasted.items() if seconds > SLOW_SECONDS}
        if slow:
            waits = (f"[{name}] has not answered for {slow[name]:.0f} s{self.rejected(name)}" for name in slow)
            return f"learning waits: {', '.join(waits)}"
        if refused := self.source().refused:
            return f"nothing can be read: {refused}"
        return "" if self.ready else "not ready: restoring state or connecting"

    def rejected(self, section: str) -> str:
        """Return why the brokers of a sink reject it, in brackets; empty if they do not."""
        rejection = self.waits[section].rejection()
        return rejection and f" (it is rejected: {rejection})"


@contextmanager
def waits_logged(health: Health, check_seconds: float = 0.5) -> Iterator[None]:
    """Log when a sink keeps the daemon waiting, and when it goes on, each once.

    A thread does so, since the loop is blocked meanwhile.

    Args:
        health: knows the waits.
        check_seconds: time between two looks at them.
    """
    closed = threading.Event()
    thread = threading.Thread(target=_log_waits, args=(health, closed, check_seconds), name="waits", daemon=True)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()


def _log_waits(health: Health, closed: threading.Event, check_seconds: float) -> None:
    lasted: dict[str, float] = {}
    """How long the waits that were logged had lasted at the last look."""
    while not closed.wait(check_seconds):
        for section, wait in health.waits.items():
            before, seconds = lasted.pop(section, 0.0), wait.seconds
            if seconds < before:
                message = "[%s] answers again after %.0f s; learning goes on"
                LOGGER.warning(message, section, before, extra={"event": "sink_answers"})
            elif before or seconds >= SLOW_SECONDS:
                lasted[section] = seconds
                if not before:
                    message = "[%s] has not answered for %.0f s%s; learning waits until it does"
                    rejected = health.rejected(section)
                    LOGGER.warning(message, section, seconds, rejected, extra={"event": "sink_waits"})
