"""The Kafka clients to choose from."""

from __future__ import annotations

import importlib.util

from streammoe.errors import not_installed
from streammoe_connectors.kafka.contract import Client
from streammoe_connectors.kafka.settings import CLIENTS, Connection


def require_client(connection: Connection, what: str) -> None:
    """Raise `ConfigError` if the package of a connection's client, which `what` needs, is not installed."""
    client = CLIENTS[connection.client]
    if importlib.util.find_spec(client.module) is None:
        raise not_installed(what, client.package, client.extra)


def load_client(name: str) -> Client:
    """Return the client of this name, whose package must be installed."""
    client: Client
    if name == "librdkafka":
        from streammoe_connectors.kafka import librdkafka as client
    else:
        from streammoe_connectors.kafka import kafka_python as client
    return client
