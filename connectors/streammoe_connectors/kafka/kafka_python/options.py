"""kafka-python's own options of a connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka import KafkaProducer

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.settings import Connection, connection_options

DEFAULTS: dict[str, Any] = {"reconnect_backoff_max_ms": 1_000}
"""Options unless overridden in ``options``. kafka-python would wait up to 30 s before it retries a broker."""


def own_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return `client_options` by kafka-python's names, with passwords as their files hold them now.

    Raises:
        ConfigError: a file or variable cannot be read.
    """
    connection = Connection.model_validate(options)
    found = {**DEFAULTS, **connection_options(connection), **connection.options}
    found["bootstrap_servers"] = list(connection.bootstrap_servers)
    if "api_version" in found:
        found["api_version"] = tuple(found["api_version"])  # which a file has as a list
    return found


def supported_options(options: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a kind of client has; some are for consumers only."""
    return {name: value for name, value in options.items() if name in known}


def check_producer_options(connection: Connection, section: str) -> None:
    """See `Client.check_producer_options`."""
    unknown = sorted(connection.options.keys() - KafkaProducer.DEFAULT_CONFIG.keys())
    if unknown:
        raise ConfigError(f"{section}.options: kafka-python's producers have no option {', '.join(unknown)}; remove it")
