"""Kafka sources and sinks for tests: settings of a broker, reading to an end, and what belongs to a transaction."""

import contextlib
import json
import os
import signal
import sys
import time
import uuid
from contextlib import contextmanager

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from streammoe.ports import Predictions
from streammoe.secrets import Secret, is_secret
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.source import KafkaSource
from tests.kafka_lab.lab import PATIENCE, wait_until
from tests.process.workspace import FORKS, ROOT


class chosen:  # noqa: N801 - the client of the test that runs
    client = "kafka-python"


def numbers(*found):
    return [b"%d" % i for i in found]


# --- reading --------------------------------------------------------------------------------------------------------


def settings_of(address, topics, **more):
    """Settings of a source with a group of its own."""
    needed = {
        "kind": "kafka",
        "client": chosen.client,
        "bootstrap_servers": address,
        "topics": topics,
        "group": f"group-{uuid.uuid4().hex[:8]}",
    }
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


# --- daemons ----------------------------------------------------------------------------------------------------------


class Fork:
    """A command in a fork of a process that has imported everything, which takes a new one seconds."""

    def __init__(self, words, log):
        self.stdout, output = FORKS.Pipe(duplex=False)
        self._process = FORKS.Process(target=run_forked, args=(words, log.name, output))
        with contextlib.chdir(ROOT):  # where the server finds this module
            self._process.start()
        output.close()
        self.pid = self._process.pid

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self._process.exitcode

    def send_signal(self, number):
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def communicate(self, timeout=PATIENCE):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"waited {timeout:g} s for its end")
        with os.fdopen(os.dup(self.stdout.fileno()), "rb") as stream:
            printed = stream.read()
        self.stdout.close()
        return printed, None


def run_forked(words, log, output):
    """Run a command in the process that was forked."""
    os.setsid()
    with open(log, "ab") as stream:  # noqa: PTH123 - its descriptor is what counts
        os.dup2(stream.fileno(), 2)
    os.dup2(output.fileno(), 1)
    output.close()
    from streammoe.__main__ import main

    sys.argv[1:] = words
    main()


# --- writing --------------------------------------------------------------------------------------------------------


def sink_to(address, topic, source=None, **settings):
    """Predictions; settings that are out of range are accepted, for the sake of short tests."""
    made = KafkaPredictions.Settings(kind="kafka", topic=topic, transactional=source is not None)
    update = {"delivery_timeout_seconds": 60.0, "bootstrap_servers": (address,), "client": chosen.client, **settings}
    update |= {name: Secret.model_validate(value) for name, value in settings.items() if is_secret(name)}
    return KafkaPredictions(made.model_copy(update=update), source)


def rows(first, n, *, keys=None, **others):
    """Predictions of the records from `first` on."""
    return Predictions(
        locations=[{"path": "a.jsonl", "offset": i} for i in range(first, first + n)],
        versions=np.arange(first, first + n),
        predictions=np.arange(first, first + n)[:, None] + 0.5,
        targets=np.full((n, 1), 1.0),
        losses=np.where(np.arange(n) % 2, np.nan, 0.25),
        outputs=("y",),
        keys=keys,
        **others,
    )


def versions(records):
    return [json.loads(record.value)["model_version"] for record in records]


class Transactions:
    """A topic to read, one to write, and a group."""

    def __init__(self, topics):
        self.topics = topics
        self.read = topics.create(partitions=2)
        self.written = topics.create(name="predictions", partitions=2)
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self._opened = []

    def sink(self, **settings):
        source = settings_of(self.topics.address, self.read, group=self.group)
        self._opened.append(sink_to(self.topics.address, self.written, source, **settings))
        return self._opened[-1]

    def close(self):
        for sink in self._opened:
            sink.close()

    def recovered(self, sink, position):
        """The generation that is reported to a start of this sink, or 0."""
        for _ in range(int(2 * PATIENCE)):
            if (found := sink.recover(0.5, position)) is not None:
                return found
        raise AssertionError("nothing was reported")

    def position(self, *offsets, owner="owner-1"):
        partitions = {str(i): offset for i, offset in enumerate(offsets)}
        topics = {self.read: {"id": "1", "partitions": partitions}}
        return {"kind": "kafka", "group": self.group, "owner": owner, "shard": "0/1", "topics": topics}

    def seen(self, isolation="read_committed"):
        return sorted(versions(self.topics.read(self.written, isolation_level=isolation)))

    def is_settled(self):
        """Whether no transaction is open in the topic that is written."""
        ends = []
        for isolation in ("read_committed", "read_uncommitted"):
            consumer = KafkaConsumer(bootstrap_servers=self.topics.address, isolation_level=isolation)
            ends.append(consumer.end_offsets([TopicPartition(self.written, i) for i in (0, 1)]))
            consumer.close()
        return ends[0] == ends[1]

    def committed(self):
        """What the group has of each partition: offset, owner, generation."""
        consumer = KafkaConsumer(bootstrap_servers=self.topics.address, group_id=self.group)
        try:
            found = [consumer.committed(TopicPartition(self.read, i), metadata=True) for i in (0, 1)]
        finally:
            consumer.close()
        marks = [OffsetMetadata.parse(one.metadata) for one in found]
        return [(one.offset, mark.owner, mark.checkpoint_generation) for one, mark in zip(found, marks, strict=True)]
