"""How well does one pass of at most three experts predict the three UCI sets of [CQT] H.2?

Concrete strength, airfoil noise, and stock portfolios. Inputs are standardized on the training part and targets scaled
to [−1, 1]; 75 % of the rows are learned in shuffled order, the others scored; ten trials. The paper's own figures
are not known here, nor its period and column of the stock set (here all periods, excess return). Requires the data sets
(`--data`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.papers import learners
from benchmarks.papers.sheets import UNKNOWN, Options, Sheet, Target, main, not_run
from streammoe import MoERegressor


class Judged(NamedTuple):
    """A data set, and the target of one pass."""

    name: str
    limit: float | None


SETS = (Judged("concrete", 0.033), Judged("airfoil", 0.041), Judged("stock", None))
EXPERTS = (1, 2, 3)
ONE_PASS = "streammoe, one pass, K = {}"
SHORT = "streammoe, warmup half of the rows, K = {}"


def of_trial(name: str, path: Path, split: tuple[np.ndarray, np.ndarray]) -> dict[str, tuple[float, bool]]:
    """Compute the mean squared error of each learner, and whether its warm-up had ended."""
    X, y = tasks.uci(name, path)
    y = 2.0 * (y - y.min()) / (y.max() - y.min()) - 1.0
    learn, score = split
    inputs, new = learners.standardized(X[learn], X[score])

    def of_model(model: MoERegressor) -> tuple[float, bool]:
        return learners.mean_square(y[score] - model.predict_array(new)), not model.is_warming_up

    found = {ONE_PASS.format(K): of_model(learners.one_pass(inputs, y[learn], K)) for K in EXPERTS}
    for K in EXPERTS[1:]:
        found[SHORT.format(K)] = of_model(learners.one_pass(inputs, y[learn], K, warmup=len(learn) // 2))
    for K in EXPERTS[1:]:
        found[f"batch EM, K = {K}"] = of_model(learners.batch_em(inputs, y[learn], K))
    for floor in (learners.least_squares, learners.mean_of_targets):
        error = learners.mean_square(y[score] - floor(inputs, y[learn])(new))
        found[floor.__name__.replace("_", " ")] = error, True
    return found


def sheet_of(options: Options, judged: Judged) -> Sheet:
    """Return the table of a set, or why there is none."""
    described = tasks.UCI_SETS[judged.name]
    path = tasks.uci_file(judged.name, options.data)
    if path is None:
        why = [
            f"Put the published file ({described.made}) at {described.path} under the folder that --data, DATA= or",
            f"STREAMMOE_DATA names. The set is published at {described.address}",
        ]
        return not_run(f"[CQT] {judged.name}", why)
    n = len(tasks.uci(judged.name, path)[1])
    splits = tasks.uci_splits(n, options.count(10, 2))
    found = list(options.map(partial(of_trial, judged.name, path), splits))
    rows = []
    for name in found[0]:
        errors = np.array([one[name][0] for one in found])
        figures = [f"{figure:.4f}" for figure in (errors.mean(), errors.std(), errors.min(), errors.max())]
        mixes = all(one[name][1] for one in found)
        rows.append([name, *figures, "" if mixes else "the stream ends before the warm-up: one expert"])
    rows.append(["the paper", UNKNOWN, "", "", "", ""])
    targets = []
    if judged.limit is not None:
        error = float(np.mean([one[ONE_PASS.format(EXPERTS[-1])][0] for one in found]))
        targets.append(Target(f"error of one pass, K = {EXPERTS[-1]}, the most allowed", error, judged.limit))
    return Sheet(
        f"[CQT] {judged.name}, {n:,} rows, mean squared error on 25 % of them, {len(splits)} trials",
        ["learner", "error", "deviation", "least", "largest", "note"],
        rows,
        targets,
        ["The paper's shuffles and figures are not known here. Settings not listed in a row are defaults."],
    )


def sheets(options: Options) -> Iterator[Sheet]:
    """Return a table for each set."""
    return (sheet_of(options, judged) for judged in SETS)


if __name__ == "__main__":
    main(__doc__)
