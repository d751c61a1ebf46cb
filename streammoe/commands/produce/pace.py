"""Keep a loop at a steady rate."""

from __future__ import annotations

import time
from collections.abc import Callable

_MAX_DELAY = 0.1
"""Delays up to this many seconds are caught up; longer ones are not, so that a pause does not end in a burst."""
_TOLERANCE = 0.001
"""Seconds that a record may be early: shorter sleeps are inaccurate."""
_MAX_SLEEP = 0.1
"""Maximum seconds to sleep before checking for a stop."""


class Pace:
    """Limiter of a loop to a rate.

    Args:
        rate: iterations per second; 0 never waits.
        clock: monotonic clock in seconds.
        sleep: sleeps for a number of seconds.
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
        """Wait until the next iteration is due, or until `stopped` returns True."""
        if not self._interval:
            return
        now = self._clock()
        if now - self._due > _MAX_DELAY:
            self._due = now
        while self._due - now > _TOLERANCE and not stopped():
            self._sleep(min(self._due - now, _MAX_SLEEP))
            now = self._clock()
        self._due += self._interval
