"""How long does a checkpoint pause learning?

The daemon's own writer runs while a model learns event by event: how long the copy takes, how much longer learn calls
take while the rest is written than otherwise, and how long the pause would be if learning waited. Then the cost of
making lines of predictions and dead letters durable.
"""

from __future__ import annotations

import argparse
import copy
import os
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import machine, table
from streammoe import MoERegressor
from streammoe.daemon.checkpointer import CheckpointContent, CheckpointWriter, WrittenCheckpoint
from streammoe.options import WarmUp
from streammoe.persistence import CheckpointStore
from streammoe.persistence.append_log import AppendLog

LIMIT = 0.050
"""Seconds that learning may stand still."""
K = 4
UNMEASURED = 150
"""Calls of learn before the first checkpoint."""


class Stalls(NamedTuple):
    """Seconds."""

    copy: float
    call: float
    """Of learn, the median while nothing is written."""
    later: float
    """By which a call while it is written took longer than the same one afterwards, on a twin of the model; the worst.

    The few in which inverses are recomputed are left out. They take 1 s where p = 1,000, also without checkpoints,
    and differ among themselves by more than is looked for here.
    """
    whole: float
    at_once: float


def model_of_width(p: int, rng: np.random.Generator) -> MoERegressor:
    model = MoERegressor(n_experts=K, warmup=WarmUp(max(4 * K, p // 4), restarts=1))
    X = rng.normal(size=(model.options.warmup.size or 0, p))
    model.learn_array(X, np.where(X[:, 0] > 0, X[:, 1], -X[:, 1]))
    return model


def content_of(model: MoERegressor) -> CheckpointContent:
    return CheckpointContent(model.arrays(), {}, {}, model.identify(), None)


def seconds_of(model: MoERegressor, X: Any, y: Any, call: int) -> float:
    """Measure the duration of learning a single event."""
    at = call % len(X)
    start = time.perf_counter()
    model.learn_array(X[at : at + 1], y[at : at + 1])
    return time.perf_counter() - start


def learn_until(model: MoERegressor, X: Any, y: Any, calls: int) -> Any:
    return np.array([seconds_of(model, X, y, call) for call in range(calls)])


def learn_beside(writer: CheckpointWriter, model: MoERegressor, X: Any, y: Any) -> tuple[Any, WrittenCheckpoint]:
    """Measure the calls that begin before the checkpoint being written is durable, in seconds."""
    calls: list[float] = []
    while True:
        calls.append(seconds_of(model, X, y, len(calls)))
        written = writer.outcome(wait=False)
        if written is not None:
            return np.array(calls), written


def stalls(folder: Path, p: int, rounds: int) -> tuple[list[Stalls], int]:
    rng = np.random.default_rng(0)
    model = model_of_width(p, rng)
    X = rng.normal(size=(500, p))
    y = np.where(X[:, 0] > 0, X[:, 1], -X[:, 1])
    store = CheckpointStore(folder / str(p))
    store.prepare()
    writer = CheckpointWriter(store)
    found = []
    # The first repetition allocates memory from the kernel, which is slow.
    learn_until(model, X, y, UNMEASURED)
    for _ in range(rounds):
        learn_until(model, X, y, 5)
        if not writer.reserve_memory(content_of(model)):
            writer.outcome(wait=True)
        twin = copy.deepcopy(model)
        start = time.perf_counter()
        writer.begin(content_of(model), (), time.monotonic())
        copied = time.perf_counter() - start
        beside, written = learn_beside(writer, model, X, y)
        alone = learn_until(twin, X, y, len(beside))
        assert twin.state_digest() == model.state_digest()
        start = time.perf_counter()
        writer.write(content_of(model), time.monotonic())
        found.append(
            Stalls(
                copied,
                float(np.median(alone)),
                float((beside - alone)[alone < 5.0 * np.median(alone)].max()),
                written.seconds,
                time.perf_counter() - start,
            )
        )
    writer.close()
    return found, store.path(written.generation).stat().st_size


def flushes(folder: Path, n_bytes: int, rounds: int) -> tuple[list[float], list[float]]:
    """Measure both parts of a flush of lines, in seconds: what learning waits for, and what it does not."""
    lines = AppendLog(folder / f"lines-{n_bytes}", "here")
    first, second = [], []
    for _ in range(rounds):
        lines.append(os.urandom(n_bytes // 2).hex().encode())
        start = time.perf_counter()
        sync = lines.begin_flush()
        first.append(time.perf_counter() - start)
        start = time.perf_counter()
        sync()
        second.append(time.perf_counter() - start)
    lines.close()
    return first, second


def milliseconds(seconds: list[float]) -> str:
    """Format median and worst case."""
    return f"{1e3 * float(np.median(seconds)):.1f} / {1e3 * max(seconds):.1f}"


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, action="append", help="of the model; may be repeated")
    parser.add_argument("--rounds", type=int, default=20, help="checkpoints of each")
    parser.add_argument("--dir", type=Path, help="where to write; by default the folder for temporary files")
    arguments = parser.parse_args(argv)
    print(machine())
    print(f"{K} experts, milliseconds, median / worst of {arguments.rounds} checkpoints\n")
    rows = []
    with tempfile.TemporaryDirectory(prefix="streammoe-", dir=arguments.dir) as name:
        folder = Path(name)
        for p in arguments.features or [10, 1_000]:
            found, size = stalls(folder, p, arguments.rounds)
            each = [[stall[i] for stall in found] for i in range(len(Stalls._fields))]
            worst = max([*each[0], *each[2]])
            rows.append([p, f"{size / 1e6:.2f}", *map(milliseconds, each), "met" if worst < LIMIT else "MISSED"])
        headers = [
            "features",
            "MB",
            "copy",
            "a call of learn",
            "longer meanwhile",
            "until durable",
            "if learning waited",
        ]
        print(table([*headers, f"below {1e3 * LIMIT:.0f}"], rows))
        print("\nlines of predictions and dead letters\n")
        sizes = [10_000, 1_000_000, 20_000_000]
        rows = [[f"{size / 1e6:.2f}", *map(milliseconds, flushes(folder, size, arguments.rounds))] for size in sizes]
        print(table(["MB", "handed over", "synced in the background"], rows))


if __name__ == "__main__":
    main()
