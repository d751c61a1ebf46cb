"""kafka-python as `streammoe_connectors.kafka.clients.Client`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streammoe_connectors.kafka.clients import Transactional
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.kafka_python.consumer import KafkaPythonConsumer
from streammoe_connectors.kafka.kafka_python.options import check_producer_options, client_options
from streammoe_connectors.kafka.kafka_python.producer import KafkaPythonProducer, committed_metadata
from streammoe_connectors.kafka.source_settings import ReadingSettings

__all__ = [
    "check_producer_options",
    "client_options",
    "committed_metadata",
    "create_consumer",
    "create_producer",
    "secrets_of",
]


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """See `Client.secrets_of`."""
    held = {**options, **options.get("sasl_oauth", {})}
    secrets = ("sasl_plain_password", "ssl_password", "sasl_oauth_client_secret")
    return [held[name] for name in secrets if held.get(name)]


def create_consumer(options: Mapping[str, Any], settings: ReadingSettings) -> KafkaPythonConsumer:
    """See `Client.create_consumer`."""
    return KafkaPythonConsumer(options, settings)


def create_producer(
    options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None
) -> KafkaPythonProducer:
    """See `Client.create_producer`."""
    return KafkaPythonProducer(options, delivery, transactional)
