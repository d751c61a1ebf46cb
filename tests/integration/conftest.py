"""Brokers for tests: a real Kafka that they share, real ones of their own, and a mock that fails on demand."""

import os
from pathlib import Path

import pytest

from scripts.kafka_broker import Broker, Unavailable
from streammoe.testing.topics import Topics
from tests.integration.mock_cluster import MockCluster

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items):
    """All of these take their time, if only for the broker that they share."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.slow)


def without(what):
    """This machine cannot run the test: skip it, or fail where everything must run."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"must not be skipped where CI=true: {what}", pytrace=False)
    pytest.skip(what)


def start(broker):
    try:
        return broker.start()
    except Unavailable as error:
        return without(str(error))


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """A running broker that tests share; they must not end it, and should use topics and groups of their own."""
    broker = start(Broker(tmp_path_factory.mktemp("kafka")))
    yield broker
    broker.stop()


@pytest.fixture
def broker_factory(tmp_path):
    """Starts brokers of the test's own, to be killed and restarted: `broker_factory(properties={...})`."""
    started = []

    def factory(**arguments):
        broker = Broker(tmp_path / f"kafka-{len(started)}", **arguments)
        started.append(broker)
        return start(broker)

    yield factory
    for broker in started:
        broker.kill9()  # nobody will read its data


@pytest.fixture(scope="session")
def topics(broker):
    """`Topics` of the shared broker."""
    topics = Topics(broker.address)
    yield topics
    topics.close()


@pytest.fixture
def topics_of():
    """`Topics` of another broker: `topics_of(broker)`, or of an address."""
    made = []

    def factory(broker):
        made.append(Topics(getattr(broker, "address", broker)))
        return made[-1]

    yield factory
    for topics in made:
        topics.close()


@pytest.fixture
def topic(topics):
    """Creates a topic on the shared broker: `topic(partitions=2, configs={...})` is its name."""
    return topics.create


@pytest.fixture
def fill(topics):
    """Sends values to a topic of the shared broker: `fill(topic, values, partition=0)`, see `Topics.fill`."""
    return topics.fill


@pytest.fixture
def mock_cluster():
    """A mock of one broker that answers as it is told, see `MockCluster`."""
    with MockCluster() as cluster:
        yield cluster
