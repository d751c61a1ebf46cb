"""How close do predictions come to an oracle's on long streams, predicting each event before it is learned?

The oracle knows the regression function, or the probability of each class and predicts the likeliest. Scores are over
the last quarter of the stream; peers, which are those of `benchmarks.real`, run on fewer streams. The gap is the
oracle's accuracy minus a learner's, in points; random labels can make a small gap negative.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd

from benchmarks import tasks
from benchmarks.papers.sheets import Options, Sheet
from benchmarks.real import peers
from benchmarks.real.streams import Stream
from benchmarks.report import Target

PEERS = ("one-expert", "river-linear", "hat", "vw", "vw-ff", "lightgbm")
PEER_STREAMS = 2
EVENTS = 20_000
STUCK = 1.0
"""Points of gap above which a stream's start has led nowhere."""


class Task(NamedTuple):
    """A kind of stream, and what our mean and worst figures should be at most."""

    title: str
    make: Callable[..., tasks.Stream]
    K: int
    limits: tuple[float, ...]
    """Of RMSE / oracle; or of the gap, and of the excess log-loss in nats."""
    events: int = EVENTS


NUMBERS = (
    Task("two experts, K = 2", tasks.two_experts, 2, (1.005,)),
    Task("full gate, K = 4", tasks.full_gate, 4, (1.008,)),
)
CLASSES = (
    Task("2 classes", partial(tasks.classes, 2), 2, (0.1, 0.003)),
    Task("3 classes", partial(tasks.classes, 3), 2, (0.25, 0.010)),
    Task("5 classes", partial(tasks.classes, 5), 2, (0.5,), 50_000),
)


def scores(task: Task, events: int, case: tuple[str, int]) -> tuple[float, float]:
    """Return RMSE over the oracle's, twice, or the gap and the excess log-loss, of a learner on a stream."""
    name, seed = case
    made = task.make(events, seed=seed)
    classify = made.truth.ndim == 2
    frame = pd.DataFrame(made.X, columns=tasks.names_of(made.X)).assign(y=made.y.astype(str) if classify else made.y)
    stream = Stream(task.title, frame, classify=classify)
    settings = {"n_experts": task.K} if name == peers.OURS else {}
    values = (peers.ours(stream, events, **settings) if settings else peers.LEARNERS[name].predict(stream, events))[0]
    if not classify:
        return (tasks.over_oracle(made, values),) * 2
    last = np.arange(3 * events // 4, events)
    oracle = np.mean(made.truth[last].argmax(axis=1) == made.y[last])
    gap = 100.0 * float(oracle - np.mean(values[last].argmax(axis=1) == stream.codes[last]))
    likely = np.maximum(values[last, stream.codes[last]], peers.LEAST_PROBABILITY)
    return gap, float(np.mean(np.log(made.truth[last, made.y[last]]) - np.log(likely)))


def sheet_of(options: Options, task: Task) -> Sheet:
    """Compute the table of one kind of stream."""
    events = options.count(task.events, 1500)
    ours = [(peers.OURS, seed) for seed in range(options.count(8, 1))]
    others = [name for name in PEERS if not peers.missing(name)]
    cases = [*ours, *((name, seed) for name in others for seed in range(options.count(PEER_STREAMS, 1)))]
    found: dict[str, list[tuple[float, float]]] = {}
    for (name, _), both in zip(cases, options.map(partial(scores, task, events), cases), strict=True):
        found.setdefault(name, []).append(both)
    classify = task in CLASSES
    rows: list[list[object]] = []
    for name, each in found.items():
        first, second = np.array(each).T
        cells = [f"{first.mean():.4f}", f"{first.max():.4f}", *([f"{second.mean():.4f}"] if classify else [])]
        rows.append([name, *cells, len(each)])
    first, second = np.array(found[peers.OURS]).T
    figure = "gap, points" if classify else "RMSE / oracle"
    targets = [Target(f"mean {figure}", float(first.mean()), task.limits[0])]
    if classify:
        targets.append(Target(f"worst {figure}", float(first.max()), STUCK))
    if len(task.limits) > 1:
        targets.append(Target("mean excess log-loss", float(second.mean()), task.limits[1]))
    headers = ["learner", f"mean {figure}", "worst", *(["excess log-loss"] if classify else []), "streams"]
    missing = [f"{name}: not installed; `{peers.missing(name)}`" for name in PEERS if name not in others]
    return Sheet(f"{task.title}, last quarter of {events:,} events, 10 inputs", headers, rows, targets, missing)


def sheets(options: Options) -> Iterator[Sheet]:
    """Compute a table for each kind."""
    return (sheet_of(options, task) for task in (*NUMBERS, *CLASSES))
