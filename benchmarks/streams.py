"""How near do predictions come to an oracle's on long streams, each event predicted before it is learned?

The oracle knows the true regression function. Errors are taken over the last quarter of the stream.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
from river import linear_model, preprocessing

from benchmarks import tasks
from benchmarks.report import machine, table
from streammoe import MoERegressor

STREAMS = {
    "two experts, K = 2": (tasks.two_experts, 2, 1.01),
    "full gate, K = 4": (tasks.full_gate, 4, 1.03),
}
"""Generator, experts, and the target for the mean of RMSE / oracle."""


def mixture(X: np.ndarray, y: np.ndarray, n_experts: int) -> np.ndarray:
    """What a default model predicts for each row before learning it."""
    model = MoERegressor(n_experts=n_experts)
    model.set_columns([f"x{j:02}" for j in range(X.shape[1])])
    return model.learn_rows(X, y[:, None]).predictions[:, 0]


def river_linear(X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """The same for River's linear regression behind its scaler."""
    model = preprocessing.StandardScaler() | linear_model.LinearRegression()
    names = [f"x{j:02}" for j in range(X.shape[1])]
    predictions = np.empty(len(y))
    for i, (row, target) in enumerate(zip(X.tolist(), y.tolist(), strict=True)):
        x = dict(zip(names, row, strict=True))
        predictions[i] = model.predict_one(x)
        model.learn_one(x, target)
    return predictions


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10, help="streams of each kind")
    parser.add_argument("--events", type=int, default=20_000, help="events of each stream")
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    rows = []
    for title, (generate, K, target) in STREAMS.items():
        learners = {
            f"streammoe, {K} experts": lambda X, y, K=K: mixture(X, y, K),
            "streammoe, 1 expert": lambda X, y: mixture(X, y, 1),
            "river LinearRegression": river_linear,
        }
        ratios: dict[str, list[float]] = {name: [] for name in learners}
        oracle = []
        for seed in range(arguments.seeds):
            print(f"{title}: {seed + 1} of {arguments.seeds}", file=sys.stderr, flush=True)
            X, y, truth = generate(arguments.events, seed=seed)
            last = slice(3 * len(y) // 4, None)
            oracle.append(tasks.rmse(y[last], truth[last]))
            for name, learner in learners.items():
                ratios[name].append(tasks.rmse(y[last], learner(X, y)[last]) / oracle[-1])
        rows.append([title, "oracle", "1.0000", "", "", f"{np.mean(oracle):.4f}", "", ""])
        for at, (name, values) in enumerate(ratios.items()):
            mean = float(np.mean(values))
            judged = ["", ""] if at else [f"≤ {target}", "met" if mean <= target else "MISSED"]
            error = float(np.mean(np.array(values) * oracle))
            figures = (mean, min(values), max(values), error)
            rows.append([title, name, *(f"{figure:.4f}" for figure in figures), *judged])
    print(f"RMSE over the oracle's, last quarter of {arguments.events:,} events, 10 inputs, {arguments.seeds} seeds")
    print(table(["stream", "learner", "mean ratio", "least", "largest", "mean RMSE", "target", "verdict"], rows))


if __name__ == "__main__":
    main()
