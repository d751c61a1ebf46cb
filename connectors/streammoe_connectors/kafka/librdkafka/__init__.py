"""librdkafka, through confluent-kafka, as `streammoe_connectors.kafka.clients.Client`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streammoe_connectors.kafka.clients import Transactional
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.librdkafka.consumer import LibrdkafkaConsumer
from streammoe_connectors.kafka.librdkafka.options import check_producer_options, client_options, secrets_of
from streammoe_connectors.kafka.librdkafka.producer import LibrdkafkaProducer, committed_metadata
from streammoe_connectors.kafka.source_settings import ReadingSettings

__all__ = [
    "check_producer_options",
    "client_options",
    "committed_metadata",
    "create_consumer",
    "create_producer",
    "secrets_of",
]


def create_consumer(options: Mapping[str, Any], settings: ReadingSettings) -> LibrdkafkaConsumer:
    """See `Client.create_consumer`."""
    return LibrdkafkaConsumer(options, settings)


def create_producer(
    options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None
) -> LibrdkafkaProducer:
    """See `Client.create_producer`."""
    return LibrdkafkaProducer(options, delivery, transactional)
