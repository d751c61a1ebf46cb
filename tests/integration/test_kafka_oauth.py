"""The login to a real broker with tokens of an OAuth 2 endpoint: OAUTHBEARER, which only librdkafka has."""

import logging

import pytest

from streammoe_connectors.kafka.source import KafkaSource
from tests.integration.conftest import available, broker_with_login
from tests.integration.kafka_clients import numbers, opened, settings_of, take
from tests.kafka_lab.lab import wait_until
from tests.kafka_lab.topics import Topics
from tests.unit.connectors.token_endpoint import TokenEndpoint


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


@pytest.fixture
def login(endpoint, tmp_path):
    (tmp_path / "secret").write_text("hunter2\n")
    return {
        "client": "librdkafka",
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_url": endpoint.url,
        "sasl_oauth_client_id": "me",
        "sasl_oauth_client_secret": {"file": str(tmp_path / "secret")},
    }


def test_tokens_open_the_way_and_are_replaced_while_it_reads(brokers, topics, endpoint, login, caplog):
    name = topics.create()
    topics.fill(name, numbers(1))
    # It has several connections, each of which logs in again within the last fifth of a token's lifetime.
    endpoint.lifetime = 8.0
    more = {"sasl.oauthbearer.extensions": "traceId=a1", "sasl.oauthbearer.scope": "s"}
    settings = settings_of(brokers[1], name, **login, options=more)
    with caplog.at_level(logging.DEBUG), opened(settings) as source:
        assert take(source, 1)[0] == numbers(1)
        asked = len(endpoint.requests)
        wait_until(lambda: source.poll(0.1) is None and len(endpoint.requests) > asked, "a new token")
        topics.fill(name, numbers(2))
        assert take(source, 1)[0] == numbers(2)
        assert source.status().connected
        assert not source.status().counters["reconnected"]
    assert all(form["scope"] == ["s"] for form in endpoint.requests)
    assert "hunter2" not in caplog.text + repr(settings)


def test_a_secret_that_is_rejected_is_reported_and_read_again_from_its_file(
    brokers, topics, endpoint, login, tmp_path, caplog
):
    name = topics.create()
    topics.fill(name, numbers(1))
    (tmp_path / "secret").write_text("hunter3")
    source = KafkaSource(settings_of(brokers[1], name, **login))
    try:
        source.seek(None)
        with caplog.at_level(logging.WARNING):
            wait_until(lambda: source.prepare(0.1) or "401" in caplog.text, "it is reported")
        assert not source.prepare(0.0)
        assert "hunter3" not in caplog.text
        (tmp_path / "secret").write_text("hunter2")
        wait_until(lambda: source.prepare(0.1), "reading can begin")
        assert take(source, 1)[0] == numbers(1)
    finally:
        source.close()
