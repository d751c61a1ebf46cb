"""What do sparse routing and mini-batches save, and what do they cost?

All variants of a task start from the same model at the end of its warm-up, and learn the same events, in turn. Speed is
that of `learn_array`, relative to the default's. Errors are prequential, over the last quarter of the stream, relative
to those of an oracle that knows the regression function; for classes the excess log-loss, in nats.
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoEClassifier, MoERegressor
from streammoe.options import WarmUp

TURNS = 2


class Task(NamedTuple):
    """A stream, and the model that learns it."""

    name: str
    n_experts: int
    d: int
    n: int
    n_classes: int = 0
    warmup: int = 2_000


ROUTED = [Task("full gate", 8, 10, 40_000), Task("full gate", 32, 10, 60_000), Task("full gate", 32, 50, 60_000)]
TOP_K = (None, 8, 4, 2, 1)
GROUPED = [
    Task("two experts", 2, 10, 20_000),
    Task("full gate", 4, 10, 20_000),
    Task("full gate", 4, 50, 40_000),
    Task("classes", 2, 10, 20_000, 3),
]
SIZES = (1, 8, 32, 128, 512, 2048)


def stream_of(task: Task, seed: int) -> tasks.Stream:
    if task.n_classes:
        return tasks.classes(task.n_classes, n=task.n, seed=seed, d=task.d)
    if task.name == "two experts":
        return tasks.two_experts(n=task.n, seed=seed, d=task.d)
    return tasks.full_gate(n=task.n, seed=seed, k=task.n_experts, d=task.d)


def begun(task: Task, stream: tasks.Stream, seed: int) -> MoERegressor | MoEClassifier:
    """Return a model at the end of its warm-up."""
    kind = MoEClassifier if task.n_classes else MoERegressor
    model = kind(task.n_experts, warmup=WarmUp(task.warmup, restarts=2), seed=seed)
    model.learn_array(stream.X[: task.warmup], stream.y[: task.warmup])
    return model


def going_on(model: MoERegressor | MoEClassifier, **arguments: Any) -> MoERegressor | MoEClassifier:
    """Return the same model with other arguments."""
    given = {"feature_names": model.feature_names, "warmup": 0, **arguments}
    if isinstance(model, MoEClassifier):
        given["classes"] = model.class_labels
    return type(model).from_parameters(model.parameters(), **given)


def error(task: Task, stream: tasks.Stream, losses: np.ndarray, said: np.ndarray) -> float:
    """Over the last quarter."""
    last = slice(-(task.n // 4), None)
    if task.n_classes:
        truth = stream.truth[last]
        own = -np.log(truth[np.arange(len(truth)), stream.y[last].astype(int)])
        return float(np.mean(losses[last]) - np.mean(own))
    oracle = np.sqrt(np.mean((stream.y[last] - stream.truth[last]) ** 2))
    return float(np.sqrt(np.mean((stream.y[last] - said[last]) ** 2)) / oracle)


def compared(task: Task, variants: list[dict[str, Any]], seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(variants,) seconds over those of the first, and errors."""
    stream = stream_of(task, seed)
    model = begun(task, stream, seed)
    rest = slice(task.warmup, None)
    seconds = np.full(len(variants), np.inf)
    for _ in range(TURNS):
        for at, variant in enumerate(variants):
            learner = going_on(model, **variant)
            learner.learn_array(stream.X[rest][:100], stream.y[rest][:100])
            since = time.perf_counter()
            learner.learn_array(stream.X[rest][100:], stream.y[rest][100:])
            seconds[at] = min(seconds[at], time.perf_counter() - since)
    errors = []
    for variant in variants:
        learner = going_on(model, **variant)
        said, losses = np.empty(task.n), np.empty(task.n)
        at = task.n - task.n // 4
        learner.learn_array(stream.X[task.warmup : at], stream.y[task.warmup : at])
        step = variant.get("batch_size", 1)
        while at < task.n:
            # Predictions change only at the end of a group.
            until = min(at + max(step - (learner.n - learner.parameters()["n"]), 1), task.n)
            if not task.n_classes:
                said[at:until] = learner.predict_array(stream.X[at:until])
            losses[at:until] = learner.learn_array(stream.X[at:until], stream.y[at:until])
            at = until
        errors.append(error(task, stream, losses, said))
    return seconds / seconds[0], np.array(errors)


def show(name: str, found: list[Task], variants: list[dict[str, Any]], seeds: int, quick: bool) -> None:
    rows = []
    for given in found:
        task = given._replace(n=4_000, warmup=500) if quick else given
        print(f"{name}: {task} …", file=sys.stderr, flush=True)
        ratios, errors = zip(*(compared(task, variants, seed) for seed in range(seeds)), strict=True)
        speed, mean = 1.0 / np.mean(ratios, axis=0), np.mean(errors, axis=0)
        for at, variant in enumerate(variants):
            (value,) = variant.values()
            what = "excess" if task.n_classes else "/ oracle"
            head = (task.name, task.n_experts, task.d, "all" if value is None else value)
            rows.append((*head, f"{speed[at]:.2f}×", f"{mean[at]:.4f} {what}"))
    print(table(("task", "experts", "inputs", name, "speed", "error"), rows), "\n")


def main(argv: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, to see that it runs")
    given = parser.parse_args(argv)
    print(machine(), "\n")
    seeds = 1 if given.quick else given.seeds
    show("top_k", ROUTED, [{"top_k": top_k} for top_k in TOP_K], seeds, given.quick)
    show("batch_size", GROUPED, [{"batch_size": size} for size in SIZES], seeds, given.quick)


if __name__ == "__main__":
    main()
