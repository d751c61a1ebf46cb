"""A cluster of several local Kafka nodes, of which some can be killed."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

from kafka import KafkaAdminClient

from tests.kafka_lab.broker import START_TIMEOUT, Broker, BrokerError, answers, free_port, random_cluster_id

TRANSACTIONS = "__transaction_state"
"""An internal topic of one partition, whose leader is the coordinator of all transactions."""


class Cluster:
    """Nodes 1, 2, … that are brokers and controllers, with each record on all of them.

    Records are acknowledged by two at least; so one of three may be dead, whichever it is.

    Args:
        folder: of the nodes' folders; created if missing.
        size: number of nodes.
        properties: settings of Kafka for all nodes.
    """

    def __init__(self, folder: str | Path, size: int = 3, properties: Mapping[str, str] | None = None) -> None:
        ports = [free_port() for _ in range(2 * size)]
        if len(set(ports)) < len(ports):
            raise BrokerError("two nodes would have the same port; try again")
        voters = ",".join(f"{i}@127.0.0.1:{port}" for i, port in enumerate(ports[size:], 1))
        cluster_id, copies = random_cluster_id(), str(size)
        self.nodes = {
            i: Broker(
                Path(folder, f"node-{i}"),
                port=port,
                cluster_id=cluster_id,
                heap="384m",
                properties={
                    "node.id": str(i),
                    "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{ports[size + i - 1]}",
                    "controller.quorum.voters": voters,
                    "default.replication.factor": copies,
                    "min.insync.replicas": "2",
                    "offsets.topic.replication.factor": copies,
                    "transaction.state.log.replication.factor": copies,
                    "transaction.state.log.min.isr": "2",
                    **(properties or {}),
                },
            )
            for i, port in enumerate(ports[:size], 1)
        }
        self.address = ",".join(node.address for node in self.nodes.values())

    def start(self, timeout: float = 2 * START_TIMEOUT) -> Self:
        """Start all nodes that do not run, and wait until each of them sees all others.

        Raises:
            Unavailable: Java, Maven or the jars are missing.
            BrokerError: a node did not start in time.
        """
        # A node answers only once most of them can elect a controller.
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(lambda node: node.start(timeout), self.nodes.values()))
        deadline = time.monotonic() + timeout
        while not all(answers(node.port, brokers=len(self.nodes)) for node in self.nodes.values()):
            if time.monotonic() >= deadline:
                raise BrokerError(f"the nodes have not found each other in {timeout:g} s; see {self.nodes[1].log}")
            time.sleep(0.1)
        return self

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the node that leads a partition now; −1 if none does."""
        return int(self._partition(topic, partition)["leader_id"])

    def in_sync(self, topic: str, partition: int = 0) -> int:
        """Return how many nodes have all of a partition."""
        return len(self._partition(topic, partition)["isr_nodes"])

    def _partition(self, topic: str, number: int) -> Any:
        alive = [node.address for node in self.nodes.values() if node.pid is not None]
        admin = KafkaAdminClient(bootstrap_servers=alive)
        try:
            (found,) = admin.describe_topics([topic])
        finally:
            admin.close()
        return next(each for each in found["partitions"] if each["partition_index"] == number)

    def stop(self) -> None:
        """Kill all nodes: their data are not needed any more."""
        for node in self.nodes.values():
            node.kill9()
