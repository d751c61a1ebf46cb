"""A steady rate."""

from __future__ import annotations

import time
from collections.abc import Callable

_LATE = 0.1
"""Seconds that are made up for by going faster. What is later stays late, so that a pause ends in no burst."""
_EARLY = 0.001
"""Seconds that a record may be early: sleeping for less takes longer than it should."""
_NAP = 0.1
"""Longest sleep in one piece, so that a stop signal is heard."""


class Pace:
    """Holds a loop to a rate.

    Args:
        rate: turns a second; 0 never waits.
        clock: seconds of a monotonic clock.
        sleep: waits for so many seconds.
    """

    def __init__(
        self,
        rate: float,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._interval = 1.0 / rate if rate else 0.0
        self._clock = clock
        self._sleep = sleep
        self._due = clock()

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Return when the next turn is due, or soon after `stopped` says so."""
        if not self._interval:
            return
        now = self._clock()
        if now - self._due > _LATE:
            self._due = now
        while self._due - now > _EARLY and not stopped():
            self._sleep(min(self._due - now, _NAP))
            now = self._clock()
        self._due += self._interval
