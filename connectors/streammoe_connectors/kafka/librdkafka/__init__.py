"""librdkafka, through confluent-kafka, as `streammoe_connectors.kafka.clients.Client`."""

from streammoe_connectors.kafka.librdkafka.consumer import LibrdkafkaConsumer
from streammoe_connectors.kafka.librdkafka.options import check_producer_options
from streammoe_connectors.kafka.librdkafka.producer import LibrdkafkaProducer, topic
from streammoe_connectors.kafka.settings import client_options, secrets_of

__all__ = [
    "check_producer_options",
    "client_options",
    "create_consumer",
    "create_producer",
    "secrets_of",
    "topic",
]

create_consumer = LibrdkafkaConsumer
create_producer = LibrdkafkaProducer
