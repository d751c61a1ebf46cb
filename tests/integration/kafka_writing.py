"""Kafka sinks for tests: predictions, and what belongs to a transaction."""

import json
import uuid

import numpy as np
from kafka import KafkaConsumer, TopicPartition

from streammoe.ports import Predictions
from streammoe.testing.kafka.lab import PATIENCE
from streammoe_connectors.kafka.offsets import parse_offset_metadata
from streammoe_connectors.kafka.predictions import KafkaPredictions
from streammoe_connectors.kafka.settings import Connection


def settings_to(topic, **settings):
    """Settings of predictions; what is out of range is taken, for the sake of short tests."""
    made = KafkaPredictions.Settings(kind="kafka", topic=topic, transactional=settings.pop("transactional", False))
    return made.model_copy(update={"delivery_timeout_seconds": 60.0, **settings})


def sink_to(address, topic, **settings):
    return KafkaPredictions(settings_to(topic, bootstrap_servers=(address,), **settings), [])


def rows(first, n, *, keys=None, **others):
    """Predictions of the records from `first` on."""
    return Predictions(
        places=[{"path": "a.jsonl", "offset": i} for i in range(first, first + n)],
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


class Source(Connection):
    """What a transactional sink wants to know of a Kafka source."""

    group: str
    shard: str = "0/1"


class Transactions:
    """A topic to read, one to write, and a group."""

    def __init__(self, topics):
        self.topics = topics
        self.read = topics.create(partitions=2)
        self.written = topics.create(name="predictions", partitions=2)
        self.group = f"group-{uuid.uuid4().hex[:8]}"
        self._opened = []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for sink in self._opened:
            sink.close()

    def sink(self, **settings):
        chosen = settings_to(self.written, transactional=True, **settings)
        sink = KafkaPredictions(chosen, [Source(bootstrap_servers=self.topics.address, group=self.group)])
        self._opened.append(sink)
        return sink

    def recovered(self, sink, position):
        """The generation of which a start of this sink is told."""
        for _ in range(int(2 * PATIENCE)):
            if (found := sink.recover(0.5, position)) is not None:
                return found.generation
        raise AssertionError("it was not told")

    def position(self, *offsets, owner="owner-1"):
        partitions = {str(i): offset for i, offset in enumerate(offsets)}
        topics = {self.read: {"id": "1", "partitions": partitions}}
        return {"kind": "kafka", "group": self.group, "owner": owner, "topics": topics}

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
        marks = [parse_offset_metadata(one.metadata) for one in found]
        return [(one.offset, mark.owner, mark.generation) for one, mark in zip(found, marks, strict=True)]
