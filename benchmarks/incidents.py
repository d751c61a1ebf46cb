"""How soon does the fitting alert fire in real incidents, which others fire, and when does it resolve?

Real brokers on this machine, a `streammoe run` for each incident, which a supervisor restarts, a producer for each, and
one Prometheus with config/prometheus. Each incident waits until its daemon is well, lasts for five minutes unless it is
over by itself, and is repaired. One more daemon, to which nothing happens, must set off nothing.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import trustme
import yaml
from confluent_kafka import KafkaException, Producer
from cryptography.hazmat.primitives import serialization
from kafka import TopicPartition

from benchmarks.report import machine, markdown
from tests.integration.prometheus import program
from tests.kafka_lab.broker import Broker, free_port
from tests.kafka_lab.cluster import Cluster
from tests.kafka_lab.lab import Daemon, wait_until
from tests.kafka_lab.topics import Topics

CONFIG = Path(__file__).parents[1] / "config" / "prometheus"
RATE, FAST, SINK_RATE = 40, 2_000, 400
"""Events a second; of the fast drift; of the slow sink, where so many rows are more than its link carries."""
LINK_BYTES = 50_000
"""Bytes a second that the slow link carries."""
WELL_SECONDS = 60
"""How long a daemon learns before anything happens."""
LASTS_SECONDS, FIRES_SECONDS, RESOLVES_SECONDS = 300, 420, 1_200
"""How long an incident lasts, and how long its alert and its end are waited for."""
MINUTES = 60.0
TICK_SECONDS = 0.25
Incident = Callable[["Lab"], Iterator[Any]]
INCIDENTS: dict[str, tuple[str, Incident]] = {}
"""The fitting alert, and a generator: it yields the scene once it is set, then causes the incident and yields for how
many seconds it lasts, and then repairs it, and that is what the time until the resolution counts from."""


def incident(name: str, alert: str) -> Callable[[Incident], Incident]:
    """Register an incident."""

    def register(function: Incident) -> Incident:
        INCIDENTS[name] = (f"Streammoe{alert}" if alert else "", function)
        return function

    return register


# --- what takes part ------------------------------------------------------------------------------------------------


class Stream(threading.Thread):
    """Sends events with a relation that can be learned, some of which may be made bad."""

    def __init__(self, address: str, topic: str, rate: float, partitions: int) -> None:
        super().__init__(daemon=True)
        self.topic, self.rate, self.partitions = topic, rate, partitions
        self.coefficients, self.garbage = (1.0, -2.0, 3.0), 0.0
        self.columns = {"a", "b", "c", "y"}
        self.over = threading.Event()
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 50, "message.timeout.ms": 600_000})
        self.start()

    def run(self) -> None:
        chance, begun, sent = random.Random(0), time.monotonic(), 0
        while not self.over.wait(TICK_SECONDS):
            while sent < (time.monotonic() - begun) * self.rate:
                x = [chance.uniform(-1.0, 1.0) for _ in range(3)]
                y = 1.0 + sum(b * v for b, v in zip(self.coefficients, x, strict=True)) + chance.gauss(0.0, 0.1)
                event = {name: value for name, value in zip("abcy", [*x, y], strict=True) if name in self.columns}
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
        self.supervisor.end(kill=True)
        self.supervisor.join(10)


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
        config = yaml.safe_load((CONFIG / "prometheus.yml").read_text())
        config["scrape_configs"] = [
            {"job_name": "streammoe", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "5s"}]}
        ]
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        shutil.copy(CONFIG / "alerts.yml", folder)
        self.write_targets()
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        command = [program("prometheus"), f"--config.file={folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={folder / 'data'}", f"--web.listen-address=127.0.0.1:{port}"]
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stderr=log, start_new_session=True)
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
        with suppress(OSError):
            found = self.ask("query", query=f"{name}{{instance='{instance}'}}")["result"]
            return float(found[0]["value"][1]) if found else None
        return None

    def run(self) -> None:
        while not self.over.wait(1.0):
            with suppress(OSError):
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
        self.target, self.rate = target, float(LINK_BYTES)
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            near, _ = self._listener.accept()
            with suppress(OSError):
                far = socket.create_connection(("127.0.0.1", self.target))
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


# --- incidents ------------------------------------------------------------------------------------------------------


@incident("nothing", "")
def nothing(lab: Lab) -> Iterator[Any]:
    yield Scene(lab, "nothing", lab.broker.address)


@incident("outage", "SourceUnreachable")
def outage(lab: Lab) -> Iterator[Any]:
    broker = lab.another("outage")
    yield Scene(lab, "outage", broker.address)
    broker.kill9()
    yield LASTS_SECONDS
    broker.start()


def sink(address: str, topic: str) -> dict[str, object]:
    """Settings of predictions to a topic of another broker."""
    return {"predictions.kind": "kafka", "predictions.topic": topic, "predictions.bootstrap_servers": address}


@incident("dead sink", "SinkWaits")
def dead_sink(lab: Lab) -> Iterator[Any]:
    broker = lab.another("sink")
    settings = sink(broker.address, Topics(broker.address).create())
    yield Scene(lab, "dead sink", lab.broker.address, settings)
    broker.kill9()
    yield LASTS_SECONDS
    broker.start()


@incident("slow sink", "SinkWaits")
def slow_sink(lab: Lab) -> Iterator[Any]:
    link = Link(free_port())
    broker, door = two_doors(lab.folder / "kafka-slow", "PLAINTEXT", {}, link.port)
    link.target, link.rate = int(door.rpartition(":")[2]), 1e9
    lab.started(broker)
    settings = sink(f"127.0.0.1:{link.port}", Topics(broker.address).create())
    yield Scene(lab, "slow sink", lab.broker.address, settings, rate=SINK_RATE)
    link.rate = LINK_BYTES
    yield LASTS_SECONDS
    link.rate = 1e9


@incident("leaderless partition", "PartitionStalled")
def leaderless(lab: Lab) -> Iterator[Any]:
    cluster = Cluster(lab.folder / "cluster")
    lab.stack.callback(cluster.stop)
    cluster.start()
    alone = {"assignments": {0: [1], 1: [2]}, "configs": {"min.insync.replicas": "1"}}
    Topics(cluster.address).admin.create_topics({"alone": alone}, wait_for_metadata=True)
    yield Scene(lab, "leaderless partition", cluster.address, topic="alone", partitions=2)
    cluster.nodes[2].kill9()
    yield LASTS_SECONDS
    cluster.nodes[2].start()


@incident("rejected login", "LoginRejected")
def rejected_login(lab: Lab) -> Iterator[Any]:
    option = "listener.name.door.plain.sasl.jaas.config"
    module = "org.apache.kafka.common.security.plain.PlainLoginModule required user_me"
    first = {"listener.name.door.sasl.enabled.mechanisms": "PLAIN", option: f'{module}="hunter2";'}
    broker, door = two_doors(lab.folder / "kafka-login", "SASL_PLAINTEXT", first)
    lab.started(broker)
    password = lab.folder / "password"
    password.write_text("hunter2")
    settings = {
        "source.security_protocol": "SASL_PLAINTEXT",
        "source.sasl_mechanism": "PLAIN",
        "source.sasl_plain_username": "me",
        "source.sasl_plain_password.file": str(password),
    }
    yield Scene(lab, "rejected login", door, settings, inside=broker.address)
    broker.kill9()
    broker.properties[option] = f'{module}="hunter3";'
    broker.start()
    yield LASTS_SECONDS
    password.write_text("hunter3")


@incident("expired certificate", "LoginRejected")
def expired_certificate(lab: Lab) -> Iterator[Any]:
    authority, store = trustme.CA(), lab.folder / "server.pem"
    authority.cert_pem.write_to_path(str(lab.folder / "ca.pem"))

    def issue(days: float) -> None:
        issued = authority.issue_cert("127.0.0.1", not_after=datetime.now(UTC) + timedelta(days=days))
        key = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        store.write_bytes(key + b"".join(blob.bytes() for blob in issued.cert_chain_pems))

    issue(1.0)
    keystore = {"type": "PEM", "location": str(store)}
    properties = {f"listener.name.door.ssl.keystore.{name}": value for name, value in keystore.items()}
    broker, door = two_doors(lab.folder / "kafka-tls", "SSL", properties)
    lab.started(broker)
    settings = {"source.security_protocol": "SSL", "source.ssl_cafile": str(lab.folder / "ca.pem")}
    yield Scene(lab, "expired certificate", door, settings, inside=broker.address)
    broker.kill9()
    issue(-1.0)
    broker.start()
    yield LASTS_SECONDS
    broker.kill9()
    issue(1.0)
    broker.start()


def drift(lab: Lab, name: str, rate: int) -> Iterator[Any]:
    scene = Scene(lab, name, lab.broker.address, rate=rate)
    yield scene
    scene.stream.coefficients = (-3.0, 1.0, 2.0)
    yield 0


@incident("drift", "Drift")
def slow_drift(lab: Lab) -> Iterator[Any]:
    yield from drift(lab, "drift", RATE)


@incident("fast drift", "Drift")
def fast_drift(lab: Lab) -> Iterator[Any]:
    yield from drift(lab, "fast drift", FAST)


@incident("garbage", "ManyRejected")
def garbage(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "garbage", lab.broker.address)
    yield scene
    scene.stream.garbage = 0.3
    yield 2 * MINUTES
    scene.stream.garbage = 0.0


@incident("vanished column", "ColumnVanished")
def vanished_column(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "vanished column", lab.broker.address)
    yield scene
    scene.stream.columns.remove("b")
    yield LASTS_SECONDS
    scene.stream.columns.add("b")


@incident("vanished target", "LearnsNothing")
def vanished_target(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "vanished target", lab.broker.address)
    yield scene
    scene.stream.columns.remove("y")
    yield LASTS_SECONDS
    scene.stream.columns.add("y")


@incident("open transaction", "PartitionStalled")
def open_transaction(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "open transaction", lab.broker.address)
    settings = {"transactional.id": "left-open", "transaction.timeout.ms": 900_000}
    producer = Producer({"bootstrap.servers": lab.broker.address, **settings})
    producer.init_transactions(60)
    yield scene
    producer.begin_transaction()
    producer.produce(scene.topic, "{}", partition=0)
    producer.flush(60)
    yield LASTS_SECONDS
    producer.abort_transaction(60)


@incident("crash loop", "Down")
def crash_loop(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "crash loop", lab.broker.address)
    yield scene
    over = threading.Event()

    def loop() -> None:
        while not over.wait(10):
            scene.supervisor.end(kill=True, again=True)

    looping = threading.Thread(target=loop, daemon=True)
    looping.start()
    yield 3 * MINUTES
    over.set()
    looping.join()


@incident("deleted topic", "PartitionStalled")
def deleted_topic(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "deleted topic", lab.broker.address, {"source.on_lost": "earliest"})
    yield scene
    scene.topics.admin.delete_topics([scene.topic])
    yield LASTS_SECONDS
    scene.topics.admin.create_topics({scene.topic: {"num_partitions": 1}})


@incident("lost records", "RecordsLost")
def lost_records(lab: Lab) -> Iterator[Any]:
    scene = Scene(lab, "lost records", lab.broker.address, {"source.on_lost": "earliest"})
    yield scene
    scene.supervisor.wanted.clear()
    scene.supervisor.end(again=True)
    wait_until(lambda: scene.supervisor.codes, "it has ended")
    time.sleep(5.0)
    scene.topics.admin.delete_records({TopicPartition(scene.topic, 0): scene.topics.ends(scene.topic)[0]})
    scene.supervisor.wanted.set()
    yield 0


# --- measurements -----------------------------------------------------------------------------------------------------


def measured(lab: Lab, name: str, all_over: threading.Event) -> list[str]:
    """Play an incident; return the row of the table."""
    alert, play = INCIDENTS[name]
    prometheus, playing = lab.prometheus, play(lab)
    scene: Scene = next(playing)

    def say(what: str) -> None:
        print(f"{datetime.now(UTC):%H:%M:%S} {name}: {what}", file=sys.stderr, flush=True)

    try:
        say("started")
        wait_until(scene.is_well, f"{name}: the daemon is well", 10 * MINUTES, every=1.0)
        say("is well")
        if not alert:
            all_over.wait()
            fired = prometheus.fired.get(name, {})
            return [name, str(scene.rate), "none", "–", said(fired, 0.0, set()), "–"]
        caused = time.monotonic()
        lasts = next(playing)

        def fired_after() -> float | None:
            times = prometheus.fired.get(name, {}).get(alert)
            return None if times is None else times[0] - caused

        def sleep_until(at: float, condition: Callable[[], object] = lambda: False) -> None:
            while time.monotonic() < at and not condition():
                time.sleep(1.0)

        say("caused")
        sleep_until(caused + (lasts or FIRES_SECONDS), lambda: not lasts and fired_after() is not None)
        if lasts >= LASTS_SECONDS:
            sleep_until(caused + FIRES_SECONDS, lambda: fired_after() is not None)
        say(f"fired {fired_after()}, firing {prometheus.firing(name)}")
        repaired = time.monotonic() if lasts else caused
        next(playing, None)
        say("repaired")
        sleep_until(repaired + RESOLVES_SECONDS, lambda: not prometheus.firing(name) and fired_after() is not None)
        resolved = f"{time.monotonic() - repaired:.0f}"
        # Nothing may come again.
        sleep_until(time.monotonic() + 2 * MINUTES)
        stays = set(prometheus.firing(name))
        say(f"resolved after {resolved}; firing {stays}; exit codes {scene.supervisor.codes}")
        others = {other: times for other, times in prometheus.fired.get(name, {}).items() if other != alert}
        after = fired_after()
        cells = ["never" if after is None else f"{after:.0f}", said(others, caused, stays)]
        return [name, str(scene.rate), alert, *cells, "never" if alert in stays else resolved]
    finally:
        scene.close()


def said(fired: Mapping[str, list[float]], since: float, stays: set[str]) -> str:
    """Say which alerts were firing, and from when to when."""
    parts = (
        f"{name} ({first - since:.0f} to {last - since:.0f} s{', stays' if name in stays else ''})"
        for name, (first, last) in fired.items()
    )
    return ", ".join(parts) or "none"


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=INCIDENTS, default=list(INCIDENTS), metavar="NAME")
    parser.add_argument("--client", default="kafka-python", help="source.client")
    parser.add_argument("--keep", type=Path, help="a folder for logs and data, which is kept")
    given = parser.parse_args(argv)
    print(machine(), "\n", flush=True)
    all_over = threading.Event()
    with ExitStack() as stack:
        folder = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="streammoe-")))
        folder.mkdir(parents=True, exist_ok=True)
        lab = Lab(folder, given.client, stack)
        pool = stack.enter_context(ThreadPoolExecutor(len(given.only)))
        playing = {}
        for name in given.only:
            playing[name] = pool.submit(measured, lab, name, all_over)
            time.sleep(5.0)  # not all start at once
        rows = []
        for name, row in playing.items():
            if INCIDENTS[name][0]:
                try:
                    rows.append(row.result())
                except Exception as error:  # noqa: BLE001 - the others are worth a table
                    rows.append([name, "", INCIDENTS[name][0], "failed", str(error), ""])
        all_over.set()
        rows += [row.result() for name, row in playing.items() if not INCIDENTS[name][0]]
    print(markdown(["incident", "events/s", "alert", "fires after s", "others", "resolves after s"], rows))


if __name__ == "__main__":
    main()
