"""The HTTP endpoint for Prometheus."""

from __future__ import annotations

import threading
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, start_http_server

from streammoe.errors import ConfigError


class MetricsServer:
    """Serves a registry over HTTP from a thread of its own, from construction to `close`.

    Args:
        host: address to bind; loopback unless the user says otherwise.
        port: 0 takes any free one.
        registry: what is served.

    Raises:
        ConfigError: the address cannot be bound.
    """

    def __init__(self, host: str, port: int, registry: CollectorRegistry) -> None:
        self._server: WSGIServer
        self._thread: threading.Thread
        try:
            self._server, self._thread = start_http_server(port, addr=host, registry=registry)
        except OSError as error:
            message = (
                f"metrics.host {host} with metrics.port {port}: cannot be bound ({error.strerror or error}); stop what "
                "uses the port, set metrics.port to another one (0 takes any free one), mend metrics.host, or set "
                "metrics.enabled to false"
            )
            raise ConfigError(message) from error
        host_shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{host_shown}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
