"""A certificate that has expired is named by both clients, not taken for a broker that does not respond."""

import gc
import socket
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from streammoe_connectors.kafka.clients import load_client
from streammoe_connectors.kafka.contract import Cause, ClientError
from streammoe_connectors.kafka.settings import Connection, client_options


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
            with suppress(OSError), context.wrap_socket(accepted, server_side=True) as connection:
                connection.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    yield f"localhost:{listener.getsockname()[1]}", str(tmp_path / "ca.pem")
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join()
    gc.collect()  # kafka-python leaves sockets whose handshake has failed


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")
@pytest.mark.parametrize("name", ["kafka-python", "librdkafka"])
def test_a_certificate_that_has_expired_is_named(expired, name, monkeypatch):
    monkeypatch.setattr("streammoe_connectors.kafka.kafka_python.producer._ANSWER_MS", 500)
    monkeypatch.setattr("streammoe_connectors.kafka.librdkafka.producer._ANSWER_SECONDS", 0.5)
    address, authority = expired
    client = load_client(name)
    options = client_options(
        Connection(bootstrap_servers=address, security_protocol="SSL", ssl_cafile=authority, client=name)
    )
    with pytest.raises(ClientError, match="certificate") as caught:
        client.topic(options, "t")
    assert caught.value.cause is Cause.REJECTED
