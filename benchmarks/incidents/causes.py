"""The incidents: what goes wrong, for how long, and how it is repaired."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import trustme
from confluent_kafka import Producer
from cryptography.hazmat.primitives import serialization
from kafka import TopicPartition

from benchmarks.incidents.parts import RATE, Lab, Link, Scene, two_doors
from tests.kafka_lab.broker import free_port
from tests.kafka_lab.cluster import Cluster
from tests.kafka_lab.lab import wait_until
from tests.kafka_lab.topics import Topics

FAST_RATE, SINK_RATE = 2_000, 400
"""Events a second of the fast drift; of the slow sink, where so many rows are more than its link carries."""
LINK_BYTES = 50_000
"""Bytes a second that the slow link carries."""
LASTS_SECONDS, MINUTES = 300, 60
"""How long an incident lasts; and a minute in seconds."""
Incident = Callable[["Lab"], Iterator[Any]]
INCIDENTS: dict[str, tuple[str, Incident]] = {}
"""The fitting alert, and a generator: it yields the scene once it is set, then causes the incident and yields for how
many seconds it lasts, and then repairs it, and that is what the time until the resolution counts from."""


def incident(name: str, alert: str) -> Callable[[Incident], Incident]:
    """Register an incident."""

    def register(function: Incident) -> Incident:
        INCIDENTS[name] = (f"Streammoe{alert}" if alert else "", function)
        return function

    return register


@incident("nothing", "")
def nothing(lab: Lab) -> Iterator[Any]:
    yield Scene(lab, "nothing", lab.broker.address)


@incident("outage", "SourceUnreachable")
def outage(lab: Lab) -> Iterator[Any]:
    broker = lab.another("outage")
    yield Scene(lab, "outage", broker.address)
    broker.kill9()
    yield LASTS_SECONDS
    broker.start()


def sink(address: str, topic: str) -> dict[str, object]:
    """Settings of predictions to a topic of another broker."""
    return {"predictions.kind": "kafka", "predictions.topic": topic, "predictions.bootstrap_servers": address}


@incident("dead sink", "SinkWaits")
def dead_sink(lab: Lab) -> Iterator[Any]:
    broker = lab.another("sink")
    settings = sink(broker.address, Topics(broker.address).create())
    yield Scene(lab, "dead sink", lab.broker.address, settings)
    broker.kill9()
    yield LASTS_SECONDS
    broker.start()


@incident("slow sink", "SinkWaits")
def slow_sink(lab: Lab) -> Iterator[Any]:
    link = Link(free_port())
    broker, door = two_doors(lab.folder / "kafka-slow", "PLAINTEXT", {}, link.port)
    link.target = int(door.rpartition(":")[2])
    lab.started(broker)
    settings = sink(f"127.0.0.1:{link.port}", Topics(broker.address).create())
    settings["predictions.batch_bytes"] = 1 << 14  # or a request would take longer than clients wait for it
    yield Scene(lab, "slow sink", lab.broker.address, settings, rate=SINK_RATE)
    link.rate = LINK_BYTES
    yield LASTS_SECONDS
    link.rate = 1e9


@incident("leaderless partition", "PartitionStalled")
def leaderless(lab: Lab) -> Iterator[Any]:
    cluster = Cluster(lab.folder / "cluster")
    lab.stack.callback(cluster.stop)
    cluster.start()
    alone = {"assignments": {0: [1], 1: [2]}, "configs": {"min.insync.replicas": "1"}}
    Topics(cluster.address).admin.create_topics({"alone": alone}, wait_for_metadata=True)
    yield Scene(lab, "leaderless partition", cluster.address, topic="alone", partitions=2)
    cluster.nodes[2].kill9()
    yield LASTS_SECONDS
    cluster.nodes[2].start()


@incident("rejected login", "LoginRejected")
def rejected_login(lab: Lab) -> Iterator[Any]:
    option = "listener.name.door.plain.sasl.jaas.config"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required user_me"
    first = {"listener.name.door.sasl.enabled.mechanisms": "PLAIN", option: f'{module}="hunter2";'}
    broker, door = two_doors(lab.folder / "kafka-login", "SASL_PLAINTEXT", first)
    lab.started(broker)
    password = lab.folder / "password"
    password.write_text("hunter2")
    settings = {
        "source.security_protocol": "SASL_PLAINTEXT",
        "source.sasl_mechanism": "PLAIN",
        "source.sasl_plain_username": "me",
        "source.sasl_plain_password.file": str(password),
    }
    yield Scene(lab, "rejected login", door, settings, inside=broker.address)
    broker.kill9()
    broker.properties[option] = f'{module}="hunter3";'
    broker.start()
    yield LASTS_SECONDS
    password.write_text("hunter3")


@incident("expired certificate", "LoginRejected")
def expired_certificate(lab: Lab) -> Iterator[Any]:
    authority, store = trustme.CA(), lab.folder / "server.pem"
    authority.cert_pem.write_to_path(str(lab.folder / "ca.pem"))

    def issue(days: float) -> None:
        issued = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=days))
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        store.write_bytes(key + b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    issue(1.0)
    keystore = {"type": "PEM", "location": str(store)}
    properties = {f"listener.name.door.ssl.keystore.{name}": value for name, value in keystore.items()}
    broker, door = two_doors(lab.folder / "kafka-tls", "SSL", properties)
    lab.started(broker)
    settings = {"source.security_protocol": "SSL", "source.ssl_cafile": str(lab.folder / "ca.pem")}
    yield Scene(lab, "expired certificate", door, settings, inside=broker.address)
    broker.kill9()
    issue(-1.0)
    broker.start()
    yield LASTS_SECONDS
    broker.kill9()
    issue(1.0)
    broker.start()


def drift(lab: Lab, name: str, rate: int) -> Iterator[Any]:
    scene = Scene(lab, name, lab.broker.address, rate=rate)
    yield scene
    one, other = scene.stream.coefficients
    scene.stream.coefficients = tuple(-b for b in other), tuple(-b for b in one)
    yield 0


@incident("drift", "Drift")
def slow_drift(lab: Lab) -> Iterator[Any]:
    yield from drift(lab, "drift", RATE)


@incident("fast drift", "Drift")
def fast_drift(lab: Lab) -> Iterator[Any]:
    yield from drift(lab, "fast drift", FAST_RATE)


@incident("garbage", "ManyRejected")
def garbage(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "garbage", lab.broker.address)
    yield scene
    scene.stream.garbage = 0.3
    yield 2 * MINUTES
    scene.stream.garbage = 0.0


def vanished(lab: Lab, name: str, column: str) -> Iterator[Any]:
    scene = Scene(lab, name, lab.broker.address)
    yield scene
    scene.stream.columns.remove(column)
    yield LASTS_SECONDS
    scene.stream.columns.add(column)


@incident("vanished column", "ColumnVanished")
def vanished_column(lab: Lab) -> Iterator[Any]:
    yield from vanished(lab, "vanished column", "b")


@incident("vanished target", "LearnsNothing")
def vanished_target(lab: Lab) -> Iterator[Any]:
    yield from vanished(lab, "vanished target", "y")


@incident("open transaction", "PartitionStalled")
def open_transaction(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "open transaction", lab.broker.address)
    settings = {"transactional.id": "left-open", "log_level": 0, "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": lab.broker.address, **settings})
    producer.init_transactions(60)
    yield scene
    producer.begin_transaction()
    producer.produce(scene.topic, "{}", partition=0)
    producer.flush(60)
    yield LASTS_SECONDS
    producer.abort_transaction(60)


@incident("crash loop", "Down")
def crash_loop(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "crash loop", lab.broker.address)
    yield scene
    over = threading.Event()

    def loop() -> None:
        while not over.wait(10):
            scene.supervisor.end(kill=True, again=True)

    looping = threading.Thread(target=loop, daemon=True)
    looping.start()
    yield 3 * MINUTES
    over.set()
    looping.join()


@incident("deleted topic", "PartitionStalled")
def deleted_topic(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "deleted topic", lab.broker.address, {"source.on_lost": "earliest"})
    yield scene
    scene.topics.admin.delete_topics([scene.topic])
    yield LASTS_SECONDS
    scene.topics.admin.create_topics({scene.topic: {"num_partitions": 1}})


@incident("lost records", "RecordsLost")
def lost_records(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "lost records", lab.broker.address, {"source.on_lost": "earliest"})
    yield scene
    scene.supervisor.wanted.clear()
    scene.supervisor.end(again=True)
    wait_until(lambda: scene.supervisor.codes, "it has ended")
    time.sleep(5.0)
    scene.topics.admin.delete_records({TopicPartition(scene.topic, 0): scene.topics.ends(scene.topic)[0]})
    scene.supervisor.wanted.set()
    yield 0
