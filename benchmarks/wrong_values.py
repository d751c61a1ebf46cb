"""Cost of wrong values among targets and inputs, next to a twin that never saw them.

Streams of `benchmarks.tasks`. Some events have a wrong value, in the target or in one of the inputs, such as a code
where a measurement is missing. The twin learns the same stream as it was before. Both are tested on further events
without wrong values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from benchmarks import tasks
from benchmarks.report import parsed, table, verdict
from streammoe import MoERegressor

TARGET = 1.02
"""Most that the error may be, over the twin's."""
TEST_EVENTS = 5_000
CODE, SPIKE = -99_999.0, 1e5


def rare_codes(rng: np.random.Generator, values: np.ndarray) -> None:
    values[rng.random(len(values)) < 1 / 2_000] = CODE


def frequent_codes(rng: np.random.Generator, values: np.ndarray) -> None:
    values[rng.random(len(values)) < 1 / 200] = CODE


def one_spike(rng: np.random.Generator, values: np.ndarray) -> None:
    values[rng.integers(len(values) // 4, len(values) // 2)] = SPIKE


def ten_in_a_row(rng: np.random.Generator, values: np.ndarray) -> None:
    first = rng.integers(len(values) // 4, len(values) // 2)
    values[first : first + 10] = SPIKE


WRONG: dict[str, tuple[Callable[[np.random.Generator, np.ndarray], None], bool]] = {
    "1 in 2,000 is -99999": (rare_codes, True),
    "one is 1e5": (one_spike, True),
    "ten in a row are 1e5": (ten_in_a_row, True),
    "1 in 200 is -99999": (frequent_codes, False),
}
"""Functions that write wrong values into a column, and whether the target holds for them."""
STREAMS: dict[str, tuple[int, Callable[..., tasks.Stream]]] = {
    "two experts": (2, tasks.two_experts),
    "full gate": (4, tasks.full_gate),
}


def learned(n_experts: int, X: np.ndarray, y: np.ndarray) -> MoERegressor:
    """Return a default model that has learned a stream."""
    model = MoERegressor(n_experts)
    model.set_columns([f"x{j:02}" for j in range(X.shape[1])])
    model.learn_array(X, y)
    return model


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    given = parsed(__doc__, argv, seeds=5, events=20_000)
    rows = []
    for name, (n_experts, make) in STREAMS.items():
        ratios: dict[tuple[str, str], list[float]] = {}
        for seed in range(given.seeds):
            print(f"{name}: {seed + 1} of {given.seeds}", file=sys.stderr, flush=True)
            stream = make(given.events + TEST_EVENTS, seed=seed)
            past, test = slice(0, given.events), slice(given.events, None)

            def error(model: MoERegressor, stream: tasks.Stream = stream, test: slice = test) -> float:
                return tasks.rmse(stream.y[test], model.predict_array(stream.X[test]))

            twin = error(learned(n_experts, stream.X[past], stream.y[past]))
            for what, (spoil, _) in WRONG.items():
                for where in ("targets", "one input", "all inputs in turn"):
                    X, y = stream.X[past].copy(), stream.y[past].copy()
                    rng = np.random.default_rng([seed, 1])
                    if where == "targets":
                        spoil(rng, y)
                    else:
                        for column in X.T[: 1 if where == "one input" else None]:
                            spoil(rng, column)
                    ratios.setdefault((what, where), []).append(error(learned(n_experts, X, y)) / twin)
        for (what, where), found in ratios.items():
            worst, judged = max(found), WRONG[what][1]
            target = [f"≤ {TARGET}", verdict(worst <= TARGET)] if judged else ["", ""]
            rows.append([name, where, what, f"{np.mean(found):.4f}", f"{worst:.4f}", *target])
    print(f"Test error over the twin's after {given.events:,} events, {given.seeds} seeds")
    print(table(["stream", "wrong are", "how", "mean", "largest", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
