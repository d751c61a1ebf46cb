"""Does one pass over Communities and Crime predict better than least squares fitted to all of it?

Ten inputs, standardised on the training part; 5 folds, shuffled three times; two experts, 200 events of warm-up.
The set is published by UCI: https://archive.ics.uci.edu/dataset/183/communities+and+crime
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoERegressor

PAPER = 0.0283
"""The best of [MM]'s own table."""
REPETITIONS = 3
COLUMNS = ["mean squared error", "mean", "least repetition", "largest repetition", "target", "verdict"]


def least_squares(X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray:
    """Ordinary least squares with an intercept."""
    coefficients = np.linalg.lstsq(np.column_stack([np.ones(len(X)), X]), y, rcond=None)[0]
    return coefficients[0] + X_new @ coefficients[1:]


def one_pass(X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray:
    """Default settings but for the warm-up: [MM] takes a short one on this short stream."""
    model = MoERegressor(n_experts=2, warmup=200)
    model.learn_array(X, y)
    return model.predict_array(X_new)


def batch_em(X: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray:
    """The library's own warm-up, as long as the stream."""
    model = MoERegressor(n_experts=2, warmup=len(X))
    model.learn_array(X, y)
    return model.predict_array(X_new)


def mean_of_targets(_: np.ndarray, y: np.ndarray, X_new: np.ndarray) -> np.ndarray:
    return np.full(len(X_new), y.mean())


LEARNERS = {
    "streammoe, one pass": one_pass,
    "least squares": least_squares,
    "batch EM, 2 experts": batch_em,
    "mean of the targets": mean_of_targets,
}


def errors(X: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    """Mean squared error of each learner over the folds of each repetition, (repetitions, folds)."""
    found: dict[str, list[list[float]]] = {name: [] for name in LEARNERS}
    for repetition in range(REPETITIONS):
        for name in LEARNERS:
            found[name].append([])
        for learn, score in tasks.folds(len(y), repetition):
            center, scale = X[learn].mean(axis=0), X[learn].std(axis=0)
            inputs, new = (X[learn] - center) / scale, (X[score] - center) / scale
            for name, learner in LEARNERS.items():
                found[name][-1].append(tasks.rmse(y[score], learner(inputs, y[learn], new)) ** 2)
    return {name: np.array(values) for name, values in found.items()}


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds communities_crime/; default: $STREAMMOE_DATA")
    folder = tasks.crime_folder(parser.parse_args(argv).data)
    print(machine(), "\n")
    if folder is None:
        print(table(COLUMNS, [["no data", "", "", "", "below least squares", "not run"]]))
        print("\nPut communities.names and communities.data into communities_crime/ under a folder that")
        print(f"STREAMMOE_DATA or --data names. The set is published at {tasks.CRIME_ADDRESS}")
        return
    found = errors(*tasks.crime(folder))
    streamed, fitted = found["streammoe, one pass"], found["least squares"]
    rows = []
    for name, values in found.items():
        repetitions = values.mean(axis=1)
        judged = ["", ""]
        if values is streamed:
            judged = [f"< {fitted.mean():.5f}, least squares", "met" if streamed.mean() < fitted.mean() else "MISSED"]
        figures = (values.mean(), repetitions.min(), repetitions.max())
        rows.append([name, *(f"{figure:.5f}" for figure in figures), *judged])
    rows.append(["the paper's own figure", f"{PAPER:.5f}", "", "", "", ""])
    print(f"Communities and Crime, test error over {REPETITIONS} × {streamed.shape[1]} folds")
    print(table(COLUMNS, rows))
    print(f"One pass is below least squares on {(streamed < fitted).sum()} of {streamed.size} folds")


if __name__ == "__main__":
    main()
