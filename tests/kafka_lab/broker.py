"""A local Apache Kafka without Docker, for tests, benchmarks and `make kafka-up`.

One node that is broker and controller (KRaft) and listens on loopback only. Maven downloads its jars once, into a
cache. It needs Java 17 or newer, Maven for the download, and of Python only the standard library.
"""

from __future__ import annotations

import base64
import fcntl
import os
import random
import re
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

KAFKA = "4.1.1"
LOG4J = "2.24.3"
JAVA = 17
"""The oldest Java that runs this Kafka."""
FETCH_TIMEOUT = 600.0
"""Seconds that Maven may take."""
START_TIMEOUT = 60.0
"""Seconds until the broker is ready."""
STOP_TIMEOUT = 15.0
"""Seconds from SIGTERM to SIGKILL."""
PORTS = range(20_000, 32_000)
"""Range from which ports are chosen, below the ephemeral ports: a client that retries a stopped broker from an
ephemeral port of the same number would connect to itself."""

POM = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId>
  <artifactId>kafka-broker</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>%(kafka)s</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>%(log4j)s</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-core</artifactId><version>%(log4j)s</version>
    </dependency>
  </dependencies>
</project>
"""

LOGGING = """\
rootLogger.level=warn
rootLogger.appenderRef.stderr.ref=STDERR
appender.stderr.type=Console
appender.stderr.name=STDERR
appender.stderr.target=SYSTEM_ERR
appender.stderr.layout.type=PatternLayout
appender.stderr.layout.pattern=%d %p %c: %m%n
"""

DEFAULTS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    # A mistyped topic must be an error, and others should be created with the partitions that they need.
    "auto.create.topics.enable": "false",
    # Tests and examples send records with old timestamps, which would expire.
    "log.retention.ms": "-1",
    # A single node, with nothing to replicate to and no other member to wait for.
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    # After a kill the node waits for its own session to end before it serves again, nine seconds by default.
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "400",
    # Tests of members that die should not wait for six seconds, the default minimum.
    "group.min.session.timeout.ms": "500",
}


class Unavailable(Exception):  # noqa: N818 - a state of this machine, not an error of a broker
    """This machine lacks a requirement of the broker; the message says which, and how to install it."""


class BrokerError(Exception):
    """A broker did not start."""


# --- jars ------------------------------------------------------------------------------------------------------------


def find_java() -> str:
    """Return the path of `java`, from JAVA_HOME or PATH; raise `Unavailable` if there is none or it is too old."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=str(Path(home, "bin"))) if home else shutil.which("java")
    advice = (
        f"install Java {JAVA} or newer (Debian, Ubuntu: apt install default-jre-headless, or where that is older "
        f"openjdk-{JAVA}-jre-headless; macOS: brew install openjdk, and export JAVA_HOME=$(brew --prefix openjdk))"
    )
    if java is None:
        where = f"JAVA_HOME is {home}, which has no bin/java" if home else "PATH holds no java"
        raise Unavailable(f"Kafka needs Java, and {where}; {advice}")
    output = subprocess.run([java, "-version"], check=False, capture_output=True, text=True).stderr
    version = re.search(r'version "(\d+)', output)
    if version is None or int(version[1]) < JAVA:
        raise Unavailable(f"Kafka {KAFKA} does not run on {java} ({output.strip() or 'no version'}); {advice}")
    return java


def cache_folder(kafka: str = KAFKA) -> Path:
    """Return the folder in which the class path of a version is cached."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "streammoe", f"kafka-{kafka}")


def class_path(kafka: str = KAFKA) -> str:
    """Return the class path of the broker's jars, after downloading them by Maven if needed.

    Raises:
        Unavailable: Maven is missing or cannot download them.
    """
    cached = cache_folder(kafka) / "class-path.txt"
    with suppress(FileNotFoundError):
        jars = cached.read_text(encoding="utf-8").strip()
        if jars and all(map(os.path.exists, jars.split(os.pathsep))):
            return jars
    mvn = shutil.which("mvn")
    if mvn is None:
        raise Unavailable(
            f"Kafka {kafka} is downloaded by Maven, and PATH holds no mvn; install it "
            "(Debian, Ubuntu: apt install maven; macOS: brew install maven)"
        )
    cached.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cached.parent) as scratch:
        pom, written = Path(scratch, "pom.xml"), Path(scratch, "class-path.txt")
        pom.write_text(POM % {"kafka": kafka, "log4j": LOG4J}, encoding="utf-8")
        fetch = [mvn, "-q", "-B", "-f", str(pom), "dependency:build-classpath", f"-Dmdep.outputFile={written}"]
        try:
            result = subprocess.run(fetch, check=False, capture_output=True, text=True, timeout=FETCH_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Unavailable(
                f"Maven did not download Kafka {kafka} in {FETCH_TIMEOUT:g} s; is there a network?"
            ) from None
        if result.returncode or not written.exists():
            said = next((line for line in result.stdout.splitlines() if "ERROR" in line), result.stderr.strip())
            raise Unavailable(f"Maven cannot download Kafka {kafka}, which needs a network. It says: {said}")
        written.replace(cached)
    return cached.read_text(encoding="utf-8").strip()


def class_archive(java: str, kafka: str = KAFKA) -> Path:
    """Return the archive of classes with which the broker starts in half the time, written by a first one if needed."""
    archive = cache_folder(kafka) / f"classes-{Path(java).resolve().as_posix().replace('/', '-')}.jsa"
    with (cache_folder(kafka) / "classes.lock").open("w") as writing:
        fcntl.flock(writing, fcntl.LOCK_EX)
        if not archive.exists():
            with tempfile.TemporaryDirectory(dir=cache_folder(kafka)) as scratch:
                written = Path(scratch, "classes.jsa")
                first = Broker(Path(scratch, "broker"), classes=f"-XX:ArchiveClassesAtExit={written}", kafka=kafka)
                first.start().stop(START_TIMEOUT)
                written.replace(archive)
    return archive


# --- ports -----------------------------------------------------------------------------------------------------------


def free_port() -> int:
    """Return a free port of the loopback interface."""
    for port in random.sample(PORTS, 100):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with suppress(OSError):
                probe.bind(("127.0.0.1", port))
                return port
    raise BrokerError(f"no free port on 127.0.0.1 between {PORTS.start} and {PORTS.stop}; end what uses them")


def random_cluster_id() -> str:
    """Return the id of a new cluster."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def answers(port: int, timeout: float = 1.0, brokers: int = 1) -> bool:
    """Return whether a broker on this loopback port is ready, that is, lists so many live brokers, itself included."""
    body = struct.pack(">hhih", 3, 4, 1, -1) + struct.pack(">i?", 0, False)  # Metadata 4, of no topic
    try:
        with socket.create_connection(("127.0.0.1", port), timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(struct.pack(">i", len(body)) + body)
            size, _, _, found = struct.unpack(">iiii", _receive(connection, 16))
    except (OSError, EOFError):
        return False
    return bool(size > 0 and found >= brokers)


def _receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise EOFError
        data += chunk
    return data


# --- the broker ------------------------------------------------------------------------------------------------------


class Broker:
    """A Kafka node whose port and data persist over restarts.

    Args:
        folder: for data, settings and log (``broker.log``); created if missing.
        port: port on 127.0.0.1; 0 for any free one.
        properties: settings of Kafka, which override `DEFAULTS`.
        heap: maximum Java heap, as in ``-Xmx``.
        cluster_id: of the cluster, which all of its nodes have; by default that of a cluster of its own.
        quick: start faster (3 s instead of 5 s) with less optimized code, which a benchmark of the broker should not
            use. A single Python client is slower than either.
        classes: option of Java in place of that which names the archive of classes.
        kafka: its version.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        port: int = 0,
        properties: Mapping[str, str] | None = None,
        heap: str = "512m",
        cluster_id: str = "",
        quick: bool = True,
        classes: str = "",
        kafka: str = KAFKA,
    ) -> None:
        self.folder = Path(folder).absolute()
        self.port = port or free_port()
        self.address = f"127.0.0.1:{self.port}"
        self.properties = dict(properties or {})
        self._heap = heap
        self._cluster_id = cluster_id or random_cluster_id()
        self._quick = quick
        self._classes = classes
        self._kafka = kafka
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The process id, while the broker runs."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    @property
    def log(self) -> Path:
        """Kafka's log, of all its starts."""
        return self.folder / "broker.log"

    def start(self, timeout: float = START_TIMEOUT) -> Self:
        """Start the broker and wait until it is ready.

        Raises:
            Unavailable: Java, Maven or the jars are missing.
            BrokerError: the port is in use, or Kafka ended, or was not ready in time.
        """
        if self.pid is not None:
            return self
        java, jars = find_java(), class_path(self._kafka)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                raise BrokerError(
                    f"{self.address} cannot be bound ({error.strerror}); end what uses it, or choose another port"
                ) from error
        settings = self._write_settings()
        options = [f"-Xmx{self._heap}", "-Djava.awt.headless=true"]
        options += ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"] if self._quick else []
        options += [self._classes or f"-XX:SharedArchiveFile={class_archive(java, self._kafka)}"]
        options += [f"-Dlog4j2.configurationFile={self.folder / 'log4j2.properties'}", "-cp", jars]
        with self.log.open("ab") as log:
            if not (self.folder / "data" / "meta.properties").exists():
                tool = ["kafka.tools.StorageTool", "format", f"--cluster-id={self._cluster_id}", f"--config={settings}"]
                given = [option for option in options if option != self._classes]
                result = subprocess.run([java, *given, *tool], check=False, stdout=log, stderr=log)
                if result.returncode:
                    raise BrokerError(f"Kafka cannot use {self.folder}:\n{self._log_tail()}")
            # In its own session, so that Ctrl-C reaches only the process that started it, which then stops it cleanly.
            self._process = subprocess.Popen(
                [java, *options, "kafka.Kafka", str(settings)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            self._wait(timeout)
        except BaseException:
            self.kill9()
            raise
        return self

    def kill9(self) -> None:
        """Kill the broker; unlike after a power cut, the system still writes its buffers to disk."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    def stop(self, timeout: float = STOP_TIMEOUT) -> None:
        """Stop the broker cleanly, or kill it after `timeout` seconds."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill9()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def _write_settings(self) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        controller = free_port()
        properties = {
            **DEFAULTS,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://127.0.0.1:{controller}",
            "controller.quorum.voters": f"1@127.0.0.1:{controller}",
            "log.dirs": str(self.folder / "data"),
            **self.properties,
        }
        (self.folder / "log4j2.properties").write_text(LOGGING, encoding="utf-8")
        settings = self.folder / "server.properties"
        settings.write_text("".join(f"{name}={value}\n" for name, value in properties.items()), encoding="utf-8")
        return settings

    def _wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not answers(self.port):
            if self.pid is None:
                raise BrokerError(f"Kafka ended before it was ready; {self.log} says:\n{self._log_tail()}")
            if time.monotonic() >= deadline:
                raise BrokerError(f"Kafka was not ready in {timeout:g} s; {self.log} says:\n{self._log_tail()}")
            time.sleep(0.05)

    def _log_tail(self) -> str:
        return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
