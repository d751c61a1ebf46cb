"""What does an event cost with either Kafka client: read alone, learned, and with a prediction written to a topic?

A real broker on this machine, one partition, 170 bytes of JSON per event, 10 inputs, 4 experts. Processor time is that
of the daemon and its reader together (the broker's is not counted), as the slope between a short topic and a long one,
so that starting up does not count. Clients alternate, and the smallest of a few rounds counts. `--events` is the length
of the long topic; `--cores 1`, the default, makes the daemon and its reader share one.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from benchmarks.kafka import fill
from benchmarks.report import parsed, table
from tests.kafka_lab.broker import Broker
from tests.kafka_lab.lab import Daemon
from tests.kafka_lab.topics import Topics

CLIENTS = ("kafka-python", "librdkafka")
READ = """
import sys
from streammoe_connectors.kafka.source import KafkaSource
address, topic, client = sys.argv[1:]
source = KafkaSource(KafkaSource.Settings(
    kind="kafka", bootstrap_servers=address, topics=topic, group="bench", until="end", client=client
))
source.seek(None)
while not source.prepare(1.0):
    pass
while not source.finished:
    source.poll(1.0)
source.close()
"""


def cpu_seconds() -> float:
    """Return the processor time of all processes that have been waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    given = parsed(__doc__, argv, events=400_000, repeats=3, cores=1)
    with tempfile.TemporaryDirectory(prefix="streammoe-") as name, Broker(Path(name, "kafka"), quick=False) as broker:
        folder, topics = Path(name), Topics(broker.address)
        sizes = (given.events // 4, given.events)
        filled = [topics.create() for _ in sizes]
        for topic, size in zip(filled, sizes, strict=True):
            fill(folder, topics, topic, size, 1)
        os.sched_setaffinity(0, range(given.cores))

        def reading(client: str, topic: str) -> None:
            subprocess.run([sys.executable, "-c", READ, topics.address, topic, client], check=True)

        def learning(client: str, topic: str, **more: object) -> None:
            settings = {
                "source.client": client,
                "model.n_experts": 4,
                "checkpoint.every_events": 50_000,
                "checkpoint.every_seconds": 30,
                **more,
            }
            Daemon(folder / f"daemon-{uuid.uuid4().hex[:8]}", topics.address, topic, settings).finish()

        def predicting(client: str, topic: str) -> None:
            written = {"predictions.kind": "kafka", "predictions.topic": topics.create(name="predictions")}
            learning(client, topic, **written)

        jobs = {"read": reading, "learned": learning, "learned, predictions to a topic": predicting}
        cost = {(job, client): (float("inf"), float("inf")) for job in jobs for client in CLIENTS}
        for _ in range(given.repeats):
            for job, run in jobs.items():
                for client in CLIENTS:
                    used, clock = [], []
                    for topic in filled:
                        before, begun = cpu_seconds(), time.perf_counter()
                        run(client, topic)
                        used.append(cpu_seconds() - before)
                        clock.append(time.perf_counter() - begun)
                    events = sizes[1] - sizes[0]
                    least, fastest = cost[job, client]
                    cost[job, client] = (
                        min(least, 1e6 * (used[1] - used[0]) / events),
                        min(fastest, (clock[1] - clock[0]) / events),
                    )
        topics.close()
    rows = []
    for job in jobs:
        (slow, slow_clock), (fast, fast_clock) = (cost[job, client] for client in CLIENTS)
        rates = [f"{1 / clock:,.0f}" for clock in (slow_clock, fast_clock)]
        rows.append([job, f"{slow:.1f}", f"{fast:.1f}", f"{slow / fast:.1f}", *rates, f"{slow_clock / fast_clock:.1f}"])
    heads = [f"µs, {client}" for client in CLIENTS] + ["ratio"] + [f"events/s, {client}" for client in CLIENTS]
    print(table(["an event is", *heads, "ratio"], rows))


if __name__ == "__main__":
    main()
