"""The HTTP endpoint for Prometheus and for probes."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import selectors
import socket
import ssl
import threading
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from urllib.parse import unquote

from prometheus_client import CollectorRegistry, make_wsgi_app

from streammoe.daemon.access import Access, tls_context
from streammoe.daemon.health import Health
from streammoe.errors import ConfigError
from streammoe.settings import Metrics

LOGGER = logging.getLogger("streammoe.metrics")
LARGEST_HEAD = 8192
"""Bytes of a request's first line and headers; nothing that asks for metrics needs more."""
LONGEST_REQUEST = 10.0
"""Seconds from a connection to the last byte of its answer, TLS included; who is slower is cut off."""
MOST_CONNECTIONS = 64
"""Connections at once; a further one takes the place of the oldest. A scrape needs some milliseconds, so that whoever
only holds connections open loses them, and neither scrapes nor the daemon's files lack descriptors."""


class MetricsServer:
    """Serves from a thread of its own, from construction to `close`.

    ``/metrics`` for Prometheus, once there is a registry; ``/healthz``: 200 while the learning loop turns;
    ``/readyz``: 200 once state and position are restored and reading has begun. Else 503, with a sentence. Metrics ask
    for a password or token where the settings name one; probes never do, and tell nothing else.

    Args:
        settings: the section ``[metrics]``.
        health: what the probes ask.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key, password or token cannot be used.
    """

    def __init__(self, settings: Metrics, health: Health) -> None:
        host, port = settings.host, settings.port
        self._health = health
        self._access = Access(settings)
        self._tls = tls_context(settings)
        self._metrics: Callable[..., Iterable[bytes]] | None = None
        self._talks: dict[asyncio.Task[None], None] = {}
        """Connections, the oldest first."""
        self._leaving: set[asyncio.Task[None]] = set()
        """Those that had to make room."""
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            message = (
                f"metrics.host {host} with metrics.port {port}: cannot be bound ({error.strerror or error}); stop what "
                "uses the port, set metrics.port to another one (0 takes any free one), mend metrics.host, or set "
                "metrics.enabled to false"
            )
            raise ConfigError(message) from error
        self._listener.setblocking(False)
        address, bound = self._listener.getsockname()[:2]
        self._warn_of_strangers(address)
        self._loop = _event_loop()
        self._accepting = self._loop.create_task(self._until_closed())
        self._thread = threading.Thread(target=self._serve, name="metrics", daemon=True)
        self._thread.start()
        host_shown = f"[{host}]" if ":" in host else host
        self.url = f"http{'s' if self._tls else ''}://{host_shown}:{bound}/metrics"

    def show(self, registry: CollectorRegistry) -> None:
        """Serve this registry from now on; not before its counters are restored, so that nobody sees them jump."""
        self._metrics = make_wsgi_app(registry)

    def close(self) -> None:
        """Stop serving."""
        self._loop.call_soon_threadsafe(self._accepting.cancel)
        self._thread.join()
        self._listener.close()

    def _warn_of_strangers(self, address: str) -> None:
        """Say what others than this machine's users may see."""
        if ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return
        if not self._access.challenges:
            LOGGER.warning(
                "metrics.host %s: WHOEVER REACHES THIS MACHINE CAN READ THE METRICS, names of outputs and topics among "
                "them; set metrics.username with metrics.password_file, or metrics.bearer_token_file%s, or let a "
                "firewall choose who may",
                address,
                "" if self._tls else ", with metrics.tls_certfile and metrics.tls_keyfile",
            )
        elif self._tls is None:
            LOGGER.warning(
                "metrics.host %s: PASSWORDS AND TOKENS PASS THE NETWORK IN PLAIN TEXT; set metrics.tls_certfile and "
                "metrics.tls_keyfile",
                address,
            )

    # -- Connections, in the server's thread -----------------------------------------------------------------------

    def _serve(self) -> None:
        self._loop.run_until_complete(self._accepting)
        self._loop.close()

    async def _until_closed(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await self._accept()
        await asyncio.sleep(0)  # so that each talk has begun and will close what it holds
        for talk in self._talks:
            talk.cancel()
        await asyncio.gather(*self._talks, *self._leaving, return_exceptions=True)

    async def _accept(self) -> None:
        while True:
            try:
                connection, _ = await self._loop.sock_accept(self._listener)
            except OSError as error:  # the peer has gone already, or descriptors are scarce
                LOGGER.debug("a connection for metrics could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            talk = self._loop.create_task(self._talk(connection))
            self._talks[talk] = None
            talk.add_done_callback(self._ended)
            if len(self._talks) > MOST_CONNECTIONS:
                oldest = next(iter(self._talks))
                del self._talks[oldest]
                self._leaving.add(oldest)
                oldest.cancel()
            await asyncio.sleep(0)  # accepting what waits already lets nobody else run

    def _ended(self, talk: asyncio.Task[None]) -> None:
        self._talks.pop(talk, None)
        self._leaving.discard(talk)

    async def _talk(self, connection: socket.socket) -> None:
        """One connection: a request and its answer."""
        reader = asyncio.StreamReader(limit=LARGEST_HEAD)
        protocol = asyncio.StreamReaderProtocol(reader)
        transport: asyncio.Transport | None = None
        try:
            async with asyncio.timeout(LONGEST_REQUEST):
                transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, connection, ssl=self._tls)
                writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
                writer.write(await self._answered(reader))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (OSError, EOFError, TimeoutError, ssl.SSLError) as error:
            # A stranger's connection is no event of ours, and a flood of them must not fill the log.
            LOGGER.debug("a connection for metrics ended early: %r", error)
        finally:
            # Without a transport of ours asyncio has closed the connection, as it does where TLS does not come about.
            if transport is not None:
                transport.abort()

    async def _answered(self, reader: asyncio.StreamReader) -> bytes:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            return _said("431 Request Header Fields Too Large", f"a request has at most {LARGEST_HEAD} bytes")
        request = _parsed(head)
        if request is None:
            return _said("400 Bad Request", "this is not HTTP")
        if request.method not in {"GET", "HEAD"}:
            return _said("405 Method Not Allowed", "only GET and HEAD are answered", ("Allow", "GET, HEAD"))
        answer = self._answer(request)
        return answer[: answer.index(b"\r\n\r\n") + 4] if request.method == "HEAD" else answer

    # -- Answers ---------------------------------------------------------------------------------------------------

    def _answer(self, request: _Request) -> bytes:
        match request.path:
            case "/healthz":
                silent = f"the learning loop has not turned for {self._health.silent_seconds:.0f} s"
                return _told(self._health.alive, "alive", silent)
            case "/readyz":
                unsaved, ready = self._health.unsaved, self._health.ready
                why = f"nothing can be saved: {unsaved}" if unsaved else "not ready: restoring state or connecting"
                return _told(ready and not unsaved, "ready", why)
            case "/" | "/metrics":
                if not self._access.allows(request.headers.get("authorization")):
                    offers = [("WWW-Authenticate", challenge) for challenge in self._access.challenges]
                    return _said("401 Unauthorized", "metrics ask for a password or token", *offers)
                if self._metrics is None:
                    return _told(False, "", "starting: the counters are not restored yet")
                return self._scraped(self._metrics, request)
            case _:
                return _said("404 Not Found", "there are /metrics, /healthz and /readyz")

    def _scraped(self, metrics: Callable[..., Iterable[bytes]], request: _Request) -> bytes:
        environ = {
            "REQUEST_METHOD": "GET",
            "PATH_INFO": request.path,
            "QUERY_STRING": request.query,
            "HTTP_ACCEPT": request.headers.get("accept"),
            "HTTP_ACCEPT_ENCODING": request.headers.get("accept-encoding"),
        }
        started: list[Any] = []
        body = b"".join(metrics(environ, lambda *status_and_headers: started.extend(status_and_headers)))
        status, headers = started
        return _response(status, headers, body)


def _event_loop() -> asyncio.AbstractEventLoop:
    """A new loop; asyncio leaves a traceback behind if it runs out of file descriptors amid making one.

    Raises:
        OSError: there are too few.
    """
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()


class _Request(NamedTuple):
    method: str
    path: str
    query: str
    headers: dict[str, str]
    """By their names in small letters; of several of one name the last."""


def _parsed(head: bytes) -> _Request | None:
    """A request's first line and headers; ``None`` if it is none."""
    first, *lines = head.decode("latin-1").removesuffix("\r\n\r\n").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return None
    path, _, query = words[1].partition("?")
    headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return _Request(words[0], unquote(path), query, headers)


def _told(good: bool, yes: str, no: str) -> bytes:
    return _said("200 OK" if good else "503 Service Unavailable", yes if good else no)


def _said(status: str, text: str, *headers: tuple[str, str]) -> bytes:
    return _response(status, [("Content-Type", "text/plain; charset=utf-8"), *headers], f"{text}\n".encode())


def _response(status: str, headers: Iterable[tuple[str, str]], body: bytes) -> bytes:
    more = [*headers, ("Content-Length", str(len(body))), ("Connection", "close")]
    lines = [f"HTTP/1.1 {status}", *(f"{name}: {value}" for name, value in more)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body
