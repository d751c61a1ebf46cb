"""The Kafka clients to choose from."""

from __future__ import annotations

import importlib.util

from streammoe.errors import not_installed
from streammoe_connectors.kafka.contract import Client
from streammoe_connectors.kafka.settings import Connection

_PACKAGES = {
    "kafka-python": ("kafka", "kafka-python", "kafka"),
    "librdkafka": ("confluent_kafka", "confluent-kafka", "kafka-fast"),
}
"""The module, the package and the extra of each."""


def require_client(connection: Connection, what: str) -> None:
    """Raise `ConfigError` if the package of a connection's client, which `what` needs, is not installed."""
    module, package, extra = _PACKAGES[connection.client]
    if importlib.util.find_spec(module) is None:
        raise not_installed(what, package, extra)


def load_client(name: str) -> Client:
    """Return the client of this name, whose package must be installed."""
    client: Client
    if name == "librdkafka":
        from streammoe_connectors.kafka import librdkafka as client
    else:
        from streammoe_connectors.kafka import kafka_python as client
    return client
