"""Reading of a topic of dead letters, up to its present end."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from streammoe.errors import SourceError
from streammoe.ports import DECIMALS, DELIMITERS, DeadLetter, TopicPartition
from streammoe_connectors.kafka.clients import load_client
from streammoe_connectors.kafka.consumer import AssignedConsumer, ClusterUnavailableError
from streammoe_connectors.kafka.records import NONE, Headers
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source_settings import ReadingSettings

HEADER_PREFIX = "header."
"""What the names of a record's own headers begin with in its letter, so that they cannot be mistaken for ours."""
NULL_PREFIX = "null-header."
"""The same for headers without a value, which kafka-python cannot write; they are empty in letters."""
PATIENCE_SECONDS = 30.0
"""How long brokers may be silent."""
_RETRY_SECONDS = 0.2
_GROUP = "streammoe-dead-letters"
"""A group that commits nothing and is never joined."""
Result = TypeVar("Result")


def letters_in(connection: Connection, topic: str) -> Iterator[DeadLetter | None]:
    """Yield the letters of a topic, partition by partition, up to its end as of now; ``None`` for other records.

    Raises:
        ConfigError: a password or certificate cannot be read.
        SourceError: no broker responds, or the topic does not exist or may not be read.
    """
    client = load_client(connection.client)
    options, settings = client.client_options(connection), ReadingSettings(topics=(topic,), group=_GROUP)
    reading = _Reading(topic)
    consumer = reading.retried(lambda: client.create_consumer(options, settings))
    try:
        consumer.request_metadata((topic,))
        reading.wait(lambda: consumer.metadata_request_age is None)
        numbers = consumer.partitions(topic)
        if numbers is None:
            raise SourceError(f"Kafka has no topic {topic}; correct dead_letters.topic, or allow this user to see it")
        partitions = [TopicPartition(topic, number) for number in numbers]
        ends = reading.retried(lambda: consumer.end_offsets(partitions))
        begins = reading.retried(lambda: consumer.beginning_offsets(partitions))
        for partition in partitions:
            if begins[partition] < ends[partition]:
                yield from reading.partition(consumer, partition, begins[partition], ends[partition])
    finally:
        consumer.close()


class _Reading:
    """The patience with a cluster that does not respond, which begins again with each response."""

    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._heard_at = time.monotonic()

    def retried(self, request: Callable[[], Result]) -> Result:
        """Repeat a request until there is a response."""
        while True:
            try:
                found = request()
            except ClusterUnavailableError as error:
                self._give_up_if_late(str(error))
                time.sleep(_RETRY_SECONDS)
            else:
                self._heard_at = time.monotonic()
                return found

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a response."""
        while not condition():
            self._give_up_if_late("no response")
            time.sleep(0.01)
        self._heard_at = time.monotonic()

    def partition(
        self, consumer: AssignedConsumer, partition: TopicPartition, begin: int, end: int
    ) -> Iterator[DeadLetter | None]:
        """Yield what is in a partition before an offset."""
        consumer.assign({partition: begin})
        while (consumer.fetch_position(partition) or begin) < end:
            records = self.retried(lambda: consumer.poll(0.2)).get(partition, NONE)
            for i in range(int(np.searchsorted(records.offsets, end))):
                yield letter_of(records.values[i], () if records.headers is None else records.headers[i])

    def _give_up_if_late(self, why: str) -> None:
        if time.monotonic() - self._heard_at > PATIENCE_SECONDS:
            raise SourceError(
                f"Kafka topic {self._topic}: brokers have not responded for {PATIENCE_SECONDS:.0f} s ({why}); start "
                "them, or correct bootstrap_servers"
            )


def letter_of(value: bytes | None, headers: Headers) -> DeadLetter | None:
    """Return the letter that a record of its topic is; ``None`` for any other record."""
    texts: dict[str, str] = {}
    key: bytes | None = None
    given: list[tuple[str, bytes | None]] = []
    try:
        for name, content in headers:
            if name.startswith(HEADER_PREFIX):
                given.append((name.removeprefix(HEADER_PREFIX), content))
            elif name.startswith(NULL_PREFIX):
                given.append((name.removeprefix(NULL_PREFIX), None))
            elif name == "key":
                key = content
            elif content is not None:
                texts[name] = content.decode()
        location, columns = json.loads(texts["place"]), json.loads(texts.get("columns", "null"))
        letter = DeadLetter(
            location=location,
            stage=texts["stage"],
            reason=texts["reason"],
            detail=texts["detail"],
            record=value or b"",
            format=texts.get("format"),
            columns=None if columns is None else tuple(columns),
            delimiter=texts.get("delimiter"),
            decimal=texts.get("decimal"),
            key=key,
            headers=tuple(given) or None,
            omitted_bytes=_count(texts, "omitted_bytes"),
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    is_sound = (
        isinstance(location, dict)
        and value is not None
        and all(isinstance(name, str) for name in letter.columns or ())
        and letter.delimiter in {None, *DELIMITERS}
        and letter.decimal in {None, *DECIMALS}
    )
    return letter if is_sound else None


def _count(texts: Mapping[str, Any], name: str) -> int | None:
    return int(texts[name]) if name in texts else None
