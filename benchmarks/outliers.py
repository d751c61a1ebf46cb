"""What do outliers and heavy tails cost each kind of expert, and what does robustness cost where there are none?

The stream of two experts in `benchmarks.tasks`, noise 0.1; targets are disturbed, and predictions, each made before its
event was learned, are compared with the true regression function over the last quarter.

- `clean`: undisturbed.
- `5 % gross`: one target in twenty has an additional error N(0, (20 s)²), s the deviation of all targets.
- `5 % one-sided`: one in twenty is 10 s too large, which no symmetric noise explains.
- `heavy tails`: the noise is 0.1 t with 2 degrees of freedom, whose variance is infinite.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks import tasks
from benchmarks.report import Target, parsed, table
from streammoe import MoERegressor

EXPERTS = ("gaussian", "student_t", "laplace")
LIMITS = {("clean", "student_t"): 1.1, ("clean", "laplace"): 1.1, ("5 % gross", "student_t"): 1.5}
"""Most that an error may be over that of Gaussian experts on clean targets."""
SHARE = 0.05


def hit(rng: np.random.Generator, y: np.ndarray, errors: Callable[[int], np.ndarray | float]) -> np.ndarray:
    """Add errors, in deviations of the targets, to some of them."""
    return y + np.where(rng.random(len(y)) < SHARE, y.std() * errors(len(y)), 0.0)


DISTURBED: dict[str, tuple[float, Callable[[np.random.Generator, np.ndarray], np.ndarray]]] = {
    "clean": (0.1, lambda _, y: y),
    "5 % gross": (0.1, lambda rng, y: hit(rng, y, lambda n: 20.0 * rng.normal(size=n))),
    "5 % one-sided": (0.1, lambda rng, y: hit(rng, y, lambda _: 10.0)),
    "heavy tails": (0.0, lambda rng, y: y + 0.1 * rng.standard_t(2.0, size=len(y))),
}
"""Gaussian noise of the stream, and the targets that come of it."""


def error(expert: str, stream: tasks.Stream, y: np.ndarray) -> float:
    """Return the RMSE of a default model's predictions against the true function."""
    last = slice(3 * len(y) // 4, None)
    return tasks.rmse(stream.truth[last], tasks.predicted(MoERegressor(n_experts=2, expert=expert), stream.X, y)[last])


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    given = parsed(__doc__, argv, seeds=10, events=20_000)
    errors: dict[tuple[str, str], list[float]] = {}
    for seed in range(given.seeds):
        for name, (noise, disturb) in DISTURBED.items():
            stream = tasks.two_experts(given.events, seed=seed, noise=noise)
            y = disturb(np.random.default_rng([seed, 1]), stream.y)
            for expert in EXPERTS:
                errors.setdefault((name, expert), []).append(error(expert, stream, y))
    plain = np.mean(errors["clean", "gaussian"])
    rows = []
    for key, found in errors.items():
        ratio = float(np.mean(found) / plain)
        judged = Target(key[0], ratio, LIMITS[key]).cells if key in LIMITS else ["", ""]
        figures = (f"{value:.4f}" for value in (np.mean(found), min(found), max(found)))
        rows.append([*key, *figures, f"{ratio:.2f}", *judged])
    print(f"Error against the true function, last quarter of {given.events:,} events, {given.seeds} seeds;")
    print("ratio: to Gaussian experts on clean targets")
    print(table(["targets", "experts", "mean RMSE", "least", "largest", "ratio", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
