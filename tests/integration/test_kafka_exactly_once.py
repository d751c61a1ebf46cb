"""Each event counts exactly once, whatever is killed: rounds of `benchmarks.kafka_kills`, few here and many there.

`STREAMMOE_ROUNDS=100` runs as many as the benchmark.
"""

import os
import random

import pytest

from benchmarks import kafka_kills, kafka_lab

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.process]

ROUNDS = range(int(os.environ.get("STREAMMOE_ROUNDS", "2")))


@pytest.fixture
def room(broker, tmp_path):
    return kafka_lab.Lab(tmp_path, broker.address)


@pytest.fixture(scope="module")
def finished(topics, broker, tmp_path_factory):
    """A complete topic of four partitions, and the digest of a run that nobody disturbed."""
    room = kafka_lab.Lab(tmp_path_factory.mktemp("finished"), broker.address)
    events = 100_000
    topic = topics.create(4)
    room.fill(topic, kafka_lab.values(*kafka_lab.events(events)), 4).wait()
    summaries = [kafka_lab.finish(room.config(topic)) for _ in range(2)]
    assert summaries[0]["learned"] == events
    assert summaries[0]["state_digest"] == summaries[1]["state_digest"], "a backlog is reproducible"
    return topic, events, summaries[0]["state_digest"]


@pytest.mark.parametrize("seed", ROUNDS)
def test_one_partition_that_is_still_filled_ends_as_if_nobody_had_been_killed(room, topics, seed):
    played = kafka_kills.live_partition(room, topics, random.Random(seed))
    assert played.right, played


@pytest.mark.parametrize("seed", ROUNDS)
def test_four_partitions_of_a_finished_topic_end_so_too(room, finished, seed):
    topic, events, digest = finished
    played = kafka_kills.finished_partitions(room, topic, events, digest, random.Random(seed))
    assert played.right, played


@pytest.mark.parametrize("seed", ROUNDS)
def test_four_partitions_that_are_still_filled_count_each_event_once(room, topics, seed):
    played = kafka_kills.live_partitions(room, topics, random.Random(seed), kafka_kills.kill_daemon)
    assert played.right, played


def test_a_broker_that_is_killed_costs_and_doubles_nothing(broker_factory, topics_of, tmp_path):
    broker = broker_factory()
    room = kafka_lab.Lab(tmp_path, broker.address)
    killer = kafka_kills.broker_killer(broker)
    played = kafka_kills.live_partitions(room, topics_of(broker), random.Random(0), killer)
    assert played.right, played
