"""Signals as flags that the loop looks at.

SIGTERM and SIGINT finish the batch, save and leave; a second one, or one before there is anything to save, leaves at
once. SIGHUP asks for the settings to be read again.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

STOPS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """Set by the first SIGTERM or SIGINT while it is entered.

    The handler does nothing else: whatever the interrupted code was doing, it holds no lock that a handler needs.

    Args:
        armed: whether there may be something to finish and to save. Until `arm` is called the first signal already ends
            the process, whatever it is doing, with 128 + the signal's number.
    """

    def __init__(self, *, armed: bool = True) -> None:
        self.requested = False
        self._armed = armed
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {stop: signal.signal(stop, self._handle) for stop in STOPS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for stop, handler in self._before.items():
            signal.signal(stop, handler)

    def arm(self) -> None:
        """From here on the first signal only sets the flag."""
        self._armed = True

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._armed:
            # Not sys.exit: it would run clean-up that may be what hangs. The last checkpoint is sound at any moment.
            os._exit(128 + number)
        self.requested = True


class HangupFlag:
    """Remembers SIGHUP until the loop reloads the settings; while it is entered, it does not end the process."""

    def __init__(self) -> None:
        self.requested = False
        self._before: Any = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGHUP, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGHUP, self._before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
