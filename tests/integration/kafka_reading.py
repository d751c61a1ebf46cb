"""Kafka sources for tests: settings of a broker, and reading to the end."""

import time
import uuid
from contextlib import contextmanager

from streammoe.testing.kafka.lab import PATIENCE, wait_until
from streammoe_connectors.kafka.source import KafkaSource


def settings_of(address, topics, **more):
    """Settings of a source with a group of its own."""
    needed = {"kind": "kafka", "bootstrap_servers": address, "topics": topics, "group": f"group-{uuid.uuid4().hex[:8]}"}
    return KafkaSource.Settings(**needed | more)


@contextmanager
def opened(settings, position=None):
    """A source that is ready."""
    source = KafkaSource(settings)
    try:
        source.seek(position)
        wait_until(lambda: source.prepare(0.2), "reading can begin")
        yield source
    finally:
        source.close()


def records_of(batch):
    return [batch.record(i) for i in range(len(batch))]


def take(source, count):
    """The next records, and the batch that holds the last of them."""
    found, last, deadline = [], None, time.monotonic() + PATIENCE
    while len(found) < count:
        assert time.monotonic() < deadline, f"{len(found)} of {count} records came: {found[-3:]}"
        batch = source.poll(0.2)
        if batch is not None:
            found += records_of(batch)
            last = batch
    assert len(found) == count, found
    return found, last


def polled_until(source, condition, what):
    """Poll, which gives no batch, until the condition holds."""

    def polled():
        assert source.poll(0.1) is None
        return condition()

    wait_until(polled, what)


def read(settings, position=None):
    """All records up to the end, and the last position."""
    found = []
    with opened(settings, position) as source:
        deadline = time.monotonic() + PATIENCE
        while not source.finished:
            assert time.monotonic() < deadline, "it does not end"
            batch = source.poll(0.2)
            if batch is not None:
                found += records_of(batch)
                position = batch.end
    return found, position
