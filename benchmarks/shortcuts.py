"""What does sparse routing save, and what does it cost?

All variants of a task start from the same model at the end of its warm-up, and learn the same events, in turn. Speed is
that of `learn_array`, relative to the default's. Errors are prequential, over the last quarter of the stream, relative
to those of an oracle that knows the regression function.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoERegressor

TURNS = 2


class Task(NamedTuple):
    """A stream, and the model that learns it."""

    n_experts: int
    d: int
    n: int
    warmup: int = 2_000


TASKS = [Task(8, 10, 40_000), Task(32, 10, 60_000), Task(32, 50, 60_000)]
TOP_K = (None, 8, 4, 2, 1)


def going_on(model: MoERegressor, top_k: int | None) -> MoERegressor:
    """Return the model at the end of its warm-up, from which so many experts learn an event."""
    return MoERegressor.from_parameters(model.parameters(), feature_names=model.feature_names, warmup=0, top_k=top_k)


def compared(task: Task, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return for each `TOP_K` the seconds over those of the first, and the error."""
    stream = tasks.full_gate(n=task.n, seed=seed, k=task.n_experts, d=task.d)
    model = MoERegressor(task.n_experts, warmup=task.warmup, seed=seed)
    model.learn_array(stream.X[: task.warmup], stream.y[: task.warmup])
    X, y, truth = stream.X[task.warmup :], stream.y[task.warmup :], stream.truth[task.warmup :]
    seconds = np.full(len(TOP_K), np.inf)
    for _ in range(TURNS):
        for at, top_k in enumerate(TOP_K):
            learner = going_on(model, top_k)
            learner.learn_array(X[:100], y[:100])
            since = time.perf_counter()
            learner.learn_array(X[100:], y[100:])
            seconds[at] = min(seconds[at], time.perf_counter() - since)
    last = slice(-(task.n // 4), None)
    oracle = tasks.rmse(y[last], truth[last])
    said = [going_on(model, top_k).learn_rows(X, y[:, None]).predictions[:, 0] for top_k in TOP_K]
    return seconds / seconds[0], np.array([tasks.rmse(y[last], each[last]) / oracle for each in said])


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, to see that it runs")
    given = parser.parse_args(argv)
    print(machine(), "\n")
    seeds, rows = 1 if given.quick else given.seeds, []
    for full in TASKS:
        task = full._replace(n=4_000, warmup=500) if given.quick else full
        print(f"{task} …", file=sys.stderr, flush=True)
        ratios, errors = zip(*(compared(task, seed) for seed in range(seeds)), strict=True)
        for top_k, speed, error in zip(TOP_K, 1.0 / np.mean(ratios, axis=0), np.mean(errors, axis=0), strict=True):
            rows.append((task.n_experts, task.d, "all" if top_k is None else top_k, f"{speed:.2f}×", f"{error:.4f}"))
    print(table(("experts", "inputs", "top_k", "speed", "error / oracle"), rows))


if __name__ == "__main__":
    main()
