"""Of either client what needs no broker: its options, its errors, and what it says of servers that are none."""

import gc
import socket
import ssl
import threading
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
import trustme
from confluent_kafka import KafkaError, KafkaException, Uuid
from kafka import errors

from streammoe.errors import ConfigError
from streammoe_connectors.kafka import kafka_python, librdkafka
from streammoe_connectors.kafka.contract import Cause, ClientError, Outgoing, load_client
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.settings import Connection, ReadingSettings, TopicSettings

CLIENTS = ("kafka-python", "librdkafka")
NOWHERE = Connection(bootstrap_servers="127.0.0.1:1", client="librdkafka")


CASES = [
    (Cause.NO_ANSWER, errors.KafkaTimeoutError("120 s"), KafkaError._MSG_TIMED_OUT),
    (Cause.UNKNOWN_TOPIC, errors.UnknownTopicOrPartitionError(), KafkaError.UNKNOWN_TOPIC_OR_PART),
    (Cause.TOO_LARGE, errors.MessageSizeTooLargeError(), KafkaError.MSG_SIZE_TOO_LARGE),
    (Cause.NOT_AUTHORIZED, errors.TopicAuthorizationFailedError("p"), KafkaError.TOPIC_AUTHORIZATION_FAILED),
    (
        Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED,
        errors.TransactionalIdAuthorizationFailedError(),
        KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    (
        Cause.TRANSACTION_TIMEOUT_TOO_LONG,
        errors.KafkaError("InvalidTransactionTimeout"),
        KafkaError.INVALID_TRANSACTION_TIMEOUT,
    ),
    (Cause.TRANSACTION_ENDED, errors.ProducerFencedError(), KafkaError._FENCED),
    (Cause.TRANSACTION_ENDED, errors.KafkaError("cannot send", errors.ProducerFencedError()), KafkaError._FENCED),
    (Cause.OTHER, errors.CorruptRecordError(), KafkaError.UNKNOWN),
]


@pytest.mark.parametrize(("cause", "of_python", "code"), CASES, ids=[case[0].name for case in CASES])
def test_both_clients_fail_for_the_same_causes(cause, of_python, code):
    of_librdkafka = librdkafka.client_error(KafkaException(KafkaError(code, "its words")))
    assert kafka_python.client_error(of_python).cause is of_librdkafka.cause is cause
    assert of_librdkafka.retriable is (cause is Cause.NO_ANSWER)


def test_records_that_fail_together_are_each_noted_once_the_cause_first(monkeypatch):
    failed = iter([*[errors.KafkaError("ended")] * 8, errors.MessageSizeTooLargeError(), errors.KafkaError("ended")])
    client = SimpleNamespace(send=lambda *_: SimpleNamespace(is_done=True, exception=next(failed)))
    monkeypatch.setattr(kafka_python, "_open", lambda *_: client)
    producer = kafka_python.KafkaPythonProducer(NOWHERE, TopicSettings(kind="kafka", topic="p"), None)
    records = [Outgoing(b"", b"", {"offset": offset}) for offset in range(10)]
    for record in records:
        producer.send("topic", record)
    assert producer.pending() == 0
    assert [of for _, of in producer.failed] == [records[8], *records[:8], records[9]]


def test_what_brokers_say_while_others_take_over_is_asked_again():
    for code in (KafkaError.NOT_COORDINATOR, KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError._TRANSPORT):
        assert librdkafka.client_error(KafkaException(KafkaError(code))).retriable


@pytest.mark.parametrize(
    ("client", "options"),
    [
        ("kafka-python", {"no_such_option": 1}),
        *(("librdkafka", each) for each in ({"no.such.option": 1}, {"retries": 0}, {"max.in.flight": 1_000})),
    ],
    ids=str,
)
def test_options_that_a_client_does_not_have_are_found_without_a_broker(client, options, capfd):
    with pytest.raises(ConfigError, match=next(iter(options))) as caught:
        load_client(Connection(bootstrap_servers="127.0.0.1:1", client=client, options=options), "predictions")
    assert str(caught.value).startswith("predictions.options: ")
    assert not str(caught.value).endswith("\n")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "extreme",
    [
        *({"buffer_bytes": size} for size in (1 << 20, 6 << 30, 1 << 50)),
        *({"partition_fetch_bytes": size} for size in (1 << 10, 1 << 30)),
        *({"discover_seconds": seconds} for seconds in (1e-3, 1e9)),
    ],
    ids=str,
)
def test_librdkafka_accepts_whatever_the_settings_allow(extreme, monkeypatch):
    monkeypatch.setattr(librdkafka, "REQUEST_SECONDS", 0.01)
    with pytest.raises(ClientError):
        librdkafka.create_consumer(NOWHERE, ReadingSettings(topics="t", group="g", **extreme))


def test_librdkafka_asks_another_node_for_topics_after_one_that_does_not_answer(monkeypatch):
    answer = Future()
    answer.set_exception(KafkaException(KafkaError(KafkaError._TIMED_OUT)))
    answers = [{"t": answer}]

    def list_topics(**_):
        partitions = [SimpleNamespace(id=0, leader=SimpleNamespace(id=1)), SimpleNamespace(id=1, leader=None)]
        answers.append({"t": Future()})
        answers[-1]["t"].set_result(SimpleNamespace(topic_id=Uuid(1, 2), partitions=partitions))

    admin = SimpleNamespace(describe_topics=lambda *_, **__: answers[-1], list_topics=list_topics)
    consumer = SimpleNamespace(list_topics=lambda *_, **__: None)
    monkeypatch.setattr(librdkafka, "AdminClient", lambda _: admin)
    monkeypatch.setattr(librdkafka, "Consumer", lambda _: consumer)
    client = librdkafka.create_consumer(NOWHERE, ReadingSettings(topics="t", group="g"))
    with pytest.raises(ClientError):
        client.describe(["t"])
    assert client.describe(["t"])["t"].leaders == {0: 1, 1: None}


def test_a_mark_is_read_whatever_follows_it():
    mark = OffsetMetadata("me", 1.5, 7)
    for behind in ("", "\0", "\ufffd}{", '{"owner":"you","at":2,"generation":1}'):
        assert OffsetMetadata.parse(mark.encode() + behind) == mark
    for other in (None, "", "somebody's note", "}", '{"owner":1}'):
        assert OffsetMetadata.parse(other) is None

    class Committed:
        @property
        def metadata(self):
            return (mark.encode().encode() + b"\xa0x").decode()

    assert OffsetMetadata.parse(librdkafka.metadata_of(Committed())) == mark


# --- settings -------------------------------------------------------------------------------------------------------

LOGIN = {"bootstrap_servers": "a:1,b:2", "security_protocol": "SASL_SSL", "client_id": "me"}
PASSWORD = {**LOGIN, "sasl_mechanism": "PLAIN", "sasl_plain_username": "u", "sasl_plain_password": "hunter2"}
FILES = dict.fromkeys(("ssl_cafile", "ssl_certfile", "ssl_keyfile"), __file__)
TOKENS = {
    **LOGIN,
    "sasl_mechanism": "OAUTHBEARER",
    "sasl_oauth_token_url": "https://login.example/token",
    "sasl_oauth_client_id": "me",
    "sasl_oauth_client_secret": "hunter4",
}


def test_kafka_python_has_the_settings_by_their_names_and_further_options():
    options = {"ssl_ciphers": "x", "reconnect_backoff_max_ms": 5, "api_version": [2, 3]}
    found = kafka_python._own_options(Connection(**PASSWORD, options=options))
    assert found == PASSWORD | {"bootstrap_servers": ["a:1", "b:2"]} | options | {"api_version": (2, 3)}


def test_librdkafka_has_them_by_its_own_names_and_knows_each():
    secrets = {"ssl_password": "hunter3", "client": "librdkafka", "options": {"fetch.min.bytes": 9}}
    options = librdkafka._own_options(Connection(**PASSWORD, **secrets), {})
    assert {name: options[name] for name in options.keys() - {"logger", "error_cb"}} == {
        "bootstrap.servers": "a:1,b:2",
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "u",
        "sasl.password": "hunter2",
        "ssl.key.password": "hunter3",
        "client.id": "me",
        "fetch.min.bytes": 9,
        "reconnect.backoff.max.ms": 1000,
        "socket.keepalive.enable": True,
    }
    tokens = {"sasl.oauthbearer.scope": "s", "sasl.oauthbearer.extensions": "a=b", "https.ca.location": __file__}
    for login, more in ((PASSWORD | FILES, {}), (TOKENS, tokens)):
        connection = Connection(**login, client="librdkafka", options=more | {"no.such.option": 1})
        with pytest.raises(ConfigError, match=r'No such configuration property: "no\.such\.option"'):
            librdkafka.create_producer(connection, TopicSettings(kind="kafka", topic="p"), None)


# --- a certificate that has expired -----------------------------------------------------------------------------------


@pytest.fixture
def expired(tmp_path):
    """The address of a server whose certificate has expired, and the file of its authority."""
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    yesterday = datetime.now(UTC) - timedelta(days=1)
    authority.issue_cert("localhost", not_after=yesterday).configure_cert(context)
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    listener = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                accepted, _ = listener.accept()
            except OSError:  # closed
                return
            accepted.settimeout(5)  # kafka-python may give a handshake up and leave its socket open
            with suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield {"bootstrap_servers": f"localhost:{listener.getsockname()[1]}", "ssl_cafile": str(tmp_path / "ca.pem")}
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    gc.collect()  # kafka-python leaves sockets whose handshake has failed


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("name", CLIENTS)
def test_a_certificate_that_has_expired_is_named_by_either_client_and_no_silence(expired, name, monkeypatch):
    for module in (kafka_python, librdkafka):
        monkeypatch.setattr(module, "REQUEST_SECONDS", 0.5)
    connection = Connection(**expired, security_protocol="SSL", client=name)
    client = load_client(connection, "source")
    settings = ReadingSettings(topics="t", group="g")
    for ask in (lambda: client.topic(connection, "t"), lambda: client.create_consumer(connection, settings)):
        with pytest.raises(ClientError, match="certificate") as caught:
            ask()
        assert caught.value.cause is Cause.REJECTED
