"""The login to a real broker with tokens of an OAuth 2 endpoint: OAUTHBEARER."""

import logging

import pytest
from pydantic import SecretStr

from streammoe.errors import ConfigError
from streammoe.ports import Message
from streammoe_connectors.kafka import producer as kafka_producer
from streammoe_connectors.kafka.source import KafkaSource
from streammoe_connectors.kafka.topic_writer import TopicWriter
from tests.integration.conftest import available, broker_with_login
from tests.integration.kafka_clients import numbers, opened, rows, settings_of, sink_to, take, versions
from tests.kafka_lab.lab import wait_until
from tests.kafka_lab.topics import Topics
from tests.unit.connectors.token_endpoint import TokenEndpoint, unsecured_token


@pytest.fixture(scope="module")
def brokers(tmp_path_factory):
    """A broker, and its port that wants tokens. It ends a connection whose token has expired."""
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    broker, login = broker_with_login(
        tmp_path_factory.mktemp("oauth"),
        "OAUTHBEARER",
        f'{module} required unsecuredLoginStringClaim_sub="broker";',
        {"listener.name.login.oauthbearer.connections.max.reauth.ms": "60000"},
    )
    yield available(broker.start), login
    broker.kill9()  # its data is not needed any more


@pytest.fixture
def topics(brokers):
    topics = Topics(brokers[0].address)
    yield topics
    topics.close()


@pytest.fixture
def endpoint():
    endpoint = TokenEndpoint()
    yield endpoint
    endpoint.close()


def login_at(endpoint, secret="hunter2"):
    return {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_url": endpoint.url,
        "sasl_oauth_client_id": "me",
        "sasl_oauth_client_secret": SecretStr(secret),
    }


def test_tokens_open_the_way_and_are_replaced_while_it_reads(brokers, topics, endpoint, caplog, client):
    name = topics.create()
    topics.fill(name, numbers(1))
    # librdkafka has several connections, each of which logs in again within the last fifth of a token's lifetime.
    endpoint.lifetime = 2.0 if client == "kafka-python" else 8.0
    settings = settings_of(brokers[1], name, **login_at(endpoint), sasl_oauth_extensions={"traceId": "a 1"})
    with caplog.at_level(logging.DEBUG), opened(settings) as source:
        assert take(source, 1)[0] == numbers(1)
        for i in (2, 3):
            asked = len(endpoint.requests)
            wait_until(lambda asked=asked: source.poll(0.1) is None and len(endpoint.requests) > asked, "a new token")
            topics.fill(name, numbers(i))
            assert take(source, 1)[0] == numbers(i)
        assert source.status().connected
        assert "reconnected" not in source.status().counters
    assert "hunter2" not in caplog.text + repr(settings)


def test_where_the_endpoint_fails_reading_waits_and_goes_on_when_it_is_back(brokers, topics, endpoint, caplog):
    name = topics.create()
    topics.fill(name, numbers(1))
    endpoint.answer = (503, b"")
    endpoint.lifetime = 2.0
    source = KafkaSource(settings_of(brokers[1], name, **login_at(endpoint)))
    try:
        source.seek(None)
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: source.prepare(0.1) or "503" in caplog.text, "it is reported")
        assert not source.status().ready
        endpoint.answer = None
        wait_until(lambda: source.prepare(0.1), "reading can begin")
        assert take(source, 1)[0] == numbers(1)
        endpoint.answer = (503, b"")
        wait_until(lambda: source.poll(0.1) is None and not source.status().connected, "the token has expired")
        topics.fill(name, numbers(2))
        endpoint.answer = None
        assert take(source, 1)[0] == numbers(2)
    finally:
        source.close()


def test_a_client_that_is_rejected_is_an_error_of_the_settings_at_the_start_and_later(brokers, topics, endpoint):
    name = topics.create()
    topics.fill(name, numbers(1))
    source = KafkaSource(settings_of(brokers[1], name, **login_at(endpoint, "hunter3")))
    try:
        source.seek(None)
        with pytest.raises(ConfigError) as caught:
            wait_until(lambda: source.prepare(0.1), "it is rejected")
        assert "hunter" not in str(caught.value)
    finally:
        source.close()
    endpoint.lifetime = 2.0
    with opened(settings_of(brokers[1], name, **login_at(endpoint))) as source:
        assert take(source, 1)[0] == numbers(1)
        endpoint.client = ("me", "changed")
        with pytest.raises(ConfigError):
            wait_until(lambda: source.poll(0.1), "it is rejected")


def test_predictions_are_written_with_tokens_once_there_are_any_and_not_by_a_client_that_is_rejected(
    brokers, topics, endpoint, monkeypatch
):
    name = topics.create(name="predictions")
    with pytest.raises(ConfigError):
        sink_to(brokers[1], name, **login_at(endpoint, "hunter3"))
    monkeypatch.setattr(kafka_producer, "FIRST_WAIT_SECONDS", 0.1)
    endpoint.answer = (503, b"")
    sink = sink_to(brokers[1], name, **login_at(endpoint))
    try:
        asked = len(endpoint.requests)
        wait_until(lambda: len(endpoint.requests) > asked + 1, "it is tried again")
        endpoint.answer = None
        sink.write(rows(0, 5))
        sink.flush()
    finally:
        sink.close()
    assert versions(topics.read(name)) == [0, 1, 2, 3, 4]


def test_tokens_that_the_broker_does_not_accept_open_nothing(brokers, topics, endpoint, caplog):
    endpoint.answer = (200, {"access_token": unsecured_token("me", -60), "expires_in": 60})
    source = KafkaSource(settings_of(brokers[1], topics.create(), **login_at(endpoint)))
    try:
        source.seek(None)
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: source.prepare(0.1) or "WARNING" in caplog.text, "it is reported")
        assert not source.status().ready
    finally:
        source.close()
    assert endpoint.answer[1]["access_token"] not in caplog.text


def test_produce_logs_in_with_tokens(brokers, topics, endpoint, tmp_path):
    path, name = tmp_path / "client.toml", topics.create()
    login = {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_url": endpoint.url,
    }
    login |= {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "hunter2"}
    path.write_text("".join(f'{setting} = "{value}"\n' for setting, value in login.items()))
    writer = TopicWriter(brokers[1], name, partitions=None, low_latency=True, settings=TopicWriter.settings(path))
    try:
        writer.send(Message(b"1", None, None), 1)
        writer.flush()
    finally:
        writer.close()
    assert [record.value for record in topics.read(name)] == [b"1"]
