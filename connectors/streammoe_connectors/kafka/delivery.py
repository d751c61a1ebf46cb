"""Settings for writing to a topic, without dependency on a Kafka package."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, Field

from streammoe.errors import ConfigError
from streammoe.ports import Sink
from streammoe_connectors.kafka.settings import Connection, parse_servers, require_kafka_python
from streammoe_connectors.kafka.source_settings import ReadingSettings

if TYPE_CHECKING:  # it imports kafka-python, which is optional
    from streammoe_connectors.kafka.producer import TopicProducer


class Delivery(BaseModel):
    """Settings for sending records.

    Attributes:
        compression: of batches of records.
        linger_ms: how long a batch waits for more records, in milliseconds.
        batch_bytes: largest size of a batch.
        delivery_timeout_seconds: how long brokers may take to acknowledge a record, including outages, before the
            daemon stops.
    """

    compression: Literal["none", "gzip", "lz4", "zstd", "snappy"] = "none"
    linger_ms: int = Field(default=20, ge=0, le=10_000)
    batch_bytes: int = Field(default=1 << 17, ge=0, le=1 << 24)
    delivery_timeout_seconds: float = Field(default=120.0, ge=10.0, le=3600.0)


class TopicSettings(Delivery, Connection):
    """Settings of a sink that writes to a topic.

    Attributes:
        topic: must exist, unless brokers create topics automatically.
        bootstrap_servers: as in `Connection`; without it the whole connection is that of the first Kafka source.
    """

    kind: Literal["kafka"]
    topic: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    bootstrap_servers: Annotated[tuple[str, ...] | None, BeforeValidator(parse_servers)] = None  # type: ignore[assignment]


class TopicSink(Sink):
    """The common part of sinks that write to a topic."""

    _producer: TopicProducer

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


class Target(NamedTuple):
    """A topic to write to."""

    section: str
    """Section of the settings: ``predictions`` or ``dead_letters``."""
    topic: str
    if_too_large: str
    """Alternative advice for records that are too large for the topic."""


def connection_for(settings: Connection, section: str, sources: Sequence[BaseModel]) -> Connection:
    """Return the connection of a section, or that of the first Kafka source if the section names no servers.

    Raises:
        ConfigError: there is none, or the section's is incomplete.
    """
    require_kafka_python(f'{section}.kind = "kafka"')
    if settings.bootstrap_servers is not None:
        from kafka import KafkaProducer

        unknown = sorted(settings.options.keys() - KafkaProducer.DEFAULT_CONFIG.keys())
        if unknown:
            raise ConfigError(
                f"{section}.options: kafka-python's producers have no option {', '.join(unknown)}; remove it"
            )
        return settings
    extra = sorted(settings.model_fields_set & Connection.model_fields.keys() - {"bootstrap_servers"})
    if extra:
        raise ConfigError(
            f"{section}.bootstrap_servers: must be set together with {', '.join(extra)}; without any of them the "
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
    """Raise `ConfigError` if there is no connection, or a source reads the topic."""
    connection = connection_for(settings, section, sources)
    for source in sources:
        if not isinstance(source, Connection):
            continue
        shared_servers = set(source.bootstrap_servers) & set(connection.bootstrap_servers)
        if shared_servers and isinstance(source, ReadingSettings) and source.reads(topic):
            raise ConfigError(
                f"{section}.topic: is {topic!r}, which the source reads: the daemon would endlessly learn from its own "
                "output; choose another topic"
            )
