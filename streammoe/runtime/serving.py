"""The HTTP endpoint for Prometheus and for probes."""

from __future__ import annotations

import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from streammoe.errors import ConfigError
from streammoe.runtime.health import Health

LOGGER = logging.getLogger("streammoe.serving")
MOST_CONNECTIONS = 64
"""Connections that are answered at a time; more are closed at once."""
_REST_SECONDS = 0.2

StartResponse = Callable[[str, list[tuple[str, str]]], Any]


class MetricsServer:
    """Serves from a thread of its own, from construction to `close`.

    ``/metrics`` for Prometheus, once there is a registry; ``/healthz``: 200 while the learning loop turns;
    ``/readyz``: 200 once state and position are restored and reading has begun. Else 503, with a sentence.

    Args:
        host: address to bind; loopback unless the user says otherwise.
        port: 0 takes any free one.
        health: what the probes ask.

    Raises:
        ConfigError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, health: Health) -> None:
        self._health = health
        self._metrics: Callable[..., Iterable[bytes]] | None = None
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server = type("_Server", (_Server,), {"address_family": family})
            self._server: WSGIServer = make_server(host, port, self._answer, server, _Silent)
        except OSError as error:
            message = (
                f"metrics.host {host} with metrics.port {port}: cannot be bound ({error.strerror or error}); stop what "
                "uses the port, set metrics.port to another one (0 takes any free one), mend metrics.host, or set "
                "metrics.enabled to false"
            )
            raise ConfigError(message) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()
        host_shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{host_shown}:{self._server.server_port}/metrics"

    def show(self, registry: CollectorRegistry) -> None:
        """Serve this registry from now on; not before its counters are restored, so that nobody sees them jump."""
        self._metrics = make_wsgi_app(registry)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        match environ.get("PATH_INFO"):
            case "/healthz":
                silent = f"the learning loop has not turned for {self._health.silent_seconds:.0f} s"
                return _say(start_response, self._health.alive, "alive", silent)
            case "/readyz":
                unsaved, ready = self._health.unsaved, self._health.ready
                why = f"nothing can be saved: {unsaved}" if unsaved else "not ready: restoring state or connecting"
                return _say(start_response, ready and not unsaved, "ready", why)
            case "/" | "/metrics":
                if self._metrics is None:
                    return _say(start_response, False, "", "starting: the counters are not restored yet")
                return self._metrics(environ, start_response)
            case _:
                start_response("404 Not Found", [("Content-Type", "text/plain; charset=utf-8")])
                return [b"there are /metrics, /healthz and /readyz\n"]


def _say(start_response: StartResponse, good: bool, yes: str, no: str) -> Iterable[bytes]:
    status = "200 OK" if good else "503 Service Unavailable"
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{yes if good else no}\n".encode()]


class _Server(ThreadingMixIn, WSGIServer):
    """A slow client must not hold up a probe, nor many of them take the descriptors that learning needs."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self._free = threading.BoundedSemaphore(MOST_CONNECTIONS)
        super().__init__(*arguments, **named)

    def get_request(self) -> tuple[Any, Any]:
        """Accept a connection.

        Raises:
            OSError: there is none, such as for want of descriptors.
        """
        try:
            return super().get_request()
        except OSError:
            # A connection that cannot be accepted waits on, and without a rest it would be tried without end.
            time.sleep(_REST_SECONDS)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer in a thread, or hang up where there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up, or never reads, is no matter for the log."""
        LOGGER.debug("a client of the metrics was not answered: %r", sys.exception())


class _Silent(WSGIRequestHandler):
    """The log is not a place for each scrape."""

    timeout = 10  # seconds; a client that says nothing must not keep its thread

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
