"""Does one pass over Communities and Crime ([MM] §5.4.2) predict better than least squares fitted to all of it?

Ten inputs, standardized on the training part; 5 folds, shuffled three times; two experts, 200 events of warm-up, all
other settings at their defaults. The paper's own folds and warm-up are not known here. Requires the data set
(`--data`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import tasks
from benchmarks.papers import baselines, learners
from benchmarks.papers.sheets import Options, Sheet, Target, main, not_run
from streammoe import MoERegressor

TITLE = "[MM] Communities and Crime, mean squared error on folds that were not learned"
ONE_PASS = "streammoe, warmup=200"
DEFAULT = "streammoe, default settings"
WARMUP = 200
BATCH = "batch EM, several starts"
PUBLISHED = {"the paper, its own method": "0.0283 to 0.0321", "the paper, SGD, Adam, Sophia": "0.031 to 0.046"}
RECURSIVE = "recursive least squares, one expert"


def of_fold(folder: Path, case: tuple[int, int]) -> tuple[dict[str, float], dict[str, list[tuple[float, float]]]]:
    """Compute errors on one fold of one repetition: of learners, and of optimizers at each point with its loss."""
    repetition, part = case
    X, y = tasks.crime(folder)
    learn, score = tasks.folds(len(y), repetition)[part]
    inputs, new = learners.standardized(X[learn], X[score])
    targets = y[learn]
    predictors = {
        ONE_PASS: learners.one_pass(inputs, targets, warmup=WARMUP).predict_array,
        DEFAULT: learners.one_pass(inputs, targets).predict_array,
        BATCH: learners.batch_em(inputs, targets).predict_array,
        "least squares": learners.least_squares(inputs, targets),
        RECURSIVE: learners.recursive_least_squares(inputs, targets),
        "mean of the targets": learners.mean_of_targets(inputs, targets),
    }
    found = {name: learners.mean_square(y[score] - predict(new)) for name, predict in predictors.items()}
    model = MoERegressor(n_experts=2, warmup=WARMUP)
    model.learn_array(inputs[:WARMUP], targets[:WARMUP])
    start = baselines.start_of(model, inputs[WARMUP:], targets[WARMUP:])

    def error(theta: np.ndarray) -> float:
        return learners.mean_square(y[score] - baselines.regression(theta, start.K, new))

    return found, {name: baselines.tried(start, name, error) for name in baselines.OPTIMIZERS}


def sheets(options: Options) -> list[Sheet]:
    """Return the table, or why there is none."""
    folder = tasks.crime_folder(options.data)
    if folder is None:
        why = [
            "Put communities.names and communities.data into communities_crime/ under the folder that --data,",
            f"DATA= or STREAMMOE_DATA names. The set is published at {tasks.CRIME_ADDRESS}",
        ]
        return [not_run(TITLE, why)]
    cases = [(repetition, part) for repetition in range(options.count(3, 1)) for part in range(5)]
    found = list(options.map(partial(of_fold, folder), cases))
    errors = {name: np.array([one[name] for one, _ in found]) for name in found[0][0]}
    notes = {}
    for name in baselines.OPTIMIZERS:
        at = baselines.best_point([[loss for loss, _ in one[name]] for _, one in found])
        notes[name] = baselines.in_words(name, baselines.grid(name)[at])
        errors[name] = np.array([one[name][at][1] for _, one in found])
    fitted = errors["least squares"]
    rows: list[list[object]] = []
    for name, values in errors.items():
        repetitions = values.reshape(-1, 5).mean(axis=1)
        figures = [f"{value:.5f}" for value in (values.mean(), repetitions.min(), repetitions.max())]
        below = "" if name == "least squares" else f"{(values < fitted).sum()} of {len(values)}"
        rows.append([name, *figures, below, notes.get(name, "")])
    rows += [[name, figure, "", "", "", ""] for name, figure in PUBLISHED.items()]
    headers = ["learner", "error", "least repetition", "largest", "folds below least squares", "best of the grid"]
    return [
        Sheet(
            f"{TITLE}; {len(cases) // 5} × 5 folds",
            headers,
            rows,
            [
                Target(f"{name}: error over least squares'", float(errors[name].mean() / fitted.mean()), 0.985)
                for name in (ONE_PASS, DEFAULT)
            ],
            [
                "The paper's folds are not known here. All that streams begins where the warm-up of 200 events ends.",
                f"Optimizers: {baselines.grid_in_words()}; the point of least prequential loss over all folds.",
                "[MM]'s other real data, proteins of maize under drought, are not run: no published file is known.",
            ],
        )
    ]


if __name__ == "__main__":
    main(__doc__)
