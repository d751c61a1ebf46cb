"""Signals as flags that the loop checks.

SIGTERM and SIGINT finish the batch, save and exit; a second one, or one before there is anything to save, exits
immediately. SIGHUP reloads the settings.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, Self

LOGGER = logging.getLogger("streammoe.daemon")

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


class StopDeadline:
    """Context in which a stop that takes too long ends the process, whatever it hangs in.

    Python calls handlers of signals between two instructions of the main thread, which a batch or a disk may keep from
    coming. A thread is told of signals by the handler in C instead.

    Args:
        seconds: how long a stop may take, asked for when it is requested.
        last_words: what to log before the process ends with 128 + the signal's number.
    """

    def __init__(self, seconds: Callable[[], float], last_words: Callable[[], str]) -> None:
        self._seconds, self._last_words = seconds, last_words
        self._told, self._tell = socket.socketpair()
        self._tell.setblocking(False)
        self._thread = threading.Thread(target=self._run, name="stop", daemon=True)

    def __enter__(self) -> Self:
        self._before = signal.set_wakeup_fd(self._tell.fileno(), warn_on_full_buffer=False)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._before)
        self._tell.close()
        self._thread.join()
        self._told.close()

    def _run(self) -> None:
        numbers = iter(lambda: self._told.recv(1), b"")
        number = next((each[0] for each in numbers if each[0] in STOPS), None)
        if number is None:
            return
        self._told.settimeout(self._seconds())
        with suppress(TimeoutError):
            for _ in numbers:
                pass
            return
        LOGGER.error("%s", self._last_words(), extra={"event": "not_saved"})
        os._exit(128 + number)
