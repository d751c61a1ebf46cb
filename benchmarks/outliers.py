"""What do outliers and heavy tails cost each kind of expert, and what does robustness cost where there are none?

The stream of two experts in `benchmarks.tasks`, noise 0.1; targets are disturbed, and predictions, each made before its
event was learned, are compared with the true regression function over the last quarter.

- `clean`: undisturbed.
- `5 % gross`: one target in twenty has an additional error N(0, (20 s)²), s the deviation of all targets.
- `5 % one-sided`: one in twenty is 10 s too large, which no symmetric noise explains.
- `heavy tails`: the noise is 0.1 t with 2 degrees of freedom, whose variance is infinite.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np

from benchmarks import tasks
from benchmarks.report import parsed, table, verdict
from streammoe import MoERegressor

EXPERTS = ("gaussian", "student_t", "laplace")
PRICE_TARGET = 1.1
"""Most that robust experts' error may be on clean targets, over that of Gaussian ones."""
GROSS_TARGET = 1.5
"""The same of Student-t experts' on targets with gross errors, over that of Gaussian ones on clean targets."""
SHARE = 0.05


def clean(_rng: np.random.Generator, stream: tasks.Stream) -> np.ndarray:
    return stream.y


def gross(rng: np.random.Generator, stream: tasks.Stream) -> np.ndarray:
    hit = rng.random(len(stream.y)) < SHARE
    return stream.y + np.where(hit, 20.0 * stream.y.std() * rng.normal(size=len(hit)), 0.0)


def one_sided(rng: np.random.Generator, stream: tasks.Stream) -> np.ndarray:
    hit = rng.random(len(stream.y)) < SHARE
    return stream.y + np.where(hit, 10.0 * stream.y.std(), 0.0)


def heavy(rng: np.random.Generator, stream: tasks.Stream) -> np.ndarray:
    return stream.y + 0.1 * rng.standard_t(2.0, size=len(stream.y))


DISTURBED: dict[str, tuple[float, Callable[[np.random.Generator, tasks.Stream], np.ndarray]]] = {
    "clean": (0.1, clean),
    "5 % gross": (0.1, gross),
    "5 % one-sided": (0.1, one_sided),
    "heavy tails": (0.0, heavy),
}
"""Gaussian noise of the stream, and the targets that come of it."""


def error(expert: str, stream: tasks.Stream, y: np.ndarray) -> float:
    """Return the RMSE of a default model's predictions against the true function."""
    model = MoERegressor(n_experts=2, expert=expert)
    model.set_columns([f"x{j:02}" for j in range(stream.X.shape[1])])
    predictions = model.learn_rows(stream.X, y[:, None]).predictions[:, 0]
    last = slice(3 * len(y) // 4, None)
    return tasks.rmse(stream.truth[last], predictions[last])


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    given = parsed(__doc__, argv, seeds=10, events=20_000)
    errors = {name: np.empty((len(EXPERTS), given.seeds)) for name in DISTURBED}
    for seed in range(given.seeds):
        for name, (noise, disturb) in DISTURBED.items():
            print(f"{name}: {seed + 1} of {given.seeds}", file=sys.stderr, flush=True)
            stream = tasks.two_experts(given.events, seed=seed, noise=noise)
            y = disturb(np.random.default_rng([seed, 1]), stream)
            errors[name][:, seed] = [error(expert, stream, y) for expert in EXPERTS]
    plain = errors["clean"][0].mean()
    rows = []
    for name, found in errors.items():
        for expert, values in zip(EXPERTS, found, strict=True):
            ratio = values.mean() / plain
            target = PRICE_TARGET if name == "clean" else GROSS_TARGET if name == "5 % gross" else None
            if expert == "gaussian" or (expert == "laplace" and name != "clean"):
                target = None
            judged = ["", ""] if target is None else [f"≤ {target}", verdict(ratio <= target)]
            figures = (f"{value:.4f}" for value in (values.mean(), values.min(), values.max()))
            rows.append([name, expert, *figures, f"{ratio:.2f}", *judged])
    print(f"Error against the true function, last quarter of {given.events:,} events, {given.seeds} seeds;")
    print("ratio: to Gaussian experts on clean targets")
    print(table(["targets", "experts", "mean RMSE", "least", "largest", "ratio", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
