"""The common part of sinks that write to a topic, and the connection that they use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from pydantic import BaseModel

from streammoe.errors import ConfigError
from streammoe.ports import Sink
from streammoe_connectors.kafka.contract import Transactional, load_client
from streammoe_connectors.kafka.producer import Target, TopicProducer, TransactionalProducer
from streammoe_connectors.kafka.settings import Connection, ReadingSettings, TopicSettings


class TopicSink(Sink):
    """The common part of sinks that write to a topic, by default over the connection of the first source of Kafka.

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

    def __init__(
        self, settings: TopicSettings, sources: Sequence[BaseModel], transactional: Transactional | None = None
    ) -> None:
        connection = connection_for(settings, self.section, sources)
        target = Target(self.section, settings.topic, self.if_too_large)
        client = load_client(connection, self.section)
        self._transactions: TransactionalProducer | None = None
        if transactional is None:
            self._producer = TopicProducer(target, client, connection, settings)
            self._producer.try_connect()
        else:
            self._producer = self._transactions = TransactionalProducer(
                target, client, connection, settings, transactional
            )

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
        load_client(settings, section)
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
    load_client(source, section)
    return source
