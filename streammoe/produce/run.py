"""From a file's first record to the last acknowledgement."""

from __future__ import annotations

import logging
import time
from collections.abc import Generator
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from streammoe.assembly import connectors
from streammoe.errors import ConfigError
from streammoe.ports import Source
from streammoe.produce.messages import Message, Messages
from streammoe.produce.pace import Pace
from streammoe.produce.topic import Topic, client_settings
from streammoe.runtime.daemon import POLL_SECONDS, ProgressListener
from streammoe.runtime.signals import StopFlag

LOGGER = logging.getLogger("streammoe.produce")
BLOCK_BYTES = 1 << 16
"""Read at once: little, so that a bar moves also at a low rate."""
LONGEST_BYTES = 1 << 24
"""Of a record; brokers have limits of their own, 1 MiB unless told otherwise."""


class Produced(NamedTuple):
    """What was done."""

    records: int
    seconds: float
    topic: str

    def __str__(self) -> str:
        rate = self.records / max(self.seconds, 1e-9)
        return f"{self.records:,} records in {self.seconds:.1f} s, {rate:,.0f}/s, topic {self.topic}"


def produce(
    file: str,
    *,
    servers: str,
    topic: str,
    stop: StopFlag,
    form: str = "json",
    key: str | None = None,
    timestamp: str | None = None,
    rate: float = 0.0,
    partitions: int | None = None,
    repeat: int = 1,
    limit: int | None = None,
    config: Path | None = None,
    on_batch: ProgressListener,
) -> Produced:
    """Send the records of a file to a topic, in order.

    Args:
        file: path or glob of csv, jsonl (also .gz) or Parquet files.
        servers: addresses of brokers, between commas.
        topic: its name; it is made if it is missing.
        stop: asked before each record whether to end.
        form: see `Messages`; also `key` and `timestamp`.
        rate: records a second; 0 is as fast as possible.
        partitions: see `Topic`.
        repeat: how often the file is played.
        limit: most records to send, all repetitions together.
        config: TOML file with further settings of kafka-python.
        on_batch: told the progress.

    Raises:
        ConfigError: an argument cannot be used.
        SourceError: the file cannot be read, or the broker not be written to.
    """
    messages = Messages(form=form, key=key, timestamp=timestamp)
    settings = client_settings(config)
    source = _opened(file)  # before the topic: a mistyped name must leave no topic behind
    try:
        to = Topic(servers, topic, partitions=partitions, paced=rate > 0, settings=settings)
    except BaseException:
        source.close()
        raise
    started = time.monotonic()
    pace = Pace(rate)
    try:
        with closing(_all(file, source, messages, repeat, on_batch)) as found:
            for message in islice(found, limit):
                pace.wait(lambda: stop.requested)
                if stop.requested:
                    break
                try:
                    to.send(message)
                except ValueError:
                    messages.troubles["were larger than the client allows (max_request_size) and not sent"] += 1
        to.flush()
        took = time.monotonic() - started
    finally:
        to.close()
    for trouble, records in messages.troubles.items():
        LOGGER.warning("%d of the records %s", records, trouble)
    return Produced(to.acknowledged, took, topic)


def _opened(file: str) -> Source:
    if not file:
        raise ConfigError("FILE: must be the path of a file, or a glob")
    connector = connectors()["file"]
    settings = connector.Settings(
        kind="file", path=file, block_bytes=BLOCK_BYTES, block_rows=1 << 10, max_record_bytes=LONGEST_BYTES
    )
    source: Source = connector(settings)
    try:
        source.seek(None)
    except BaseException:
        source.close()
        raise
    return source


def _all(
    file: str, source: Source, messages: Messages, repeat: int, on_batch: ProgressListener
) -> Generator[Message, None, None]:
    """The messages of the file, so many times; the first time from `source`."""
    for turn in range(repeat):
        if turn:
            source = _opened(file)
        try:
            while not source.finished:
                batch = source.poll(POLL_SECONDS)
                if batch is not None:
                    yield from messages.of(batch)
                done, total = source.progress() or (0, 0)
                on_batch((turn * total + done, repeat * total))
        finally:
            source.close()
