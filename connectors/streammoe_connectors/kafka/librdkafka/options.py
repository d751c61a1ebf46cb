"""librdkafka's own options of a connection, and what its logs and errors say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.settings import LIBRDKAFKA_NAMES, Connection, connection_options

LOGGER = logging.getLogger("librdkafka")
"""Receives its log, which would else go to the standard error output."""
DEFAULTS: dict[str, Any] = {
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
}
"""Options unless overridden in ``options``. It would wait up to 10 s before it retries a broker."""


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `client_options` by librdkafka's names, with passwords as their files hold them now.

    Raises:
        ConfigError: a file or variable cannot be read.
    """
    connection = Connection.model_validate(options)
    found = {LIBRDKAFKA_NAMES[name]: value for name, value in connection_options(connection).items()}
    found["bootstrap.servers"] = ",".join(connection.bootstrap_servers)
    if connection.sasl_mechanism == "OAUTHBEARER":
        found["sasl.oauthbearer.method"] = "oidc"
    return {**DEFAULTS, **found, **connection.options}


def check_producer_options(connection: Connection, section: str) -> None:
    """See `Client.check_producer_options`."""
    try:
        Producer(
            {
                "enable.idempotence": True,
                **connection.options,
                "bootstrap.servers": ",".join(connection.bootstrap_servers),
                "logger": LOGGER,
            }
        )
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"{section}.options: librdkafka rejects them: {error_text(error)}") from error


def metadata_of(committed: TopicPartition) -> str | None:
    """Return the metadata of a committed offset, followed by anything: confluent-kafka reads beyond their end."""
    try:
        metadata: str | None = committed.metadata
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="replace")
    return metadata


def error_of(error: BaseException) -> KafkaError | None:
    """Return what an exception of confluent-kafka is about."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return found if isinstance(found, KafkaError) else None


def error_text(error: BaseException | KafkaError) -> str:
    """Return librdkafka's own words for an error."""
    about = error if isinstance(error, KafkaError) else error_of(error)
    return str(error) if about is None else f"{about.str().strip()} ({about.name()})"
