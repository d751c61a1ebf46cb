"""Tokens of OAuth 2 token endpoints for the login to Kafka; no broker is asked."""

import json
import logging
import ssl
import threading
import time

import pytest
import trustme
from kafka.errors import KafkaConnectionError
from pydantic import ValidationError

from streammoe.errors import ConfigError, SinkError
from streammoe_connectors.kafka.kafka_python.options import client_options
from streammoe_connectors.kafka.kafka_python.tokens import kafka_python_options, token_source
from streammoe_connectors.kafka.oauth import OAuthLogin, TokenSource, TokenUnavailable
from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.topic_writer import TopicWriter
from tests.unit.connectors.token_endpoint import TokenEndpoint

SECURED = {"bootstrap_servers": "a:1", "security_protocol": "SASL_SSL", "sasl_mechanism": "OAUTHBEARER"}
CLIENT = {"sasl_oauth_client_id": "me", "sasl_oauth_client_secret": "hunter2"}
URL = {"sasl_oauth_token_url": "https://login.example/token"}


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def endpoints():
    """Makes endpoints, which are closed at the end."""
    made = []

    def make(*arguments, **settings):
        made.append(TokenEndpoint(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def endpoint(endpoints):
    return endpoints()


@pytest.fixture
def clock():
    return Clock()


def source_at(endpoint, clock=time.monotonic, **settings):
    login = {**CLIENT, "sasl_oauth_token_url": endpoint.url, **settings}
    return TokenSource(OAuthLogin.model_validate(login), clock=clock)


# --- tokens -----------------------------------------------------------------------------------------------------------


def test_a_token_is_requested_once_and_replaced_before_it_expires(endpoint, clock):
    source = source_at(endpoint, clock)
    first = source.token()
    assert abs(first.expires_at - time.time() - 60) < 10
    clock.now += 47
    assert source.token() == first
    clock.now += 2
    assert source.token() != first
    assert endpoint.requests == [(("me", "hunter2"), {"grant_type": ["client_credentials"]})] * 2


def test_id_and_secret_are_encoded_and_scopes_are_sent(endpoints):
    endpoint = endpoints(client=("a b:ü", "p%+/:&"))
    login = {"sasl_oauth_client_id": "a b:ü", "sasl_oauth_client_secret": "p%+/:&", "sasl_oauth_scope": "read a&b"}
    source_at(endpoint, **login).token()
    ((client, form),) = endpoint.requests
    assert client == ("a b:ü", "p%+/:&")
    assert form["scope"] == ["read a&b"]


def test_the_secret_may_be_in_the_environment_or_in_a_file_where_it_may_change(endpoint, clock, tmp_path, monkeypatch):
    monkeypatch.setenv("SECRET", "hunter2")
    source_at(endpoint, sasl_oauth_client_secret=None, sasl_oauth_client_secret_env="SECRET").token()
    path = tmp_path / "secret"
    path.write_text("old")
    source = source_at(endpoint, clock, sasl_oauth_client_secret=None, sasl_oauth_client_secret_file=str(path))
    with pytest.raises(ConfigError):
        source.token()
    path.write_text("hunter2\n")
    clock.now += 1
    source.token()
    path.unlink()
    with pytest.raises(ConfigError):
        source_at(endpoint, sasl_oauth_client_secret=None, sasl_oauth_client_secret_file=str(path))


def test_lifetimes_may_be_missing_or_text(endpoint, clock):
    for stated, refreshed_after in [({}, 240), ({"expires_in": "100"}, 80), ({"expires_in": -1}, 240)]:
        endpoint.answer = (200, {"access_token": "a", "token_type": "bearer", **stated})
        source = source_at(endpoint, clock)
        source.token()
        for wait, requests in [(refreshed_after - 1, 1), (2, 2)]:
            clock.now += wait
            source.token()
            assert len(endpoint.requests) == requests, stated
        endpoint.requests.clear()


def test_threads_that_ask_at_once_share_one_request(endpoint):
    source, found = source_at(endpoint), []
    threads = [threading.Thread(target=lambda: found.append(source.token())) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(set(found)) == len(endpoint.requests) == 1


# --- failures ---------------------------------------------------------------------------------------------------------

REJECTED = [
    *((status, {"error": "invalid_client"}) for status in (400, 401)),
    (401, b""),
    (403, {"error": "access_denied"}),
    (400, {"error": "invalid_scope"}),
    (404, b"<html>hunter2"),
    (200, b"<html>hunter2"),
    (200, {"access_token": "a\1b"}),
    (200, {"access_token": "a", "token_type": "mac"}),
    *((status, b"", ("Location", "http://127.0.0.1:1/")) for status in (301, 302, 307)),
]
PASSING = [(500, b""), (503, b"hunter2"), (429, {}), (400, {"error": "temporarily_unavailable"})]


def test_what_is_wrong_with_the_settings_is_told_from_what_may_pass_and_no_secret_is_shown(endpoint, clock, caplog):
    for answers, kind in ((REJECTED, ConfigError), (PASSING, TokenUnavailable)):
        for answer in answers:
            endpoint.answer = answer
            with caplog.at_level(logging.DEBUG), pytest.raises(kind) as caught:
                source_at(endpoint, clock).token()
            assert "hunter2" not in str(caught.value) + caplog.text, answer
    endpoint.answer = (401, {"error": "hunter2", "error_description": "hunter2"})
    with pytest.raises(ConfigError) as caught:
        source_at(endpoint).token()
    assert "hunter2" not in str(caught.value)
    endpoint.close()
    with pytest.raises(TokenUnavailable):
        source_at(endpoint).token()


def test_while_a_token_is_valid_a_failure_is_a_warning_and_tried_again_at_most_once_a_second(endpoint, clock, caplog):
    source = source_at(endpoint, clock)
    first = source.token()
    for answer in (*PASSING[:1], *REJECTED[:1]):
        endpoint.answer = answer
        clock.now += 50 if answer is PASSING[0] else 3
        caplog.clear()
        for _ in range(3):
            assert source.token() == first
            source.check()
    assert len(endpoint.requests) == 3
    clock.now += 3  # 56 of 60 s: a broker may have another clock
    with pytest.raises(ConfigError):
        source.token()
    with pytest.raises(ConfigError):
        source.check()
    endpoint.answer = None
    clock.now += 1
    assert source.token() != first
    source.check()


def test_failures_are_logged_at_intervals(endpoint, clock, caplog):
    endpoint.answer = (500, b"")
    source = source_at(endpoint, clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(65):
            with pytest.raises(TokenUnavailable):
                source.token()
            source.check()  # which may pass
            clock.now += 1
    assert len(endpoint.requests) == 65
    assert len(caplog.records) == 3


def test_the_endpoint_must_be_trusted(endpoints, tmp_path):
    authority, context = trustme.CA(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    endpoint = endpoints(context=context)
    with pytest.raises(ConfigError):
        source_at(endpoint).token()
    assert endpoint.requests == []
    source_at(endpoint, sasl_oauth_cafile=str(tmp_path / "ca.pem")).token()


# --- settings ---------------------------------------------------------------------------------------------------------

WRONG = {
    "sasl_oauth_token_url": [
        CLIENT,
        {"sasl_oauth_cafile": "ca.pem"},
        {**CLIENT, "sasl_oauth_token_url": "http://login.example/token"},
        {**CLIENT, "sasl_oauth_token_url": "https://me:hunter2@login.example/token"},
        {**CLIENT, "sasl_oauth_token_url": "login.example"},
        {**URL, "sasl_oauth_client_id": "me"},
        {**URL, "sasl_oauth_client_secret": "hunter2"},
    ],
    "sasl_oauth_client_secret_env": [{**URL, **CLIENT, "sasl_oauth_client_secret_env": "A"}],
    "sasl_mechanism": [{}, {**URL, **CLIENT, "sasl_mechanism": "PLAIN"}],
    "sasl_plain_username": [{**URL, **CLIENT, "sasl_plain_username": "me", "sasl_plain_password": "hunter2"}],
    "sasl_oauth_extensions": [
        {**URL, **CLIENT, "sasl_oauth_extensions": extensions}
        for extensions in ({"auth": "a"}, {"a-b": "a"}, {"a": "b\1c"}, {"a": ""})
    ],
    "options": [{**URL, **CLIENT, "options": {"sasl_oauth": {}}}],
}


@pytest.mark.parametrize("place", WRONG)
def test_settings_that_contradict_each_other_are_rejected_by_location(place):
    for settings in WRONG[place]:
        with pytest.raises(ValidationError) as caught:
            Connection(**SECURED | settings)
        found = {".".join(map(str, error["loc"])) for error in caught.value.errors()}
        assert place in found, settings
        assert "hunter2" not in str([error["msg"] for error in caught.value.errors()])


def test_the_login_reaches_another_process_and_its_secret_is_shown_nowhere(endpoint):
    connection = Connection(
        **SECURED, **CLIENT, sasl_oauth_token_url=endpoint.url, sasl_oauth_extensions={"logicalCluster": "lkc-1"}
    )
    assert "hunter" not in f"{connection!r} {connection} {connection.model_dump()} {connection.model_dump_json()}"
    sent = json.loads(json.dumps(client_options(connection)))
    options = kafka_python_options(sent)
    assert "sasl_oauth" not in options
    provider = options["sasl_oauth_token_provider"]
    assert provider.token() == token_source(options).token().text
    assert provider.extensions() == {"logicalCluster": "lkc-1"}
    assert token_source(client_options(Connection(bootstrap_servers="a:1"))) is None


def test_what_is_missing_is_found_at_the_start(tmp_path):
    for settings in (
        {"sasl_oauth_client_secret_env": "NOT_SET_ANYWHERE"},
        {"sasl_oauth_client_secret": "a", "sasl_oauth_cafile": str(tmp_path / "none")},
    ):
        with pytest.raises(ConfigError):
            client_options(Connection(**SECURED, **URL, sasl_oauth_client_id="me", **settings))


def test_settings_of_produce_may_be_those_of_a_token_endpoint(endpoint, tmp_path):
    path = tmp_path / "client.toml"
    login = f'sasl_oauth_token_url = "{endpoint.url}"\nsasl_oauth_client_id = "me"\n'
    path.write_text(f'security_protocol = "SASL_SSL"\n{login}sasl_oauth_client_secret = "hunter2"')
    settings = TopicWriter.settings(path)
    assert settings["sasl_oauth_token_provider"].token() == token_source(settings).token().text
    assert settings.keys() == {"security_protocol", "sasl_oauth_token_provider"}
    for text in (login, f'{login}sasl_oauth_client_secret = ["hunter2"]', 'sasl_oauth_token_provider = "hunter2"'):
        path.write_text(text)
        with pytest.raises(ConfigError) as caught:
            TopicWriter.settings(path)
        assert "hunter2" not in str(caught.value)


def test_produce_says_why_it_has_no_token(endpoint, tmp_path):
    path = tmp_path / "client.toml"
    path.write_text(
        f'sasl_oauth_token_url = "{endpoint.url}"\nsasl_oauth_client_id = "me"\nsasl_oauth_client_secret = "a"'
    )
    for answer, kind in ((None, ConfigError), ((503, b""), SinkError)):
        endpoint.answer = answer
        with pytest.raises(kind, match=endpoint.url.partition("?")[0]):
            TopicWriter("127.0.0.1:1", "t", partitions=None, low_latency=False, settings=TopicWriter.settings(path))


def test_kafka_python_takes_a_failure_for_one_of_the_connection(endpoint):
    endpoint.answer = REJECTED[0]
    connection = Connection(**SECURED, **CLIENT, sasl_oauth_token_url=endpoint.url)
    provider = kafka_python_options(client_options(connection))["sasl_oauth_token_provider"]
    with pytest.raises(KafkaConnectionError) as caught:
        provider.token()
    assert caught.value.retriable
