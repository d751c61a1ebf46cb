"""Who may see metrics, over real sockets; and strangers that hold connections open."""

import base64
import contextlib
import gzip
import http.client
import logging
import socket
import ssl
import time

import pytest
import trustme
from prometheus_client import CollectorRegistry, Gauge

from streammoe.daemon import serving as module
from streammoe.daemon.health import Health
from streammoe.daemon.serving import LARGEST_HEAD, MOST_CONNECTIONS, MetricsServer
from streammoe.errors import ConfigError
from streammoe.settings import Metrics

PASSWORD = "correct horse: battery"
TOKEN = "f00dfeed"


@pytest.fixture
def registry():
    registry = CollectorRegistry()
    Gauge("answer", "Of everything", registry=registry).set(42)
    return registry


@pytest.fixture
def serve(registry):
    """Starts servers, and ends them."""
    servers = []

    def serve(**settings):
        server = MetricsServer(Metrics(port=0, **settings), Health(60))
        server.show(registry)
        servers.append(server)
        return server

    yield serve
    for server in servers:
        server.close()


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


def address(server):
    return server.url.split("/")[2]


def ask(server, path="/metrics", method="GET", *, context=None, **headers):
    """Status, headers and body."""
    made = http.client.HTTPSConnection if server.url.startswith("https") else http.client.HTTPConnection
    more = {"context": context} if context else {}
    connection = made(address(server), timeout=10, **more)
    try:
        connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


def raw(server, data):
    """What comes back for these bytes, until the server closes."""
    host, _, port = address(server).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(data)
        found = b""
        while block := connection.recv(4096):
            found += block
        return found


def basic(user, password):
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()


# --- passwords and tokens -------------------------------------------------------------------------------------------


@pytest.fixture(params=["given", "file", "env"])
def secured(request, tmp_path, monkeypatch):
    """The same secrets from wherever settings may have them."""
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


def test_metrics_ask_for_password_or_token_and_probes_do_not(serve, secured):
    server = serve(**secured)
    status, headers, body = ask(server)
    assert (status, body) == (401, b"metrics ask for a password or token\n")
    schemes = [offer.split()[0] for offer in headers.get_all("WWW-Authenticate")]
    assert schemes == ["Basic", "Bearer"]
    assert ask(server, "/")[0] == ask(server, "/%6detrics")[0] == ask(server, method="HEAD")[0] == 401
    for good in (basic("prom", PASSWORD), f"Bearer {TOKEN}", f"bearer  {TOKEN}"):
        status, _, body = ask(server, Authorization=good)
        assert status == 200
        assert b"answer 42.0" in body
    assert ask(server, "/healthz")[0] == 200
    assert ask(server, "/readyz")[0] == 503


@pytest.mark.parametrize(
    "wrong",
    [
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
    ],
)
def test_nothing_else_opens(serve, wrong):
    server = serve(username="prom", password=PASSWORD, bearer_token=TOKEN)
    assert ask(server, Authorization=wrong)[0] == 401


def test_secrets_are_compared_in_constant_time_and_kept_as_digests(serve, monkeypatch):
    server = serve(username="prom", password=PASSWORD, bearer_token=TOKEN)
    kept = repr([vars(server), vars(server._access)])
    assert PASSWORD not in kept
    assert TOKEN not in kept
    compared = []
    monkeypatch.setattr("streammoe.daemon.access.hmac.compare_digest", lambda a, b: compared.append((a, b)) or a == b)
    assert ask(server, Authorization=basic("prom", "p"))[0] == 401
    assert [len(a) for pair in compared for a in pair] == [32] * 4


def test_secrets_show_nowhere(serve, caplog):
    settings = Metrics(port=0, username="prom", password=PASSWORD, bearer_token=TOKEN)
    shown = repr(settings) + str(settings.model_dump()) + settings.model_dump_json()
    with caplog.at_level(logging.DEBUG):
        ask(serve(host="0.0.0.0", username="prom", password=PASSWORD, bearer_token=TOKEN), Authorization="Basic x")
    assert PASSWORD not in shown + caplog.text
    assert TOKEN not in shown + caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"username": "u", "password_file": "no-such-file"}, r"metrics\.password_file: 'no-such-file' cannot be read"),
        ({"username": "u", "password_env": "NO_SUCH_VARIABLE"}, r"metrics\.password_env: names .* which is not set"),
        ({"username": "u", "password": ""}, r"metrics\.password: is empty"),
        ({"bearer_token": ""}, r"metrics\.bearer_token: is empty"),
        ({"bearer_token": "zwei Wörter"}, r"metrics\.bearer_token: must be visible ASCII"),
        ({"tls_certfile": "no-cert", "tls_keyfile": "no-key"}, r"metrics\.tls_certfile: 'no-cert' cannot be read"),
        ({"tls_certfile": __file__, "tls_keyfile": __file__}, r"metrics\.tls_certfile .*: cannot be used"),
    ],
)
def test_what_cannot_be_used_is_the_settings_fault(settings, message):
    with pytest.raises(ConfigError, match=message) as refused:
        MetricsServer(Metrics(port=0, **settings), Health(60))
    assert "zwei" not in str(refused.value)


# --- TLS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def trusting(authority):
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


def test_with_a_certificate_everything_is_encrypted(serve, certificate, trusting):
    server = serve(**certificate, username="prom", password=PASSWORD)
    assert server.url.startswith("https://127.0.0.1:")
    status, _, body = ask(server, context=trusting, Authorization=basic("prom", PASSWORD))
    assert (status, b"answer 42.0" in body) == (200, True)
    assert ask(server, context=trusting)[0] == 401
    assert ask(server, "/healthz", context=trusting)[0] == 200
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, context=ssl.create_default_context())
    assert raw(server, b"GET /metrics HTTP/1.1\r\n\r\n").find(b"HTTP") == -1  # no plain text


@pytest.mark.parametrize(
    ("version", "works"),
    [(ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True), (ssl.TLSVersion.TLSv1_3, True)],
)
@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1 is deprecated:DeprecationWarning")
def test_no_tls_before_1_2(serve, certificate, trusting, version, works):
    server = serve(**certificate)
    trusting.set_ciphers("ALL:@SECLEVEL=0")  # else this side would not even try 1.1
    trusting.minimum_version = trusting.maximum_version = version
    if works:
        assert ask(server, "/healthz", context=trusting)[0] == 200
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            ask(server, "/healthz", context=trusting)


# --- loud, where others may listen ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "secret", "encrypted", "said"),
    [
        ("127.0.0.1", False, False, ""),
        ("localhost", False, False, ""),
        ("0.0.0.0", False, False, "WHOEVER REACHES THIS MACHINE CAN READ THE METRICS"),
        ("0.0.0.0", False, True, "WHOEVER REACHES THIS MACHINE CAN READ THE METRICS"),
        ("0.0.0.0", True, False, "PASSWORDS AND TOKENS PASS THE NETWORK IN PLAIN TEXT"),
        ("0.0.0.0", True, True, ""),
    ],
)
def test_a_warning_where_others_may_listen(serve, certificate, caplog, host, secret, encrypted, said):
    serve(host=host, **({"bearer_token": TOKEN} if secret else {}), **(certificate if encrypted else {}))
    assert said in caplog.text
    assert len(caplog.records) == bool(said)


# --- strangers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "get"])
def test_only_get_and_head_are_answered(serve, method):
    status, headers, _ = ask(serve(), method=method)
    assert (status, headers["Allow"]) == (405, "GET, HEAD")


def test_head_has_the_headers_of_get_and_no_body(serve):
    server = serve()
    _, wanted, body = ask(server)
    status, headers, nothing = ask(server, method="HEAD")
    assert (status, nothing) == (200, b"")
    assert headers["Content-Length"] == wanted["Content-Length"] == str(len(body))


def test_answers_may_be_compressed_and_chosen(serve, registry):
    Gauge("other", "Another", registry=registry).set(1)
    status, headers, body = ask(serve(), "/metrics?name[]=answer", Accept_Encoding="gzip")
    assert (status, headers["Content-Encoding"]) == (200, "gzip")
    assert b"answer 42.0" in gzip.decompress(body)
    assert b"other" not in gzip.decompress(body)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /healthz HTTP/1.0\r\n\r\n", b"200"),
        (b"GET /healthz\r\n\r\n", b"400"),
        (b"\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET /healthz FTP/1.1\r\n\r\n", b"400"),
        (b"GET /%00%ff\xff HTTP/1.1\r\n\r\n", b"404"),
        (b"GET http://elsewhere/metrics HTTP/1.1\r\n\r\n", b"404"),
        (b"GET /healthz HTTP/1.1\r\nno colon\r\n: nameless\r\n\r\n", b"200"),
        (b"GET /healthz HTTP/1.1\r\nX: " + b"x" * LARGEST_HEAD + b"\r\n\r\n", b"431"),
        (b"GET /" + b"x" * 3 * LARGEST_HEAD, b"431"),
    ],
)
def test_odd_requests_have_an_answer(serve, data, status):
    assert raw(serve(), data).startswith(b"HTTP/1.1 " + status)


def test_who_is_slow_is_cut_off(serve, monkeypatch, certificate):
    monkeypatch.setattr(module, "LONGEST_REQUEST", 0.3)
    for server, begun in ((serve(), b"GET /metr"), (serve(**certificate), b"\x16\x03\x01")):
        started = time.monotonic()
        with contextlib.suppress(ConnectionResetError):
            assert raw(server, begun) == b""
        assert 0.2 < time.monotonic() - started < 5


@pytest.mark.parametrize("encrypted", [False, True])
def test_many_that_only_hold_connections_open_stop_no_scrape(serve, certificate, trusting, encrypted):
    server = serve(**(certificate if encrypted else {}))
    host, _, port = address(server).rpartition(":")
    held = []
    try:
        for i in range(300):  # half of them say something, half nothing
            connection = socket.create_connection((host, int(port)), timeout=10)
            held.append(connection)
            if i % 2:
                connection.sendall(b"GET /metrics HTTP/1.1\r\nX-Slow: ")
        started = time.monotonic()
        assert ask(server, context=trusting if encrypted else None)[0] == 200
        assert time.monotonic() - started < 5
        assert len(server._talks) <= MOST_CONNECTIONS
    finally:
        for connection in held:
            connection.close()
