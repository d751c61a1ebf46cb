"""Does one pass reach the oracle's accuracy on streams of classes, each event predicted before it is learned?

The oracle knows the probability of each class and names the likeliest. The gap is its accuracy less the model's over
the last quarter of the stream, in points of percent; one of which only chance in the labels is left may be negative.
"""

from __future__ import annotations

import argparse
import sys
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoEClassifier


class Task(NamedTuple):
    """One kind of stream."""

    classes: int
    events: int
    target: float
    """For the mean gap, in points."""


TASKS = [Task(2, 20_000, 0.2), Task(3, 20_000, 0.5), Task(5, 50_000, 0.7)]


class Result(NamedTuple):
    """The last quarter of one stream."""

    accuracy: float
    oracle: float
    """Its accuracy."""
    excess: float
    """Mean log-loss over the oracle's, nats."""

    @property
    def gap(self) -> float:
        """Points of accuracy short of the oracle."""
        return 100.0 * (self.oracle - self.accuracy)


def one_pass(task: Task, seed: int) -> Result:
    """A model of two experts with default settings, that meets the classes on the way."""
    X, y, truth = tasks.classes(task.classes, task.events, seed=seed)
    model = MoEClassifier(2, seed=seed)
    model.set_columns([f"x{j:02}" for j in range(X.shape[1])])
    outcome = model.learn_rows(X, y)
    last = np.arange(3 * len(y) // 4, len(y))
    named = np.array(model.class_labels)[outcome.predictions[last].argmax(axis=1)]
    return Result(
        accuracy=float(np.mean(named == y[last])),
        oracle=float(np.mean(truth[last].argmax(axis=1) == y[last])),
        excess=float(np.mean(outcome.losses[last] + np.log(truth[last, y[last]]))),
    )


def main(argv: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=8, help="streams of each kind")
    seeds = parser.parse_args(argv).seeds
    print(machine(), "\n")
    means, each = [], []
    for task in TASKS:
        found = []
        for seed in range(seeds):
            print(f"{task.classes} classes: {seed + 1} of {seeds}", file=sys.stderr, flush=True)
            found.append(one_pass(task, seed))
        gaps = [result.gap for result in found]
        mean = float(np.mean(gaps))
        means.append(
            [
                task.classes,
                f"{task.events:,}",
                f"{100.0 * np.mean([result.oracle for result in found]):.2f}",
                f"{100.0 * np.mean([result.accuracy for result in found]):.2f}",
                f"{mean:.2f}",
                f"{max(gaps):.2f}",
                f"{np.mean([result.excess for result in found]):.4f}",
                f"{max(result.excess for result in found):.4f}",
                f"≤ {task.target}",
                "met" if mean <= task.target else "MISSED",
            ]
        )
        each.append([task.classes, *(f"{gap:.2f}" for gap in gaps)])
    print(f"MoEClassifier(2), default settings, 10 inputs, last quarter of each of {seeds} streams; accuracies in %")
    headers = ["classes", "events", "oracle", "streammoe", "mean gap", "worst gap", "excess log-loss", "worst excess"]
    print(table([*headers, "target", "verdict"], means))
    print("\nGap of each stream, points")
    print(table(["classes", *(f"seed {seed}" for seed in range(seeds))], each))


if __name__ == "__main__":
    main()
