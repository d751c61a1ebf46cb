"""Processes for experiments with a real broker: daemons that read topics, and a producer that fills them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, ClassVar

from streammoe.persistence import read_checkpoint

PATIENCE = 120.0
"""Longest wait in seconds, for a busy machine."""


def wait_until(condition: Callable[[], object], what: str, seconds: float = PATIENCE, *, every: float = 0.02) -> None:
    """Return once the condition holds; raise TimeoutError if it does not within so many seconds.

    It is checked `every` so many seconds: not too often where a check itself keeps the brokers busy.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited {seconds:g} s for {what}")
        time.sleep(every)


def run_streammoe(words: list[str], log: BinaryIO) -> Any:
    """Start a command in its own session, with its log appended to `log` and its standard output in a pipe."""
    command = [sys.executable, "-m", "streammoe", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, start_new_session=True)


class Daemon:
    """A daemon process in its own folder that learns `y` from a topic.

    Args:
        folder: to be created; holds the configuration, the log and the checkpoints.
        address: of the broker.
        topic: to read; the group has the name of the folder.
        settings: further settings by their full names, such as ``{"model.n_experts": 2}``.
    """

    defaults: ClassVar[Mapping[str, object]] = {}
    """Settings of all daemons unless given to one of them."""
    launch: ClassVar[Callable[[list[str], BinaryIO], Any]] = staticmethod(run_streammoe)
    """What starts their processes; what it returns has what is used here of `subprocess.Popen`."""

    def __init__(self, folder: Path, address: str, topic: str, settings: Mapping[str, object] | None = None) -> None:
        folder.mkdir()
        self.folder, self.state, self.log = folder, folder / "state", folder / "log"
        self.process: Any = None
        chosen: dict[str, object] = {
            "source.kind": "kafka",
            "source.bootstrap_servers": address,
            "source.topics": topic,
            "source.group": folder.name,
            "schema.target": "y",
            "checkpoint.dir": str(self.state),
            "dead_letters.path": str(folder / "dead-letters.jsonl"),
            "metrics.port": 0,
            "checkpoint.stop_seconds": 300,  # a busy machine
            **self.defaults,
            **(settings or {}),
        }
        self.config = folder / "config.toml"
        # Texts, numbers, truth values and lists are written alike in JSON and TOML.
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in chosen.items()]
        self.config.write_text("".join(lines), encoding="utf-8")

    def start(self, *settings: str) -> Any:
        """Start it in its own session, with its log appended to `log` and its standard output in a pipe."""
        flags = [part for setting in settings for part in ("--set", setting)]
        with self.log.open("ab") as log:
            self.process = self.launch(["run", str(self.config), "--json", *flags], log)
        return self.process

    def finish(self, *settings: str) -> dict[str, Any]:
        """Run it up to the current end of the topic; return its summary."""
        return self.end(self.start("source.until=end", *settings))

    def end(self, process: Any, code: int = 0) -> dict[str, Any]:
        """Wait until it ends with this exit code, else raise RuntimeError; return its summary."""
        output = process.communicate(timeout=PATIENCE)[0]
        if process.returncode != code:
            raise RuntimeError(f"the daemon ended with {process.returncode}:\n{self.said}")
        summary: dict[str, Any] = json.loads(output) if output else {}
        return summary

    def kill(self) -> None:
        """Kill it, if it still runs."""
        if self.process is not None and not self.process.stdout.closed:
            self.process.send_signal(signal.SIGKILL)
            self.process.communicate()

    @property
    def said(self) -> str:
        """Its log."""
        return self.log.read_text(encoding="utf-8") if self.log.exists() else ""

    @property
    def newest(self) -> str:
        """The name of the newest checkpoint, or an empty text."""
        return max((path.name for path in self.state.glob("checkpoint-*.safetensors")), default="")

    @property
    def events(self) -> int:
        """Number of events up to the newest checkpoint."""
        return sum(self.metadata["counters"]["outcomes"].values()) if self.newest else 0

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata of the newest checkpoint."""
        return read_checkpoint(self.state).metadata

    def wait_for_events(self, more_than: int) -> None:
        """Return once a checkpoint covers more than so many events.

        Raises:
            RuntimeError: it ended before.
            TimeoutError: it took too long.
        """

        def there() -> bool:
            if self.process is not None and self.process.poll() is not None:
                raise RuntimeError(f"the daemon ended with {self.process.returncode}:\n{self.said}")
            return self.events > more_than

        wait_until(there, f"more than {more_than} events")


class Producer:
    """A process that sends the lines of a file, the i-th to partition i mod n, and waits for their acknowledgement.

    Args:
        address: of the broker.
        topic: to fill.
        path: of the file.
        partitions: of the topic.
        rate: lines per second; 0 for as fast as possible.
    """

    SCRIPT = """
import signal, sys, time
from kafka import KafkaProducer
stopped = []
signal.signal(signal.SIGTERM, lambda *_: stopped.append(True))
address, topic, path, partitions, rate = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
lines = open(path, "rb").read().split(b"\\n")
producer = KafkaProducer(
    bootstrap_servers=address.split(","), acks="all", linger_ms=2 if rate else 20, batch_size=1 << 17,
    delivery_timeout_ms=120_000, max_block_ms=120_000, reconnect_backoff_max_ms=500,
)
begun, sent = time.monotonic(), 0
while sent < len(lines) and not stopped:
    ahead = begun + sent / rate - time.monotonic() if rate else 0.0
    if ahead > 0.001:
        time.sleep(ahead)
    producer.send(topic, lines[sent], partition=sent % partitions)
    sent += 1
producer.flush(120)
signal.signal(signal.SIGTERM, signal.SIG_IGN)  # else one that comes while Python ends would end it first
print(sent)
"""

    def __init__(self, address: str, topic: str, path: Path, partitions: int = 1, rate: float = 0.0) -> None:
        arguments = [address, topic, str(path), str(partitions), str(rate)]
        self._process = subprocess.Popen([sys.executable, "-c", self.SCRIPT, *arguments], stdout=subprocess.PIPE)

    def kill(self) -> None:
        """Kill it, if it still runs."""
        self._process.kill()
        self._process.communicate()

    def stop(self) -> int:
        """Stop sending; return how many lines were sent, once they are acknowledged."""
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Return how many lines were sent, once all are acknowledged; raise RuntimeError if that failed."""
        output = self._process.communicate(timeout=300)[0]
        if self._process.returncode:
            raise RuntimeError(f"the producer ended with {self._process.returncode}")
        return int(output)
