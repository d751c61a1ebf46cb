"""Is the number of experts found, with noise and without?

Errors are over the last quarter of each stream, relative to those of an oracle that knows the true regression function.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.report import parsed, table
from streammoe import MoERegressor


def one_expert(n: int, seed: int) -> tasks.Stream:
    """Generate a linear relation with ten inputs."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 10))
    truth = X @ rng.normal(size=10)
    return tasks.Stream(X, truth + 0.1 * rng.normal(size=n), truth)


STREAMS: dict[str, tuple[int, Any]] = {"one expert": (1, one_expert), **tasks.MIXTURES}
"""How many experts it has, and its generator."""
QUIET = 4_000
"""Events of the streams without noise."""
NOISES = (0.0, 0.001, 0.01, 0.03)
PLACES = {
    "around 0": (np.zeros(3), False),
    "far off": (np.array([10.0, -20.0, 30.0]), False),
    "far off, scaled": (np.array([10.0, -20.0, 30.0]), True),
}
"""Where three inputs of deviation 1 have their means, and whether the model scales them."""
NOISELESS: dict[str, tuple[int, Callable[[np.ndarray], np.ndarray]]] = {
    "always 3": (1, lambda X: np.full(len(X), 3.0)),
    "2x − y": (1, lambda X: 2.0 * X[:, 0] - X[:, 1]),
    "|x|": (2, lambda X: np.abs(X[:, 0])),
    "y sign x": (2, lambda X: X[:, 1] * np.sign(X[:, 0])),
    "max(x, y, z)": (3, lambda X: X.max(axis=1)),
    "|x| + 2|y|": (4, lambda X: np.abs(X[:, 0]) + 2.0 * np.abs(X[:, 1])),
}
"""How many experts say it exactly, but for the gate's width, and the function of three inputs."""


def tally(found: Iterable[int]) -> str:
    """Say how often each number was found."""
    return ", ".join(f"{n}: {times}" for n, times in sorted(Counter(found).items()))


def choice(seeds: int, events: int) -> Iterator[list[object]]:
    """Yield a row for each stream."""
    for title, (K, generate) in STREAMS.items():
        found: list[int] = []
        figures = []
        for n_experts in (K, "auto"):
            ratios, seconds = [], []
            for seed in range(seeds):
                stream = generate(events, seed=seed)
                model = MoERegressor(n_experts)
                start = time.perf_counter()
                predictions = tasks.predicted(model, stream.X, stream.y)
                seconds.append(time.perf_counter() - start)
                ratios.append(tasks.over_oracle(stream, predictions))
                if n_experts == "auto":
                    found.append(int(model.chosen_n_experts or 0))
            figures.append([f"{np.mean(ratios):.4f}", f"{np.mean(seconds):.1f}"])
        yield [title, K, tally(found), *(pair[at] for at in (0, 1) for pair in figures)]


def choice_without_noise(seeds: int) -> Iterator[list[object]]:
    """Yield a row for each function and location of the inputs, with the number of experts found for each noise."""

    def chosen(function: Any, center: np.ndarray, scaled: bool, noise: float, seed: int) -> int:
        rng = np.random.default_rng(seed)
        X = rng.normal(size=(QUIET, 3))
        model = MoERegressor("auto", standardize=scaled)
        model.learn_array(X + center, function(X) + noise * rng.normal(size=QUIET))
        return int(model.chosen_n_experts or 0)

    for title, (K, function) in NOISELESS.items():
        for place, where in PLACES.items():
            tallies = [tally(chosen(function, *where, noise, seed) for seed in range(seeds)) for noise in NOISES]
            yield [title, K, place, *tallies]


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    given = parsed(__doc__, argv, seeds=5, events=40_000)
    print('n_experts = "auto" and the right number: RMSE relative to the oracle\'s, and seconds for all events')
    headers = ["stream", "true K", "found", "right K", "auto", "s, right K", "s, auto"]
    print(table(headers, choice(given.seeds, given.events)), "\n", flush=True)
    print(f'n_experts = "auto" with little noise or none, {QUIET:,} events: how many were found in how many streams')
    print(table(["function", "true K", "inputs", *map(str, NOISES)], choice_without_noise(given.seeds)))


if __name__ == "__main__":
    main()
