"""Cost of the portfolio's members when arrays are learned.

Next to a mixture whose average predicts alone, without a drift detector, as in the papers. All models learn the same
streams of `benchmarks.tasks` in arrays, in turn, so that a machine whose speed varies slows down all alike: as long as
all members take part, and when those that do not help have left. Times are of the process's CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoERegressor

SETTLED = 40_000
"""Events by which members that do not help have left."""
AT_ONCE = 4_096
ALONE: dict[str, Any] = {"serve": "polyak", "drift": None}
DEFAULT: dict[str, Any] = {}
FIXED: dict[str, Any] = {"curved": "off", "refits": False}
"""The default without the two members that only some streams keep."""
STREAMS: dict[str, tuple[int, Callable[..., tasks.Stream], int]] = {
    "two experts, 5 inputs": (2, tasks.two_experts, 5),
    "two experts, 10 inputs": (2, tasks.two_experts, 10),
    "four experts, 10 inputs": (4, tasks.full_gate, 10),
    "four experts, 20 inputs": (4, tasks.full_gate, 20),
}


def seconds(model: MoERegressor, X: np.ndarray, y: np.ndarray) -> float:
    """Return the time of learning some rows."""
    before = time.process_time()
    for start in range(0, len(y), AT_ONCE):
        model.learn_array(X[start : start + AT_ONCE], y[start : start + AT_ONCE])
    return time.process_time() - before


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=12, help="pieces of the stream that are timed, by turns")
    parser.add_argument("--events", type=int, default=8_192, help="events of each")
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    rows = []
    for name, (n_experts, make, d) in STREAMS.items():
        print(name, file=sys.stderr, flush=True)
        stream = make(SETTLED + arguments.turns * arguments.events, seed=0, d=d)
        models = [MoERegressor(n_experts, **options) for options in (ALONE, DEFAULT, FIXED)]
        first = [seconds(model, stream.X[:AT_ONCE], stream.y[:AT_ONCE]) for model in models]
        for model in models:
            model.learn_array(stream.X[AT_ONCE:SETTLED], stream.y[AT_ONCE:SETTLED])
        times = np.array(
            [
                [seconds(model, stream.X[piece], stream.y[piece]) for model in models]
                for begin in range(SETTLED, len(stream.y), arguments.events)
                for piece in [slice(begin, begin + arguments.events)]
            ]
        )
        ratios = np.median(times[:, 1:] / times[:, :1], axis=0)
        rows.append(
            [
                name,
                f"{first[1] / first[0]:.2f}",
                f"{ratios[0]:.2f}",
                ", ".join(models[1].member_weights),
                f"{ratios[1]:.2f}",
            ]
        )
    print(f"Time over that of the average alone: over the first {AT_ONCE:,} events, with the start; after {SETTLED:,}")
    print("events, median of pieces; and likewise without the curved and the refitted member")
    print(table(["stream", "start", "later", "who predicts then", "without"], rows))


if __name__ == "__main__":
    main()
