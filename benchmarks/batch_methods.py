"""How many rounds, and seconds, does each batch method take to the same likelihood?

All four start from the same model, which has learned the first 200 events of a stream, and are fitted to all 20,000:
four experts under a full gate, and three classes. The target is the likelihood that EM reaches in 3,000 rounds; the
table shows the cost of getting to within 0.01 and 0.001 nats per event of it, unless a method runs out of rounds.
"""

from __future__ import annotations

import argparse
import copy
import sys

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoEClassifier, MoERegressor, batch

GAPS = (1e-2, 1e-3)
BEGUN = 200
MOST_SECONDS = 120.0
"""For one method on one task."""


def begun(name: str, n: int, seed: int):
    """Return a model that has learned the first events of a task, and all its events."""
    X, y, *_ = tasks.full_gate(n=n, seed=seed) if name == "regression" else tasks.classes(3, n=n, seed=seed)
    model = MoERegressor(4, warmup=BEGUN) if name == "regression" else MoEClassifier(2, warmup=BEGUN)
    model.learn_array(X[:BEGUN], y[:BEGUN])
    return model, X, y


def way(model, X, y, method: str, end: float) -> list[tuple[int, float] | None]:
    """Measure rounds and seconds until the likelihood is within each gap of the target."""
    reached: list[tuple[int, float] | None] = [None] * len(GAPS)

    def follow(each: batch.Round) -> bool:
        for at, gap in enumerate(GAPS):
            if reached[at] is None and each.objective >= end - gap:
                reached[at] = (each.number, each.seconds)
        return None not in reached or each.seconds > MOST_SECONDS

    batch.fit(
        copy.deepcopy(model), X, y, method=method, start="model", rounds=1_000_000, tolerance=0.0, on_round=follow
    )
    return reached


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    print(machine(), "\n")
    rows = []
    for task in ("regression", "classification"):
        model, X, y = begun(task, given.events, given.seed)
        far = batch.fit(copy.deepcopy(model), X, y, start="model", rounds=3_000, tolerance=1e-9)
        for method in batch.METHODS:
            print(f"{task}, {method} …", file=sys.stderr, flush=True)
            reached = way(model, X, y, method, far.objective)
            cells = [f"{found[0]:,} rounds, {found[1]:.2f} s" if found else "not reached" for found in reached]
            rows.append((task, method, *cells))
        print(f"{task}: from {far.trace[0].objective:.4f} to {far.objective:.4f} nats", file=sys.stderr)
    print(table(("task", "method", *(f"within {gap:g} nats" for gap in GAPS)), rows))


if __name__ == "__main__":
    main()
