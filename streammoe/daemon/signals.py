"""Signals as flags that the loop checks.

SIGTERM and SIGINT finish the batch, save and exit; a second one, or one before there is anything to save, exits
immediately. SIGHUP reloads the settings.
"""

from __future__ import annotations

import os
import signal
from types import FrameType
from typing import Any, Self

STOPS = (signal.SIGTERM, signal.SIGINT)


class HangupFlag:
    """Context in which SIGHUP sets a flag, until the loop reloads the settings, instead of ending the process.

    The handler does nothing else, so that it needs no lock that the interrupted code may hold.
    """

    signals: tuple[signal.Signals, ...] = (signal.SIGHUP,)

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {each: signal.signal(each, self._handle) for each in self.signals}
        return self

    def __exit__(self, *_: object) -> None:
        for each, handler in self._before.items():
            signal.signal(each, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.requested = True


class StopFlag(HangupFlag):
    """Context in which the first SIGTERM or SIGINT sets a flag, and the second ends the process.

    Args:
        armed: whether there may be something to finish and to save, an attribute that may be set. Otherwise the first
            signal ends the process with exit code 128 + the signal's number.
    """

    signals = STOPS

    def __init__(self, *, armed: bool = True) -> None:
        super().__init__()
        self.armed = armed
        self._number = signal.SIGINT

    @property
    def exit_code(self) -> int:
        """For a process that the signal has left without a result."""
        return 128 + self._number

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested or not self.armed:
            # Not sys.exit, which would run clean-up that may be what hangs. The last checkpoint is always valid.
            os._exit(128 + number)
        self._number = signal.Signals(number)
        self.requested = True
