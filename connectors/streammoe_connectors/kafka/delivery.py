"""Settings of what is written to a topic, whatever it holds; they need no Kafka package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.settings import Connection, need_kafka_python

TOPIC_NAME = r"^[a-zA-Z0-9._-]{1,249}$"


class Delivery(BaseModel):
    """How records are sent, whatever they hold.

    Attributes:
        compression: of batches of records; lz4, zstd and snappy need their Python packages.
        linger_ms: how long a batch waits for more records, in milliseconds.
        batch_bytes: how large it gets at most.
        delivery_timeout_seconds: how long brokers may take to acknowledge a record, outages included, before the
            daemon stops.
    """

    compression: Literal["none", "gzip", "lz4", "zstd", "snappy"] = "none"
    linger_ms: int = Field(default=20, ge=0, le=10_000)
    batch_bytes: int = Field(default=1 << 17, ge=0, le=1 << 24)
    delivery_timeout_seconds: float = Field(default=120.0, ge=10.0, le=3600.0)


class Target(NamedTuple):
    """A topic, and in whose name it is written."""

    section: str
    """Of the settings: ``predictions`` or ``dead_letters``."""
    topic: str
    if_too_large: str
    """What else to do about a record that is too large for the topic."""


def borrowed(settings: Connection, section: str, sources: Sequence[BaseModel]) -> Connection:
    """The connection of a section, or that of the first Kafka source where the section names no servers.

    Raises:
        ConfigError: there is neither, or the section has only a part of one.
    """
    need_kafka_python(f'{section}.kind = "kafka"')
    if settings.bootstrap_servers is not None:
        from kafka import KafkaProducer

        unknown = sorted(settings.options.keys() - KafkaProducer.DEFAULT_CONFIG.keys())
        if unknown:
            raise ConfigError(
                f"{section}.options: kafka-python's producers have no {', '.join(unknown)}; leave them out"
            )
        return settings
    parts = sorted(settings.model_fields_set & Connection.model_fields.keys() - {"bootstrap_servers"})
    if parts:
        raise ConfigError(
            f"{section}.bootstrap_servers: must be set together with {', '.join(parts)}; without any of them the "
            "connection is that of the source"
        )
    source = next((source for source in sources if isinstance(source, Connection)), None)
    if source is None:
        raise ConfigError(
            f"{section}.bootstrap_servers: required, but not set; without a source of kind kafka there is no "
            "connection to share"
        )
    return source


def check_topic(settings: Connection, topic: str, section: str, sources: Sequence[BaseModel]) -> None:
    """See that there is a connection, and that nobody reads what is written.

    Raises:
        ConfigError: there is none, or a source reads the topic.
    """
    connection = borrowed(settings, section, sources)
    for source in sources:
        same = isinstance(source, Connection) and set(source.bootstrap_servers) & set(connection.bootstrap_servers)
        if same and topic in getattr(source, "topics", ()):
            raise ConfigError(
                f"{section}.topic: is {topic!r}, which the source reads: the daemon would learn what it says, without "
                "end; name another topic"
            )
