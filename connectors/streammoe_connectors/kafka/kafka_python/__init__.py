"""kafka-python as `streammoe_connectors.kafka.contract.Client`."""

from streammoe_connectors.kafka.kafka_python.consumer import KafkaPythonConsumer
from streammoe_connectors.kafka.kafka_python.options import check_producer_options
from streammoe_connectors.kafka.kafka_python.producer import KafkaPythonProducer, topic

__all__ = [
    "check_producer_options",
    "create_consumer",
    "create_producer",
    "topic",
]

create_consumer = KafkaPythonConsumer
create_producer = KafkaPythonProducer
