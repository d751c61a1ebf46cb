"""The metrics server over real sockets: what it serves, to whom, and what strangers can cost."""

import asyncio
import contextlib
import errno
import gc
import gzip
import logging
import socket
import ssl
import struct
import threading
import time

import pytest
import trustme
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from streammoe.daemon import health as waiting
from streammoe.daemon.health import Health
from streammoe.daemon.server import MetricsServer
from streammoe.settings import MetricsSettings
from streammoe.web import listener
from streammoe.web.access import is_served, tls_context
from streammoe.web.listener import MAX_HEAD_BYTES
from tests.kafka_lab.lab import wait_until
from tests.unit.serving.served import answering
from tests.unit.strangers import HOST, address, ask, basic, descriptors, raw

PASSWORD = "correct horse: battery"


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("answer", "Of everything. " * 100, registry=registry).set(42)
    return registry


@pytest.fixture
def health():
    return Health(60)


@pytest.fixture
def serve(registry, health):
    """Starts servers, and closes them."""
    with contextlib.ExitStack() as servers:

        def serve(*, shown=True, **settings):
            server = MetricsServer(MetricsSettings(port=0, **settings), health)
            servers.callback(server.close)
            if shown:
                server.registry = registry
            return server

        yield serve


@pytest.fixture(params=["metrics", "predictions"])
def either(request, serve):
    """Starts servers of metrics or of predictions, with a path of 20 MB."""
    if request.param == "metrics":
        yield serve, "/metrics"
    else:
        with contextlib.ExitStack() as servers:

            def serve(**settings):
                return servers.enter_context(answering(positions=["x" * 20_000_000], **settings))

            yield serve, "/v2/models/streammoe"


@pytest.fixture(scope="session")
def authority():
    return trustme.CA()


@pytest.fixture(scope="session")
def certificate(authority, tmp_path_factory):
    """Settings that name a certificate for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(folder / "key.pem")
    with (folder / "cert.pem").open("wb") as file:
        for blob in made.cert_chain_pems:
            file.write(blob.bytes())
    return {"tls_certfile": str(folder / "cert.pem"), "tls_keyfile": str(folder / "key.pem")}


@pytest.fixture
def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


# --- metrics and probes ---------------------------------------------------------------------------------------------


def test_the_registry_is_served_in_the_format_that_is_asked_for(serve, registry):
    Gauge("other", "Another", registry=registry).set(1)
    server = serve()
    assert server.url.startswith("http://127.0.0.1:")
    status, headers, body = ask(server)
    assert (status, headers.get_content_type()) == (200, "text/plain")
    assert {"Server", "Etag"}.isdisjoint(headers)
    assert [family.name for family in text_string_to_metric_families(body.decode())] == ["answer", "other"]
    _, headers, body = ask(server, Accept="application/openmetrics-text; version=1.0.0")
    assert headers.get_content_type() == "application/openmetrics-text"
    assert [family.name for family in openmetrics(body.decode())] == ["answer", "other"]
    _, headers, body = ask(server, "/?name[]=answer", Accept_Encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert [family.name for family in text_string_to_metric_families(gzip.decompress(body).decode())] == ["answer"]


def test_it_is_ready_while_it_can_save_and_alive_while_the_loop_turns(serve, health, caplog, monkeypatch):
    server = serve(shown=False)
    assert ask(server)[0] == 503, "metrics are not restored yet"
    probes = []

    def probe():
        probes.append((ask(server, "/readyz")[0], ask(server, "/healthz")[0]))

    probe()
    health.ready = True
    probe()
    health.unsaved = "the disk is full"
    probe()
    health.unsaved = ""
    with health.waits["predictions"].call():
        probe()
        monkeypatch.setattr(waiting, "SLOW_SECONDS", 0.0)
        probe()
        assert b"[predictions]" in ask(server, "/readyz")[2]
        health.patience = -1.0
        assert ask(server, "/healthz")[0] == 200, "it waits for the sink, which may take long"
    probe()
    health.patience = 60.0
    health.beat()
    probe()
    assert probes == [(503, 200), (200, 200), (503, 200), (200, 200), (503, 200), (200, 503), (200, 200)]
    assert caplog.records == []
    health.patience = "a bug"
    assert ask(server, "/healthz", X_Secret="hidden")[0] == 500
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "hidden" not in caplog.text


# --- passwords ------------------------------------------------------------------------------------------------------


def test_metrics_require_a_password_and_probes_do_not(serve, tmp_path):
    (tmp_path / "password").write_text(f"{PASSWORD}\r\n")
    server = serve(username="prom", password={"file": str(tmp_path / "password")})
    status, headers, body = ask(server)
    assert (status, b"answer" in body, headers["WWW-Authenticate"].split()[0]) == (401, False, "Basic")
    assert ask(server, "/")[0] == ask(server, method="HEAD")[0] == 401
    good = basic("prom", PASSWORD)
    for each in (good, good.replace("Basic ", "basic  ")):
        status, _, body = ask(server, Authorization=each)
        assert (status, b"answer 42.0" in body) == (200, True)
    assert (ask(server, "/healthz")[0], ask(server, "/readyz")[0]) == (200, 503)
    wrong = ["", "Basic", "Basic !", PASSWORD, good.replace("Basic", "Bearer"), good.removeprefix("Basic ")]
    pairs = [("prom", ""), ("prom", PASSWORD + "x"), ("prom", PASSWORD[:-1]), ("Prom", PASSWORD), ("", PASSWORD)]
    for each in [*wrong, *(basic(*pair) for pair in pairs)]:
        assert ask(server, Authorization=each)[0] == 401, each
    twice = b"GET /metrics HTTP/1.1\r\nConnection: close\r\n" + HOST + f"Authorization: {good}\r\n".encode() * 2
    assert raw(server, twice + b"\r\n").startswith(b"HTTP/1.1 401")


def test_a_password_is_shown_nowhere_kept_as_a_digest_and_compared_in_constant_time(serve, monkeypatch, caplog):
    settings = MetricsSettings(port=0, username="prom", password=PASSWORD)
    shown = repr(settings) + str(settings.model_dump()) + settings.model_dump_json()
    with caplog.at_level(logging.DEBUG):
        server = serve(username="prom", password=PASSWORD)
        ask(server, Authorization=basic("prom", PASSWORD))
    shown += repr([vars(server.listener), vars(server.listener.access)]) + caplog.text
    assert PASSWORD not in shown
    compared = []
    monkeypatch.setattr("streammoe.web.access.hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert ask(server, Authorization=basic("prom", "p"))[0] == 401
    assert [len(each) for pair in compared for each in pair] == [32] * 2


# --- TLS ------------------------------------------------------------------------------------------------------------


def test_with_a_certificate_everything_is_encrypted(serve, certificate, trusting):
    server = serve(**certificate, username="prom", password=PASSWORD)
    assert server.url.startswith("https://127.0.0.1:")
    status, _, body = ask(server, context=trusting, Authorization=basic("prom", PASSWORD))
    assert (status, b"answer 42.0" in body) == (200, True)
    assert ask(server, context=trusting)[0] == 401
    assert ask(server, "/healthz", context=trusting)[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, context=ssl.create_default_context())
    assert b"HTTP" not in raw(server, b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n")


def test_no_tls_before_1_2(certificate):
    assert tls_context(MetricsSettings(**certificate)).minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_warning_where_others_may_listen(serve, certificate, caplog, monkeypatch):
    for is_loopback, has_secret, is_encrypted, is_warned in (
        (True, False, False, False),
        (False, False, False, True),
        (False, False, True, True),
        (False, True, False, True),
        (False, True, True, False),
    ):
        caplog.clear()
        monkeypatch.setattr("streammoe.web.access.is_loopback", lambda _, found=is_loopback: found)
        serve(
            **({"username": "prom", "password": PASSWORD} if has_secret else {}),
            **(certificate if is_encrypted else {}),
        )
        assert [record.levelname for record in caplog.records] == ["WARNING"] * is_warned


# --- host names -----------------------------------------------------------------------------------------------------


OURS = ("localhost", "LocalHost.:9464", "127.0.0.1:1", "[::1]:9464", "prometheus.example:80")
FOREIGN = ("evil.example", "localhost.evil.example:9464", "127.0.0.1.evil.example", "192.0.2.1", "2130706433", "")


def test_a_page_cannot_read_metrics_by_a_name_of_its_own(serve):
    server = serve(allowed_hosts=["Prometheus.example"])
    for host in OURS:
        assert [ask(server, path, Host=host)[0] for path in ("/metrics", "/healthz", "/other")] == [200, 200, 404]
    for host in FOREIGN:
        assert [ask(server, path, Host=host)[0] for path in ("/metrics", "/healthz", "/other")] == [421] * 3
    assert is_served("daemon.example", "0.0.0.0", [])
    for name, is_listed in (("daemon.example", True), ("localhost", True), ("other.example", False)):
        assert is_served(name, "0.0.0.0", ["daemon.example"]) is is_listed


# --- requests of strangers ------------------------------------------------------------------------------------------


def test_only_get_and_head_are_answered(serve):
    server = serve()
    _, wanted, body = ask(server)
    status, headers, nothing = ask(server, method="HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["Content-Length"] == wanted["Content-Length"] == str(len(body))
    for method in ("POST", "OPTIONS", "TRACE", "CONNECT", "get"):
        status, headers, _ = ask(server, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method


GET = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n" + HOST


def test_a_head_that_is_too_large_or_malformed_ends_the_connection(either, caplog):
    server = either[0]()
    fits = GET + b"X: "
    assert raw(server, fits + b"x" * (MAX_HEAD_BYTES - len(fits) - 4) + b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert raw(server, fits + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n") == b""
    assert raw(server, b"GET /" + b"x" * 3 * MAX_HEAD_BYTES) == b""
    assert raw(server, GET + b"Content-Length: 0\r\nContent-Length: 9\r\n\r\nGET / HTTP").startswith(b"HTTP/1.1 400")
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")  # left to the garbage collector by ssl
@pytest.mark.parametrize("is_encrypted", [False, True])
def test_clients_that_vanish_leave_nothing_behind(either, certificate, trusting, caplog, monkeypatch, is_encrypted):
    serve, _ = either
    monkeypatch.setattr(listener, "CONNECTIONS", 8)
    server = serve(**(certificate if is_encrypted else {}))
    used = descriptors()
    starts = [b"", GET, GET + b"\r\n", b"\x16\x03\x01\x02\x00\r\n\r\n", b"\0" * 100]
    for i in range(20):
        connection = socket.create_connection(address(server), timeout=20)
        connection.sendall(starts[i % len(starts)])
        if i % 2:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by RST
        connection.close()
    for _ in range(2 * listener.CONNECTIONS):
        assert ask(server, "/healthz", context=trusting if is_encrypted else None)[0] == 200
    wait_until(lambda: descriptors() <= used, "all are closed")
    assert len(server.listener.connections) <= listener.CONNECTIONS
    assert caplog.records == []


def test_clients_that_are_slow_are_cut_off(either, monkeypatch, certificate, registry):
    serve, path = either
    monkeypatch.setattr(listener, "SECONDS", 0.2)
    registry.register(
        type("Large", (), {"collect": lambda _: Gauge("large", "x" * 20_000_000, registry=None).collect()})()
    )
    plain, encrypted = serve(), serve(**certificate)

    def drip(connection):
        while True:
            connection.sendall(b"x")
            time.sleep(0.02)

    def read_nothing(connection):
        connection.sendall(f"GET {path} HTTP/1.1\r\n".encode() + HOST + b"\r\n")
        received = len(connection.recv(1))
        wait_until(lambda: all(stream.closed() for stream in plain.listener.connections), "it is cut off")
        while block := connection.recv(1 << 20):
            received += len(block)
        assert received < 20_000_000
        raise ConnectionError

    for server, begun, go_on in (
        (plain, b"", lambda connection: connection.recv(1)),
        (plain, GET + b"X: ", drip),
        (plain, GET + b"Content-Length: 100000\r\n\r\n", drip),
        (plain, b"", read_nothing),
        (encrypted, b"\x16\x03\x01", lambda connection: connection.recv(1)),
    ):
        started = time.monotonic()
        with socket.create_connection(address(server), timeout=20) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(begun)
            assert not go_on(connection)
        assert 0.15 < time.monotonic() - started < 8


def test_one_that_cannot_begin_leaves_nothing_open(health, monkeypatch):
    def fails(*_):
        loops.append(asyncio.get_running_loop())
        raise OSError(errno.EMFILE, "Too many open files")

    loops = []
    monkeypatch.setattr(listener, "add_accept_handler", fails)
    with pytest.raises(OSError, match="Too many"):
        MetricsServer(MetricsSettings(port=0), health)
    assert loops[0].is_closed()
    gc.collect()  # a socket that was left open would be noticed here, and not in another test


def test_an_end_waits_for_the_answers_to_what_has_come(health):
    server = MetricsServer(MetricsSettings(port=0), health)
    with socket.create_connection(address(server), timeout=20) as connection:
        connection.sendall(GET.replace(b"Connection: close\r\n", b"Content-Length: 2\r\n") + b"\r\nx")
        wait_until(lambda: server.listener.unanswered, "it is under way")
        ending = threading.Thread(target=server.close)
        ending.start()
        wait_until(lambda: server.listener.is_closing, "it ends")
        connection.sendall(b"x")
        assert connection.recv(1 << 16).startswith(b"HTTP/1.1 ")
    ending.join()
    with pytest.raises(ConnectionRefusedError):
        ask(server, "/healthz")
