"""Brokers for tests: one of the session, and one of each file to be killed."""

import gc
import os
import warnings
from pathlib import Path

import pytest

from tests.integration.kafka_clients import Fork, Transactions, chosen
from tests.kafka_lab.broker import Broker, Unavailable, free_port
from tests.kafka_lab.lab import Daemon
from tests.kafka_lab.topics import Topics

HERE = Path(__file__).parent
CLIENTS = ("kafka-python", "librdkafka")
OF_BOTH = {
    "test_kafka_failover",
    "test_kafka_outages",
    "test_kafka_resharding",
    "test_kafka_sinks",
    "test_kafka_source",
}
"""Modules whose tests run with either client; with librdkafka, where they are not marked so, only exhaustively."""


def pytest_generate_tests(metafunc):
    if metafunc.module.__name__.rpartition(".")[2] not in OF_BOTH:
        return
    marks = () if metafunc.definition.get_closest_marker("both_clients") else (pytest.mark.exhaustive,)
    clients = [CLIENTS[0], pytest.param(CLIENTS[1], marks=marks)]
    metafunc.parametrize("client", clients, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def client(request):
    """The client of sources and sinks of this test."""
    chosen.client = getattr(request, "param", CLIENTS[0])
    Daemon.defaults = {"source.client": chosen.client}
    yield chosen.client
    chosen.client, Daemon.defaults = CLIENTS[0], {}


def pytest_collection_modifyitems(items):
    """All of these take their time, if only for the broker that they share."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.slow)
            # kafka-python leaves sockets to the garbage collector; that ours are closed is tested in tests/process.
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning"))


def available(make):
    """What `make` returns. Where this machine lacks what it takes the test is skipped, or fails where all must run."""
    try:
        return make()
    except Unavailable as error:
        if os.environ.get("CI") == "true":
            pytest.fail(f"must not be skipped where CI=true: {error}", pytrace=False)
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def broker(tmp_path_factory):
    """The running broker of this session; tests must not end it, and use topics and groups of their own."""
    # Compact as soon as possible.
    broker = Broker(tmp_path_factory.mktemp("kafka"), properties={"log.cleaner.backoff.ms": "500"})
    yield available(broker.start)
    broker.kill9()  # its data is not needed any more


@pytest.fixture(scope="session")
def topics(broker):
    """`Topics` of the shared broker."""
    topics = Topics(broker.address)
    yield topics
    topics.close()


def broker_with_login(folder, mechanism, module, properties):
    """A broker that is not started yet, and its address that wants a login by this mechanism."""
    port, controller, login = free_port(), free_port(), free_port()
    given = {
        "listeners": f"PLAINTEXT://127.0.0.1:{port},LOGIN://127.0.0.1:{login},CONTROLLER://127.0.0.1:{controller}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,LOGIN:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.login.sasl.enabled.mechanisms": mechanism,
        f"listener.name.login.{mechanism.lower()}.sasl.jaas.config": module,
    }
    return Broker(folder, port=port, properties=given | properties), f"127.0.0.1:{login}"


@pytest.fixture(scope="module")
def mortals(tmp_path_factory):
    """A broker of this file, and the port on which it wants a login (me, hunter2)."""
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    broker, login = broker_with_login(
        tmp_path_factory.mktemp("mortal"),
        "PLAIN",
        f'{module} required user_me="hunter2";',
        {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "500"},
    )
    yield broker, login
    broker.kill9()  # its data is not needed any more


@pytest.fixture
def mortal(mortals):
    """The running broker of this file, to be killed and started again."""
    return available(mortals[0].start)


@pytest.fixture
def mortal_topics(mortal):
    """`Topics` of it."""
    topics = Topics(mortal.address)
    yield topics
    topics.close()


@pytest.fixture
def transactions():
    """Makes `Transactions`, whose sinks are closed at the end."""
    made = []

    def make(topics):
        made.append(Transactions(topics))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture(autouse=True)
def no_later_test_collects_garbage():
    """Of sockets of kafka-python, whose warning would fail it."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def no_daemon_outlives_its_test(monkeypatch):
    """Also not one that fails. Daemons are forked."""
    monkeypatch.setattr(Daemon, "launch", Fork)
    started, start = [], Daemon.start

    def remembered(daemon, *settings):
        started.append(daemon)
        return start(daemon, *settings)

    monkeypatch.setattr(Daemon, "start", remembered)
    yield
    for daemon in started:
        daemon.kill()
