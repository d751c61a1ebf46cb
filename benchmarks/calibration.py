"""How often targets fall into predictive intervals: simulated streams, one pass, default settings.

Each interval is from `predict_distribution_one`, for events after those that were learned. With several outputs each
has its own interval, and all of them are counted.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoEMultiTargetRegressor, MoERegressor
from streammoe.distributions import Gaussian

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
ALLOWED = 0.02
"""How far the share that an interval holds may be from its probability."""


class Simulated(NamedTuple):
    """A stream, and the model for it."""

    kind: type[MoERegressor | MoEMultiTargetRegressor]
    arguments: dict[str, Any]
    make: Callable[[int, int], tuple[np.ndarray, np.ndarray]]
    """From events and seed to inputs and targets."""


def _one(stream: tasks.Stream) -> tuple[np.ndarray, np.ndarray]:
    return stream.X, stream.y


def two_outputs(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate the stream of two experts with a second output, whose errors are correlated with the first."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 4))
    slopes = rng.normal(size=(2, 4, 2))
    first = rng.random(n) < 1.0 / (1.0 + np.exp(-tasks.GATE_SLOPE * X[:, 0]))
    means = np.where(first[:, None], X @ slopes[0], X @ slopes[1])
    noise = rng.normal(size=(n, 2))
    noise[:, 1] = 0.8 * noise[:, 0] + 0.6 * noise[:, 1]
    return X, means + np.array([0.3, 3.0]) * noise


SIMULATED: dict[str, Simulated] = {
    "two experts, K = 2": Simulated(
        MoERegressor, {"n_experts": 2}, lambda n, seed: _one(tasks.two_experts(n, seed, d=4, noise=0.3))
    ),
    "the paper's task, K = 2": Simulated(
        MoERegressor, {"n_experts": 2}, lambda n, seed: _one(tasks.paper_5_2(n, seed))
    ),
    "four experts, full gate, K = 4": Simulated(
        MoERegressor, {"n_experts": 4}, lambda n, seed: _one(tasks.full_gate(n, seed, d=4, noise=0.3))
    ),
    "two outputs, diagonal": Simulated(MoEMultiTargetRegressor, {"n_experts": 2}, two_outputs),
    "two outputs, full": Simulated(MoEMultiTargetRegressor, {"n_experts": 2, "expert": Gaussian("full")}, two_outputs),
}


def coverage(
    name: str, *, learned: int, asked: int, seed: int, levels: tuple[float, ...] = LEVELS
) -> dict[float, float]:
    """Measure the share of targets within the interval of each level, after learning."""
    kind, arguments, make = SIMULATED[name]
    X, Y = make(learned + asked, seed)
    model = kind(**arguments)
    model.learn_array(X[:learned], Y[:learned])
    names = [f"x{j}" for j in range(X.shape[1])]
    inside = dict.fromkeys(levels, 0)
    counted = 0
    for x, y in zip(X[learned:].tolist(), Y[learned:].tolist(), strict=True):
        forecast = model.predict_distribution_one(dict(zip(names, x, strict=True)))
        counted += len(y) if isinstance(y, list) else 1
        for level in levels:
            found = forecast.interval(level)
            ends = [found[f"y{q}"] for q in range(len(y))] if isinstance(y, list) else [found]
            targets = y if isinstance(y, list) else [y]
            inside[level] += sum(low <= value <= high for (low, high), value in zip(ends, targets, strict=True))
    return {level: count / counted for level, count in inside.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--learned", type=int, default=10_000)
    parser.add_argument("--asked", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=3)
    chosen = parser.parse_args()
    print(machine())
    rows = []
    for name in SIMULATED:
        found = [coverage(name, learned=chosen.learned, asked=chosen.asked, seed=seed) for seed in range(chosen.seeds)]
        means = {level: float(np.mean([each[level] for each in found])) for level in LEVELS}
        near = all(abs(share - level) <= ALLOWED for level, share in means.items())
        rows.append([name, *(f"{100 * share:.1f}" for share in means.values()), "" if near else "MISSED"])
    print(
        f"\n% of targets in the interval, of {chosen.asked:,} events after {chosen.learned:,}; {chosen.seeds} seeds\n"
    )
    print(table(["stream", *(f"{100 * level:.0f} %" for level in LEVELS), ""], rows))


if __name__ == "__main__":
    main()
