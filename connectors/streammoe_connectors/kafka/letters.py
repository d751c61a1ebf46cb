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
from streammoe_connectors.kafka.consumer import END, FIRST, ClusterUnavailableError
from streammoe_connectors.kafka.contract import ClientError
from streammoe_connectors.kafka.records import NONE, Headers
from streammoe_connectors.kafka.settings import Connection, client_options
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

    def answered(request: Callable[[], Result]) -> Result:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                return request()
            except (ClientError, ClusterUnavailableError) as error:
                if isinstance(error, ClientError) and not error.retriable:
                    raise SourceError(
                        f"Kafka topic {topic}: cannot be read ({error}); correct dead_letters.topic, or allow this "
                        "user to describe and read it"
                    ) from error
                if time.monotonic() > deadline:
                    raise SourceError(
                        f"Kafka topic {topic}: brokers have not responded for {PATIENCE_SECONDS:.0f} s ({error}); "
                        "start them, or correct bootstrap_servers"
                    ) from error
                time.sleep(_RETRY_SECONDS)

    client = load_client(connection.client)
    options, settings = client_options(connection), ReadingSettings(topics=(topic,), group=_GROUP)
    partitions = [TopicPartition(topic, i) for i in range(answered(lambda: client.topic(options, topic)).partitions)]
    consumer = answered(lambda: client.create_consumer(options, settings))
    try:
        ends = answered(lambda: consumer.offsets(partitions, END, stable=True))
        begins = answered(lambda: consumer.offsets(partitions, FIRST))
        for partition in partitions:
            begin, end = begins[partition], ends[partition]
            consumer.assign({partition: begin})
            while (consumer.fetch_position(partition) or begin) < end:
                records = answered(lambda: consumer.poll(0.2)).get(partition, NONE)
                for i in range(int(np.searchsorted(records.offsets, end))):
                    yield letter_of(records.values[i], () if records.headers is None else records.headers[i])
    finally:
        consumer.close()


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
