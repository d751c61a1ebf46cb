"""Signals as flags that the loop checks.

SIGTERM and SIGINT finish the batch, save and exit; a second one, or one before there is anything to save, exits
immediately. SIGHUP reloads the settings.
"""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Self

STOPS = (signal.SIGTERM, signal.SIGINT)


class StopFlag:
    """Context in which the first SIGTERM or SIGINT sets a flag, and the second ends the process.

    The handler does nothing else, so that it needs no lock that the interrupted code may hold.

    Args:
        armed: whether there may be something to finish and to save. Before `arm` is called, the first signal ends the
            process with exit code 128 + the signal's number.
    """

    def __init__(self, *, armed: bool = True) -> None:
        self.requested = False
        self._number = signal.SIGINT
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

    @property
    def exit_code(self) -> int:
        """For a process that the signal has left without a result."""
        return 128 + self._number

    def arm(self) -> None:
        """Let the first signal only set the flag from now on."""
        self._armed = True

    def disarm(self) -> None:
        """Let a signal end the process at once again."""
        self._armed = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self._armed:
            # Not sys.exit, which would run clean-up that may be what hangs. The last checkpoint is always valid.
            os._exit(128 + number)
        self._number = signal.Signals(number)
        self.requested = True


class HangupFlag:
    """Context in which SIGHUP sets a flag, until the loop reloads the settings, instead of ending the process."""

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
