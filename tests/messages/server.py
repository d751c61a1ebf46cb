"""Of `streammoe.daemon.server` and `streammoe.web.access`: responses, warnings and errors."""

import http.client
import re
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from streammoe.daemon.health import Health
from streammoe.daemon.server import MetricsServer
from streammoe.settings import MetricsSettings


def start(**settings):
    MetricsServer(MetricsSettings(port=0, **settings), Health(60)).close()


def exposed(**settings):
    with patch("streammoe.web.access.is_loopback", return_value=False):
        start(**settings)


def port_in_use(_):
    with patch("socket.create_server", side_effect=OSError(98, "Address already in use")):
        start()


def responses(_):
    health = Health(60)
    server = MetricsServer(MetricsSettings(port=0, username="u", password="word"), health)
    lines = []

    def ask(path, method="GET", **headers):
        connection = http.client.HTTPConnection(server.url.split("/")[2], timeout=20)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        lines.append(f"{method} {path}: {answer.status} {answer.reason}: {answer.read().decode().strip()}")
        connection.close()

    try:
        ask("/metrics")
        ask("/metrics", Authorization="Basic dTp3b3Jk")
        server.metrics = CollectorRegistry()
        ask("/metrics", Authorization="Basic dTp3b3Jk")
        ask("/healthz")
        health.patience = -1.0
        ask("/healthz")
        ask("/readyz")
        health.ready = True
        ask("/readyz")
        health.unsaved = "No space left on device"
        ask("/readyz")
        ask("/status")
        ask("/metrics", "POST")
        ask("/metrics", Host="page.example")
    finally:
        server.close()
    return re.sub(r"progress for \d+ s", "progress for {seconds} s", "\n".join(lines))


CASES = {
    "responses": responses,
    "port in use": port_in_use,
    "open to others": lambda _: exposed(),
    "open to others, not encrypted": lambda _: exposed(username="u", password="word"),
    "password, no variable": lambda _: start(username="u", password={"env": "NO_SUCH_VARIABLE"}),
    "password, empty": lambda _: start(username="u", password=""),
}
