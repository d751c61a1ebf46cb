"""Which steps and which average follow a relation that changes: standing still, abruptly, slowly, and back again.

Two linear experts under a fixed gate (the task of `two_experts`), whose coefficients change with time. Errors are
prequential, each event predicted before it is learned, in units of what an oracle makes that knows the coefficients
of the moment. `before`: the last 2,000 events before the (first) change; `during`: the first 2,000 from it on; `after`: the last
2,000 of the stream; `within 10 %`: events from the change until the last 500 are predicted as well as that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.report import machine, table
from benchmarks.tasks import GATE_SLOPE
from streammoe import MoERegressor, schedules

N = 20_000
D = 10
NOISE = 0.1
SPAN = 2_000
WINDOW = 500


class Changing(NamedTuple):
    """Events in order, and where something begins to change."""

    X: np.ndarray
    y: np.ndarray
    truth: np.ndarray
    """(n,) what an oracle predicts."""
    change: int
    """The first event of another relation; of none, the middle."""


def _stream(mix: np.ndarray, seed: int, change: int) -> Changing:
    """Events whose slopes are at the angle `mix` (n,), in quarter turns, between two random pairs."""
    n = len(mix)
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(2):
        slopes = rng.normal(size=D)
        pairs.append(np.stack([slopes, np.where(np.arange(D) >= D - 2, slopes, -slopes)]))
    X = rng.uniform(-1.0, 1.0, (n, D))
    angle = 0.5 * np.pi * mix[:, None]
    means = np.cos(angle) * (X @ pairs[0].T) + np.sin(angle) * (X @ pairs[1].T)
    first = 1.0 / (1.0 + np.exp(-GATE_SLOPE * X[:, 0]))
    drawn = (rng.random(n) >= first).astype(int)
    y = means[np.arange(n), drawn] + NOISE * rng.normal(size=n)
    return Changing(X, y, first * means[:, 0] + (1.0 - first) * means[:, 1], change)


def stationary(seed: int, n: int = N) -> Changing:
    """Nothing changes."""
    return _stream(np.zeros(n), seed, n // 2)


def abrupt(seed: int, n: int = N) -> Changing:
    """The experts change at half."""
    return _stream((np.arange(n) >= n // 2).astype(float), seed, n // 2)


def gradual(seed: int, n: int = N) -> Changing:
    """The coefficients turn slowly over the second third."""
    return _stream(np.clip((np.arange(n) - n // 3) / (n // 3), 0.0, 1.0), seed, n // 3)


def recurring(seed: int, n: int = N) -> Changing:
    """Two relations take turns, a quarter of the stream each."""
    return _stream((np.arange(n) // (n // 4) % 2).astype(float), seed, n // 4)


STREAMS: dict[str, Callable[[int], Changing]] = {
    "stationary": stationary,
    "abrupt": abrupt,
    "gradual": gradual,
    "recurring": recurring,
}


def squared_errors(stream: Changing, **arguments: Any) -> tuple[np.ndarray, MoERegressor]:
    """(n,) prequential squared errors of a model, and the model."""
    model = MoERegressor(n_experts=2, **arguments)
    model.set_columns([f"x{j}" for j in range(stream.X.shape[1])])
    outcome = model.learn_rows(stream.X, stream.y[:, None])
    return (stream.y - outcome.predictions[:, 0]) ** 2, model


def ratio(errors: np.ndarray, best: np.ndarray) -> float:
    return float(np.sqrt(errors.mean() / best.mean()))


def recovery(errors: np.ndarray, best: np.ndarray, change: int) -> float:
    """Events from the change until the last `WINDOW` are within 10 % of the oracle; infinite if never."""
    sums = np.cumsum(np.stack([errors, best])[:, change:], axis=1)
    ends = np.arange(WINDOW, sums.shape[1])
    moving = sums[:, ends] - sums[:, ends - WINDOW]
    good = np.flatnonzero(moving[0] <= 1.1**2 * moving[1])
    return float(ends[good[0]] + 1) if len(good) else np.inf


def measure(make, seeds, **arguments):
    rows = []
    for seed in seeds:
        s = make(seed)
        e, m = squared_errors(s, **arguments)
        b = (s.y - s.truth) ** 2
        c = s.change
        rows.append(
            (
                ratio(e[c - SPAN : c], b[c - SPAN : c]),
                ratio(e[c : c + SPAN], b[c : c + SPAN]),
                ratio(e[-SPAN:], b[-SPAN:]),
                recovery(e, b, c),
                m.drifts,
                ratio(e[SPAN:], b[SPAN:]),
            )
        )
    return rows
