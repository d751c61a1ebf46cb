"""The HTTP endpoint for Prometheus and for probes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from streammoe.errors import ConfigError
from streammoe.runtime.health import Health

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
                return _say(start_response, self._health.ready, "ready", "not ready: restoring state or connecting")
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
    """A slow client must not hold up a probe."""

    daemon_threads = True
    block_on_close = False


class _Silent(WSGIRequestHandler):
    """The log is not a place for each scrape."""

    timeout = 10  # seconds; a client that says nothing must not keep its thread

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""
