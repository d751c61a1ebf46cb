"""Predictions on request: how many a listener answers, how soon while the model learns, and what learning loses.

    python -m benchmarks.serving

One process learns and answers, another asks over 8 connections of its own. Learning with and without requests is
measured by turns in one run; each ratio is the median of several pairs.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import sys
import time
from collections.abc import Iterable
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.report import machine, markdown
from streammoe import MoERegressor
from streammoe.answering import Answering
from streammoe.pipeline.schema import Schema
from streammoe.serving.snapshot import Published
from streammoe.settings import ServeSettings

COLUMNS, CONNECTIONS, BATCH = 8, 8, 256
NAMES = [f"x{j}" for j in range(COLUMNS)]


def ask(port: int, rate: float, seconds: float, rows: int) -> dict[str, float]:
    """Ask for predictions of so many rows at a time for a while, at a rate or, if it is 0, as fast as answers come."""
    record = {name: 0.1 * j for j, name in enumerate(NAMES)}
    body = json.dumps(record if rows == 1 else [record] * rows).encode()
    head = f"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    selector, idle, asked, taken = selectors.DefaultSelector(), [], dict[socket.socket, float](), list[float]()
    received: dict[socket.socket, bytes] = {}
    for _ in range(CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", port))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        selector.register(connection, selectors.EVENT_READ)
        idle.append(connection)
    started, sent = time.perf_counter(), 0
    while (now := time.perf_counter()) < started + seconds or asked:
        while idle and now < started + seconds and (not rate or sent < (now - started) * rate):
            connection = idle.pop()
            asked[connection], received[connection] = (started + sent / rate if rate else now), b""
            connection.sendall(head + body)
            sent += 1
        for key, _ in selector.select(0.0005):
            connection = key.fileobj  # type: ignore[assignment]
            received[connection] += connection.recv(1 << 20)
            begin, _, content = received[connection].partition(b"\r\n\r\n")
            if len(content) >= int(begin.partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or sys.maxsize):
                if not begin.startswith(b"HTTP/1.1 200"):
                    raise RuntimeError(received[connection].decode())
                taken.append(time.perf_counter() - asked.pop(connection))
                idle.append(connection)
    taken.sort()
    found = {"per second": len(taken) / (time.perf_counter() - started)}
    return found | {f"p{100 * q:.0f}": 1000 * taken[int(q * len(taken))] for q in (0.5, 0.99)}


class Learning:
    """A model that learns, and whose snapshots answer if wanted."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.normal(size=(BATCH, COLUMNS))
        self.y = np.where(self.X[:, 0] > 0.0, self.X[:, 1], -self.X[:, 2]) + 0.1 * rng.normal(size=BATCH)
        self.model, self.published = MoERegressor(), Published()
        for _ in range(40):
            self.model.learn_array(self.X, self.y)
        self.publish()

    def publish(self) -> None:
        self.published.offer(self.model, Schema(("y",)), self.model.n, None)

    def rate(self, seconds: float, *, publishes: bool) -> float:
        """Events learned in a second."""
        started, n = time.perf_counter(), 0
        while (spent := time.perf_counter() - started) < seconds:
            self.model.learn_array(self.X, self.y)
            n += BATCH
            if publishes:
                self.publish()
        return n / spent


def shown(values: Iterable[float]) -> list[str]:
    """Format numbers for the table."""
    return [f"{value:,.4g}" for value in values]


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each measurement")
    parser.add_argument("--pairs", type=int, default=7)
    given = parser.parse_args(argv)
    print(machine(), "\n", flush=True)
    learning = Learning()
    settings = ServeSettings(port=0, rows_per_second=10_000_000)
    answering = Answering(settings, 0.9, lambda: {"problem": ""})
    learning.published = answering.published
    learning.publish()
    port = int(answering.url.rpartition(":")[2])
    rows: list[list[Any]] = []
    with get_context("spawn").Pool(1) as pool:

        def asked(rate: float, rows_each: int) -> Any:
            return pool.apply_async(ask, (port, rate, given.seconds, rows_each))

        asked(0, 1).get()
        for name, rate, each in (
            ("one row", 0, 1),
            ("one row, 200 a second", 200, 1),
            ("1,000 rows", 10, 1_000),
        ):
            found = asked(rate, each).get()
            rows.append([name, "no", *shown(found.values()), ""])
        kept, answers = [], []
        for _ in range(given.pairs):
            alone = learning.rate(given.seconds, publishes=False)
            asking = asked(200, 1)
            beside = learning.rate(given.seconds, publishes=True)
            kept.append(beside / alone)
            answers.append(asking.get())
        medians = [statistics.median(each[name] for each in answers) for name in answers[0]]
        rows.append(["one row, 200 a second", "yes", *shown(medians), f"{statistics.median(kept):.3f}"])
    answering.close()
    print(markdown(["asked", "while it learns", "answers/s", "median ms", "99 % ms", "rate of learning kept"], rows))


if __name__ == "__main__":
    main()
