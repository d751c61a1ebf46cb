"""Send a file to a topic, from the first record to the last acknowledgement."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from streammoe.commands.produce.messages import MessageConverter
from streammoe.commands.produce.pace import Pace
from streammoe.configuration import WRITERS, connectors
from streammoe.daemon.loop import POLL_SECONDS, ProgressListener
from streammoe.daemon.signals import StopFlag
from streammoe.errors import ConfigError, SinkError
from streammoe.ports import Message, RecordWriter, Source
from streammoe.text import counted

LOGGER = logging.getLogger("streammoe.commands.produce")
BLOCK_BYTES = 1 << 16
"""Bytes read at once: few, so that the progress bar moves even at a low rate."""
MAX_RECORD_BYTES = 1 << 24
"""Maximum bytes of a record; topics have limits of their own, 1 MiB by default."""
_INTEGER_RATE = 10
"""Rates from this many records per second on are shown as integers."""


class ProduceResult(NamedTuple):
    """Result of a run."""

    records: int
    seconds: float
    topic: str

    def __str__(self) -> str:
        rate = self.records / max(self.seconds, 1e-9)
        shown = f"{rate:,.0f}" if rate >= _INTEGER_RATE else f"{rate:.2g}"
        return f"{self.records:,} records in {self.seconds:.1f} s, {shown}/s, topic {self.topic}"


def produce(
    file: str,
    *,
    servers: str,
    topic: str,
    stop: StopFlag,
    form: str = "json",
    read_as: str | None = None,
    key: str | None = None,
    timestamp: str | None = None,
    rate: float = 0.0,
    partitions: int | None = None,
    repeat: int = 1,
    limit: int | None = None,
    config: Path | None = None,
    on_batch: ProgressListener,
) -> ProduceResult:
    """Send the records of a file to a topic, in order.

    Args:
        file: path or glob of csv, jsonl (also .gz) or Parquet files.
        servers: addresses of brokers, comma-separated.
        topic: name; the topic is created if it does not exist.
        stop: checked before each record.
        form: see `MessageConverter`; also `key` and `timestamp`.
        read_as: ``csv``, ``jsonl`` or ``parquet``; by default from the file extension.
        rate: records per second; 0 is as fast as possible.
        partitions: of a topic to create (default 1); an existing one must have that many.
        repeat: how often the file is played.
        limit: maximum number of records to send, over all repetitions.
        config: TOML file with further settings of the client.
        on_batch: called with the progress.

    Raises:
        ConfigError: an argument cannot be used, or no record has the field of key or timestamp.
        SourceError: the file cannot be read.
        SinkError: the topic cannot be written; or all records were written except for some that are too large.
    """
    messages = MessageConverter(form=form, key=key, timestamp=timestamp)
    writer = connectors(WRITERS)["kafka"]
    settings = writer.settings(config)
    source = _open_file(file, read_as)  # before creating the topic: a mistyped file name must not leave a topic behind
    try:
        to: RecordWriter = writer(servers, topic, partitions=partitions, low_latency=rate > 0, settings=settings)
    except BaseException:
        source.close()
        raise
    started = time.monotonic()
    pace = Pace(rate)
    try:
        with closing(_all_messages(source, lambda: _open_file(file, read_as), messages, repeat, on_batch)) as outgoing:
            for message in islice(outgoing, limit):
                pace.wait(lambda: stop.requested)
                if stop.requested:
                    break
                to.send(message, messages.records)
        to.flush()
        took = time.monotonic() - started
        oversized = to.oversized_report()
        problems = [oversized] if oversized else []
    finally:
        to.close()
    for trouble, records in messages.troubles.items():
        LOGGER.warning("%d records %s", records, trouble)
    if messages.too_long:
        problems.append(
            f"{file}: {counted(len(messages.too_long), 'record')} not written (first record {messages.too_long[0]}): "
            f"longer than the limit of {MAX_RECORD_BYTES} bytes; remove such records from the file"
        )
    if problems:
        raise SinkError(
            "; ".join([*problems, f"{counted(to.acknowledged, 'other record')} written to topic {topic!r}"])
        )
    messages.check_fields()
    return ProduceResult(to.acknowledged, took, topic)


def _open_file(file: str, read_as: str | None) -> Source:
    if not file:
        raise ConfigError("FILE: must be the path of a file, or a glob")
    connector = connectors()["file"]
    settings = connector.Settings(
        kind="file",
        path=file,
        format=read_as or "auto",
        block_bytes=BLOCK_BYTES,
        block_rows=1 << 10,
        max_record_bytes=MAX_RECORD_BYTES,
    )
    source: Source = connector(settings)
    try:
        source.seek(None)
    except BaseException:
        source.close()
        raise
    return source


def _all_messages(
    source: Source, reopen: Callable[[], Source], messages: MessageConverter, repeat: int, on_batch: ProgressListener
) -> Generator[Message, None, None]:
    """Yield the messages of the file `repeat` times, first from `source`, then from new sources."""
    for turn in range(repeat):
        if turn:
            source = reopen()
        try:
            while not source.finished:
                batch = source.poll(POLL_SECONDS)
                if batch is not None:
                    yield from messages.from_batch(batch)
                done, total = source.progress() or (0, 0)
                on_batch((turn * total + done, repeat * total))
        finally:
            source.close()
