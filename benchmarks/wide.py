"""Accuracy and cost of curvature in blocks, next to whole matrices, on wide streams.

Each stream is a mixture of linear experts under a steep gate, over inputs that are independent, share five factors, are
correlated with their neighbors, or are levels of categories. Errors include the noise. Times are of the process's CPU.
All models have warm-ups of the same length, whose end decides much on such streams.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import machine, table
from streammoe import Blocks, MoERegressor, schedules

AT_ONCE = 50
WARM_UP, ROWS_PER_INPUT = 1_000, 3
"""Events of a warm-up, and for each input."""
MODELS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, n^-0.8": {"schedule": schedules.power(0.8)},
    "blocks of 1": {"curvature": Blocks(1)},
    "blocks of 8": {"curvature": Blocks(8)},
    "blocks of 32": {"curvature": "blocks"},
    "blocks of 128": {"curvature": Blocks(128)},
}


def independent(rng: np.random.Generator, n: int, p: int) -> np.ndarray:
    """Return normal inputs."""
    return rng.normal(size=(n, p))


def factors(rng: np.random.Generator, n: int, p: int) -> np.ndarray:
    """Return inputs that share five factors."""
    load = rng.normal(size=(5, p))
    return (rng.normal(size=(n, 5)) @ load + rng.normal(size=(n, p))) / np.sqrt((load**2).sum(axis=0) + 1.0)


def neighbors(rng: np.random.Generator, n: int, p: int) -> np.ndarray:
    """Return inputs that are correlated by 0.9 with the next one, in an order that tells nothing of that."""
    noise = rng.normal(size=(n, p))
    found = noise.copy()
    for j in range(1, p):
        found[:, j] = 0.9 * found[:, j - 1] + np.sqrt(0.19) * noise[:, j]
    return found[:, rng.permutation(p)]


def levels(rng: np.random.Generator, n: int, p: int) -> np.ndarray:
    """Return columns of 0 and 1 for the levels of some categories."""
    each = 10 if p <= 100 else 25
    return np.hstack([np.eye(each)[rng.choice(each, n, p=rng.dirichlet(np.full(each, 2.0)))] for _ in range(p // each)])


STREAMS: dict[str, Callable[[np.random.Generator, int, int], np.ndarray]] = {
    "independent": independent,
    "factors": factors,
    "neighbors": neighbors,
    "levels": levels,
}


def targets(rng: np.random.Generator, X: np.ndarray, n_experts: int) -> np.ndarray:
    """Return a mixture of linear experts with dense coefficients, whose signal has the variance 1 for any inputs."""
    n, p = X.shape
    signal = X @ rng.normal(size=(p, n_experts))
    signal /= signal.std(axis=0)
    gate = X @ rng.normal(size=(p, n_experts))
    gate *= 3.0 / gate.std(axis=0)
    chosen = (gate + rng.gumbel(size=gate.shape)).argmax(axis=1)
    return signal[np.arange(n), chosen] + 0.5 * rng.normal(size=n_experts)[chosen] + 0.5 * rng.normal(size=n)


class Measured(NamedTuple):
    """What a model has done with the last half of a stream."""

    error: float
    """RMSE, each `AT_ONCE` events predicted before any of them was learned."""
    loss: float
    """Mean −log of the density, each event predicted before it was learned."""
    milliseconds: float
    """To learn an event."""
    megabytes: float
    """Of the arrays of a checkpoint."""


def measured(X: np.ndarray, y: np.ndarray, n_experts: int, given: dict[str, Any]) -> Measured:
    """Let a model learn a stream."""
    warm_up = max(WARM_UP, ROWS_PER_INPUT * X.shape[1])
    model = MoERegressor(n_experts, warmup=warm_up, **given)
    names = [f"x{j:04d}" for j in range(X.shape[1])]
    half, errors, losses, seconds = len(y) // 2, [], [], 0.0
    for start in range(0, len(y), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        if start >= half:
            errors.append(y[rows] - model.predict_array(X[rows], feature_names=names))
        before = time.process_time()
        found = model.learn_array(X[rows], y[rows], feature_names=names)
        if start >= half:
            seconds += time.process_time() - before
            losses.append(found)
    return Measured(
        float(np.sqrt(np.mean(np.concatenate(errors) ** 2))),
        float(np.mean(np.concatenate(losses))),
        1e3 * seconds / (len(y) - half),
        sum(array.nbytes for array in model.arrays().values()) / 1e6,
    )


def main(argv: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, nargs="+", default=[50, 200], help="numbers of inputs")
    parser.add_argument("--events", type=int, default=10_000, help="events of each stream")
    parser.add_argument("--experts", type=int, default=2, help="experts of streams and models")
    parser.add_argument("--streams", nargs="+", default=list(STREAMS), choices=list(STREAMS))
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    arguments = parser.parse_args(argv)
    print(machine(), "\n")
    rows = []
    for p in arguments.inputs:
        for name in arguments.streams:
            rng = np.random.default_rng(0)
            X = STREAMS[name](rng, arguments.events, p)
            y = targets(rng, X, arguments.experts)
            first: Measured | None = None
            for model in arguments.models:
                print(p, name, model, file=sys.stderr, flush=True)
                found = measured(X, y, arguments.experts, MODELS[model])
                first = first or found
                rows.append(
                    [
                        str(p),
                        name,
                        model,
                        f"{found.error:.3f}",
                        f"{found.error / first.error:.3f}",
                        f"{found.loss - first.loss:+.3f}",
                        f"{found.milliseconds:.3f}",
                        f"{found.megabytes:.1f}",
                    ]
                )
    print(f"{arguments.experts} experts, {arguments.events:,} events, of which the last half counts; RMSE and log-loss")
    print("also relative to the first model's")
    print(table(["inputs", "stream", "curvature", "RMSE", "ratio", "log-loss", "ms an event", "MB"], rows))


if __name__ == "__main__":
    main()
