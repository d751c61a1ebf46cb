"""How close do predictions come to an oracle's on long streams, predicting each event before it is learned?

The oracle knows the true regression function. Errors are over the last quarter of the stream; other learners run on
fewer streams and, if they are slow, on fewer events, whose last quarter counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.papers import peers
from benchmarks.papers.sheets import Options, Sheet, Target, main, picture
from streammoe import MoERegressor


class Task(NamedTuple):
    """A kind of stream."""

    title: str
    generate: str
    """Name of its generator in `benchmarks.tasks`."""
    K: int
    limit: float
    """For the mean of RMSE / oracle."""
    window: int = 500
    """Events that a point of the picture is the error of."""

    def drawn(self, seed: int, events: int) -> tasks.Stream:
        """Its events."""
        stream: tasks.Stream = getattr(tasks, self.generate)(events, seed=seed)
        return stream


TASKS = (Task("two experts, K = 2", "two_experts", 2, 1.005), Task("full gate, K = 4", "full_gate", 4, 1.008))
EVENTS = 20_000


class Score(NamedTuple):
    """Result of a learner on a stream."""

    ratio: float
    """RMSE over the oracle's, last quarter."""
    rmse: float
    curve: np.ndarray
    """RMSE over the oracle's of each window."""


def score_of(task: Task, stream: tasks.Stream, predictions: np.ndarray) -> Score:
    """Compute the error of predictions made before each event was learned."""
    last = slice(3 * len(stream.y) // 4, None)
    rmse = tasks.rmse(stream.y[last], predictions[last])
    windows = len(stream.y) // task.window
    ours, oracles = (
        np.sqrt(((stream.y - given) ** 2)[: windows * task.window].reshape(windows, task.window).mean(axis=1))
        for given in (predictions, stream.truth)
    )
    return Score(rmse / tasks.rmse(stream.y[last], stream.truth[last]), rmse, ours / oracles)


def of_mixture(task: Task, events: int, case: tuple[int, int]) -> Score:
    """Run a default model with a number of experts on a stream."""
    n_experts, seed = case
    stream = task.drawn(seed, events)
    model = MoERegressor(n_experts=n_experts)
    model.set_columns([f"x{j:02}" for j in range(stream.X.shape[1])])
    return score_of(task, stream, model.learn_rows(stream.X, stream.y[:, None]).predictions[:, 0])


def of_peer(task: Task, events: int, job: peers.Job) -> Score:
    """Run another learner on a stream."""
    whole = task.drawn(job.seed, events)
    stream = tasks.Stream(*(part[: job.events] for part in whole))
    return score_of(task, stream, peers.run(job.name, stream.X, stream.y, None))


def sheet_of(options: Options, task: Task) -> Sheet:
    """Compute the table of one kind of stream."""
    seeds = options.count(10, 1)
    events = options.count(EVENTS, 1500)
    cases = [(n_experts, seed) for n_experts in (task.K, 1) for seed in range(seeds)]
    found: dict[str, list[Score]] = {}
    for (n_experts, _), score in zip(cases, options.map(partial(of_mixture, task, events), cases), strict=True):
        found.setdefault(f"streammoe, K = {n_experts}", []).append(score)
    jobs = peers.jobs(None, quick=options.quick)
    for job, score in zip(jobs, options.map(partial(of_peer, task, events), jobs), strict=True):
        found.setdefault(job.name, []).append(score)
    rows: list[list[object]] = []
    for name, scores in found.items():
        ratios = [score.ratio for score in scores]
        figures = [np.mean(ratios), min(ratios), max(ratios), np.mean([score.rmse for score in scores])]
        rows.append([name, *(f"{figure:.4f}" for figure in figures), len(scores)])
    if options.plots is not None:
        with picture(options, f"streams-{task.generate.replace('_', '-')}") as axes:
            for name, scores in found.items():
                if len(scores[0].curve) == events // task.window:
                    axes.plot(task.window * np.arange(1, 1 + len(scores[0].curve)), scores[0].curve, label=name)
            axes.set(xlabel="events", ylabel=f"RMSE over the oracle's, each {task.window}", title=task.title)
            axes.legend(fontsize="small")
    ours = [score.ratio for score in found[f"streammoe, K = {task.K}"]]
    return Sheet(
        f"{task.title}: RMSE over the oracle's, last quarter of {events:,} events, 10 inputs",
        ["learner", "mean ratio", "least", "largest", "mean RMSE", "streams"],
        rows,
        [Target("mean ratio, default settings", float(np.mean(ours)), task.limit)],
        [] if peers.has_vowpal() else [peers.NO_VOWPAL],
    )


def sheets(options: Options) -> Iterator[Sheet]:
    """Compute a table for each kind."""
    return (sheet_of(options, task) for task in TASKS)


if __name__ == "__main__":
    main(__doc__)
