"""The common part of sinks that write to a topic, and the connection that they use."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel

from streammoe.errors import ConfigError
from streammoe.ports import Sink
from streammoe_connectors.kafka.contract import Transactional, load_client
from streammoe_connectors.kafka.producer import TopicProducer
from streammoe_connectors.kafka.settings import Connection, KafkaSettings, TopicSettings


class TopicSink(Sink):
    """The common part of sinks that write to a topic, by default over the connection of the source, if that is Kafka.

    Raises:
        ConfigError: there is no connection, or no group for positions.
        SinkError: a broker responds, but the topic does not exist or may not be written.
    """

    section: ClassVar[str]
    if_too_large: ClassVar[str]
    """What else may be done about a record that the topic has no room for."""

    @classmethod
    def check(cls, settings: Any, source: BaseModel, checkpoint: Any) -> None:  # noqa: ARG003
        """Raise `ConfigError` if the section conflicts with others: the source must not read the topic."""
        connection = connection_for(settings, cls.section, source)
        load_client(connection, cls.section)
        if not isinstance(source, KafkaSettings):
            return
        shared_servers = set(source.bootstrap_servers) & set(connection.bootstrap_servers)
        if shared_servers and source.reads(settings.topic):
            raise ConfigError(
                f"{cls.section}.topic: is {settings.topic!r}, which the source reads: the daemon would endlessly "
                "learn from its own output; choose another topic"
            )

    def __init__(self, settings: TopicSettings, source: BaseModel, transactional: Transactional | None = None) -> None:
        connection = connection_for(settings, self.section, source)
        client = load_client(connection, self.section)
        self._producer = TopicProducer(self.section, self.if_too_large, client, connection, settings, transactional)
        if transactional is None:
            self._producer.try_connect()

    @property
    def rejection(self) -> str:
        return self._producer.rejection

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def connection_for(settings: Connection, section: str, source: BaseModel) -> Connection:
    """Return the connection of a section, or that of the source if the section names no servers.

    Raises:
        ConfigError: there is none, or the section's is incomplete.
    """
    if settings.bootstrap_servers is not None:
        return settings
    extra = sorted(settings.model_fields_set & Connection.model_fields.keys() - {"bootstrap_servers"})
    if extra:
        raise ConfigError(
            f"{section}.bootstrap_servers: must be set together with {', '.join(extra)}; without any of them the "
            "connection is that of the source"
        )
    if not isinstance(source, Connection):
        raise ConfigError(
            f"{section}.bootstrap_servers: required, but not set; without a source of kind kafka there is no "
            "connection to share"
        )
    return source
