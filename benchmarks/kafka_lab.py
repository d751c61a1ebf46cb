"""A broker, topics that are filled by another process, and daemons that are killed: what the Kafka scripts share."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tasks
from streammoe.persistence import read_checkpoint

GROUP = "lab"
CONFIG = """\
[source]
kind = "kafka"
bootstrap_servers = "{address}"
topics = "{topic}"
group = "{group}"
start = "earliest"

[schema]
target = "y"

[model]
{model}

[checkpoint]
dir = "{state}"
every_events = {every_events}
every_seconds = {every_seconds}

[metrics]
port = 0

[dead_letters]
path = "{state}/dead-letters.jsonl"
"""
MIXTURE = "n_experts = 4"
LEAST_SQUARES = """\
n_experts = 1
prior_strength = 0.0
standardize = false
averaging = "none"
schedule = { kind = "power", alpha = 1.0 }"""
"""A model whose state is that of all events together, in whatever order they come."""
DECIMALS = 4
"""Of the numbers in a record; an event of 10 inputs takes about 170 bytes of JSON with them."""


class Failed(Exception):  # noqa: N818 - what happened, not what to do about it
    """A process did not do what it is there for."""


def events(n: int, seed: int = 0) -> tuple[Any, Any]:
    """(n, 10) inputs and (n,) targets, as they are written into records."""
    stream = tasks.full_gate(n, seed=seed)
    return stream.X.round(DECIMALS), stream.y.round(DECIMALS)


def values(X: Any, y: Any) -> list[bytes]:
    """The records of events: JSON objects."""
    names = [*(f"x{j}" for j in range(X.shape[1])), "y"]
    return [
        json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":")).encode()
        for row in np.column_stack([X, y]).tolist()
    ]


class Lab:
    """Daemons over topics of one broker, each in a folder of its own.

    Args:
        folder: where theirs go.
        address: of the broker.
    """

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self._names = 0

    def fill(self, topic: str, records: Sequence[bytes], partitions: int = 1, *, rate: float = 0.0) -> Producer:
        """Begin to send records to the partitions in turn, from a process of its own, so many a second."""
        path = self.folder / f"{topic}.jsonl"
        path.write_bytes(b"\n".join(records))
        return Producer(self.address, topic, path, partitions, rate)

    def config(self, topic: str, **given: object) -> Path:
        """The configuration of a new daemon, with a folder and a group of its own."""
        self._names += 1
        home = self.folder / f"daemon-{self._names}"
        home.mkdir()
        filled = {
            "model": MIXTURE,
            "every_events": 50_000,
            "every_seconds": 30,
            "group": f"{GROUP}-{self._names}",
            **given,
        }
        path = home / "config.toml"
        path.write_text(CONFIG.format(address=self.address, topic=topic, state=home / "state", **filled))
        return path


class Producer:
    """A process that sends the lines of a file, the i-th to partition i mod n, and waits until the broker has them."""

    SCRIPT = """
import sys, time
from kafka import KafkaProducer
address, topic, path, partitions, rate = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
lines = open(path, "rb").read().split(b"\\n")
producer = KafkaProducer(
    bootstrap_servers=address, acks="all", linger_ms=2 if rate else 20, batch_size=1 << 17,
    delivery_timeout_ms=120_000, max_block_ms=120_000, reconnect_backoff_max_ms=500,
)
begun = time.monotonic()
for i, line in enumerate(lines):
    if rate:
        ahead = begun + i / rate - time.monotonic()
        if ahead > 0.001:
            time.sleep(ahead)
    producer.send(topic, line, partition=i % partitions)
producer.flush(120)
"""

    def __init__(self, address: str, topic: str, path: Path, partitions: int, rate: float) -> None:
        arguments = [address, topic, str(path), str(partitions), str(rate)]
        self._process = subprocess.Popen([sys.executable, "-c", self.SCRIPT, *arguments])

    @property
    def busy(self) -> bool:
        return self._process.poll() is None

    def wait(self) -> None:
        """Until all is sent."""
        if self._process.wait(300):
            raise Failed("the producer failed")


def command(config: Path, settings: Iterable[str] = ()) -> list[str]:
    flags = [part for setting in settings for part in ("--set", setting)]
    return [sys.executable, "-m", "streammoe", "run", str(config), "--summary", "json", *flags]


def start(config: Path, *settings: str) -> subprocess.Popen[bytes]:
    """A daemon that goes on for ever."""
    log = (config.parent / "log").open("ab")
    with log:
        return subprocess.Popen(command(config, settings), stdout=log, stderr=log)


def finish(config: Path, *settings: str) -> dict[str, Any]:
    """Run a daemon up to what is the end of its topic now; its summary."""
    ended = subprocess.run(
        command(config, ["source.until=end", *settings]), capture_output=True, check=False, timeout=300
    )
    if ended.returncode:
        raise Failed(f"a daemon failed with {ended.returncode}:\n{ended.stderr.decode()}")
    summary: dict[str, Any] = json.loads(ended.stdout)
    return summary


def kill(process: subprocess.Popen[bytes]) -> None:
    """As the kernel does when memory is short."""
    if process.poll() is not None:
        raise Failed(f"a daemon that should have gone on for ever ended with {process.returncode}")
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def wait_for_events(config: Path, process: subprocess.Popen[bytes], seconds: float = 20.0) -> None:
    """Until a checkpoint of this daemon has more events behind it than there were, or no more come."""
    before = dealt_with(config)
    deadline = time.monotonic() + seconds
    while dealt_with(config) == before and time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failed(f"a daemon ended:\n{(config.parent / 'log').read_text()}")
        time.sleep(0.02)


def begun(config: Path) -> subprocess.Popen[bytes]:
    """A daemon that has taken up its position."""
    process = start(config)
    while not any((config.parent / "state").glob("checkpoint-*.safetensors")):
        if process.poll() is not None:
            raise Failed(f"a daemon ended:\n{(config.parent / 'log').read_text()}")
        time.sleep(0.02)
    return process


def killed_after(config: Path, process: subprocess.Popen[bytes], seconds: float) -> int:
    """Kill a daemon so much later; how many events its last checkpoint had dealt with."""
    time.sleep(seconds)
    kill(process)
    return dealt_with(config)


def killed_once(config: Path, rng: random.Random, most: float) -> int:
    """Start a daemon, kill it at a random moment up to `most` seconds from its start or its first events.

    Returns how many events its last checkpoint had dealt with.
    """
    process = start(config)
    if rng.random() < 0.75:
        # Most moments are in the middle of learning; the others anywhere in a start, a restore or a connection.
        wait_for_events(config, process)
    return killed_after(config, process, rng.uniform(0.0, most))


def dealt_with(config: Path) -> int:
    """Events that the newest checkpoint has behind it."""
    state = config.parent / "state"
    if not any(state.glob("checkpoint-*.safetensors")):
        return 0
    return sum(read_checkpoint(state).metadata["counters"]["outcomes"].values())


def partitions_of(config: Path, topic: str) -> dict[int, int]:
    """The next offset of each partition in the newest checkpoint."""
    (position,) = read_checkpoint(config.parent / "state").metadata["positions"]
    return {int(partition): offset for partition, offset in position["topics"][topic]["partitions"].items()}
