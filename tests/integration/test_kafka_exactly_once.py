"""Each event counts exactly once, whatever is killed: the whole daemon, as a process.

`STREAMMOE_ROUNDS=100 make test-exhaustive` plays so many rounds, each with another seed.
"""

import json
import os
import random
import time

import numpy as np
import pytest

from streammoe.estimators import model_of
from streammoe.persistence import read_checkpoint
from streammoe.testing.kafka.lab import Daemon, Producer

pytestmark = pytest.mark.process

ROUNDS = [
    0,
    *(pytest.param(i, marks=pytest.mark.exhaustive) for i in range(1, int(os.environ.get("STREAMMOE_ROUNDS", "3")))),
]
OFTEN = {"checkpoint.every_events": 300, "checkpoint.every_seconds": 0.2, "source.max_poll_records": 50}
"""Checkpoints: so many that kills fall into them, too."""
RATE, MOST = 250, 60_000
"""Events a second, and so many that a slow machine does not come to their end."""
DELAY = 40
LEAST_SQUARES = {
    "model.n_experts": 1,
    "model.prior_strength": 0.0,
    "model.standardize": False,
    "model.averaging": "none",
    "model.schedule.kind": "power",
    "model.schedule.alpha": 1.0,
}
"""A model whose state is that of all events together, in whatever order they come."""
MIXTURE = {"model.n_experts": 2, "model.warmup": 100, "model.warmup_restarts": 1}


def events(n, seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 3)).round(4)
    return X, (np.where(X[:, 0] > 0, X @ [1, 2, 3], X @ [-1, 0, 1]) + 0.1 * rng.normal(size=n)).round(4)


def objects(X, y):
    return [json.dumps({"a": a, "b": b, "c": c, "y": t}) for (a, b, c), t in zip(X.tolist(), y.tolist(), strict=True)]


def killed_at_random(daemon, chance, kills):
    """Start the daemon and kill it, so many times, at any moment from the first checkpoint with something new on."""
    for _ in range(kills):
        daemon.start()
        daemon.wait_for_events(daemon.events)
        time.sleep(chance.random() * 0.2)
        daemon.kill()


@pytest.fixture
def filling(tmp_path):
    """Fills a topic with lines, until it is stopped, far sooner than there are no more."""
    begun = []

    def fill(topics, topic, lines, partitions=1):
        path = tmp_path / f"{topic}.jsonl"
        path.write_text("\n".join(lines))
        begun.append(Producer(topics.address, topic, path, partitions, RATE))
        return begun[-1]

    yield fill
    for producer in begun:
        producer.kill()


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


@pytest.mark.parametrize("seed", ROUNDS)
def test_partitions_that_are_still_filled_count_each_event_once_though_daemon_and_broker_are_killed(
    mortal, mortal_topics, tmp_path, filling, seed
):
    X, y = events(MOST, seed)
    topic = mortal_topics.create(partitions=4)
    daemon = Daemon(tmp_path / f"killed-{topic}", mortal.address, topic, LEAST_SQUARES | OFTEN)
    producer = filling(mortal_topics, topic, objects(X, y), 4)
    chance = random.Random(seed)
    killed_at_random(daemon, chance, 1)
    daemon.start()
    daemon.wait_for_events(daemon.events)
    mortal.kill9()
    time.sleep(chance.random())
    before = daemon.events
    mortal.start()
    daemon.wait_for_events(before)
    daemon.kill()
    n = producer.stop()
    X, y = X[:n], y[:n]
    assert daemon.finish()["learned"] == n
    (position,) = daemon.metadata["positions"]
    assert position["topics"][topic]["partitions"] == {str(i): len(range(i, n, 4)) for i in range(4)}
    W = np.column_stack([np.ones(n), X])
    parameters = model_of(read_checkpoint(daemon.state), "here").parameters()
    np.testing.assert_allclose(parameters["expert_grams"][0], W.T @ W / n, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(parameters["experts"][0, 0], np.linalg.lstsq(W, y, rcond=None)[0], rtol=1e-9)
