"""The HTTP server for Prometheus and for health probes."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from streammoe.daemon.health import Health
from streammoe.settings import MetricsSettings
from streammoe.web.exposition import Exposition
from streammoe.web.listener import Handler, Listener, NotFound


class MetricsServer:
    """HTTP server for metrics and probes, from construction to `close`.

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

    paths = ("/metrics", "/healthz", "/readyz")

    def __init__(self, settings: MetricsSettings, health: Health) -> None:
        self.health = health
        self.registry: CollectorRegistry | None = None
        """What is served; counters only once they are restored, so that they do not appear to jump."""
        routes = [("/(?:metrics)?", Exposition), ("/healthz", _Alive), ("/readyz", _Ready), (".*", NotFound)]
        self.listener = Listener(settings, routes, self)
        self.url = f"{self.listener.url}/metrics"

    def close(self) -> None:
        """Stop serving, and close all connections."""
        self.listener.close()


class _Alive(Handler):
    """Whether the learning loop turns, by the ``health`` of what is served."""

    def get(self) -> None:
        health = self.of.health
        if health.alive:
            self.say(200, "alive")
        else:
            self.say(503, f"the learning loop has made no progress for {health.silent_seconds:.0f} s")


class _Ready(Handler):
    """Whether it is ready, likewise."""

    def get(self) -> None:
        problem = self.of.health.problem
        self.say(503 if problem else 200, problem or "ready")
