"""The process that answers the requests of a daemon, which would keep learning waiting within its own."""

from __future__ import annotations

import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

from streammoe.console import logging_set_up, set_up_logging
from streammoe.errors import ConfigError, StreammoeError
from streammoe.serving.server import PredictionServer
from streammoe.serving.snapshot import Published, Snapshot
from streammoe.settings import ServeSettings

LOGGER = logging.getLogger("streammoe.serve")
STATUS_SECONDS = 1.0
SHARE = 0.02
"""Share of the time that works at sending snapshots, at most, while batches come faster."""
LONGEST_PAUSE = 10.0
"""Seconds between two snapshots, at most, while batches come, however large they are."""
CLOSE_SECONDS = 5.0
_CONTEXT = get_context("spawn")  # threads of a parent that forks may hold locks for ever
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Answering:
    """The process, from construction to `close`, and a thread that sends it the latest snapshot and status.

    It ends with this one, however that ends; where it ends by itself, another one is started.

    Args:
        settings: the section ``[serve]``.
        interval: probability of predictive intervals, unless a request names another.
        status: returns what there is to show.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key or password cannot be used.
    """

    def __init__(self, settings: ServeSettings, interval: float, status: Callable[[], dict[str, Any]]) -> None:
        self.published = Published()
        self._settings, self._interval, self._status = settings, interval, status
        self._process, self._connection, self.url = self._started(settings)
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="answering", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the process."""
        self._closing.set()
        self.published.arrived.set()
        self._thread.join(CLOSE_SECONDS)
        self._connection.close()
        self._process.join(CLOSE_SECONDS)
        self._process.kill()

    def _started(self, settings: ServeSettings) -> tuple[BaseProcess, Connection, str]:
        """Start a process; return it, the connection to it, and its address."""
        ours_end, its_end = _CONTEXT.Pipe()
        arguments = (its_end, settings, self._interval, *logging_set_up())
        process = _CONTEXT.Process(target=_serve, args=arguments, name="answering", daemon=True)
        process.start()
        its_end.close()
        try:
            url, *problems = ours_end.recv()
        except EOFError:
            process.join()
            raise StreammoeError(f"the process that answers requests has ended with {process.exitcode}") from None
        if problems:
            raise ConfigError(*problems)
        return process, ours_end, url

    def _run(self) -> None:
        status_at = wanted_at = 0.0
        while not self._closing.is_set():
            pause = wanted_at - time.monotonic()
            self.published.is_wanted |= pause <= 0.0
            is_new = self.published.arrived.wait(min(pause, STATUS_SECONDS) if pause > 0.0 else STATUS_SECONDS)
            started, worked = time.monotonic(), time.thread_time()  # a process that begins lets a sender wait
            try:
                if is_new:
                    self.published.arrived.clear()
                    if self.published.latest is not None:
                        self._connection.send(self.published.latest)
                    worked = time.thread_time() - worked
                    wanted_at = time.monotonic() + min(worked / SHARE, LONGEST_PAUSE)
                if started - status_at >= STATUS_SECONDS:
                    status_at = started
                    self._connection.send(self._status())
            except OSError:
                self._begin_again()

    def _begin_again(self) -> None:
        """Start another process, at the same address, as soon as that is possible."""
        self._process.join(CLOSE_SECONDS)
        LOGGER.error("the process that answers requests has ended (%s); starting another", self._process.exitcode)
        port = int(self.url.rpartition(":")[2])
        while not self._closing.wait(1.0):
            try:
                started = self._started(self._settings.model_copy(update={"port": port}))
                self._process, self._connection, _ = started
                if self.published.latest is not None:
                    self._connection.send(self.published.latest)
                return
            except (StreammoeError, OSError) as error:
                LOGGER.warning("requests are not answered: %s", error)


def _serve(connection: Connection, settings: ServeSettings, interval: float, level: str, form: str) -> None:
    """Answer requests by what comes, until the other end is closed."""
    for number in _IGNORED:  # whoever sends them to all processes means the daemon
        signal.signal(number, signal.SIG_IGN)
    set_up_logging(level, form)
    sys.setswitchinterval(0.001)  # what comes must not keep answers waiting
    try:
        server = PredictionServer(settings, interval)
    except ConfigError as error:
        connection.send(("", *error.problems))
        return
    with closing(server), suppress(EOFError, ConnectionError):  # killed, perhaps while this one began
        connection.send((server.url,))
        while True:
            message = connection.recv()
            if isinstance(message, Snapshot):
                server.take(message)
            else:
                server.show(message)
