"""Each event counts exactly once, whatever is killed: the whole daemon, as a process.

`STREAMMOE_ROUNDS=100 make test-exhaustive` plays so many rounds, each with another seed. A round in which the broker is
killed, too, is in `test_kafka_outages.py`.
"""

import json
import random

import pytest

from streammoe.testing.kafka.lab import Daemon
from tests.integration.kafka_killing import DELAY, MIXTURE, MOST, OFTEN, ROUNDS, events, killed_at_random, objects

pytestmark = pytest.mark.process


@pytest.mark.parametrize("seed", ROUNDS)
def test_labels_on_one_partition_that_is_still_filled_end_as_if_nobody_had_been_killed(topics, tmp_path, filling, seed):
    X, y = events(MOST // 2, seed)
    features = [json.dumps({"id": i, "a": a, "b": b, "c": c}) for i, (a, b, c) in enumerate(X.tolist())]
    labels = [*[None] * DELAY, *(json.dumps({"id": i, "y": target}) for i, target in enumerate(y.tolist()))]
    lines = [line for pair in zip(features, labels, strict=False) for line in pair if line is not None]
    topic = topics.create()
    settings = {**MIXTURE, "labels.key": "id"}
    killed = Daemon(tmp_path / f"killed-{topic}", topics.address, topic, settings | OFTEN)
    producer = filling(topics, topic, lines)
    killed_at_random(killed, random.Random(seed), 2)
    sent = producer.stop()
    summary = killed.finish()
    undisturbed = Daemon(tmp_path / f"undisturbed-{topic}", topics.address, topic, settings).finish()
    assert summary["learned"] == sum('"y"' in line for line in lines[:sent])
    assert summary["state_digest"] == undisturbed["state_digest"]


@pytest.mark.parametrize("seed", ROUNDS)
@pytest.mark.parametrize("transactional", [True, pytest.param(False, marks=pytest.mark.exhaustive)])
def test_a_backlog_of_partitions_ends_so_too_and_each_prediction_is_seen_once(topics, tmp_path, seed, transactional):
    chance, n = random.Random(seed), 4_000
    topic = topics.create(partitions=2)
    for partition in (0, 1):
        topics.fill(topic, objects(*events(n // 2, 2 * seed + partition)), partition=partition)
    digests = []
    for kills in (0, 2):
        written = topics.create(name="predictions", partitions=3)
        sink = {"predictions.kind": "kafka", "predictions.topic": written, "predictions.transactional": True}
        settings = MIXTURE | OFTEN | {"checkpoint.keep": 3} | (sink if transactional else {})
        daemon = Daemon(tmp_path / written, topics.address, topic, settings)
        killed_at_random(daemon, chance, kills)
        digests.append(daemon.finish()["state_digest"])
        if transactional:
            rows = topics.read(written, isolation_level="read_committed")
            places = [json.loads(row.value)["place"] for row in rows]
            seen = sorted((place["partition"], place["offset"]) for place in places)
            assert seen == [(partition, i) for partition in (0, 1) for i in range(n // 2)]
    assert digests[0] == digests[1]
