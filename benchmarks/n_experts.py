"""Is the number of experts found, with noise and without?

Errors are over the last quarter of each stream, relative to those of an oracle that knows the true regression function.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections import Counter
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoERegressor

NAMES = [f"x{j:02}" for j in range(10)]


def one_expert(n: int, seed: int) -> tasks.Stream:
    """Generate a linear relation with ten inputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 10))
    truth = X @ rng.normal(size=10)
    return tasks.Stream(X, truth + 0.1 * rng.normal(size=n), truth)


STREAMS: dict[str, tuple[Any, int]] = {
    "one expert": (one_expert, 1),
    "two experts": (tasks.two_experts, 2),
    "full gate": (tasks.full_gate, 4),
}
"""Generator, and how many experts it has."""


def learned(model: Any, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Return predictions and losses of all rows before they were learned, and the duration in seconds."""
    if not model.fields:
        model.set_columns(NAMES)
    begun = time.perf_counter()
    outcome = model.learn_rows(X, y[:, None])
    return outcome.predictions[:, 0], outcome.losses, time.perf_counter() - begun


def ratio(stream: tasks.Stream, predictions: np.ndarray) -> float:
    """Return the error relative to the oracle's over the last quarter of the stream."""
    last = len(stream.y) // 4
    return tasks.rmse(stream.y[-last:], predictions[-last:]) / tasks.rmse(stream.y[-last:], stream.truth[-last:])


def choice(seeds: int, events: int) -> list[list[object]]:
    """Compute a row for each stream."""
    rows = []
    for title, (generate, K) in STREAMS.items():
        ratios: dict[object, list[float]] = {K: [], "auto": []}
        seconds: dict[object, list[float]] = {K: [], "auto": []}
        found = Counter[int]()
        for seed in range(seeds):
            print(f"{title}, auto: {seed + 1} of {seeds}", file=sys.stderr, flush=True)
            stream = generate(events, seed=seed)
            for n_experts, values in ratios.items():
                model = MoERegressor(n_experts)
                predictions, _, took = learned(model, stream.X, stream.y)
                values.append(ratio(stream, predictions))
                seconds[n_experts].append(took)
            found[int(model.chosen_n_experts or 0)] += 1
        right = found[K]
        tally = ", ".join(f"{n}: {times}" for n, times in sorted(found.items()))
        means = [f"{np.mean(values):.4f}" for values in ratios.values()]
        took = [f"{np.mean(values):.1f}" for values in seconds.values()]
        rows.append([title, K, tally, *means, *took, f"≥ {seeds - 1}", "met" if right >= seeds - 1 else "MISSED"])
    return rows


QUIET = 4_000
"""Events of the streams without noise: some more than the longest warm-up."""
FAR = np.array([10.0, -20.0, 30.0])
"""Where three inputs of deviation 1 have their means."""
NOISELESS: dict[str, tuple[int, Any]] = {
    "always 3": (1, lambda X: np.full(len(X), 3.0)),
    "2x − y": (1, lambda X: 2.0 * X[:, 0] - X[:, 1]),
    "|x|": (2, lambda X: np.abs(X[:, 0])),
    "y sign x": (2, lambda X: X[:, 1] * np.sign(X[:, 0])),
    "max(x, y, z)": (3, lambda X: X.max(axis=1)),
    "|x| + 2|y|": (4, lambda X: np.abs(X[:, 0]) + 2.0 * np.abs(X[:, 1])),
}
"""How many experts say it exactly, but for the gate's width, and the function of three inputs."""


def choice_without_noise(seeds: int) -> list[list[object]]:
    """Compute a row for each function and location of the inputs, with the number of experts found for each noise."""
    rows = []
    for title, (K, function) in NOISELESS.items():
        for place, center, scaled in (
            ("around 0", 0.0, False),
            ("far off", FAR, False),
            ("far off, scaled", FAR, True),
        ):
            tallies = []
            for noise in (0.0, 0.001, 0.01, 0.03):
                found = Counter[int]()
                for seed in range(seeds):
                    rng = np.random.default_rng(seed)
                    X = rng.normal(size=(QUIET, 3))
                    model = MoERegressor("auto", standardize=scaled)
                    model.learn_array(X + center, function(X) + noise * rng.normal(size=QUIET))
                    found[int(model.chosen_n_experts or 0)] += 1
                tallies.append(", ".join(f"{n}: {times}" for n, times in sorted(found.items())))
            print(f"{title}, {place}: {tallies}", file=sys.stderr, flush=True)
            rows.append([title, K, place, *tallies])
    return rows


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="streams of each kind")
    parser.add_argument("--events", type=int, default=40_000, help="events of each stream")
    arguments = parser.parse_args(argv)
    logging.getLogger("streammoe.estimators").setLevel(logging.ERROR)
    seeds, events = arguments.seeds, arguments.events
    print(machine(), "\n")
    print(
        'n_experts = "auto" compared with the right number: RMSE relative to the oracle\'s, and seconds for all events'
    )
    headers = ["stream", "true K", "found", "right K", "auto", "s, right K", "s, auto", "target", "verdict"]
    print(table(headers, choice(seeds, events)), "\n")
    print(f'n_experts = "auto" with little noise or none, {QUIET:,} events: how many were found in how many streams')
    headers = ["function", "true K", "inputs", "no noise", "0.001", "0.01", "0.03"]
    print(table(headers, choice_without_noise(seeds)))


if __name__ == "__main__":
    main()
