"""kafka-python as `streammoe_connectors.kafka.clients.Client`."""

from streammoe_connectors.kafka.kafka_python.consumer import KafkaPythonConsumer
from streammoe_connectors.kafka.kafka_python.options import check_producer_options
from streammoe_connectors.kafka.kafka_python.producer import KafkaPythonProducer, topic
from streammoe_connectors.kafka.settings import client_options, secrets_of

__all__ = [
    "check_producer_options",
    "client_options",
    "create_consumer",
    "create_producer",
    "secrets_of",
    "topic",
]

create_consumer = KafkaPythonConsumer
create_producer = KafkaPythonProducer
