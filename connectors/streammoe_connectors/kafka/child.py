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
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from queue import SimpleQueue
from typing import Any

from streammoe.errors import ConfigError, SourceError
from streammoe_connectors.kafka.frames import Close, Failed, Inlet, Log, Message, Outlet, Start
from streammoe_connectors.kafka.link import LOG_INTERVAL_SECONDS
from streammoe_connectors.kafka.reader import POLL_SECONDS, Reader
from streammoe_connectors.kafka.settings import secrets_of


class ForwardHandler(logging.Handler):
    """A handler that passes log lines to the daemon without passwords, and repeats a line only after a while.

    Passwords are read again for each line, since clients that are made later read them again, too.
    """

    def __init__(self, reader: Reader, options: Mapping[str, Any]) -> None:
        super().__init__()
        self._reader = reader
        self._options = options
        self._secrets: set[str] = set()
        self._logged: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        now = time.monotonic()
        message = record.getMessage()
        with suppress(ConfigError):  # a file that cannot be read has given no client a password that is not known here
            self._secrets.update(secrets_of(self._options))
        for secret in self._secrets:
            message = message.replace(secret, "***")
        if record.name.startswith(("kafka.net", "librdkafka")) and record.levelno >= logging.ERROR:
            self._reader.link.hear(message)
        if not record.name.startswith("streammoe"):
            line = f"{record.pathname}:{record.lineno}"
            if now - self._logged.get(line, -LOG_INTERVAL_SECONDS) < LOG_INTERVAL_SECONDS:
                return
            self._logged[line] = now
        self._reader.logs.append(Log(record.levelno, record.name, message))


def _read_commands(inlet: Inlet, commands: SimpleQueue[Message]) -> None:
    """Queue incoming commands; end the process once the daemon is gone."""
    command: Message | None = None
    try:
        while True:
            command = inlet.next()
            if command is not None:
                commands.put(command)
    except EOFError:
        if not isinstance(command, Close):
            os._exit(0)


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
    inlet = Inlet(0)
    start = None
    with suppress(EOFError):
        start = inlet.next()
    if not isinstance(start, Start):
        return
    commands: SimpleQueue[Message] = SimpleQueue()
    threading.Thread(target=_read_commands, args=(inlet, commands), daemon=True).start()
    outlet, shown = Outlet(output), Outlet(int(sys.argv[1]))
    status = 0
    try:
        _serve(start, outlet, shown, commands)
        while outlet.pending:
            outlet.flush(POLL_SECONDS)
    except BrokenPipeError:
        pass  # the daemon is gone
    except Exception:  # noqa: BLE001 - the daemon reports the status and this output
        traceback.print_exc()
        status = 1
    # A normal exit would wait for kafka-python's threads.
    sys.stderr.flush()
    os._exit(status)


def _serve(start: Start, outlet: Outlet, shown: Outlet, commands: SimpleQueue[Message]) -> None:
    try:
        reader = Reader(start, outlet, shown, commands)
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
