"""SIGHUP as a wish, from the first moment on; `reload` fulfils it."""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self


class HangupFlag:
    """Set by SIGHUP while it is entered, so that the signal no longer ends the process."""

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
