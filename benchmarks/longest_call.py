"""How long does the longest single `learn_one` take while a model starts?

Fits are spread over events (docs/learning.md), and this is what a caller waits for at most. Processor time of this
process counts, not the clock, so that other programs do not. Kernels are compiled before.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import Target, parsed, table
from streammoe import MoEClassifier, MoERegressor


class Case(NamedTuple):
    """A model and a stream."""

    name: str
    make: Callable[[], Any]
    n_inputs: int
    n_classes: int
    """0 for numbers."""
    n_events: int
    target_ms: float


CASES = [
    Case("K = 2, 10 inputs", lambda: MoERegressor(2), 10, 0, 2600, 20.0),
    Case("K = 4, 10 inputs", lambda: MoERegressor(4), 10, 0, 2600, 20.0),
    Case("auto, 10 inputs", lambda: MoERegressor("auto"), 10, 0, 2600, 50.0),
    Case("K = 2, 10 inputs, 3 classes", lambda: MoEClassifier(2), 10, 3, 2600, 50.0),
    Case("K = 2, 200 inputs, 10 classes", lambda: MoEClassifier(2), 200, 10, 1300, 250.0),
    Case("K = 2, 784 inputs, 10 classes", lambda: MoEClassifier(2), 784, 10, 1150, 400.0),
]


def stream(case: Case, seed: int) -> tuple[list[dict[str, float]], list[Any]]:
    """Generate events of two regimes, whose experts cross."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(case.n_events, case.n_inputs))
    M = case.n_classes or 1
    slopes = rng.normal(size=(2, M, case.n_inputs)) / np.sqrt(case.n_inputs)
    scores = np.where((X[:, 1] > 0)[:, None], X @ slopes[0].T, X @ slopes[1].T)
    names = [f"x{j}" for j in range(case.n_inputs)]
    events = [dict(zip(names, row, strict=True)) for row in X.tolist()]
    if case.n_classes:
        return events, (3.0 * scores + rng.gumbel(size=scores.shape)).argmax(axis=1).tolist()
    return events, (scores[:, 0] + 0.3 * rng.normal(size=case.n_events)).tolist()


def calls(case: Case, seed: int = 0) -> np.ndarray:
    """Return the processor seconds of each call of `learn_one`."""
    model = case.make()
    events, targets = stream(case, seed)
    found = np.empty(case.n_events)
    for i, (x, y) in enumerate(zip(events, targets, strict=True)):
        start = time.process_time()
        model.learn_one(x, y)
        found[i] = time.process_time() - start
    return found


def main(argv: list[str] | None = None) -> None:
    """Print the longest calls of each model."""
    given = parsed(__doc__, argv, seed=0)
    for kind in (False, True):  # compiles
        calls(next(case for case in CASES if bool(case.n_classes) == kind))
    rows = []
    for case in CASES:
        found = 1e3 * calls(case, given.seed)
        longest = np.argsort(found)[::-1][:3]
        at = " ".join(str(i + 1) for i in longest)
        judged = Target(case.name, found.max(), case.target_ms).cells
        rows.append([case.name, found[longest[0]], found[longest[1]], found.sum() / 1e3, at, *judged])
    headers = ["model", "longest, ms", "second, ms", "all, s", "at events", "target, ms", "verdict"]
    print(table(headers, rows))


if __name__ == "__main__":
    main()
