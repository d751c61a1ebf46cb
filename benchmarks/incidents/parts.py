"""What takes part: a stream of events, a daemon that is started again, Prometheus, brokers, and a slow link."""

from __future__ import annotations

import json
import random
import socket
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from http.client import HTTPException
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Producer

from tests.integration.prometheus import started
from tests.kafka_lab.broker import Broker, free_port
from tests.kafka_lab.lab import Daemon
from tests.kafka_lab.topics import Topics

RATE = 40
"""Events a second, unless said otherwise."""
WELL_SECONDS = 60
"""How long a daemon learns before anything happens."""
TICK_SECONDS = 0.25
NAMES = "abcdefy"
"""Inputs, and the target."""


class Stream(threading.Thread):
    """Sends events with a relation that can be learned, some of which may be made bad."""

    def __init__(self, address: str, topic: str, rate: float, partitions: int) -> None:
        super().__init__(daemon=True)
        self.topic, self.rate, self.partitions = topic, rate, partitions
        self.coefficients, self.garbage = ((1, -2, 3, -1, 2, -3), (-2, 1, 1, 3, -1, 2)), 0.0
        """Of the two regimes that the first input chooses from. A change of a single one is learned within ten events,
        and no detector calls that a drift."""
        self.columns = {*NAMES}
        self.over = threading.Event()
        self._producer = Producer(
            {"bootstrap.servers": address, "linger.ms": 50, "log_level": 0, "message.timeout.ms": 600_000}
        )
        self.start()

    def run(self) -> None:
        chance, started_at, sent = random.Random(0), time.monotonic(), 0
        while not self.over.wait(TICK_SECONDS):
            while sent < (time.monotonic() - started_at) * self.rate:
                x = [chance.uniform(-1.0, 1.0) for _ in NAMES[:-1]]
                chosen = self.coefficients[x[0] > 0.0]
                y = 1.0 + sum(b * v for b, v in zip(chosen, x, strict=True)) + chance.gauss(0.0, 0.1)
                event = {name: value for name, value in zip(NAMES, [*x, y], strict=True) if name in self.columns}
                value = "{no JSON" if chance.random() < self.garbage else json.dumps(event)
                # A topic that is deleted, or a broker that is away for longer than there is room, loses events.
                with suppress(BufferError, KafkaException):
                    self._producer.produce(self.topic, value, partition=sent % self.partitions)
                sent += 1
            self._producer.poll(0)


class Supervised(threading.Thread):
    """Starts a daemon again whenever it ends, as a service manager does."""

    def __init__(self, daemon: Daemon) -> None:
        super().__init__(daemon=True)
        self.daemon_, self.wanted, self.over, self.codes = daemon, threading.Event(), False, list[int]()
        self.wanted.set()
        self.start()

    def run(self) -> None:
        while self.wanted.wait() and not self.over:
            process = self.daemon_.start()
            process.communicate()
            self.codes.append(process.returncode)
            time.sleep(2.0)

    def end(self, *, kill: bool = False, again: bool = False) -> None:
        """End it, for good or until the next start."""
        if not again:
            self.over = True
        if self.daemon_.process is not None and self.daemon_.process.poll() is None:
            (self.daemon_.process.kill if kill else self.daemon_.process.terminate)()


class Scene:
    """A topic, who fills it, and a daemon that learns from it."""

    def __init__(
        self,
        lab: Lab,
        name: str,
        address: str,
        settings: Mapping[str, object] | None = None,
        *,
        rate: int = RATE,
        topic: str = "",
        partitions: int = 1,
        inside: str = "",
    ) -> None:
        self.lab, self.name, self.rate = lab, name, rate
        self.topics = Topics(inside or address)
        self.topic = topic or self.topics.create(partitions)
        self.stream = Stream(inside or address, self.topic, rate, partitions)
        self.port = free_port()
        chosen = {"metrics.port": self.port, "source.client": lab.client, **(settings or {})}
        self.daemon = Daemon(lab.folder / name.replace(" ", "-"), address, self.topic, chosen)
        self.supervisor = Supervised(self.daemon)
        lab.prometheus.targets[name] = self.port
        lab.prometheus.write_targets()

    def is_well(self) -> bool:
        """Whether it has learned for a while, and nothing is wrong."""
        prometheus = self.lab.prometheus
        events = prometheus.value("streammoe_model_events", self.name)
        warming_up = prometheus.value("streammoe_warming_up", self.name)
        enough = (events or 0) >= WELL_SECONDS * self.rate
        return enough and warming_up == 0.0 and not prometheus.alerts.get(self.name)

    def close(self) -> None:
        """End it."""
        self.lab.prometheus.targets.pop(self.name, None)
        self.lab.prometheus.write_targets()
        self.stream.over.set()
        while self.supervisor.is_alive():  # it may be just starting one
            self.supervisor.end(kill=True)
            self.supervisor.join(1.0)


class Prometheus(threading.Thread):
    """A Prometheus with our rules, and what it says of alerts, looked at each second."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.targets: dict[str, int] = {}
        self.alerts: dict[str, dict[str, str]] = {}
        """State and name of alerts now, by instance."""
        self.fired: dict[str, dict[str, list[float]]] = {}
        """When each alert was first and last seen firing, by instance."""
        self._folder, self._lock, self.over = folder, threading.Lock(), threading.Event()
        folder.mkdir()
        self.write_targets()
        scrapes = {"file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "5s"}]}
        self._process, self._url = started(folder, scrapes)
        self.start()

    def write_targets(self) -> None:
        """Scrape these from now on."""
        with self._lock:
            targets = self.targets.items()
            groups = [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": name}} for name, port in targets]
            (self._folder / "targets.new").write_text(json.dumps(groups))
            (self._folder / "targets.new").rename(self._folder / "targets.json")

    def ask(self, path: str, **query: str) -> Any:
        """Ask its API."""
        with urllib.request.urlopen(f"{self._url}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
            return json.load(answer)["data"]

    def value(self, name: str, instance: str) -> float | None:
        """The present value of a metric."""
        with suppress(OSError, HTTPException):
            found = self.ask("query", query=f"{name}{{instance='{instance}'}}")["result"]
            return float(found[0]["value"][1]) if found else None
        return None

    def run(self) -> None:
        while not self.over.wait(1.0):
            with suppress(OSError, HTTPException):
                now: dict[str, dict[str, str]] = {}
                for alert in self.ask("alerts")["alerts"]:
                    name, instance = alert["labels"]["alertname"], alert["labels"].get("instance", "")
                    before = now.setdefault(instance, {}).get(name)
                    now[instance][name] = "firing" if before == "firing" else alert["state"]
                at = time.monotonic()
                for instance, found in now.items():
                    for name in (name for name, state in found.items() if state == "firing"):
                        times = self.fired.setdefault(instance, {}).setdefault(name, [at, at])
                        times[1] = at
                self.alerts = now

    def firing(self, instance: str) -> list[str]:
        """Names of the alerts that are firing."""
        return [name for name, state in self.alerts.get(instance, {}).items() if state == "firing"]

    def close(self) -> None:
        self.over.set()
        self._process.terminate()
        self._process.wait(30)


class Lab:
    """Brokers, and what else incidents share."""

    def __init__(self, folder: Path, client: str, stack: ExitStack) -> None:
        self.folder, self.client, self.stack = folder, client, stack
        self.over = threading.Event()
        """Whether all incidents are over, or nobody waits for them any more."""
        self.prometheus = Prometheus(folder / "prometheus")
        stack.callback(self.prometheus.close)
        self.broker = self.started(Broker(folder / "kafka", heap="384m"))

    def started(self, broker: Broker) -> Broker:
        """Start a broker, which is killed at the end."""
        self.stack.callback(broker.kill9)
        return broker.start()

    def another(self, name: str) -> Broker:
        """One more broker, to be killed."""
        return self.started(Broker(self.folder / f"kafka-{name}", heap="256m"))


class Link:
    """A proxy that carries only so many bytes a second to a port."""

    def __init__(self, target: int) -> None:
        self.target, self.rate = target, 1e9
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)  # what waits must wait at the sender
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            with suppress(OSError):
                far = socket.create_connection(("127.0.0.1", self.target))
                for each in (near, far):
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                for way in ((near, far, True), (far, near, False)):
                    threading.Thread(target=self._carry, args=way, daemon=True).start()

    def _carry(self, source: socket.socket, target: socket.socket, is_slow: bool) -> None:
        with suppress(OSError):
            while data := source.recv(4096):
                time.sleep(len(data) / self.rate if is_slow else 0.0)
                target.sendall(data)
        for each in (source, target):
            each.close()


def two_doors(folder: Path, protocol: str, properties: Mapping[str, str], advertised: int = 0) -> tuple[Broker, str]:
    """A broker, and the address of its other door, which has this protocol, and that port for those who ask."""
    inside, outside, controller = free_port(), free_port(), free_port()
    doors = f"PLAINTEXT://127.0.0.1:{inside},DOOR://127.0.0.1:"
    given = {
        "listeners": f"{doors}{outside},CONTROLLER://127.0.0.1:{controller}",
        "advertised.listeners": f"{doors}{advertised or outside}",
        "controller.quorum.voters": f"1@127.0.0.1:{controller}",
        "listener.security.protocol.map": f"PLAINTEXT:PLAINTEXT,DOOR:{protocol},CONTROLLER:PLAINTEXT",
    }
    return Broker(folder, port=inside, heap="256m", properties={**given, **properties}), f"127.0.0.1:{outside}"
