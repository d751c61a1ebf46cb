"""Does one pass over [DMoE]'s simulation come as close to the true function as a batch fit to many rows?

Four experts, 20 inputs, 96,000 events to learn and 24,000 to score. Gates are nearly hard, and the rarest expert has
few events for its 21 coefficients, so steps that suit the others follow its noise.

RPE is Σ(y − ŷ)² / Σy², shown over that of the true regression function. Parameters are random whole numbers, as the
paper says, and one of its own draws if `--data` has it: from https://github.com/nhat-thien/Distributed-Mixture-Of-Experts
`data/param_MU.mat` of its first release, as JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from benchmarks import tasks
from benchmarks.papers.sheets import Options, Sheet, Target, main
from streammoe import MoERegressor, batch

LEARNED, SCORED = 96_000, 24_000
FEW, MANY = 10_000, 30_000
"""Rows of batch fits."""
SEEDS = (2, 4, 5, 6)
"""Draws in which the rarest expert has from 0.2 % to 9 % of the events."""
DEFAULT = "streammoe, default settings"
FROM_FIT = f"… from a batch fit to the first {FEW:,}"
SETTINGS: dict[str, dict[str, Any]] = {
    DEFAULT: {},
    "… events_per_coefficient=2": {"events_per_coefficient": 2.0},
    "… bound='sharp', events_per_coefficient=2": {"bound": "sharp", "events_per_coefficient": 2.0},
}
TOLERANCE, ROUNDS = 1e-5, 200
"""Of batch fits."""


def scores(sizes: tuple[int, int, int, int], case: tuple[str, tasks.Truth, int]) -> dict[str, float]:
    """Compute the RPE of all learners over the true function's, on one draw."""
    _, truth, seed = case
    learned, scored, few, many = sizes
    X, y, expected = tasks.distributed(truth, learned + scored, seed)
    new, targets = X[learned:], y[learned:]
    oracle = np.sum((targets - expected[learned:]) ** 2)

    def score(model: MoERegressor) -> float:
        return float(np.sum((targets - model.predict_array(new)) ** 2) / oracle)

    found = {}
    for name, given in SETTINGS.items():
        model = MoERegressor(4, standardize=True, **given)
        model.learn_array(X[:learned], y[:learned])
        found[name] = score(model)
        model = MoERegressor(4, standardize=True, **given)
        batch.fit(model, X[:few], y[:few], tolerance=TOLERANCE, rounds=ROUNDS)
        found.setdefault(f"batch EM, {few:,} rows", score(model))
        model.learn_array(X[few:learned], y[few:learned])
        found[f"{name}, {FROM_FIT[2:]}"] = score(model)
    model = MoERegressor(4, standardize=True)
    batch.fit(model, X[:many], y[:many], tolerance=TOLERANCE, rounds=ROUNDS)
    found[f"batch EM, {many:,} rows"] = score(model)
    return found


def sheets(options: Options) -> Iterator[Sheet]:
    """Compute the table."""
    cases = [(f"draw {seed}", tasks.random_truth(seed), 77 * seed) for seed in SEEDS[: options.count(len(SEEDS), 1)]]
    path = tasks.distributed_file(options.data)
    if path is not None:
        cases.append(("published", tasks.published_truth(path), 0))
    sizes = (1_500, 500, 800, 1_000) if options.quick else (LEARNED, SCORED, FEW, MANY)
    found = list(options.map(partial(scores, sizes), cases))
    rows: list[list[object]] = []
    for name in found[0]:
        ratios = [one[name] for one in found]
        rows.append([name, *(f"{ratio:.3f}" for ratio in ratios), f"{np.mean(ratios):.3f}"])
    start = f"{DEFAULT}, {FROM_FIT[2:]}"
    yield Sheet(
        f"[DMoE] §5, K = 4, d = 20, {sizes[0]:,} events in one pass: RPE over the true function's",
        ["learner", *(name for name, _, _ in cases), "mean"],
        rows,
        [
            Target("default settings", float(np.mean([one[DEFAULT] for one in found])), 1.12),
            Target("default settings, from a batch fit", float(np.mean([one[start] for one in found])), 1.12),
        ],
    )


if __name__ == "__main__":
    main(__doc__)
