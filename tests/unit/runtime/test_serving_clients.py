"""Clients of the metrics that mean harm, or are ill."""

import contextlib
import errno
import socket
import threading
import time
import urllib.request

import pytest
from prometheus_client import CollectorRegistry, Gauge

from streammoe.runtime import serving
from streammoe.runtime.health import Health
from streammoe.runtime.serving import MOST_CONNECTIONS, MetricsServer


@pytest.fixture
def server(monkeypatch):
    registry = CollectorRegistry()
    Gauge("answer", "Of everything", registry=registry).set(42)
    monkeypatch.setattr(serving, "_REST_SECONDS", 0.05)
    monkeypatch.setattr(serving._Silent, "timeout", 0.3)
    server = MetricsServer("127.0.0.1", 0, Health(60))
    server.show(registry)
    yield server
    server.close()


def answers(server):
    try:
        with urllib.request.urlopen(server.url, timeout=5) as answer:
            return b"answer 42.0" in answer.read()
    except OSError:
        return False


def test_clients_that_say_nothing_take_a_bounded_number_of_threads_and_are_hung_up_on(server):
    before = threading.active_count()
    with contextlib.ExitStack() as clients:
        silent = [
            clients.enter_context(socket.create_connection(("127.0.0.1", server._server.server_port), timeout=5))
            for _ in range(3 * MOST_CONNECTIONS)
        ]
        most = 0
        for client in silent:
            most = max(most, threading.active_count())
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(1) == b"", "it hangs up"
        assert most - before <= MOST_CONNECTIONS
    deadline = time.monotonic() + 10
    while not answers(server):
        assert time.monotonic() < deadline
    assert answers(server)


def test_a_client_that_hangs_up_leaves_nothing_on_stderr(server, capfd):
    for _ in range(5):
        client = socket.create_connection(("127.0.0.1", server._server.server_port), timeout=5)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # a reset instead of an end
        client.sendall(b"GET /metrics HTTP/1.0\r\n\r\n")
        client.close()
    assert answers(server)
    time.sleep(0.1)
    assert capfd.readouterr().err == ""


def test_for_want_of_descriptors_it_rests_and_answers_later(server, monkeypatch):
    accepts = []

    def none_left(*_):
        accepts.append(time.monotonic())
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(serving.WSGIServer, "get_request", none_left)
        with socket.create_connection(("127.0.0.1", server._server.server_port), timeout=5):
            time.sleep(0.5)
        assert 2 <= len(accepts) <= 12, "it does not spin"
    time.sleep(0.1)
    assert answers(server)
