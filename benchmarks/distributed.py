"""How good is one model made from many workers' models, next to one that has seen everything?

Parts, of which `--only` selects some. `streams` reduces default models that have learned a 16th of a stream each, once.
`batch` is [DMoE] §5: K = 4, d = 20, a batch fit to all rows, batch fits to M equal shards, and their reduction.
*Refined* is the default, by the events in the models' reservoirs; *reduced* is without them.

N counts rows as the paper does: four fifths are learned. 20,000 others are scored: RPE is Σ(y − ŷ)² / Σy², shown over
that of the true regression function. Times are of the process's CPU; workers would run at the same time, so that the
longest counts.

Published parameters are among the truths if `--data` has them (benchmarks/papers/distributed.py says where they are).
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from threadpoolctl import threadpool_limits

from benchmarks import tasks
from benchmarks.report import Record, Results, Verdicts, machine, table
from streammoe import MoEClassifier, MoERegressor, batch, reduce

PARTS = ("streams", "batch")
PUBLISHED = "published"
DRAWS = ("2", "4", "5", "6", "7")
K = 4
SUPPORT = RESERVOIR = 2_000
SCORED = 20_000
WORKERS = 16
"""Number of workers that share a stream."""
CLASSES = "3 classes"


def names_of(X: np.ndarray) -> list[str]:
    """Return names of inputs that keep their order when sorted."""
    return [f"x{j:02}" for j in range(X.shape[1])]


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


def streamed(task: Task, n: int, run: int) -> Record:
    """Measure one model of all events, and the reduction of workers that have learned a part each."""
    count = n * 4 // 5
    X, y, truth = task.make(count + SCORED, run)
    scored = tasks.Stream(X[count:], y[count:], truth[count:])

    def learned(rows: slice) -> Any:
        model = task.kind(task.n_experts, reservoir=RESERVOIR)
        model.learn_array(X[:count][rows], y[:count][rows], feature_names=names_of(X))
        return model

    one, seconds = timed(lambda: learned(slice(None)))
    workers = [learned(slice(m, None, WORKERS)) for m in range(WORKERS)]
    reduced, to_reduce = timed(lambda: reduce(workers, refine=False))
    refined, to_refine = timed(lambda: reduce(workers))

    def score(model: Any) -> float:
        predictions = model.predict_array(scored.X)
        return float(np.mean(predictions == scored.y)) if model.is_classifier else rpe(scored, predictions)

    return {
        "score": {name: score(model) for name, model in (("one", one), ("reduced", reduced), ("refined", refined))},
        "worker": float(np.median([score(worker) for worker in workers])),
        "seconds": {"one": seconds, "reduce": to_reduce, "refine": to_refine},
    }


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
    _, seconds = timed(lambda: batch.fit(model, X, y, feature_names=names_of(X)))
    return model, seconds


def whole(learned: tasks.Stream, scored: tasks.Stream) -> Record:
    """Measure the fit to all rows."""
    model, seconds = fitted(learned.X, learned.y)
    return {"rpe": rpe(scored, model.predict_array(scored.X)), "seconds": seconds}


def sharded(learned: tasks.Stream, scored: tasks.Stream, machines: int) -> Record:
    """Measure fits to shards, and what is made from them."""
    models, seconds = zip(
        *(fitted(learned.X[m::machines], learned.y[m::machines]) for m in range(machines)), strict=True
    )
    support = learned.X[np.random.default_rng(0).permutation(len(learned.X))[:SUPPORT]]
    reduced, to_reduce = timed(lambda: reduce(models, support=support, refine=False))
    refined, to_refine = timed(lambda: reduce(models, support=support))
    return {
        "reduced": rpe(scored, reduced.predict_array(scored.X)),
        "refined": rpe(scored, refined.predict_array(scored.X)),
        "local": float(np.median([rpe(scored, model.predict_array(scored.X)) for model in models])),
        "seconds": {"longest": max(seconds), "reduce": to_reduce, "refine": to_refine},
    }


# -- Tables ------------------------------------------------------------------------------------------------------------


def stream_table(records: Sequence[Record], verdicts: Verdicts) -> str:
    """Return the table of workers of streams."""
    rows = []
    for one in records:
        score, seconds = one["score"], one["seconds"]
        rows.append([
            one["truth"], f"{one['n']:,}", str(one["run"]), *(f"{score[name]:.4f}" for name in score),
            f"{one['worker']:.4f}", *(f"{score[name] / score['one']:.3f}" for name in ("reduced", "refined")),
            *(f"{spent:.2f}" for spent in seconds.values()),
        ])  # fmt: skip
        title = f"stream {one['truth']}, N = {one['n']:,}, refined"
        if one["truth"] == CLASSES:
            verdicts.add_most(f"{title}: points behind one model", 100.0 * (score["one"] - score["refined"]), 0.3)
        else:
            verdicts.add_most(f"{title}: RPE / one model's", score["refined"] / score["one"], 1.02)
    header = [
        "stream",
        "N",
        "run",
        "one model",
        "reduced",
        "refined",
        "median worker",
        "reduced / one",
        "refined / one",
    ]
    title = f"{WORKERS} workers, one pass each: RPE over the true function's, or accuracy"
    return f"{title}\n{table([*header, 's: one', 'reduce', 'with refinement'], rows)}"


def batch_table(records: Sequence[Record], wholes: Sequence[Record], verdicts: Verdicts) -> str:
    """Return the table of [DMoE]'s simulation."""
    keys = ("truth", "n", "run")
    of_all = {tuple(one[key] for key in keys): one for one in wholes}
    rows = []
    for one in records:
        every, seconds = of_all[tuple(one[key] for key in keys)], one["seconds"]
        ratios = {name: one[name] / every["rpe"] for name in ("reduced", "refined")}
        part = (seconds["longest"] + seconds["reduce"]) / every["seconds"]
        rows.append([
            one["truth"], f"{one['n']:,}", str(one["machines"]), str(one["run"]), f"{every['rpe']:.3f}",
            *(f"{one[name]:.3f}" for name in (*ratios, "local")), *(f"{ratio:.3f}" for ratio in ratios.values()),
            f"1/{1.0 / part:.1f}",
        ])  # fmt: skip
        title = f"{one['truth']}, N = {one['n']:,}, M = {one['machines']}, refined"
        verdicts.add_most(f"{title}: RPE / all rows", ratios["refined"], 1.02 if one["machines"] <= WORKERS else 1.05)
    header = ["truth", "N", "M", "run", "all rows", "reduced", "refined", "median local"]
    title = "[DMoE] §5, batch fits: RPE over the true function's"
    return f"{title}\n{table([*header, 'reduced / all', 'refined / all', 'time, part of all'], rows)}"


# -- Measuring ---------------------------------------------------------------------------------------------------------


def truths_of(names: Sequence[str], data: Path | None) -> dict[str, tasks.Truth]:
    """Return the truths that are there."""
    found = {}
    path = tasks.distributed_file(data)
    for name in names:
        if name != PUBLISHED:
            found[name] = tasks.random_truth(int(name))
        elif path is not None:
            found[name] = tasks.published_truth(path)
        else:
            print("published: left out; --data names no folder that has its parameters")
    return found


def measure(arguments: argparse.Namespace, truths: dict[str, tasks.Truth], results: Results) -> None:
    """Run what is not in the results yet."""
    for n in arguments.n:
        for run in range(arguments.runs):
            for name, task in tasks_of(truths).items() if "streams" in arguments.only else ():
                key = {"part": "streams", "truth": name, "n": n, "run": run}
                results.once(key, lambda task=task, n=n, run=run: streamed(task, n, run))
            for name, truth in truths.items() if "batch" in arguments.only else ():
                key = {"truth": name, "n": n, "run": run}
                rows = drawn(name, truth, n, run)
                results.once({"part": "whole", **key}, lambda rows=rows: whole(*rows))
                for count in arguments.machines:
                    case = {"part": "batch", **key, "machines": count}
                    results.once(case, lambda rows=rows, count=count: sharded(*rows, count))


def main(argv: list[str] | None = None) -> None:
    """Run what is not in the results file yet, and print the tables of all that it holds."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="parts; default: all")
    truths = [PUBLISHED, *DRAWS]
    parser.add_argument(
        "--truths", nargs="+", default=truths, help=f"default: {' '.join(truths)}; seeds of random ones"
    )
    parser.add_argument("--n", nargs="+", type=int, default=[100_000], help="rows, four fifths of which are learned")
    parser.add_argument("--machines", nargs="+", type=int, default=[16], help="M of batch fits")
    parser.add_argument("--runs", type=int, default=1, help="draws of the rows of each truth")
    parser.add_argument("--data", type=Path, help="folder of data sets; default: STREAMMOE_DATA")
    parser.add_argument("--out", type=Path, metavar="FILE", help="results file; what it holds is not run again")
    arguments = parser.parse_args(argv)
    print(machine())
    results = Results(arguments.out)
    with threadpool_limits(1):
        # Compiles what would otherwise be timed.
        tiny = tasks.distributed(tasks.random_truth(2), 2_000, 1)
        reduce([fitted(tiny.X, tiny.y)[0]] * 2)
        measure(arguments, truths_of(arguments.truths, arguments.data), results)
    verdicts = Verdicts()
    of = {part: [one for one in results.records if one["part"] == part] for part in (*PARTS, "whole")}
    for text in (
        stream_table(of["streams"], verdicts) if of["streams"] else "",
        batch_table(of["batch"], of["whole"], verdicts) if of["batch"] else "",
    ):
        if text:
            print(f"\n{text}")
    print(f"\n{verdicts.shown()}")


if __name__ == "__main__":
    main()
