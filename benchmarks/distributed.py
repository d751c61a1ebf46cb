"""How good is one model made from many workers' models, next to one that has seen everything, and what does it cost?

Parts, of which `--only` selects some. `batch` is [DMoE] §5: K = 4, d = 20, a batch fit to all rows, batch fits to
M equal shards, and their reduction at 2,000 inputs, with and without refinement on the events of the models'
reservoirs. Next to it stand the middle model (of least total divergence from the others), the average of the parameters
as they are numbered, and the average after the Hungarian method has matched experts to those of the middle model.
`shared`, which runs only if it is asked for, is the same with 1/M of the default prior in each shard, so that all of
them together count it once. `streams` reduces default models that have learned a part of a stream each, once. `cost` is
time and memory of one reduction.

N counts rows as the paper does: four fifths are learned. 20,000 others are scored: RPE is Σ(y − ŷ)² / Σy², shown over
that of the true regression function. The distance to the truth is the optimal transport, at each of 500 inputs, of the
model's gate probabilities to the true ones, where moving from one expert to another costs their KL divergence; the mean
of the inputs, in nats. Times are of the process's CPU; workers would run at the same time, so that the longest counts.

Published parameters are among the truths if `--data` has them (benchmarks/papers/distributed.py says where they are).
"""

from __future__ import annotations

import argparse
import gc
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse
from scipy.optimize import linear_sum_assignment, linprog
from threadpoolctl import threadpool_limits

from benchmarks import tasks
from benchmarks.report import Record, Results, Verdicts, machine, table
from streammoe import MoEClassifier, MoERegressor, batch, reduce

PARTS = ("batch", "shared", "streams", "cost")
PUBLISHED = "published"
DRAWS = ("2", "4", "5", "6", "7")
K, D = 4, 20
PRIOR = 0.1
"""Default strength of the prior."""
SUPPORT = 2_000
RESERVOIR = 2_000
SCORED = 20_000
COMPARED = 500
"""Inputs at which the distance to the truth is computed."""
ROOM = 1e-6
"""Share that more may arrive at an expert of the truth than it has there."""
PAIRED = 100
"""Inputs at which each model is compared with each other."""
WORKERS = 16
"""Number of workers that share a stream."""
LEARNED_BY_ONE = 10_000
"""Events whose time a reduction is compared with."""
SHAPES = ((128, 2_000), (128, 1_000), (128, 4_000), (64, 2_000), (16, 2_000))
"""Models and support of the reductions whose cost is measured."""
CONTENDERS = ("reduced", "refined", "aligned average", "average", "middle")


class Linear(NamedTuple):
    """A mixture over an intercept and the inputs, in their own units."""

    gate: np.ndarray
    """(K, 1 + d) the last row is 0."""
    experts: np.ndarray
    """(K, 1 + d)"""
    variances: np.ndarray
    """(K,)"""

    def log_shares(self, W: np.ndarray) -> np.ndarray:
        """Return the gate's log probabilities (n, K)."""
        logits = W @ self.gate.T
        logits -= logits.max(axis=1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))

    def predicted(self, W: np.ndarray) -> np.ndarray:
        """Return the regression function (n,)."""
        return (np.exp(self.log_shares(W)) * (W @ self.experts.T)).sum(axis=1)

    def ordered(self, order: np.ndarray) -> Linear:
        """Return the same mixture with its experts in another order."""
        gate = self.gate[order]
        return Linear(gate - gate[-1], self.experts[order], self.variances[order])


# -- Mixtures ----------------------------------------------------------------------------------------------------------


def names_of(X: np.ndarray) -> list[str]:
    """Return names of inputs that keep their order when sorted."""
    return [f"x{j:02}" for j in range(X.shape[1])]


def rows_of(X: np.ndarray) -> np.ndarray:
    return np.column_stack([np.ones(len(X)), X])


def linear_of(model: MoERegressor) -> Linear:
    """Return the mixture that a model serves as its average, in the units of its events."""
    found = model.parameters(averaged=True)
    scale = found["scale"]

    def raw(coefficients: np.ndarray) -> np.ndarray:
        slopes = coefficients[:, 1:] / scale["scale"]
        return np.column_stack([coefficients[:, 0] - slopes @ scale["center"], slopes])

    spread = float(scale["target_scale"][0])
    experts = spread * raw(found["experts"][:, 0])
    experts[:, 0] += float(scale["target_center"][0])
    gate = np.vstack([raw(found["gate"]), np.zeros(1 + len(scale["center"]))])
    return Linear(gate, experts, spread**2 * found["variances"][:, 0])


def linear_of_truth(truth: tasks.Truth) -> Linear:
    return Linear(
        np.column_stack([truth.gate_intercepts, truth.gate.T]),
        np.column_stack([truth.intercepts, truth.slopes.T]),
        truth.variances,
    )


def divergences(W: np.ndarray, ours: Linear, theirs: Linear) -> np.ndarray:
    """Return KL divergences of our experts from theirs at each row, (n, K, their K)."""
    apart = ((W @ ours.experts.T)[:, :, None] - (W @ theirs.experts.T)[:, None, :]) ** 2
    ratio = ours.variances[:, None] / theirs.variances
    return 0.5 * (ratio - 1.0 - np.log(ratio) + apart / theirs.variances)


def transport(W: np.ndarray, ours: Linear, truth: Linear) -> float:
    """Return the mean over rows of the cheapest transport of our experts' shares to the true ones."""
    costs = divergences(W, ours, truth)
    n, here, there = costs.shape
    given, wanted = np.exp(ours.log_shares(W)), np.exp(truth.log_shares(W))
    # A little room, or rounding would leave the solver no solution.
    done = linprog(
        costs.ravel(),
        A_eq=sparse.kron(sparse.eye(n * here), np.ones((1, there))).tocsr(),
        b_eq=given.ravel(),
        A_ub=sparse.kron(sparse.eye(n), sparse.kron(np.ones((1, here)), sparse.eye(there))).tocsr(),
        b_ub=(wanted + ROOM).ravel(),
        method="highs",
    )
    return float(done.fun) / n if done.success else float("nan")


def middle_of(mixtures: Sequence[Linear], W: np.ndarray) -> int:
    """Return the mixture of least total divergence from all: each expert from the nearest, by its gate's shares."""
    everyone = Linear(*(np.concatenate(arrays) for arrays in zip(*mixtures, strict=True)))
    totals = np.zeros(len(mixtures))
    for mixture in mixtures:
        costs = divergences(W, mixture, everyone)
        nearest = costs.reshape(*costs.shape[:2], len(mixtures), -1).min(axis=3)
        totals += np.einsum("nk,nkm->m", np.exp(mixture.log_shares(W)), nearest)
    return int(totals.argmin())


def averaged(mixtures: Sequence[Linear]) -> Linear:
    """Return the mean of the parameters of mixtures of equally many rows."""
    return Linear(*(np.mean(arrays, axis=0) for arrays in zip(*mixtures, strict=True)))


def aligned(mixtures: Sequence[Linear], to: Linear, W: np.ndarray) -> list[Linear]:
    """Return mixtures with their experts in the order of the nearest ones of another, each used once."""
    found = []
    for mixture in mixtures:
        costs = np.einsum("nk,nkl->kl", np.exp(mixture.log_shares(W)), divergences(W, mixture, to))
        ours, theirs = linear_sum_assignment(costs)
        found.append(mixture.ordered(ours[np.argsort(theirs)]))
    return found


# -- Batch fits of shards ----------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """One draw of rows."""

    name: str
    """Name of the truth."""
    truth: tasks.Truth
    n: int
    """Rows as the paper counts them."""
    run: int

    def drawn(self) -> tuple[tasks.Stream, tasks.Stream]:
        """Return rows to learn, and rows to score."""
        learned = self.n * 4 // 5
        seed = (0 if self.name == PUBLISHED else 77 * int(self.name)) + 100_000 * self.run
        every = tasks.distributed(self.truth, learned + SCORED, seed)
        return tasks.Stream(*(part[:learned] for part in every)), tasks.Stream(*(part[learned:] for part in every))


def rpe(scored: tasks.Stream, predictions: np.ndarray) -> float:
    """Return the relative prediction error over that of the true regression function."""
    return float(np.sum((scored.y - predictions) ** 2) / np.sum((scored.y - scored.truth) ** 2))


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    gc.collect()
    before = time.process_time()
    found = call()
    return found, time.process_time() - before


def fitted(X: np.ndarray, y: np.ndarray, prior: float = PRIOR) -> tuple[MoERegressor, float]:
    """Return a model fitted to rows, and the seconds."""
    model = MoERegressor(K, reservoir=RESERVOIR, prior_strength=prior)
    _, seconds = timed(lambda: batch.fit(model, X, y, feature_names=names_of(X)))
    return model, seconds


def whole(case: Case) -> Record:
    """Measure the fit to all rows."""
    learned, scored = case.drawn()
    model, seconds = fitted(learned.X, learned.y)
    W = rows_of(scored.X[:COMPARED])
    return {
        "rpe": rpe(scored, model.predict_array(scored.X)),
        "distance": transport(W, linear_of(model), linear_of_truth(case.truth)),
        "seconds": seconds,
        "rarest": float(model.masses.min()),
    }


def sharded(case: Case, machines: int, prior: float) -> Record:
    """Measure fits to shards with a prior of this strength, and what is made from them."""
    learned, scored = case.drawn()
    models, seconds = [], []
    for m in range(machines):
        model, took = fitted(learned.X[m::machines], learned.y[m::machines], prior)
        models.append(model)
        seconds.append(took)
    support = learned.X[np.random.default_rng(0).permutation(len(learned.X))[:SUPPORT]]
    reduced, to_reduce = timed(lambda: reduce(models, support=support))
    refined, to_refine = timed(lambda: reduce(models, support=support, refine=True))
    mixtures = [linear_of(model) for model in models]
    few = rows_of(support[:PAIRED])
    middle = middle_of(mixtures, few)
    means = {
        "aligned average": averaged(aligned(mixtures, mixtures[middle], few)),
        "average": averaged(mixtures),
    }
    W, all_rows = rows_of(scored.X[:COMPARED]), rows_of(scored.X)
    served = {"reduced": reduced, "refined": refined, "middle": models[middle]}
    errors = {name: rpe(scored, model.predict_array(scored.X)) for name, model in served.items()}
    errors |= {name: rpe(scored, mean.predicted(all_rows)) for name, mean in means.items()}
    truth = linear_of_truth(case.truth)
    distances = {name: transport(W, linear_of(model), truth) for name, model in served.items()}
    distances |= {name: transport(W, mean, truth) for name, mean in means.items()}
    return {
        "rpe": errors,
        "distance": distances,
        "local": float(np.median([rpe(scored, model.predict_array(scored.X)) for model in models])),
        "seconds": {
            "longest": max(seconds),
            "all": sum(seconds),
            "reduce": to_reduce,
            "reduce and refine": to_refine,
        },
    }


# -- Streams -----------------------------------------------------------------------------------------------------------


class Task(NamedTuple):
    """A stream of so many events and a seed, and how it is learned."""

    kind: type[MoERegressor | MoEClassifier]
    n_experts: int
    make: Callable[[int, int], tasks.Stream]


def tasks_of(truths: dict[str, tasks.Truth]) -> dict[str, Task]:
    """Return the streams: [DMoE]'s truths, and others."""
    found = {name: Task(MoERegressor, K, _maker(truth)) for name, truth in truths.items()}
    return found | {
        "two experts": Task(MoERegressor, 2, tasks.two_experts),
        "full gate": Task(MoERegressor, K, tasks.full_gate),
        "3 classes": Task(MoEClassifier, 2, lambda n, seed: tasks.classes(3, n, seed)),
    }


def _maker(truth: tasks.Truth) -> Callable[[int, int], tasks.Stream]:
    return lambda n, seed: tasks.distributed(truth, n, seed)


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
    reduced, to_reduce = timed(lambda: reduce(workers))
    refined, to_refine = timed(lambda: reduce(workers, refine=True))

    def score(model: Any) -> float:
        predictions = model.predict_array(scored.X)
        return float(np.mean(predictions == scored.y)) if model.is_classifier else rpe(scored, predictions)

    def loss(model: Any) -> float:
        return -float(np.mean(model.log_likelihood_array(scored.X, scored.y)))

    made = {"one": one, "reduced": reduced, "refined": refined}
    return {
        "score": {name: score(model) for name, model in made.items()},
        "loss": {name: loss(model) for name, model in made.items()},
        "worker": float(np.median([score(worker) for worker in workers])),
        "seconds": {"one": seconds, "reduce": to_reduce, "reduce and refine": to_refine},
    }


# -- Cost --------------------------------------------------------------------------------------------------------------


def similar(model: MoERegressor, seed: int) -> MoERegressor:
    """Return a model with nearly the same parameters, and its experts in another order."""
    rng = np.random.default_rng(seed)
    found = model.parameters(averaged=True)
    order = rng.permutation(len(found["experts"]))
    gate = np.vstack([found["gate"], np.zeros_like(found["gate"][:1])])[order]
    gate = (gate - gate[-1])[:-1]
    changed = {
        "gate": gate + 0.2 * rng.normal(size=gate.shape),
        "experts": found["experts"][order] + 0.02 * rng.normal(size=found["experts"].shape),
        "variances": found["variances"][order],
    }
    statistics = {name: found[name][order] for name in ("masses", "expert_grams")}
    return MoERegressor.from_parameters(
        {**found, **statistics, **changed}, feature_names=model.feature_names, average=changed, n_average=model.n
    )


def costs() -> Iterator[Record]:
    """Measure reductions, next to the time in which a model learns events of the same kind."""
    stream = tasks.distributed(tasks.random_truth(2), 30_000, 0)
    first, _ = fitted(stream.X[:5_000], stream.y[:5_000])
    models = [similar(first, seed) for seed in range(max(count for count, _ in SHAPES))]
    learner = MoERegressor(K)
    learner.learn_array(stream.X[:LEARNED_BY_ONE], stream.y[:LEARNED_BY_ONE], feature_names=names_of(stream.X))
    rows = slice(LEARNED_BY_ONE, 2 * LEARNED_BY_ONE)
    _, learning = timed(lambda: learner.learn_array(stream.X[rows], stream.y[rows]))
    for count, points in SHAPES:
        given, support = models[:count], stream.X[-points:]
        took = min(timed(lambda given=given, support=support: reduce(given, support=support))[1] for _ in range(3))
        gc.collect()
        tracemalloc.start()
        reduce(given, support=support)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        yield {"machines": count, "support": points, "seconds": took, "learning": learning, "peak": peak}


# -- Tables ------------------------------------------------------------------------------------------------------------


def batch_tables(records: Sequence[Record], verdicts: Verdicts) -> Iterator[str]:
    """Yield the tables of [DMoE]'s simulation with the default prior."""
    return _simulation(records, verdicts, "batch", "")


def shared_tables(records: Sequence[Record], verdicts: Verdicts) -> Iterator[str]:
    """Yield the tables of [DMoE]'s simulation with 1/M of the prior in each shard."""
    return _simulation(records, verdicts, "shared", ", 1/M of the prior in each shard")


def _simulation(records: Sequence[Record], verdicts: Verdicts, part: str, about: str) -> Iterator[str]:
    """Yield the tables of errors, distances and times."""
    wholes = {(one["truth"], one["n"], one["run"]): one for one in records if one["part"] == "whole"}
    pairs = [
        (one, wholes[one["truth"], one["n"], one["run"]])
        for one in sorted((one for one in records if one["part"] == part), key=lambda one: (one["n"], one["machines"]))
        if (one["truth"], one["n"], one["run"]) in wholes
    ]
    if not pairs:
        return

    def head(one: Record) -> list[str]:
        return [one["truth"], f"{one['n']:,}", str(one["machines"]), str(one["run"])]

    first = ["truth", "N", "M", "run"]
    yield f"RPE over the true function's{about}\n" + table(
        [*first, "all rows", *CONTENDERS, "median local", "reduced / all rows", "refined / all rows"],
        [
            [
                *head(one),
                f"{every['rpe']:.3f}",
                *(f"{one['rpe'][name]:.3f}" for name in CONTENDERS),
                f"{one['local']:.3f}",
                *(f"{one['rpe'][name] / every['rpe']:.3f}" for name in CONTENDERS[:2]),
            ]
            for one, every in pairs
        ],
    )
    yield f"Distance to the truth, nats{about}\n" + table(
        [*first, "all rows", *CONTENDERS, "reduced / all rows", "refined / all rows"],
        [
            [
                *head(one),
                f"{every['distance']:.3g}",
                *(f"{one['distance'][name]:.3g}" for name in CONTENDERS),
                *(f"{one['distance'][name] / every['distance']:.3g}" for name in CONTENDERS[:2]),
            ]
            for one, every in pairs
        ],
    )
    yield f"Seconds{about}\n" + table(
        [
            *first,
            "all rows",
            "longest local",
            "all local",
            "reduce",
            "with refinement",
            "longest + reduce, part of all",
        ],
        [
            [
                *head(one),
                f"{every['seconds']:.1f}",
                *(f"{one['seconds'][name]:.2f}" for name in ("longest", "all", "reduce", "reduce and refine")),
                f"1/{every['seconds'] / (one['seconds']['longest'] + one['seconds']['reduce']):.1f}",
            ]
            for one, every in pairs
        ],
    )
    for n, machines in sorted({(one["n"], one["machines"]) for one, _ in pairs}):
        here = [(one, every) for one, every in pairs if (one["n"], one["machines"]) == (n, machines)]
        for name in CONTENDERS[:2]:
            title = f"N = {n:,}, M = {machines}, {name}{about}"
            ratios = [one["rpe"][name] / every["rpe"] for one, every in here]
            most = 1.02 if machines <= 16 else 1.05
            verdicts.add_most(f"{title}: RPE / all rows, mean of {len(here)}", float(np.mean(ratios)), most)
            verdicts.add_most(f"{title}: the same, largest", max(ratios), most)
            for other in ("average", "middle"):
                behind = sum(one["rpe"][name] >= one["rpe"][other] for one, _ in here)
                verdicts.add_most(f"{title}: not ahead of the {other}, of {len(here)}", behind, 0)
            distances = [one["distance"][name] / every["distance"] for one, every in here]
            verdicts.add_most(f"{title}: distance / all rows, mean", float(np.mean(distances)), 1.1)
            if (n, machines) == (1_000_000, 16):
                spent = "reduce" if name == "reduced" else "reduce and refine"
                parts = [(one["seconds"]["longest"] + one["seconds"][spent]) / every["seconds"] for one, every in here]
                verdicts.add_most(f"{title}: time / all rows, mean", float(np.mean(parts)), 0.125)


def stream_tables(records: Sequence[Record], verdicts: Verdicts) -> Iterator[str]:
    """Yield the table of workers of streams."""
    found = [one for one in records if one["part"] == "streams"]
    if not found:
        return
    rows = []
    for one in found:
        score, loss, seconds = one["score"], one["loss"], one["seconds"]
        rows.append([
            one["truth"], f"{one['n']:,}", str(one["run"]),
            *(f"{score[name]:.4f}" for name in ("one", "reduced", "refined")), f"{one['worker']:.4f}",
            *(f"{loss[name]:.4f}" for name in ("one", "reduced", "refined")),
            f"{seconds['one']:.1f}", f"{seconds['reduce']:.2f}", f"{seconds['reduce and refine']:.2f}",
        ])  # fmt: skip
        for name in ("reduced", "refined"):
            title = f"stream {one['truth']}, N = {one['n']:,}, {name}"
            if one["truth"] == "3 classes":
                verdicts.add_most(f"{title}: points behind one model", 100.0 * (score["one"] - score[name]), 0.3)
            else:
                verdicts.add_most(f"{title}: RPE / one model's", score[name] / score["one"], 1.02)
    yield (
        f"{WORKERS} workers, one pass each: RPE over the true function's, or accuracy; log-loss; seconds\n"
    ) + table(
        [
            "stream", "N", "run", "one model", "reduced", "refined", "median worker", "loss: one", "reduced", "refined",
            "s: one", "reduce", "with refinement",
        ],
        rows,
    )  # fmt: skip


def cost_tables(records: Sequence[Record], verdicts: Verdicts) -> Iterator[str]:
    """Yield the table of what a reduction costs."""
    found = [one for one in records if one["part"] == "cost"]
    if not found:
        return
    rows = []
    for one in found:
        least = 8 * one["machines"] * K * one["support"]
        rows.append([
            str(one["machines"]), f"{one['support']:,}", f"{one['seconds']:.2f}",
            f"{one['seconds'] / one['learning']:.2f}", f"{one['peak'] / 2**20:.0f}", f"{one['peak'] / least:.1f}",
        ])  # fmt: skip
        if (one["machines"], one["support"]) == SHAPES[0]:
            verdicts.add_most(f"M = {SHAPES[0][0]}, S = {SHAPES[0][1]:,}: seconds of a reduction", one["seconds"], 2.0)
    yield f"One reduction, K = {K}, d = {D}\n" + table(
        ["M", "S", "seconds", f"/ learning {LEARNED_BY_ONE:,} events", "peak MiB", "/ 8 M K S bytes"], rows
    )


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
    if "cost" in arguments.only and not results.has({"part": "cost"}):
        for record in costs():
            results.add({"part": "cost"}, record)
    if "streams" in arguments.only:
        for name, task in tasks_of(truths).items():
            for n in arguments.n:
                for run in range(arguments.runs):
                    key = {"part": "streams", "truth": name, "n": n, "run": run}
                    results.once(key, lambda task=task, n=n, run=run: streamed(task, n, run))
    for part in ("batch", "shared"):
        if part in arguments.only:
            _measure_shards(arguments, truths, results, part)


def _measure_shards(arguments: argparse.Namespace, truths: dict[str, tasks.Truth], results: Results, part: str) -> None:
    for run in range(arguments.runs):
        for n in arguments.n:
            for name, truth in truths.items():
                case = Case(name, truth, n, run)
                key = {"truth": name, "n": n, "run": run}
                results.once({"part": "whole", **key}, lambda case=case: whole(case))
                for count in arguments.machines:
                    prior = PRIOR if part == "batch" else PRIOR / count
                    results.once(
                        {"part": part, **key, "machines": count},
                        lambda case=case, count=count, prior=prior: sharded(case, count, prior),
                    )


def parser() -> argparse.ArgumentParser:
    """Create the parser of the arguments."""
    found = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    found.add_argument(
        "--only", nargs="+", choices=PARTS, default=["batch", "streams", "cost"], help="parts; default: all but shared"
    )
    found.add_argument(
        "--truths", nargs="+", metavar="NAME", default=[PUBLISHED, *DRAWS],
        help=f"{PUBLISHED}, or seeds of random ones; default: {PUBLISHED} {' '.join(DRAWS)}",
    )  # fmt: skip
    found.add_argument("--n", nargs="+", type=int, default=[100_000], help="rows, four fifths of which are learned")
    found.add_argument("--machines", nargs="+", type=int, default=[16, 128], help="M of batch fits")
    found.add_argument("--runs", type=int, default=1, help="draws of the rows of each truth; the targets are for 20")
    found.add_argument("--data", type=Path, help="folder of data sets; default: STREAMMOE_DATA")
    found.add_argument("--out", type=Path, metavar="FILE", help="results file; what it holds is not run again")
    return found


def main(argv: list[str] | None = None) -> None:
    """Run what is not in the results file yet, and print the tables of all that it holds."""
    arguments = parser().parse_args(argv)
    print(machine())
    truths = truths_of(arguments.truths, arguments.data)
    results = Results(arguments.out)
    with threadpool_limits(1):
        # Compiles what would otherwise be timed.
        tiny = tasks.distributed(tasks.random_truth(2), 2_000, 1)
        reduce([fitted(tiny.X, tiny.y)[0]] * 2, refine=True)
        measure(arguments, truths, results)
    print(
        f"Parts: {', '.join(arguments.only)}; truths: {', '.join(truths)}; N: {arguments.n}; M: {arguments.machines};"
    )
    print(f"runs of each: {arguments.runs}\n")
    verdicts = Verdicts()
    for tables in (batch_tables, shared_tables, stream_tables, cost_tables):
        for text in tables(results.records, verdicts):
            print(text, "\n")
    print(verdicts.shown())


if __name__ == "__main__":
    main()
