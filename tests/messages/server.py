"""Of `streammoe.daemon.server`, `streammoe.serving` and `streammoe.web`: responses, warnings and errors."""

import http.client
import json
import re
from unittest.mock import patch

from prometheus_client import CollectorRegistry

from streammoe.daemon.health import Health
from streammoe.daemon.server import MetricsServer
from streammoe.settings import MetricsSettings
from tests.unit.serving.served import MODEL, answering
from tests.unit.strangers import ask


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
        server.registry = CollectorRegistry()
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


def requests(_):
    lines = []
    with answering() as server:
        for path, body, headers in (
            ("/predict", "[1", {}),
            ("/predict", "[]", {}),
            ("/predict?gate=maybe", '{"size":1}', {}),
            ("/predict?interval=1", '{"size":1}', {}),
            ("/predict?intervals=1", '{"size":1}', {}),
            ("/predict", "x" * (1 << 21), {}),
            ("/predict", "", {"Content-Encoding": "gzip"}),
            (f"{MODEL}/infer", "", {"Inference-Header-Content-Length": "9"}),
            (f"{MODEL}/infer", tensor(shape=[2]), {}),
            (f"{MODEL}/infer", tensor(shape=[1, 2]), {}),
            (f"{MODEL}/infer", tensor(data=["x"]), {}),
            (f"{MODEL}/infer", tensor(outputs=["gate", "gate"]), {}),
            (f"{MODEL}/infer", tensor(outputs=["other"]), {}),
            (f"{MODEL}/versions/3/infer", tensor(), {}),
            ("/other", "", {}),
        ):
            status, _, answer = ask(server, path, "POST", body, **headers)
            lines.append(f"POST {path}: {status}: {json.loads(answer)['error']}")
    return "\n".join(lines)


def tensor(outputs=(), **parts):
    given = {"name": "size", "shape": [1], "datatype": "FP64", "data": [1.5]} | parts
    return json.dumps({"inputs": [given], "outputs": [{"name": name} for name in outputs]})


CASES = {
    "requests for predictions": requests,
    "responses": responses,
    "port in use": port_in_use,
    "open to others": lambda _: exposed(),
    "open to others, not encrypted": lambda _: exposed(username="u", password="word"),
    "password, no variable": lambda _: start(username="u", password={"env": "NO_SUCH_VARIABLE"}),
    "password, empty": lambda _: start(username="u", password=""),
}
