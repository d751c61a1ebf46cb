"""Does one pass reach the oracle's accuracy on streams of classes, each event predicted before it is learned?

The oracle knows the probability of each class and predicts the likeliest. The gap is its accuracy minus the model's
over the last quarter of the stream, in percentage points; random labels can make a small gap negative.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.papers import peers
from benchmarks.papers.sheets import Options, Sheet, Target, main
from streammoe import MoEClassifier


class Task(NamedTuple):
    """A kind of stream."""

    classes: int
    events: int
    gap: float
    """What the mean gap should be at most, in points."""
    excess: float | None
    """The same for the mean excess log-loss, nats."""


TASKS = (Task(2, 20_000, 0.1, 0.003), Task(3, 20_000, 0.25, 0.010), Task(5, 50_000, 0.5, None))
STUCK = 1.0
"""Points of gap above which a stream's start has led nowhere."""
OURS = "streammoe, K = 2"


class Result(NamedTuple):
    """The last quarter of one stream."""

    accuracy: float
    """Percent."""
    oracle: float
    """Its accuracy."""
    excess: float
    """Mean log-loss over the oracle's, nats; NaN of a peer, which only names classes."""

    @property
    def gap(self) -> float:
        """Points of accuracy short of the oracle."""
        return self.oracle - self.accuracy


def of_mixture(task: Task, events: int, seed: int) -> Result:
    """Run a model of two experts with default settings, which discovers the classes."""
    X, y, truth = tasks.classes(task.classes, events, seed=seed)
    model = MoEClassifier(2, seed=seed)
    model.set_columns([f"x{j:02}" for j in range(X.shape[1])])
    outcome = model.learn_rows(X, y)
    last = np.arange(3 * len(y) // 4, len(y))
    named = np.array(model.class_labels)[outcome.predictions[last].argmax(axis=1)]
    excess = float(np.mean(outcome.losses[last] + np.log(truth[last, y[last]])))
    return result_of(y, truth, last, named, excess)


def result_of(y: np.ndarray, truth: np.ndarray, last: np.ndarray, named: np.ndarray, excess: float) -> Result:
    """Compute the accuracy of predicted classes."""
    right = 100.0 * float(np.mean(named == y[last]))
    return Result(right, 100.0 * float(np.mean(truth[last].argmax(axis=1) == y[last])), excess)


def of_peer(task: Task, events: int, job: peers.Job) -> Result:
    """Run another learner on a stream."""
    stream = tasks.classes(task.classes, events, seed=job.seed)
    X, y, truth = (part[: job.events] for part in stream)
    named = peers.run(job.name, X, y, task.classes)
    last = np.arange(3 * len(y) // 4, len(y))
    return result_of(y, truth, last, named[last], np.nan)


def sheet_of(options: Options, task: Task) -> Sheet:
    """Compute the table of one kind of stream."""
    seeds = options.count(8, 1)
    events = options.count(task.events, 1500)
    found = {OURS: list(options.map(partial(of_mixture, task, events), range(seeds)))}
    jobs = peers.jobs(task.classes, quick=options.quick)
    for job, result in zip(jobs, options.map(partial(of_peer, task, events), jobs), strict=True):
        found.setdefault(job.name, []).append(result)
    rows: list[list[object]] = []
    for name, results in found.items():
        gaps = [result.gap for result in results]
        excess = [result.excess for result in results]
        figures = [np.mean([result.oracle for result in results]), np.mean([result.accuracy for result in results])]
        cells = [f"{figure:.2f}" for figure in [*figures, np.mean(gaps), max(gaps)]]
        told = ["", ""] if np.isnan(excess[0]) else [f"{np.mean(excess):.4f}", f"{max(excess):.4f}"]
        rows.append([name, *cells, *told, len(results)])
    ours = found[OURS]
    gaps = [result.gap for result in ours]
    targets = [
        Target("mean gap, points", float(np.mean(gaps)), task.gap),
        Target("worst gap, points", max(gaps), STUCK),
    ]
    if task.excess is not None:
        targets.append(Target("mean excess log-loss", float(np.mean([result.excess for result in ours])), task.excess))
    each = " ".join(f"{gap:.2f}" for gap in gaps)
    headers = ["learner", "oracle", "accuracy", "mean gap", "worst gap", "excess log-loss", "worst excess", "streams"]
    return Sheet(
        f"{task.classes} classes, last quarter of {events:,} events, 10 inputs; accuracies in %, gaps in points",
        headers,
        rows,
        targets,
        [f"Gaps of each stream: {each}", *([] if peers.has_vowpal() else [peers.NO_VOWPAL])],
    )


def sheets(options: Options) -> Iterator[Sheet]:
    """Compute a table for each number of classes."""
    return (sheet_of(options, task) for task in TASKS)


if __name__ == "__main__":
    main(__doc__)
