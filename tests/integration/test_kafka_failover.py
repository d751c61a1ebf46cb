"""A cluster of three nodes, of which that one is killed on which something depends."""

import gc
import json
import signal
import uuid

import numpy as np
import pytest
from kafka.errors import KafkaError

from streammoe.ports import TopicPartition
from tests.integration.conftest import available
from tests.integration.kafka_clients import numbers, opened, polled_until, settings_of, take
from tests.kafka_lab.cluster import TRANSACTIONS, Cluster
from tests.kafka_lab.lab import Daemon, Producer, wait_until
from tests.kafka_lab.topics import Topics

ROLES = ("events", TRANSACTIONS)
"""The topics whose leader is killed, in this order."""
DIFFERENT, TIMES = 10_000, 50
"""Events, and how often they come: more than are read by the end."""
RATE, MORE = 300, 500
"""Lines a second, and how many rows must follow a death."""
COMMITTED = {"isolation_level": "read_committed"}
SETTINGS = {
    "model.n_experts": 2,
    "model.warmup": 100,
    "checkpoint.every_events": 500,
    "checkpoint.every_seconds": 0.5,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield available(made.start)
    made.stop()


@pytest.fixture
def topics(cluster):
    topics = Topics(cluster.address)
    yield topics
    topics.close()
    gc.collect()  # of such sockets other tests would be warned


@pytest.fixture
def producing(cluster, topics, tmp_path):
    """A topic that is being filled."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.0, 1.0, (DIFFERENT, 3)).round(4)
    y = (np.where(X[:, 0] > 0, X @ [1, 2, 3], X @ [-1, 0, 1]) + 0.1 * rng.normal(size=DIFFERENT)).round(4)
    rows = zip(X.tolist(), y.tolist(), strict=True)
    lines = [json.dumps({"a": a, "b": b, "c": c, "y": t}) for (a, b, c), t in rows]
    (tmp_path / "lines").write_text("\n".join(lines * TIMES))
    topic = topics.create()
    producer = Producer(cluster.address, topic, tmp_path / "lines", 1, RATE)
    yield topic, producer
    producer.kill()


@pytest.mark.process
def test_learning_and_transactional_predictions_outlive_any_one_node(cluster, topics, producing, tmp_path):
    topic, producer = producing
    written = topics.create(name="predictions", partitions=2)
    sink = {"predictions.kind": "kafka", "predictions.topic": written, "predictions.transactional": True}
    daemon = Daemon(tmp_path / f"daemon-{topic}", cluster.address, topic, SETTINGS | sink)
    process = daemon.start()
    daemon.wait_for_events(1_000)
    names = {"events": topic, "predictions": written, TRANSACTIONS: TRANSACTIONS}
    for role in ROLES:
        victim, seen = cluster.leader(names[role]), topics.ends(written, **COMMITTED)
        cluster.nodes[victim].kill9()

        def goes_on(seen=seen):
            assert process.poll() is None, daemon.said
            try:
                return len(topics.read(written, seen, **COMMITTED)) > MORE
            except KafkaError:  # a client of the test's own, which has asked the dead one
                return False

        wait_until(goes_on, f"rows that are visible after the death of the leader of {role}", every=0.5)
        cluster.nodes[victim].start()
        for each in names.values():
            wait_until(
                lambda each=each: cluster.in_sync(each) == len(cluster.nodes), f"{each} is on all nodes", every=0.5
            )
    n = producer.stop()
    process.send_signal(signal.SIGTERM)
    daemon.end(process)
    assert daemon.finish()["learned"] == n
    places = [json.loads(row.value)["place"] for row in topics.read(written, **COMMITTED)]
    assert sorted(place["offset"] for place in places) == list(range(n))
    undisturbed = Daemon(tmp_path / f"undisturbed-{topic}", cluster.address, topic, SETTINGS)
    assert undisturbed.finish()["state_digest"] == daemon.metadata["state_digest"]


def test_a_partition_without_a_leader_is_named_and_holds_up_no_other_and_is_read_once_when_it_has_one(cluster, topics):
    topic = f"alone-{uuid.uuid4().hex[:8]}"
    alone = {"assignments": {0: [1], 1: [2]}, "configs": {"min.insync.replicas": "1"}}
    topics.admin.create_topics({topic: alone}, wait_for_metadata=True)
    for partition in (0, 1):
        topics.fill(topic, numbers(*range(5)), partition=partition)
    settings = settings_of(cluster.address, topic, stall_seconds=3, discover_seconds=1)
    gone = TopicPartition(topic, 1)
    with opened(settings) as source:
        end = take(source, 10)[1].end
        for partition in (0, 1):
            topics.fill(topic, numbers(5, 6), partition=partition)
        take(source, 4)
        cluster.nodes[2].kill9()
        polled_until(source, lambda: source.status().stalled == {gone: "leader"}, "it is named while it is read")
        assert source.status().connected
    try:
        with opened(settings, end) as source:
            assert take(source, 2)[0] == numbers(5, 6)
            polled_until(source, lambda: source.status().stalled == {gone: "leader"}, "it is named at a start")
            assert source.status().positions == {TopicPartition(topic, 0): 7, gone: 5}
            cluster.nodes[2].start()
            found, last = take(source, 2)
            assert found == numbers(5, 6)
            assert last.end["topics"][topic]["partitions"] == {"0": 7, "1": 7}
            polled_until(source, lambda: not source.status().stalled, "all is well")
    finally:
        cluster.nodes[2].start()
