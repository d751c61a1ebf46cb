"""Settings as options of librdkafka, and a client of it that knows only a dead node; no broker is asked."""

from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, Uuid

from streammoe.errors import ConfigError
from streammoe_connectors.kafka import librdkafka
from streammoe_connectors.kafka.consumer import ClusterUnavailableError
from streammoe_connectors.kafka.librdkafka import consumer as librdkafka_consumer
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.source_settings import ReadingSettings

NOWHERE = {"bootstrap_servers": "127.0.0.1:1", "client": "librdkafka"}


@pytest.mark.parametrize(
    "extreme",
    [
        *({"buffer_bytes": size} for size in (1 << 20, 6 << 30, 1 << 50)),
        *({"partition_fetch_bytes": size} for size in (1 << 10, 1 << 30)),
        *({"discover_seconds": seconds} for seconds in (1e-3, 1e9)),
    ],
    ids=str,
)
def test_whatever_the_settings_allow_is_accepted(extreme, monkeypatch):
    monkeypatch.setattr(librdkafka_consumer, "_REQUEST_TIMEOUT", 0.01)
    with pytest.raises(ClusterUnavailableError):
        librdkafka.create_consumer(NOWHERE, ReadingSettings(topics="t", group="g", **extreme))


@pytest.mark.parametrize("options", [{"no.such.option": 1}, {"retries": 0}, {"max.in.flight": 1_000}], ids=str)
def test_options_that_no_producer_of_ours_has_are_found_without_a_broker(options, capfd):
    connection = Connection(bootstrap_servers="127.0.0.1:1", client="librdkafka", options=options)
    with pytest.raises(ConfigError, match=next(iter(options))) as caught:
        librdkafka.check_producer_options(connection, "predictions")
    assert not str(caught.value).endswith("\n")
    assert capfd.readouterr().err == ""


def test_another_node_is_asked_for_topics_after_one_that_does_not_answer(monkeypatch):
    answer = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    answers = [{"t": answer}]

    def list_topics(**_):
        partitions = [SimpleNamespace(id=0, leader=SimpleNamespace(id=1)), SimpleNamespace(id=1, leader=None)]
        answers.append({"t": Future()})
        answers[-1]["t"].set_result(SimpleNamespace(topic_id=Uuid(1, 2), partitions=partitions))

    admin = SimpleNamespace(describe_topics=lambda *_, **__: answers[-1], list_topics=list_topics)
    consumer = SimpleNamespace(list_topics=lambda *_, **__: None)
    monkeypatch.setattr(librdkafka_consumer, "AdminClient", lambda *_, **__: admin)
    monkeypatch.setattr(librdkafka_consumer, "Consumer", lambda _: consumer)
    client = librdkafka.create_consumer(NOWHERE, ReadingSettings(topics="t", group="g"))
    with pytest.raises(ClusterUnavailableError):
        client.describe(["t"])
    assert client.describe(["t"])["t"].leaders == {0: 1, 1: None}
