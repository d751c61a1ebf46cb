"""The daemon's handle on the process that reads from Kafka."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import select
import signal
import subprocess  # nosec B404 # for the reader, an interpreter of our own
import sys
import tempfile
import threading
import time

from streammoe.errors import SourceError
from streammoe_connectors.kafka.frames import Close, Inlet, Log, Message, Outlet, Start, Status

_PIPE_BYTES = 1 << 20
_CLOSE_TIMEOUT_SECONDS = 8.0
"""Longer than the last commit may take."""
_MAX_ERROR_BYTES = 2_000


class ReaderProcess:
    """A child process that runs `kafka.child`, with the messages to and from it.

    It ends with this process, however this one ends, since its pipes are closed.

    Args:
        start: the first message. May hold passwords, so it goes through a pipe, never on a command line.
    """

    def __init__(self, start: Start) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - read once the child has died; closed by `close`
        # Signals to the group must not reach the child before it ignores them; it inherits blocked signals.
        shown, show = os.pipe()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            self._process = subprocess.Popen(  # noqa: S603 # nosec B603 # no shell, and fixed words but for a number
                # -P: files in the daemon's working directory must not be imported.
                [sys.executable, "-P", "-m", "streammoe_connectors.kafka.child", str(show)],
                pass_fds=(show,),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                bufsize=0,
            )
        finally:
            os.close(show)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        self.status = Status()
        """The latest status of the child, as of now, whatever else waits; not connected before the first one, and once
        the child has ended. Any thread may ask, also after `close`."""
        self._heard_at = time.monotonic()
        self._listener = threading.Thread(target=self._listen, args=(shown,), name="kafka-status", daemon=True)
        self._listener.start()
        if self._process.stdin is None or self._process.stdout is None:
            raise AssertionError("both are pipes")
        self._stdin, self._stdout = self._process.stdin, self._process.stdout
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with contextlib.suppress(OSError):  # the system allows less
                fcntl.fcntl(self._stdout, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        os.set_blocking(self._stdout.fileno(), False)
        self._inlet = Inlet(self._stdout.fileno())
        self._outlet = Outlet(self._stdin.fileno())
        self._poll = select.poll()
        self._poll.register(self._stdout, select.POLLIN)
        self._outlet.send(start)

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._process.pid

    @property
    def silent_seconds(self) -> float:
        """Time since the latest status came."""
        return time.monotonic() - self._heard_at

    def _listen(self, shown: int) -> None:
        inlet = Inlet(shown)
        with contextlib.suppress(EOFError):
            while isinstance(status := inlet.next(), Status):
                self.status, self._heard_at = status, time.monotonic()
        self.status = Status(counters=self.status.counters)
        os.close(shown)

    def send(self, command: Message) -> bool:
        """Send a command without waiting; return whether there was room for it."""
        try:
            self._outlet.flush()
            if self._outlet.pending:
                return False
            self._outlet.send(command)
        except BrokenPipeError:
            return False  # `receive` reports the reason
        return True

    def receive(self, timeout: float) -> Message | None:
        """Return the next message but lines for the log, or ``None`` if none is complete within `timeout` seconds.

        Raises:
            SourceError: the child has died.
        """
        deadline = time.monotonic() + timeout
        while True:
            try:
                message = self._inlet.next()
            except EOFError:
                raise self._child_died() from None
            if isinstance(message, Log):
                logging.getLogger(message.name).log(message.level, "%s", message.message)
            elif message is not None:
                return message
            remaining = deadline - time.monotonic()
            if remaining <= 0 or not self._poll.poll(remaining * 1000):
                return None

    def close(self) -> None:
        """Let the child finish, or kill it if that takes too long."""
        deadline = time.monotonic() + _CLOSE_TIMEOUT_SECONDS
        is_closing = self.send(Close())
        with contextlib.suppress(OSError):  # unwritten data
            self._stdin.close()
        with contextlib.suppress(SourceError):
            while is_closing and (remaining := deadline - time.monotonic()) > 0:
                self.receive(remaining)
        try:
            self._process.wait(max(0.1, deadline - time.monotonic()) if is_closing else 0.1)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._stdout.close()
        self._errors.close()
        self._listener.join()

    def _child_died(self) -> SourceError:
        try:
            status = self._process.wait(_CLOSE_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:  # it has closed its output, but still runs
            self._process.kill()
            status = self._process.wait()
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - _MAX_ERROR_BYTES))
        last_output = self._errors.read().decode(errors="replace").strip()
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        return SourceError(
            f"the process that reads from Kafka {how}; start again, which resumes from the last checkpoint"
            + (f". Its last output: {last_output}" if last_output else "")
        )
