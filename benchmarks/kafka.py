"""How fast does the daemon learn from Kafka, compared with a consumer that only reads, and with what latency?

A real broker on this machine, 170 bytes of JSON per event, 10 inputs, 4 experts. Raw consumer and daemon read the same
topic in turn: the raw consumer joins the values of every poll; the daemon decodes, predicts, learns, scores, serves
metrics and writes a checkpoint every 30 s. The best of a few runs counts. Latency is from the append at the
broker (LogAppendTime, in whole milliseconds, so up to 1 ms less than shown) to the end of the batch that learned the
event, in a daemon inside this process, checkpoints every few seconds included.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.report import parsed, table, verdict
from tests.kafka_lab.broker import Broker
from tests.kafka_lab.lab import Daemon, Producer
from tests.kafka_lab.topics import Topics

RAW = """
import sys, time
from kafka import KafkaConsumer, TopicPartition
address, topic, partitions, events = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
consumer = KafkaConsumer(bootstrap_servers=address, max_poll_records=2000)
assigned = [TopicPartition(topic, i) for i in range(partitions)]
consumer.assign(assigned)
consumer.seek_to_beginning(*assigned)
read = size = 0
begun = None
while read < events:
    for records in consumer.poll(500).values():
        begun = begun or time.perf_counter()
        size += len(b"\\n".join([record.value for record in records]))
        read += len(records)
print(read / (time.perf_counter() - begun))
"""
SHARE, RATE = 0.65, 100_000
LATENCY = {50: 10.0, 99: 50.0}
"""Milliseconds that may be exceeded by so many percent less than 100."""
DECIMALS = 4
"""Of the numbers in a record; an event of 10 inputs takes about 170 bytes of JSON with them."""


def fill(folder: Path, topics: Topics, topic: str, events: int, partitions: int, rate: float = 0.0) -> None:
    """Send events to a topic from a separate process at a given rate."""
    stream = tasks.full_gate(events)
    names = [*(f"x{j}" for j in range(stream.X.shape[1])), "y"]
    rows = np.column_stack([stream.X, stream.y]).round(DECIMALS).tolist()
    path = folder / f"{topic}.jsonl"
    lines = (json.dumps(dict(zip(names, row, strict=True)), separators=(",", ":")) for row in rows)
    path.write_text("\n".join(lines))
    Producer(topics.address, topic, path, partitions, rate).wait()


def daemon(folder: Path, topics: Topics, topic: str, every_seconds: int = 30) -> Daemon:
    """Open a daemon with 4 experts that saves every 50,000 events or every given number of seconds."""
    settings = {"model.n_experts": 4, "checkpoint.every_events": 50_000, "checkpoint.every_seconds": every_seconds}
    return Daemon(folder / f"daemon-{uuid.uuid4().hex[:8]}", topics.address, topic, settings)


def raw(address: str, topic: str, partitions: int, events: int) -> float:
    """Measure the records per second of the plain consumer."""
    command = [sys.executable, "-c", RAW, address, topic, str(partitions), str(events)]
    return float(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def throughput(folder: Path, topics: Topics, partitions: int, events: int, repeats: int) -> list[str]:
    """Format a row of the table."""
    topic = topics.create(partitions)
    fill(folder, topics, topic, events, partitions)
    plain, learning = [], []
    for _ in range(repeats):
        plain.append(raw(topics.address, topic, partitions, events))
        learning.append(daemon(folder, topics, topic).finish()["events_per_second"])
    share, rate = max(learning) / max(plain), max(learning)
    judged = [f"≥ {SHARE}, ≥ {RATE:,}", verdict(share >= SHARE and rate >= RATE)]
    return [str(partitions), f"{max(plain):,.0f}", f"{rate:,.0f}", f"{share:.2f}", *judged]


def latencies(folder: Path, topics: Topics, partitions: int, seconds: float, idle_ms: int) -> Any:
    """Measure the milliseconds from the broker to the model for each event, at 1,000 events a second."""
    from streammoe.assembly import open_daemon
    from streammoe.configuration import load_settings
    from streammoe.daemon.signals import StopFlag
    from streammoe.ports import Batch, Source

    topic = topics.create(partitions, {"message.timestamp.type": "LogAppendTime"})
    settings = load_settings(
        daemon(folder, topics, topic, every_seconds=5).config,
        overrides=[f"source.idle_ms={idle_ms}", "model.warmup=500"],
    )
    taken: list[Any] = []
    last: list[Batch] = []
    stop = StopFlag()

    def on_batch(_progress: tuple[int, int] | None) -> None:
        if last:
            stamps = last.pop().timestamps
            assert stamps is not None
            taken.append(time.time() * 1000.0 - stamps)

    with open_daemon(settings, on_batch=on_batch) as running:
        source: Source = running.daemon.source
        poll = source.poll

        def remembered(timeout: float) -> Batch | None:
            batch = poll(timeout)
            if batch is not None:
                last.append(batch)
            return batch

        source.poll = remembered  # type: ignore[method-assign]

        def produce() -> None:
            time.sleep(2.0)
            fill(folder, topics, topic, int(1000 * seconds), partitions, rate=1000.0)
            time.sleep(1.0)
            stop.requested = True

        threading.Thread(target=produce).start()
        running.daemon.run(stop)
    found = np.concatenate(taken)
    return found[len(found) // 10 :]  # less the warm-up and the fit that ends it


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    given = parsed(__doc__, argv, events=1_000_000, repeats=3, seconds=60.0)
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name, Broker(Path(name, "kafka"), quick=False) as broker:
        folder, topics = Path(name), Topics(broker.address)
        rows = [throughput(folder, topics, partitions, given.events, given.repeats) for partitions in (1, 4)]
        print(f"{given.events:,} events a topic; the first fit and connecting count for the daemon")
        print(table(["partitions", "raw consumer/s", "daemon/s", "daemon / raw", "target", "verdict"], rows))
        rows = []
        for partitions, idle_ms in ((1, 100), (4, 2)):
            found = latencies(folder, topics, partitions, given.seconds, idle_ms)
            shown = [float(np.percentile(found, share)) for share in LATENCY]
            met = verdict(all(value <= limit for value, limit in zip(shown, LATENCY.values(), strict=True)))
            limits = ", ".join(f"≤ {limit:g}" for limit in LATENCY.values())
            rows.append([partitions, idle_ms, *(f"{value:.1f}" for value in [*shown, found.max()]), limits, met])
        topics.close()
    print("\nMilliseconds from the broker's append to the model, at 1,000 events/s, a checkpoint every 5 s")
    print(table(["partitions", "idle_ms", "p50", "p99", "worst", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
