"""A truth value that one process sets and another one reads at any time, whatever else waits between them.

It goes through a pipe of its own, since frames are read in order: a status is behind the batches before it, and a
daemon that waits for a sink reads none.
"""

from __future__ import annotations

import os
import threading

_BYTES = {False: b"0", True: b"1"}


class FlagWriter:
    """The side that sets the value.

    Args:
        descriptor: of the pipe; it is never waited for.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._shown: bool | None = None

    def show(self, value: bool) -> None:
        """Show this value from now on, or from the next call on if the pipe is full.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        if value is self._shown:
            return
        try:
            os.write(self._descriptor, _BYTES[value])
        except BlockingIOError:
            return
        self._shown = value


class FlagReader:
    """The side that reads the value; any thread may ask.

    Args:
        descriptor: of the pipe, closed by `close`.
    """

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor: int | None = descriptor
        self._lock = threading.Lock()
        self._value = False

    @property
    def value(self) -> bool:
        """The latest value; false before the first one, and once the other side is gone."""
        with self._lock:
            while self._descriptor is not None:
                try:
                    found = os.read(self._descriptor, 1 << 12)
                except BlockingIOError:
                    break
                if not found:
                    self._close()
                else:
                    self._value = found[-1:] == _BYTES[True]
            return self._value

    def close(self) -> None:
        """Close the pipe; the value is false from now on."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._value = False
