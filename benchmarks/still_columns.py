"""Cost of columns that stand still during the warm-up, and then take another value.

Numbers: a relation of one input, next to columns that are constant for half of the stream and do not matter; errors
after the change, over those with a constant that a float holds exactly. Classes: a campaign of calls in the order of
the calls, with a rare class, five figures of the economy that are constant for thousands of calls, and frequencies that
change with them; log-loss over that of the frequencies so far.
"""

from __future__ import annotations

import math

import numpy as np

from benchmarks import tasks
from benchmarks.report import parsed, table
from streammoe import MoEClassifier, MoERegressor

N = 1_600
CHANGES = {
    "1 to 1.5": (1.0, 1.5, 0.0),
    "1.1 to 1.4": (1.1, 1.4, 0.0),
    "93.994 to 92.201": (93.994, 92.201, 0.0),
    "1.1 to 1.4, noise of 1e-12": (1.1, 1.4, 1e-12),
    "1,000,000 to 1,000,000.5": (1e6, 1e6 + 0.5, 0.0),
    "0.3 to 1,000": (0.3, 1e3, 0.0),
}
LEVELS = {
    "employment": (1.1, 1.4, -0.1, -1.8, -2.9),
    "prices": (93.994, 94.465, 93.918, 92.893, 92.201),
    "confidence": (-36.4, -41.8, -42.7, -46.2, -31.4),
    "interest": (4.857, 4.865, 4.962, 1.313, 0.884),
    "employed": (5191.0, 5228.1, 5195.8, 5099.1, 5076.2),
}
BEGINS = (0, 3_000, 5_000, 7_000, 9_000)
RATES = (-4.2, -4.0, -3.6, -2.2, -1.6)


def error(before: float, after: float, noise: float, n_columns: int, seed: int) -> float:
    """Return the root mean squared error after the change, against the targets without noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=N)
    y = 2.0 * x + 0.5 * rng.normal(size=N)
    late = np.arange(N) >= N // 2
    still = [np.where(late, after, before) * (1.0 + 0.5 * k) + noise * rng.normal(size=N) for k in range(n_columns)]
    found = tasks.predicted(MoERegressor(), np.column_stack([x, *still]), y)[late]
    return tasks.rmse(2.0 * x[late], found)


def campaign(n: int, seed: int) -> tuple[float, float]:
    """Return the log-loss of the model and that of the frequencies so far."""
    rng = np.random.default_rng(seed)
    level = np.searchsorted(BEGINS, np.arange(n), side="right") - 1
    seconds, age = rng.gamma(2.0, 120.0, n), rng.integers(18, 90, n).astype(float)
    logits = np.array(RATES)[level] + 0.004 * (seconds - 240.0)
    sold = rng.random(n) < 1.0 / (1.0 + np.exp(-logits))
    columns = {"seconds": seconds, "age": age} | {name: np.array(each)[level] for name, each in LEVELS.items()}
    model, losses, frequencies, counts = MoEClassifier(), [], [], {"no": 1, "yes": 1}
    for i, is_sold in enumerate(sold.tolist()):
        x, y = {name: float(values[i]) for name, values in columns.items()}, "yes" if is_sold else "no"
        losses.append(-math.log(max(model.predict_proba_one(x).get(y, 0.5), 1e-15)))
        frequencies.append(-math.log(counts[y] / sum(counts.values())))
        model.learn_one(x, y)
        counts[y] += 1
    return float(np.mean(losses)), float(np.mean(frequencies))


def main(argv: list[str] | None = None) -> None:
    """Print the tables."""
    seeds = range(parsed(__doc__, argv, seeds=4).seeds)
    rows, exact = [], [[error(*CHANGES["1 to 1.5"], n, seed) for seed in seeds] for n in (1, 5)]
    for name, change in CHANGES.items():
        ratios = [
            np.mean([error(*change, n, seed) for seed in seeds]) / np.mean(exact[at]) for at, n in enumerate((1, 5))
        ]
        rows.append([name, *(f"{ratio:.2f}" for ratio in ratios)])
    print(table(["a constant changes from", "one column", "five columns"], rows), "\n")
    rows = [[str(seed), *(f"{loss:.4f}" for loss in campaign(11_000, seed))] for seed in seeds]
    print(table(["campaign, seed", "log-loss", "frequencies"], rows))


if __name__ == "__main__":
    main()
