"""librdkafka, through confluent-kafka, as `streammoe_connectors.kafka.contract.Client`."""

from streammoe_connectors.kafka.librdkafka.consumer import LibrdkafkaConsumer
from streammoe_connectors.kafka.librdkafka.options import check_producer_options
from streammoe_connectors.kafka.librdkafka.producer import LibrdkafkaProducer, topic

__all__ = [
    "check_producer_options",
    "create_consumer",
    "create_producer",
    "topic",
]

create_consumer = LibrdkafkaConsumer
create_producer = LibrdkafkaProducer
