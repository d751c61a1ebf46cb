"""librdkafka's own options of a connection, and what its logs and errors say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from confluent_kafka import KafkaError, KafkaException, Producer, TopicPartition

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.oauth import OAuthLogin, TokenSource
from streammoe_connectors.kafka.settings import LIBRDKAFKA_NAMES, Connection, connection_options

LOGGER = logging.getLogger("librdkafka")
"""Receives its log, which would else go to the standard error output."""
DEFAULTS: dict[str, Any] = {
    "reconnect.backoff.max.ms": 1_000,
    "socket.keepalive.enable": True,
}
"""Options unless overridden in ``options``. It would wait up to 10 s before it retries a broker."""
_SECRETS = (
    "sasl.password",
    "ssl.key.password",
    "ssl.keystore.password",
    "sasl.oauthbearer.client.secret",
    "sasl_oauth_client_secret",
)


def client_options(connection: Connection) -> dict[str, Any]:
    """See `Client.client_options`."""
    options = {LIBRDKAFKA_NAMES.get(name, name): value for name, value in connection_options(connection).items()}
    options["bootstrap.servers"] = ",".join(options["bootstrap.servers"])
    return {**DEFAULTS, **options, **connection.options}


def with_tokens(options: Mapping[str, Any]) -> tuple[dict[str, Any], TokenSource | None]:
    """Return options with a function for tokens instead of the settings of them, if they have any, and their source.

    Raises:
        ConfigError: the secret or a certificate cannot be read, or the endpoint rejects this client.
        TokenUnavailable: there is no token, for a reason that may pass.
    """
    arguments = dict(options)
    login = arguments.pop("sasl_oauth", None)
    if login is None:
        return arguments, None
    source = TokenSource(OAuthLogin.model_validate(login))
    source.token()  # its own thread would not say why there is none

    def token(_: str) -> tuple[str, float, str, dict[str, str]]:
        found = source.token()
        return found.text, found.expires_at, "", source.extensions

    return {**arguments, "oauth_cb": token}, source


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """See `Client.secrets_of`."""
    held = {**options, **options.get("sasl_oauth", {})}
    return [held[name] for name in _SECRETS if held.get(name)]


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
