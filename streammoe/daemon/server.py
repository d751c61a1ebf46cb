"""The HTTP server for Prometheus and for health probes.

Tornado parses requests and writes responses. This module limits the cost of untrusted clients: the number of
connections, the duration of each, the size of requests, and permitted host names.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, SSLIOStream
from tornado.netutil import add_accept_handler
from tornado.web import Application, HTTPError, RequestHandler

from streammoe.daemon.access import Access, HostNames, tls_context
from streammoe.daemon.health import Health
from streammoe.errors import ConfigError
from streammoe.settings import MetricsSettings

LOGGER = logging.getLogger("streammoe.metrics")
MAX_HEAD_BYTES = 8192
"""Maximum bytes of a request's first line and headers; no request for metrics needs more."""
MAX_REQUEST_SECONDS = 10.0
"""Maximum seconds from accepting a connection to the last byte of its response, TLS handshake included."""
MAX_CONNECTIONS = 64
"""Maximum number of simultaneous connections; a further one replaces the oldest. A scrape takes milliseconds, so only
idle clients lose their connections, and neither scrapes nor the daemon's files run out of descriptors."""


class MetricsServer:
    """HTTP server for metrics and probes, which runs in its own thread from construction to `close`.

    ``/metrics`` for Prometheus, once there is a registry; ``/healthz``: 200 while the learning loop iterates;
    ``/readyz``: 200 once state and position are restored and reading has begun, as long as everything can be saved, no
    sink keeps learning waiting for too long, and the source does not reject the login. Otherwise 503, with the reason.
    Metrics require a password if the settings define one; probes never do, and reveal nothing else.

    Args:
        settings: the section ``[metrics]``.
        health: the state behind the probes.

    Raises:
        ConfigError: the address cannot be bound, or certificate, key or password cannot be used.
    """

    def __init__(self, settings: MetricsSettings, health: Health) -> None:
        self.health = health
        self.access = Access(settings)
        self.metrics: CollectorRegistry | None = None
        """What is served; counters only once they are restored, so that they do not appear to jump."""
        self._tls = tls_context(settings)
        self.connections: dict[IOStream, asyncio.TimerHandle] = {}
        """Open ones, the oldest first, each with the timer that closes it."""
        self._listener = _listener(settings.host, settings.port)
        address, port = self._listener.getsockname()[:2]
        self.hosts = HostNames(address, settings.allowed_hosts)
        self.access.warn_if_exposed(address, encrypted=self._tls is not None)
        for name in ("tornado.access", "tornado.general"):  # they would log whatever untrusted clients send
            logging.getLogger(name).setLevel(logging.CRITICAL)
        paths: list[Any] = [("/(?:metrics)?", _Metrics), ("/healthz", _Alive), ("/readyz", _Ready)]
        self._http = HTTPServer(
            Application(
                [(path, handler, {"server": self}) for path, handler in paths],
                default_handler_class=_NotFound,
                default_handler_args={"server": self},
                compress_response=True,
            ),
            no_keep_alive=True,
            max_header_size=MAX_HEAD_BYTES,
            max_body_size=1,  # no request needs a body; 0 would mean Tornado's default
        )
        self._loop = _event_loop()
        self._loop.set_exception_handler(_end_early)
        self._loop.run_until_complete(self._listen())
        self._thread = threading.Thread(target=self._run, name="metrics", daemon=True)
        self._thread.start()
        host = f"[{settings.host}]" if ":" in settings.host else settings.host
        self.url = f"http{'s' if self._tls else ''}://{host}:{port}/metrics"

    def close(self) -> None:
        """Stop serving, and close all connections."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _listen(self) -> None:
        self._stop_listening = add_accept_handler(self._listener, self._accept)

    def _run(self) -> None:
        self._loop.run_forever()
        self._stop_listening()
        self._listener.close()
        self._loop.run_until_complete(self._http.close_all_connections())
        self._loop.close()

    def _accept(self, connection: socket.socket, address: Any) -> None:
        # If the peer has disconnected, ssl raises, and leaves the socket to the garbage collector.
        with contextlib.suppress(OSError):
            stream = self._stream(connection)
            self._track(stream)
            self._http.handle_stream(stream, address)

    def _stream(self, connection: socket.socket) -> IOStream:
        if self._tls is None:
            return IOStream(connection)
        return SSLIOStream(self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False))

    def _track(self, stream: IOStream) -> None:
        """Close a connection at its deadline, and the oldest one at once if there are too many."""
        for known in [known for known in self.connections if known.closed()]:
            self.connections.pop(known).cancel()
        if len(self.connections) >= MAX_CONNECTIONS:
            oldest = next(iter(self.connections))
            self.connections.pop(oldest).cancel()
            oldest.close()
        self.connections[stream] = self._loop.call_later(MAX_REQUEST_SECONDS, stream.close)


def _end_early(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Log a broken connection, which is not worth more than a debug message."""
    error = context.get("exception")
    LOGGER.debug("a connection for metrics ended early: %r", error)
    if isinstance(error, OSError) and error.errno in {errno.EMFILE, errno.ENFILE}:
        time.sleep(0.1)  # or the loop would spin: a connection that lacks a descriptor is still to be accepted


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (while")[0]
        raise ConfigError(
            f"metrics.host {host} with metrics.port {port}: cannot be bound ({reason}); stop the "
            "program that uses the port, set metrics.port to another one (0 picks a free one), correct "
            "metrics.host, or set metrics.enabled to false"
        ) from error
    listener.setblocking(False)
    return listener


def _event_loop() -> asyncio.AbstractEventLoop:
    """Create an event loop without leaving a traceback behind if asyncio runs out of file descriptors.

    Raises:
        OSError: there are too few file descriptors.
    """
    with selectors.DefaultSelector():
        for end in socket.socketpair():
            end.close()
    return asyncio.new_event_loop()


# --- responses --------------------------------------------------------------------------------------------------------


class _Handler(RequestHandler):
    """Base class of handlers that respond with a sentence; HEAD is GET without the body."""

    def initialize(self, server: MetricsServer) -> None:
        self.server = server

    def set_default_headers(self) -> None:
        self.clear_header("Server")
        self.set_header("Content-Type", "text/plain; charset=utf-8")

    def prepare(self) -> None:
        """Reject host names that are not this server's, before anything else."""
        if not self.server.hosts.include(self.request.host_name):
            self.say(421, "this host name is not served here; metrics.allowed_hosts may list more names")

    def head(self) -> None:
        self.get()

    def compute_etag(self) -> None:
        """Omit the digest of the body: responses are not cacheable, and SHA-1 is not available everywhere."""

    def say(self, status: int, text: str) -> None:
        self.set_status(status)
        self.finish(f"{text}\n")

    def write_error(self, status_code: int, **_: Any) -> None:
        if status_code == 405:
            self.set_header("Allow", "GET, HEAD")
            self.say(405, "only GET and HEAD are supported")
        else:
            self.say(status_code, "this request cannot be answered")

    def log_exception(self, _type: Any, value: Any, _traceback: Any) -> None:
        if not isinstance(value, HTTPError):  # a bug; without the request, which may hold anything
            LOGGER.error("metrics or probes could not be answered", exc_info=value)


class _Alive(_Handler):
    def get(self) -> None:
        health = self.server.health
        if health.alive:
            self.say(200, "alive")
        else:
            self.say(503, f"the learning loop has made no progress for {health.silent_seconds:.0f} s")


class _Ready(_Handler):
    def get(self) -> None:
        problem = self.server.health.problem
        self.say(503 if problem else 200, problem or "ready")


class _NotFound(_Handler):
    def get(self) -> None:
        self.say(404, "not found; there are /metrics, /healthz and /readyz")


class _Metrics(_Handler):
    def get(self) -> None:
        if not self.server.access.allows(self.request.headers.get("Authorization")):
            self.set_header("WWW-Authenticate", 'Basic realm="streammoe", charset="UTF-8"')
            self.say(401, "metrics require a password")
        elif self.server.metrics is None:
            self.say(503, "starting: the counters are not restored yet")
        else:
            self._expose(self.server.metrics)

    def _expose(self, registry: CollectorRegistry) -> None:
        """Respond with the metrics, all or those that are named, in the format that is asked for."""
        names = self.get_query_arguments("name[]")
        shown: Any = registry.restricted_registry(names) if names else registry
        encode, content_type = choose_encoder(self.request.headers.get("Accept", ""))
        self.set_header("Content-Type", content_type)
        self.finish(encode(shown))
