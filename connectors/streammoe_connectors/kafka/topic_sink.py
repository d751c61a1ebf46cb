"""The common part of sinks that write to a topic, and the connection that they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from streammoe.errors import ConfigError
from streammoe.ports import Sink
from streammoe_connectors.kafka.clients import load_client, require_client
from streammoe_connectors.kafka.delivery import Target, TopicSettings
from streammoe_connectors.kafka.producer import TopicProducer
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source_settings import ReadingSettings


class TopicSink(Sink):
    """The common part of sinks that write to a topic.

    Args:
        settings: of the section.
        sources: all sources; the first one of Kafka provides the default connection, and the group of transactions.

    Raises:
        ConfigError: there is no connection, or no group for positions.
        SinkError: a broker responds, but the topic does not exist or may not be written.
    """

    section: ClassVar[str]
    if_too_large: ClassVar[str]
    """What else may be done about a record that the topic has no room for."""

    @classmethod
    def check(cls, settings: Any, sources: Sequence[BaseModel], checkpoint: Any) -> None:  # noqa: ARG003
        """Raise `ConfigError` if the section conflicts with others: no source may read the topic."""
        connection = connection_for(settings, cls.section, sources)
        for source in sources:
            if not isinstance(source, Connection):
                continue
            shared_servers = set(source.bootstrap_servers) & set(connection.bootstrap_servers)
            if shared_servers and isinstance(source, ReadingSettings) and source.reads(settings.topic):
                raise ConfigError(
                    f"{cls.section}.topic: is {settings.topic!r}, which the source reads: the daemon would endlessly "
                    "learn from its own output; choose another topic"
                )

    def __init__(self, settings: TopicSettings, sources: Sequence[BaseModel]) -> None:
        target = Target(self.section, settings.topic, self.if_too_large)
        self._producer = self._opened(target, connection_for(settings, self.section, sources), settings, sources)

    def _opened(
        self,
        target: Target,
        connection: Connection,
        settings: Any,
        sources: Sequence[BaseModel],
    ) -> TopicProducer:
        producer = TopicProducer(target, connection, settings)
        producer.try_connect()
        return producer

    @property
    def rejection(self) -> str:
        return self._producer.rejection

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def connection_for(settings: Connection, section: str, sources: Sequence[BaseModel]) -> Connection:
    """Return the connection of a section, or that of the first Kafka source if the section names no servers.

    Raises:
        ConfigError: there is none, or the section's is incomplete.
    """
    if settings.bootstrap_servers is not None:
        require_client(settings, f'{section}.kind = "kafka"')
        load_client(settings.client).check_producer_options(settings, section)
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
    require_client(source, f'{section}.kind = "kafka"')
    return source
