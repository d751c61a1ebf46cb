"""Cost of wrong values among targets and inputs, next to a twin that never saw them.

Streams of `benchmarks.tasks`. Some events have a wrong value, in the target or in one of the inputs, such as a code
where a measurement is missing. The twin learns the same stream as it was before. Both are tested on further events
without wrong values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks import tasks
from benchmarks.report import Target, parsed, table
from streammoe import MoERegressor

LIMIT = 1.02
"""Most that the error may be, over the twin's."""
TEST_EVENTS = 5_000
CODE, SPIKE = -99_999.0, 1e5


def codes(share: float) -> Callable[[np.random.Generator, np.ndarray], None]:
    def spoil(rng: np.random.Generator, values: np.ndarray) -> None:
        values[rng.random(len(values)) < share] = CODE

    return spoil


def spikes(count: int) -> Callable[[np.random.Generator, np.ndarray], None]:
    def spoil(rng: np.random.Generator, values: np.ndarray) -> None:
        first = rng.integers(len(values) // 4, len(values) // 2)
        values[first : first + count] = SPIKE

    return spoil


WRONG = {
    "1 in 2,000 is -99999": (codes(1 / 2_000), True),
    "one is 1e5": (spikes(1), True),
    "ten in a row are 1e5": (spikes(10), True),
    "1 in 200 is -99999": (codes(1 / 200), False),
}
"""Functions that write wrong values into a column, and whether the target holds for them."""
PLACES = {"targets": 0, "one input": 1, "all inputs in turn": None}
"""How many of the inputs are wrong; none means all."""


def error(n_experts: int, X: np.ndarray, y: np.ndarray, test: tasks.Stream) -> float:
    """Return the error on a test of a default model that has learned a stream."""
    model = MoERegressor(n_experts)
    model.learn_array(X, y, feature_names=tasks.names_of(X))
    return tasks.rmse(test.y, model.predict_array(test.X))


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    given = parsed(__doc__, argv, seeds=5, events=20_000)
    rows = []
    for name, (n_experts, make) in tasks.MIXTURES.items():
        ratios: dict[tuple[str, str], list[float]] = {}
        for seed in range(given.seeds):
            stream = make(given.events + TEST_EVENTS, seed=seed)
            past, test = (
                tasks.Stream(*(part[rows] for part in stream))
                for rows in (slice(given.events), slice(given.events, None))
            )
            twin = error(n_experts, past.X, past.y, test)
            for what, (spoil, _) in WRONG.items():
                for where, count in PLACES.items():
                    X, y = past.X.copy(), past.y.copy()
                    rng = np.random.default_rng([seed, 1])
                    for column in X.T[:count] if where != "targets" else [y]:
                        spoil(rng, column)
                    ratios.setdefault((what, where), []).append(error(n_experts, X, y, test) / twin)
        for (what, where), found in ratios.items():
            target = Target(what, max(found), LIMIT).cells if WRONG[what][1] else ["", ""]
            rows.append([name, where, what, f"{np.mean(found):.4f}", f"{max(found):.4f}", *target])
    print(f"Test error over the twin's after {given.events:,} events, {given.seeds} seeds")
    print(table(["stream", "wrong are", "how", "mean", "largest", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
