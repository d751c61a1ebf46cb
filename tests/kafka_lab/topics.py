"""Synchronous creation, filling and reading of topics."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import NodeNotReadyError

TIMEOUT_SECONDS = 60


class Topics:
    """The topics of the broker at `address`; clients are created at first use and reused."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._admin: Any = None
        self._producer: Any = None

    @property
    def admin(self) -> Any:
        """The admin client of kafka-python."""
        if self._admin is None:
            self._admin = KafkaAdminClient(bootstrap_servers=self.address.split(","))
        return self._admin

    def create(self, partitions: int = 1, configs: Mapping[str, object] | None = None, name: str = "events") -> str:
        """Create a topic whose name begins with `name`, and return its name."""
        topic = f"{name}-{uuid.uuid4().hex[:8]}"
        settings = {key: str(value) for key, value in (configs or {}).items()}
        new = {"num_partitions": partitions, "replication_factor": -1, "configs": settings}
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                self.admin.create_topics({topic: new}, timeout_ms=1000 * TIMEOUT_SECONDS, wait_for_metadata=True)
            except NodeNotReadyError:  # the broker has just been restarted; nothing was sent
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return topic

    def names(self) -> list[str]:
        """Return the names of all topics."""
        found: list[str] = self.admin.list_topics()
        return found

    def fill(
        self,
        topic: str,
        values: Iterable[bytes | str | None],
        *,
        partition: int | None = None,
        timestamps: Iterable[int] | None = None,
        keys: Iterable[bytes | None] | None = None,
        headers: Iterable[list[tuple[str, bytes]]] | None = None,
    ) -> list[int]:
        """Send these values (``None`` is a tombstone) in order, and return their offsets.

        `timestamps` (ms), `keys` and `headers` hold one entry per value. Without `partition` the key decides.
        """
        if self._producer is None:
            self._producer = KafkaProducer(bootstrap_servers=self.address.split(","), linger_ms=5)
        rows = zip(values, _each(keys), _each(headers), _each(timestamps), strict=False)
        sent = [
            self._producer.send(
                topic,
                value.encode() if isinstance(value, str) else value,
                key=key,
                headers=more,
                partition=partition,
                timestamp_ms=at,
            )
            for value, key, more, at in rows
        ]
        self._producer.flush(TIMEOUT_SECONDS)
        return [future.get(TIMEOUT_SECONDS).offset for future in sent]

    def read(self, topic: str, start: Iterable[int] | None = None, **settings: Any) -> list[Any]:
        """Return the current records of a topic, from the beginning or these offsets on, partition by partition."""
        with self._consumer(topic, settings) as (consumer, ends):
            consumer.assign(list(ends))
            if start is None:
                consumer.seek_to_beginning(*ends)
            else:
                for partition, offset in zip(ends, start, strict=True):
                    consumer.seek(partition, offset)
            found: dict[Any, list[Any]] = {partition: [] for partition in ends}
            while any(consumer.position(partition) < end for partition, end in ends.items()):
                for partition, records in consumer.poll(500).items():
                    found[partition] += records
        return [record for records in found.values() for record in records]

    def ends(self, topic: str, **settings: Any) -> list[int]:
        """Return the offset after the last record of each partition, or after its marker of a transaction."""
        with self._consumer(topic, settings) as (_, ends):
            return list(ends.values())

    @contextmanager
    def _consumer(self, topic: str, settings: Mapping[str, Any]) -> Iterator[tuple[Any, dict[TopicPartition, int]]]:
        """A consumer with these settings, and where partitions end for it, in their order."""
        settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, **settings}
        consumer = KafkaConsumer(bootstrap_servers=self.address.split(","), **settings)
        try:
            partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic))]
            ends = consumer.end_offsets(partitions)
            yield consumer, {partition: ends[partition] for partition in partitions}
        finally:
            consumer.close()

    def close(self) -> None:
        """Close the clients."""
        for client in (self._admin, self._producer):
            if client is not None:
                client.close()


def _each(values: Iterable[Any] | None) -> Iterable[Any]:
    return itertools.repeat(None) if values is None else values
