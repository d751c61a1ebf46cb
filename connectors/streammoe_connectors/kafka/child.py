"""The process that reads from Kafka for a `KafkaSource`.

kafka-python decodes records in Python, and receives them in small pieces; in one process with a learning thread each
would wait for the other. Commands, including settings and passwords, arrive as frames on the standard input; records
leave as frames on the standard output. When either is closed, the daemon is gone and this process ends. The status goes
through a further pipe, the descriptor of which is the only argument: it must not wait behind the records.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from streammoe.errors import ConfigError, SourceError
from streammoe_connectors.kafka.frames import Failed, Inlet, Log, Outlet, Start
from streammoe_connectors.kafka.link import LOG_INTERVAL_SECONDS
from streammoe_connectors.kafka.reader import POLL_SECONDS, Reader
from streammoe_connectors.kafka.settings import secrets_of


class ForwardHandler(logging.Handler):
    """A handler that passes log lines to the daemon without passwords, and repeats a line only after a while.

    That is as long as its attribute `interval` says, in seconds, or the default for lines of clients. Passwords are
    read again for each line, since clients that are made later read them again, too.
    """

    def __init__(self, reader: Reader, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._reader = reader
        self._options = options
        self._secrets: set[str] = set()
        self._next_at: dict[str, float] = {}
        """When lines may be repeated, by their places in the code."""

    def emit(self, record: logging.LogRecord) -> None:
        is_error = record.name.startswith(("kafka.net", "librdkafka")) and record.levelno >= logging.ERROR
        interval = getattr(record, "interval", 0.0 if record.name.startswith("streammoe") else LOG_INTERVAL_SECONDS)
        now, place = time.monotonic(), f"{record.pathname}:{record.lineno}"
        is_due = now >= self._next_at.get(place, 0.0)
        if not (is_due or is_error):
            return
        message = record.getMessage()
        with suppress(ConfigError):  # a file that cannot be read has given no client a password that is not known here
            self._secrets.update(secrets_of(self._options))
        for secret in self._secrets:
            message = message.replace(secret, "***")
        if is_error:
            self._reader.link.hear(message)
        if is_due:
            self._next_at[place] = now + interval
            self._reader.logs.append(Log(record.levelno, record.name, message))


def main() -> None:
    """Serve the daemon over the standard input and output."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    for number in signals:
        # They reach the whole group, but are for the daemon, which sends the command to close once its batch is done.
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
    # Prints must not get between frames.
    output = os.dup(1)
    os.dup2(2, 1)
    inlet, outlet, shown = Inlet(0), Outlet(output), Outlet(int(sys.argv[1]))
    status = 0
    try:
        _serve(inlet, outlet, shown)
        while outlet.pending:
            outlet.flush(POLL_SECONDS)
    except (BrokenPipeError, EOFError):
        pass  # the daemon is gone
    except Exception:  # noqa: BLE001 - the daemon reports the status and this output
        traceback.print_exc()
        status = 1
    # A normal exit would wait for kafka-python's threads.
    sys.stderr.flush()
    os._exit(status)


def _serve(inlet: Inlet, outlet: Outlet, shown: Outlet) -> None:
    start = inlet.next()
    if not isinstance(start, Start):
        return
    os.set_blocking(0, False)
    try:
        reader = Reader(start, inlet, outlet, shown)
        logging.basicConfig(level=logging.WARNING, handlers=[ForwardHandler(reader, start.options)])
        logging.getLogger("streammoe.source").setLevel(start.log_level)
        # It warns whenever parsing delays its other thread by 0.1 s, as happens on a busy machine.
        logging.getLogger("kafka.net.selector").setLevel(logging.ERROR)
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        try:
            reader.run()
        finally:
            reader.send_logs()
    except (ConfigError, SourceError) as error:
        outlet.send(Failed(isinstance(error, ConfigError), str(error)))


if __name__ == "__main__":
    main()
