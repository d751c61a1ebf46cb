"""How good is one model made from many workers' models, next to one that has seen everything?

Parts, of which `--only` selects some. `streams` reduces default models that have learned a 16th of a stream each, once.
`batch` is [DMoE] §5: K = 4, d = 20, a batch fit to all rows, batch fits to M equal shards, and their reduction.
*Refined* is the default, by the events in the models' reservoirs; *reduced* is without them.

N counts rows as the paper does: four fifths are learned. 20,000 others are scored: RPE is Σ(y − ŷ)² / Σy², shown over
that of the true regression function. Times are of the process's CPU; workers would run at the same time, so that the
longest counts.

Parameters are random whole numbers, as the paper says, and one of its own draws if `--data` has it: from
https://github.com/nhat-thien/Distributed-Mixture-Of-Experts `data/param_MU.mat` of its first release, as JSON. In draws
2, 4, 5 and 6 the rarest expert has from 0.2 % to 9 % of the events.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import tasks
from benchmarks.report import TARGETS, Target, machine, table, targets
from streammoe import MoEClassifier, MoERegressor, batch, reduce

PUBLISHED = "published"
DRAWS = ("2", "4", "5", "6", "7")
K = 4
SUPPORT = RESERVOIR = 2_000
SCORED = 20_000
WORKERS = 16
"""Number of workers that share a stream."""
CLASSES = "3 classes"


def rpe(scored: tasks.Stream, predictions: np.ndarray) -> float:
    """Return the relative prediction error over that of the true regression function."""
    return float(np.sum((scored.y - predictions) ** 2) / np.sum((scored.y - scored.truth) ** 2))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    before = time.process_time()
    found = call()
    return found, time.process_time() - before


# -- Streams -----------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A stream of so many events and a seed, and how it is learned."""

    kind: type[MoERegressor | MoEClassifier]
    n_experts: int
    make: Callable[[int, int], tasks.Stream]


def tasks_of(truths: dict[str, tasks.Truth]) -> dict[str, Task]:
    """Return the streams: [DMoE]'s truths, and others."""
    found = {
        name: Task(MoERegressor, K, lambda n, seed, truth=truth: tasks.distributed(truth, n, seed))
        for name, truth in truths.items()
    }
    return found | {
        "two experts": Task(MoERegressor, 2, tasks.two_experts),
        "full gate": Task(MoERegressor, K, tasks.full_gate),
        CLASSES: Task(MoEClassifier, 2, lambda n, seed: tasks.classes(3, n, seed)),
    }


def streamed(task: Task, n: int, run: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return scores, and seconds, of one model of all events and of workers that have learned a part each."""
    count = n * 4 // 5
    X, y, truth = task.make(count + SCORED, run)
    scored = tasks.Stream(X[count:], y[count:], truth[count:])

    def learned(rows: slice) -> Any:
        model = task.kind(task.n_experts, reservoir=RESERVOIR)
        model.learn_array(X[:count][rows], y[:count][rows], feature_names=tasks.names_of(X))
        return model

    def score(model: Any) -> float:
        predictions = model.predict_array(scored.X)
        return float(np.mean(predictions == scored.y)) if model.is_classifier else rpe(scored, predictions)

    one, seconds = timed(lambda: learned(slice(None)))
    workers = [learned(slice(m, None, WORKERS)) for m in range(WORKERS)]
    reduced, to_reduce = timed(lambda: reduce(workers, refine=False))
    refined, to_refine = timed(lambda: reduce(workers))
    scores = {name: score(model) for name, model in (("one", one), ("reduced", reduced), ("refined", refined))}
    scores["worker"] = float(np.median([score(worker) for worker in workers]))
    return scores, {"one": seconds, "reduce": to_reduce, "refine": to_refine}


# -- Batch fits of shards ----------------------------------------------------------------------------------------------


def drawn(name: str, truth: tasks.Truth, n: int, run: int) -> tuple[tasks.Stream, tasks.Stream]:
    """Return rows to learn, and rows to score."""
    learned = n * 4 // 5
    seed = (0 if name == PUBLISHED else 77 * int(name)) + 100_000 * run
    every = tasks.distributed(truth, learned + SCORED, seed)
    return tasks.Stream(*(part[:learned] for part in every)), tasks.Stream(*(part[learned:] for part in every))


def fitted(X: np.ndarray, y: np.ndarray) -> tuple[MoERegressor, float]:
    """Return a model fitted to rows, and the seconds."""
    model = MoERegressor(K, reservoir=RESERVOIR)
    _, seconds = timed(lambda: batch.fit(model, X, y, feature_names=tasks.names_of(X)))
    return model, seconds


def sharded(learned: tasks.Stream, scored: tasks.Stream, machines: int) -> tuple[dict[str, float], dict[str, float]]:
    """Return scores and seconds of fits to shards, and of what is made from them."""

    def score(model: MoERegressor) -> float:
        return rpe(scored, model.predict_array(scored.X))

    models, seconds = zip(
        *(fitted(learned.X[m::machines], learned.y[m::machines]) for m in range(machines)), strict=True
    )
    support = learned.X[np.random.default_rng(0).permutation(len(learned.X))[:SUPPORT]]
    reduced, to_reduce = timed(lambda: reduce(models, support=support, refine=False))
    refined = reduce(models, support=support)
    scores = {"reduced": score(reduced), "refined": score(refined), "local": float(np.median(list(map(score, models))))}
    return scores, {"longest": max(seconds), "reduce": to_reduce}


# -- Tables ------------------------------------------------------------------------------------------------------------


def stream_table(arguments: argparse.Namespace, truths: dict[str, tasks.Truth], judged: list[Target]) -> str:
    """Return the table of workers of streams."""
    rows = []
    for n, run in product(arguments.n, range(arguments.runs)):
        for name, task in tasks_of(truths).items():
            score, seconds = streamed(task, n, run)
            rows.append([
                name, f"{n:,}", str(run), *(f"{value:.4f}" for value in score.values()),
                *(f"{score[of] / score['one']:.3f}" for of in ("reduced", "refined")),
                *(f"{spent:.2f}" for spent in seconds.values()),
            ])  # fmt: skip
            if name == CLASSES:
                short = 100.0 * (score["one"] - score["refined"])
                judged.append(Target(f"stream {name}, refined: points behind one model", short, 0.3))
            else:
                ratio = score["refined"] / score["one"]
                judged.append(Target(f"stream {name}, N = {n:,}, refined: RPE / one model's", ratio, 1.02))
    header = ["stream", "N", "run", "one model", "reduced", "refined", "median worker", "reduced / one"]
    title = f"{WORKERS} workers, one pass each: RPE over the true function's, or accuracy"
    return f"{title}\n{table([*header, 'refined / one', 's: one', 'reduce', 'with refinement'], rows)}"


def batch_table(arguments: argparse.Namespace, truths: dict[str, tasks.Truth], judged: list[Target]) -> str:
    """Return the table of [DMoE]'s simulation."""
    rows = []
    for n, run, (name, truth) in product(arguments.n, range(arguments.runs), truths.items()):
        learned, scored = drawn(name, truth, n, run)
        model, of_all = fitted(learned.X, learned.y)
        best = rpe(scored, model.predict_array(scored.X))
        for machines in arguments.machines:
            score, seconds = sharded(learned, scored, machines)
            ratios = [score[of] / best for of in ("reduced", "refined")]
            part = (seconds["longest"] + seconds["reduce"]) / of_all
            rows.append([
                name, f"{n:,}", str(machines), str(run), f"{best:.3f}", *(f"{value:.3f}" for value in score.values()),
                *(f"{ratio:.3f}" for ratio in ratios), f"1/{1.0 / part:.1f}",
            ])  # fmt: skip
            limit = 1.02 if machines <= WORKERS else 1.05
            judged.append(Target(f"{name}, N = {n:,}, M = {machines}, refined: RPE / all rows", ratios[1], limit))
    header = ["truth", "N", "M", "run", "all rows", "reduced", "refined", "median local", "reduced / all"]
    title = "[DMoE] §5, batch fits: RPE over the true function's"
    return f"{title}\n{table([*header, 'refined / all', 'time, part of all'], rows)}"


TABLES = {"streams": stream_table, "batch": batch_table}


def truths_of(names: Sequence[str], data: Path | None) -> Iterator[tuple[str, tasks.Truth]]:
    """Yield the truths that are there."""
    path = tasks.distributed_file(data)
    for name in names:
        if name != PUBLISHED:
            yield name, tasks.random_truth(int(name))
        elif path is not None:
            yield name, tasks.published_truth(path)
        else:
            print("published: left out; --data names no folder that has its parameters")


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=list(TABLES), default=list(TABLES), help="parts; default: all")
    truths = [PUBLISHED, *DRAWS]
    parser.add_argument(
        "--truths", nargs="+", default=truths, help=f"default: {' '.join(truths)}; seeds of random ones"
    )
    parser.add_argument("--n", nargs="+", type=int, default=[100_000], help="rows, four fifths of which are learned")
    parser.add_argument("--machines", nargs="+", type=int, default=[16], help="M of batch fits")
    parser.add_argument("--runs", type=int, default=1, help="draws of the rows of each truth")
    parser.add_argument("--data", type=Path, help="folder of data sets; default: STREAMMOE_DATA")
    arguments = parser.parse_args(argv)
    print(machine())
    judged: list[Target] = []
    with threadpool_limits(1):
        # Compiles what would otherwise be timed.
        tiny = tasks.distributed(tasks.random_truth(2), 2_000, 1)
        reduce([fitted(tiny.X, tiny.y)[0]] * 2)
        found = dict(truths_of(arguments.truths, arguments.data))
        for part in arguments.only:
            print(f"\n{TABLES[part](arguments, found, judged)}", flush=True)
    print(f"\n{table(TARGETS, targets(judged))}")


if __name__ == "__main__":
    main()
