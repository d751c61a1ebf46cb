"""The metrics server over real sockets: what it serves, to whom, and what strangers can cost."""

import base64
import contextlib
import gzip
import http.client
import logging
import socket
import ssl
import struct
import threading
import time
from pathlib import Path

import pytest
import trustme
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from streammoe.daemon import server as module
from streammoe.daemon.access import HostNames
from streammoe.daemon.server import LARGEST_HEAD, MOST_CONNECTIONS, Health, MetricsServer
from streammoe.errors import ConfigError
from streammoe.settings import Metrics

PASSWORD = "correct horse: battery"
TOKEN = "f00dfeed"
HOST = b"Host: localhost\r\n"


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("answer", "Of everything", registry=registry).set(42)
    return registry


@pytest.fixture
def health():
    return Health(60)


@pytest.fixture
def serve(registry, health):
    """Starts servers, and closes them."""
    with contextlib.ExitStack() as servers:

        def serve(*, shown=True, **settings):
            server = MetricsServer(Metrics(port=0, **settings), health)
            servers.callback(server.close)
            if shown:
                server.show(registry)
            return server

        yield serve


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


def address(server):
    host, _, port = server.url.split("/")[2].rpartition(":")
    return host.strip("[]"), int(port)


def ask(server, path="/metrics", method="GET", *, context=None, **headers):
    """Status, headers and body."""
    made = http.client.HTTPSConnection if server.url.startswith("https") else http.client.HTTPConnection
    more = {"context": context} if context else {}
    connection = made(*address(server), timeout=20, **more)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def raw(server, data):
    """What comes back for these bytes, until the server closes."""
    found = b""
    with socket.create_connection(address(server), timeout=20) as connection, contextlib.suppress(ConnectionError):
        connection.sendall(data)
        while block := connection.recv(4096):
            found += block
    return found


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


def descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def wait_until(condition):
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


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


def test_metrics_are_not_served_before_they_are_restored(serve, registry):
    server = serve(shown=False)
    assert ask(server)[0] == 503
    server.show(registry)
    assert ask(server)[0] == 200


def test_it_is_ready_once_it_says_so_and_while_it_can_save(serve, health):
    server = serve()
    assert ask(server, "/readyz")[0] == 503
    health.ready = True
    assert ask(server, "/readyz")[0] == 200
    health.unsaved = "the disk is full"
    status, _, body = ask(server, "/readyz")
    assert (status, health.unsaved in body.decode()) == (503, True)
    assert ask(server, "/healthz")[0] == 200
    health.unsaved = ""
    assert ask(server, "/readyz")[0] == 200


def test_it_is_alive_while_the_loop_turns(serve, health):
    server = serve()
    assert ask(server, "/healthz")[0] == 200
    health.patience = -1.0
    assert ask(server, "/healthz")[0] == 503
    health.patience = 60.0
    health.beat()
    assert ask(server, "/healthz")[0] == 200


def test_a_probe_that_fails_by_a_bug_is_500_and_logged(serve, health, caplog):
    server = serve()
    health.patience = "soon"
    assert ask(server, "/healthz", X_Secret="hidden")[0] == 500
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "hidden" not in caplog.text


# --- opening and closing --------------------------------------------------------------------------------------------


def test_a_port_in_use_is_the_settings_fault():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError):
            MetricsServer(Metrics(port=taken.getsockname()[1]), Health(60))


@pytest.mark.parametrize("encrypted", [False, True])
def test_closing_frees_port_threads_and_descriptors(registry, certificate, encrypted):
    settings = certificate if encrypted else {}
    MetricsServer(Metrics(port=0, **settings), Health(60)).close()  # what is imported and cached on first use
    used = descriptors(), threading.active_count()
    server = MetricsServer(Metrics(port=0, **settings), Health(60))
    server.show(registry)
    held = [socket.create_connection(address(server), timeout=20) for _ in range(10)]
    for connection in held[::2]:
        connection.sendall(b"GET /metr" if not encrypted else b"\x16\x03\x01")
    wait_until(lambda: len(server._connections) == len(held))
    server.close()
    for connection in held:
        with connection, contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
    assert (descriptors(), threading.active_count()) == used
    port = address(server)[1]
    MetricsServer(Metrics(port=port, **settings), Health(60)).close()


def test_an_ipv6_address_has_brackets_in_the_url_and_is_answered(serve):
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        pytest.skip("no IPv6 here")
    server = serve(host="::1")
    assert server.url.startswith("http://[::1]:")
    assert ask(server)[0] == 200


# --- passwords and tokens -------------------------------------------------------------------------------------------


@pytest.fixture(params=["given", "file", "env"])
def secured(request, tmp_path, monkeypatch):
    """The same secrets from each place where settings may have them."""
    if request.param == "given":
        return {"username": "prom", "password": PASSWORD, "bearer_token": TOKEN}
    if request.param == "env":
        monkeypatch.setenv("METRICS_PASSWORD", PASSWORD)
        monkeypatch.setenv("METRICS_TOKEN", TOKEN)
        return {"username": "prom", "password_env": "METRICS_PASSWORD", "bearer_token_env": "METRICS_TOKEN"}
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    (tmp_path / "token").write_text(f"{TOKEN}\r\n")
    files = {"password_file": str(tmp_path / "password"), "bearer_token_file": str(tmp_path / "token")}
    return {"username": "prom", **files}


def test_metrics_require_a_password_or_token_and_probes_do_not(serve, secured):
    server = serve(**secured)
    status, headers, body = ask(server)
    assert (status, b"answer" in body) == (401, False)
    assert [offer.split()[0] for offer in headers.get_all("WWW-Authenticate")] == ["Basic", "Bearer"]
    assert ask(server, "/")[0] == ask(server, method="HEAD")[0] == 401
    for good in (basic("prom", PASSWORD), f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        status, _, body = ask(server, Authorization=good)
        assert (status, b"answer 42.0" in body) == (200, True)
    assert ask(server, "/healthz")[0] == 200
    assert ask(server, "/readyz")[0] == 503


def test_nothing_else_opens(serve):
    server = serve(username="prom", password=PASSWORD, bearer_token=TOKEN)
    for wrong in (
        "",
        "Basic",
        "Basic !",
        "Basic =",
        basic("prom", ""),
        basic("prom", PASSWORD + "x"),
        basic("prom", PASSWORD[:-1]),
        basic("Prom", PASSWORD),
        basic("", PASSWORD),
        f"Basic {TOKEN}",
        f"Bearer {PASSWORD}",
        "Bearer " + basic("prom", PASSWORD)[6:],
        f"Bearer {TOKEN}0",
        "Bearer",
        TOKEN,
        "Digest username=prom",
    ):
        assert ask(server, Authorization=wrong)[0] == 401, wrong
    twice = b"GET /metrics HTTP/1.1\r\n" + HOST + f"Authorization: Bearer {TOKEN}\r\n".encode() * 2
    assert raw(server, twice + b"\r\n").startswith(b"HTTP/1.1 401")


def test_secrets_are_compared_in_constant_time_and_kept_as_digests(serve, monkeypatch):
    server = serve(username="prom", password=PASSWORD, bearer_token=TOKEN)
    kept = repr([vars(server), vars(server.access)])
    assert PASSWORD not in kept
    assert TOKEN not in kept
    compared = []
    monkeypatch.setattr("streammoe.daemon.access.hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert ask(server, Authorization=basic("prom", "p"))[0] == 401
    assert [len(a) for pair in compared for a in pair] == [32] * 4


def test_secrets_show_nowhere(serve, caplog):
    secrets = {"username": "prom", "password": PASSWORD, "bearer_token": TOKEN}
    settings = Metrics(port=0, **secrets)
    shown = repr(settings) + str(settings.model_dump()) + settings.model_dump_json()
    with caplog.at_level(logging.DEBUG):
        server = serve(**secrets)
        ask(server, Authorization=f"Bearer {TOKEN}")
        raw(server, b"GET /metrics HTTP/1.1\r\n" + HOST + f"Authorization: Bearer {TOKEN}\0\r\n\r\n".encode())
    assert PASSWORD not in shown + caplog.text
    assert TOKEN not in shown + caplog.text


UNUSABLE = (
    {"username": "u", "password_file": "no-such-file"},
    {"username": "u", "password_env": "NO_SUCH_VARIABLE"},
    {"username": "u", "password": ""},
    {"bearer_token": ""},
    {"bearer_token": "zwei Wörter"},
    {"tls_certfile": "no-cert", "tls_keyfile": "no-key"},
    {"tls_certfile": __file__, "tls_keyfile": __file__},
    {"host": "192.0.2.1"},  # an address for documentation only
    {"host": "no.such.host.invalid"},
)


def test_a_secret_certificate_or_host_that_cannot_be_used_is_the_settings_fault(serve):
    for settings in UNUSABLE:
        with pytest.raises(ConfigError) as rejected:
            serve(**settings)
        assert "zwei" not in str(rejected.value)


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


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_no_tls_before_1_2(serve, certificate, trusting):
    server = serve(**certificate)
    trusting.set_ciphers("ALL:@SECLEVEL=0")  # else this side would not even try 1.1
    for version, works in (
        (ssl.TLSVersion.TLSv1_3, True),
        (ssl.TLSVersion.TLSv1_2, True),
        (ssl.TLSVersion.TLSv1_1, False),
    ):
        trusting.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
        trusting.maximum_version = version
        trusting.minimum_version = version
        if works:
            assert ask(server, "/healthz", context=trusting)[0] == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError)):
                ask(server, "/healthz", context=trusting)


def test_a_warning_where_others_may_listen(serve, certificate, caplog, monkeypatch):
    for is_loopback, has_secret, is_encrypted, is_warned in (
        (True, False, False, False),
        (False, False, False, True),
        (False, False, True, True),
        (False, True, False, True),
        (False, True, True, False),
    ):
        caplog.clear()
        monkeypatch.setattr("streammoe.daemon.access.is_loopback", lambda _, found=is_loopback: found)
        serve(**({"bearer_token": TOKEN} if has_secret else {}), **(certificate if is_encrypted else {}))
        assert [record.levelname for record in caplog.records] == ["WARNING"] * is_warned


# --- host names -----------------------------------------------------------------------------------------------------


HOSTS = {
    200: ("localhost", "LocalHost.:9464", "127.0.0.1:1", "127.8.8.8", "[::1]:9464", "prometheus.example:80"),
    421: (
        "evil.example",
        "localhost.evil.example:9464",
        "127.0.0.1.evil.example",
        "192.0.2.1",
        "0.0.0.0:9464",
        "2130706433",
        "",
    ),
}


def test_a_page_cannot_read_metrics_by_a_name_of_its_own(serve):
    server = serve(allowed_hosts=["Prometheus.example"])
    for status, hosts in HOSTS.items():
        for host in hosts:
            found = [ask(server, path, Host=host)[0] for path in ("/metrics", "/healthz", "/other")]
            assert found == [status, status, 404 if status == 200 else status], host


def test_a_server_for_other_machines_answers_any_name_unless_some_are_listed():
    assert HostNames("0.0.0.0", []).include("daemon.example")
    listed = HostNames("0.0.0.0", ["daemon.example"])
    assert [listed.include(name) for name in ("daemon.example", "localhost", "other.example")] == [True, True, False]


# --- requests of strangers ------------------------------------------------------------------------------------------


def test_only_get_and_head_are_answered(serve):
    server = serve()
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"):
        status, headers, _ = ask(server, method=method)
        assert (status, headers["Allow"]) == (405, "GET, HEAD"), method


def test_head_has_the_headers_of_get_and_no_body(serve):
    server = serve()
    _, wanted, body = ask(server)
    status, headers, nothing = ask(server, method="HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["Content-Length"] == wanted["Content-Length"] == str(len(body))


ODD = {
    "HTTP/1.0 without a host": (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
    "HTTP/1.1 without a host": (b"GET /healthz HTTP/1.1\r\n\r\n", b"400"),
    "two hosts": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"Host: evil\r\n\r\n", b"400"),
    "HTTP/0.9": (b"GET /healthz\r\n\r\n", b"400"),
    "nothing": (b"\r\n\r\n", b"400"),
    "TLS": (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
    "another protocol": (b"GET /healthz FTP/1.1\r\n" + HOST + b"\r\n", b"400"),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"400"),
    "odd bytes in the path": (b"GET /%00%ff\xff HTTP/1.1\r\n" + HOST + b"\r\n", b"404"),
    "a path upwards": (b"GET /../metrics HTTP/1.1\r\n" + HOST + b"\r\n", b"404"),
    "absolute form": (b"GET http://elsewhere/metrics HTTP/1.1\r\n" + HOST + b"\r\n", b"404"),
    "no colon": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n", b"400"),
    "NUL": (b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: \0\r\n\r\n", b"400"),
    "length and chunks": (
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"400",
    ),
    "two lengths": (
        b"GET /healthz HTTP/1.1\r\n" + HOST + b"Content-Length: 0\r\nContent-Length: 9\r\n\r\nGET / HTTP",
        b"400",
    ),
    "a body": (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n123456789", b"400"),
    "an endless body": (b"POST /metrics HTTP/1.1\r\n" + HOST + b"Content-Length: 99999999999\r\n\r\n", b"400"),
    "endless chunks": (b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\nffffffff\r\n", b"400"),
    "several requests": ((b"GET /healthz HTTP/1.1\r\n" + HOST + b"\r\n") * 3, b"200"),
}


def test_odd_requests_have_one_answer_and_no_line_in_the_log(serve, caplog):
    server = serve()
    for name, (data, status) in ODD.items():
        found = raw(server, data)
        assert found.startswith(b"HTTP/1.1 " + status), name
        assert found.count(b"HTTP/1.1") == 1, name
    assert caplog.records == []


def test_a_head_that_is_too_large_ends_the_connection(serve, caplog):
    server = serve()
    fits = b"GET /healthz HTTP/1.1\r\n" + HOST + b"X: "
    assert raw(server, fits + b"x" * (LARGEST_HEAD - len(fits) - 4) + b"\r\n\r\n").startswith(b"HTTP/1.1 200")
    assert raw(server, fits + b"x" * LARGEST_HEAD + b"\r\n\r\n") == b""
    assert raw(server, b"GET /" + b"x" * 3 * LARGEST_HEAD) == b""
    assert caplog.records == []


def test_a_handshake_that_fails_is_not_logged(serve, certificate, trusting, caplog):
    server = serve(**certificate)
    for data in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"\0" * 100, b""):
        with socket.create_connection(address(server), timeout=20) as connection:
            connection.sendall(data)
    assert ask(server, "/healthz", context=trusting)[0] == 200
    assert caplog.records == []


@pytest.mark.filterwarnings("ignore:unclosed <ssl.SSLSocket:ResourceWarning")  # left to the garbage collector by ssl
@pytest.mark.parametrize("encrypted", [False, True])
def test_clients_that_vanish_leave_nothing_behind(serve, certificate, trusting, caplog, encrypted):
    server = serve(**(certificate if encrypted else {}))
    used = descriptors()
    for i in range(100):
        connection = socket.create_connection(address(server), timeout=20)
        if i % 3:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n"[: 2 * (i % 2)])
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # by RST
        connection.close()
    for _ in range(2 * MOST_CONNECTIONS):
        assert ask(server, context=trusting if encrypted else None)[0] == 200
    wait_until(lambda: descriptors() <= used)
    assert len(server._connections) <= MOST_CONNECTIONS
    assert caplog.records == []


# --- time and connections -------------------------------------------------------------------------------------------


def test_clients_that_are_slow_are_cut_off(serve, monkeypatch, certificate, registry):
    monkeypatch.setattr(module, "LONGEST_REQUEST", 0.5)
    registry.register(
        type("Large", (), {"collect": lambda _: Gauge("large", "x" * 20_000_000, registry=None).collect()})()
    )
    plain, encrypted = serve(), serve(**certificate)

    def drip(connection):
        for _ in range(200):
            connection.sendall(b"x")
            time.sleep(0.05)

    def read_nothing(connection):
        connection.sendall(b"GET /metrics HTTP/1.1\r\n" + HOST + b"\r\n")
        received = len(connection.recv(1))
        wait_until(lambda: all(stream.closed() for stream in plain._connections))
        while block := connection.recv(1 << 20):
            received += len(block)
        assert received < 20_000_000
        raise ConnectionError

    for server, begun, go_on in (
        (plain, b"", lambda connection: connection.recv(1)),
        (plain, b"GET /metrics HTTP/1.1\r\nX: ", drip),
        (plain, b"", read_nothing),
        (encrypted, b"\x16\x03\x01", lambda connection: connection.recv(1)),
    ):
        started = time.monotonic()
        with socket.create_connection(address(server), timeout=20) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(begun)
            assert not go_on(connection)
        assert 0.4 < time.monotonic() - started < 8


@pytest.mark.parametrize("encrypted", [False, True])
def test_many_that_only_hold_connections_open_stop_no_scrape(serve, certificate, trusting, encrypted):
    server = serve(**(certificate if encrypted else {}))
    used = descriptors()
    with contextlib.ExitStack() as held:
        for i in range(300):  # half of them say something, half nothing
            connection = held.enter_context(socket.create_connection(address(server), timeout=20))
            if i % 2:
                with contextlib.suppress(ConnectionError):  # it had to make room already
                    connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        started = time.monotonic()
        assert ask(server, context=trusting if encrypted else None)[0] == 200
        assert time.monotonic() - started < 8
        assert descriptors() - used - 300 <= MOST_CONNECTIONS
        assert threading.active_count() < 10
