"""Pictures of the dashboard, of real daemons that a real Prometheus scrapes while a real broker feeds them.

    .venv/bin/python -m scripts.live_dashboard one docs/pictures/dashboard-one.png
    .venv/bin/python -m scripts.live_dashboard ten docs/pictures/dashboard-ten.png

One is well; of ten several have the trouble that they are named after. Kafka needs Java and Maven; Prometheus is taken
from Debian if it is not installed. All of it listens on 127.0.0.1, and ends with the script.
"""

from __future__ import annotations

import argparse
import json
import resource
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from scripts import draw_dashboard
from tests.integration.prometheus import started
from tests.kafka_lab.broker import Broker, free_port
from tests.kafka_lab.lab import Daemon

PARTITIONS = 2
Random = np.random.Generator


def line(rng: Random, i: int) -> dict[str, Any]:
    """Return an event of a linear relation."""
    a, b, c = rng.normal(size=3)
    color = ("red", "green", "blue")[i % 3]
    return {"a": a, "b": b, "c": c, "color": color, "y": 20 + a - 2 * b + 3 * (i % 3) + 0.5 * rng.normal()}


def classes(rng: Random, i: int) -> dict[str, Any]:
    """Return an event with a label."""
    event = line(rng, i)
    return {**event, "y": "high" if event["y"] > 23 else "low" if event["y"] < 19 else "middle"}


def outputs(rng: Random, i: int) -> dict[str, Any]:
    """Return an event with two targets."""
    event = line(rng, i)
    return {**event, "z": 1_000 * event["a"] + 300 * rng.normal()}


def spikes(rng: Random, i: int) -> dict[str, Any]:
    """Return an event with an input that is now and then hundreds of times too large, after a while."""
    event = line(rng, i)
    return {**event, "a": event["a"] * (300 if i > 600 and rng.random() < 0.03 else 1)}


def turning(rng: Random, i: int) -> dict[str, Any]:
    """Return an event of a relation that turns round."""
    event = line(rng, i)
    return {**event, "y": event["y"] if i // 2_000 % 2 else -event["y"]}


def garbage(rng: Random, i: int) -> dict[str, Any] | str:
    """Return something else than an event, now and then, after a while, or one with a value missing."""
    event = line(rng, i)
    if i > 1_500 and rng.random() < 0.12:
        return ('{"a": 1.0, "b":', "502 Bad Gateway", '{"y": "n/a"}')[i % 3]
    return {**event, "b": None if rng.random() < 0.3 else event["b"]}


class Stream(NamedTuple):
    """What one daemon learns."""

    rate: float
    """Events per second."""
    event: Callable[[Random, int], dict[str, Any] | str] = line
    settings: Mapping[str, object] = MappingProxyType({})


EXPLODING: dict[str, object] = {
    "model.n_experts": 1,
    "model.hold": False,
    "model.range_factor": 0,
    "model.standardize": False,
    "model.serve": "polyak",
    "model.averaging": "none",
    "model.schedule.kind": "constant",
    "model.schedule.gamma": 0.0005,
}
STREAMS = {
    "steady": Stream(150),
    "quiet": Stream(3),
    "classes": Stream(60, classes, {"model.kind": "classifier"}),
    "outputs": Stream(40, outputs, {"schema.target": ["y", "z"]}),
    "drifts": Stream(80, turning),
    "exploding": Stream(4, spikes, EXPLODING),
    "garbage": Stream(30, garbage),
    "full-disk": Stream(50),
    "restarts": Stream(50),
    "hangs": Stream(25),
}


def trouble(daemons: dict[str, Daemon], second: int) -> None:
    """Make the trouble of each second."""
    for name, daemon in daemons.items():
        if name == "hangs" and second == 150:
            daemon.process.send_signal(signal.SIGSTOP)
        if name == "full-disk" and second == 120:
            resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))
        if name == "restarts" and second % 75 == 70:
            daemon.kill()
        if name == "restarts" and second % 75 == 0 and second:
            daemon.start()
        if name == "steady" and second == 200:
            daemon.process.send_signal(signal.SIGHUP)


def feed(address: str, daemons: dict[str, Daemon], seconds: float) -> None:
    """Send events to the topic of each daemon at its rate."""
    producer = KafkaProducer(bootstrap_servers=address, linger_ms=20)
    rng, sent, started_at, said = np.random.default_rng(0), dict.fromkeys(daemons, 0), time.monotonic(), -1
    while (elapsed := time.monotonic() - started_at) < seconds:
        for name in daemons:
            while sent[name] < elapsed * STREAMS[name].rate:
                event = STREAMS[name].event(rng, sent[name])
                text = event if isinstance(event, str) else json.dumps(event)
                producer.send(name, text.encode(), partition=sent[name] % PARTITIONS)
                sent[name] += 1
        for second in range(said + 1, int(elapsed) + 1):
            trouble(daemons, second)
            said = second
        time.sleep(0.1)
    producer.close(10)


def main(argv: list[str] | None = None) -> None:
    """Start all, wait, and draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("how_many", choices=("one", "ten"))
    parser.add_argument("out", type=Path, help="PNG to write")
    parser.add_argument("--minutes", type=float, default=12.0)
    parser.add_argument("--rows", default="47", help="as of draw_dashboard")
    given = parser.parse_args(argv)
    names = list(STREAMS)[: 1 if given.how_many == "one" else None]
    with tempfile.TemporaryDirectory() as scratch, Broker(Path(scratch, "broker")) as broker:
        admin = KafkaAdminClient(bootstrap_servers=broker.address)
        admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names])
        admin.close()
        daemons, targets = {}, []
        for name in names:
            settings = {
                "metrics.port": free_port(),
                "checkpoint.every_seconds": 15.0,
                "dead_letters.max_ratio": 1.0,
                "predictions.kind": "file",
                "predictions.path": str(Path(scratch, name, "predictions.jsonl")),
                **STREAMS[name].settings,
            }
            daemons[name] = Daemon(Path(scratch, name), broker.address, name, settings)
            targets.append({"targets": [f"127.0.0.1:{settings['metrics.port']}"], "labels": {"instance": name}})
        prometheus, url = started(Path(scratch), {"static_configs": targets})
        try:
            for daemon in daemons.values():
                daemon.start()
            print(f"Prometheus: {url}; all of it: {scratch}", flush=True)
            feed(broker.address, daemons, 60.0 * given.minutes)
            shown = ["--minutes", f"{given.minutes}", "--rows", given.rows]
            draw_dashboard.main([url, str(given.out), *shown])
        finally:
            for daemon in daemons.values():
                daemon.kill()
            prometheus.terminate()
            prometheus.wait()


if __name__ == "__main__":
    main()
