"""Send the records of a csv file to a Kafka topic as JSON objects, 50 times over, 500 a second.

.venv/bin/python config/examples/send.py demo-state/trump-approval.csv polls [127.0.0.1:9092]
"""

import csv
import json
import sys
import time
from contextlib import suppress
from pathlib import Path

from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import TopicAlreadyExistsError

file, topic, servers = [*sys.argv[1:], "127.0.0.1:9092"][:3]
with Path(file).open(newline="", encoding="utf-8") as lines:
    events = [{name: float(cell) for name, cell in row.items() if cell} for row in csv.DictReader(lines)]
admin = KafkaAdminClient(bootstrap_servers=servers)
with suppress(TopicAlreadyExistsError):
    admin.create_topics({topic: {"num_partitions": 1, "replication_factor": -1}}, wait_for_metadata=True)
admin.close()
producer = KafkaProducer(bootstrap_servers=servers, value_serializer=lambda event: json.dumps(event).encode())
for event in events * 50:
    producer.send(topic, event)
    time.sleep(1 / 500)
producer.flush()
