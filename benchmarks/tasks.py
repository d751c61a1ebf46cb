"""What the benchmarks learn: streams whose regression function is known, and one real data set.

Inputs carry no intercept column. Equal arguments give equal numbers.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import numpy as np

GATE_SLOPE = 8.0
"""Of the logit along the first input, where a gate splits along it."""
CRIME_INPUTS = (
    "racePctWhite",
    "pctUrban",
    "MalePctDivorce",
    "PctKids2Par",
    "PctWorkMom",
    "PctIlleg",
    "PctPersDenseHous",
    "HousVacant",
    "PctVacantBoarded",
    "NumStreet",
)
CRIME_ADDRESS = "https://archive.ics.uci.edu/dataset/183/communities+and+crime"


class Stream(NamedTuple):
    """Events in order."""

    X: np.ndarray
    """(n, d) inputs."""
    y: np.ndarray
    """(n,) targets, or class indexes."""
    truth: np.ndarray
    """(n,) the regression function at each row of X, or (n, m) class probabilities: what an oracle predicts."""


def paper_5_2(n: int = 2000, seed: int = 0) -> Stream:
    """[MM] §5.2: experts −2.5 x₁ and 2.5 x₁ with unit noise, gate logit 8 x₁ for the first, a second input without use.

    The paper does not say how inputs are distributed; here they are uniform on [−1, 1]².
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 2))
    first = 1.0 / (1.0 + np.exp(-GATE_SLOPE * X[:, 0]))
    slopes = np.where(rng.random(n) < first, -2.5, 2.5)
    return Stream(X, slopes * X[:, 0] + rng.normal(size=n), (1.0 - 2.0 * first) * 2.5 * X[:, 0])


def two_experts(n: int = 20_000, seed: int = 0, d: int = 10, noise: float = 0.1) -> Stream:
    """Two linear experts of opposite slopes that agree in the last two inputs; gate logit 8 x₁ for the first."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    slopes = rng.normal(size=d)
    agreeing = np.arange(d) >= d - 2
    gate = np.zeros((2, d))
    gate[0, 0] = GATE_SLOPE
    return _mixture(rng, X, np.stack([slopes, np.where(agreeing, slopes, -slopes)]), gate, noise)


def full_gate(n: int = 20_000, seed: int = 0, k: int = 4, d: int = 10, noise: float = 0.1) -> Stream:
    """k linear experts under a gate that looks at every input, logit weights N(0, 16); the last is the reference."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    slopes = rng.normal(size=(k, d))
    gate = 4.0 * rng.normal(size=(k, d))
    gate[-1] = 0.0
    return _mixture(rng, X, slopes, gate, noise)


def classes(m: int, n: int = 20_000, seed: int = 0, d: int = 10) -> Stream:
    """m classes: two experts with opposite class weights N(0, 16) and gate logit 8 x₁ for the first.

    Targets are class indexes, and `truth` is (n, m), the probability of each class. With five classes it takes 50,000
    events to tell the experts apart well.
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    first = 1.0 / (1.0 + np.exp(-GATE_SLOPE * X[:, :1]))
    logits = 4.0 * X @ rng.normal(size=(m, d)).T
    probabilities = first * _softmax(logits) + (1.0 - first) * _softmax(-logits)
    return Stream(X, _drawn(rng, probabilities), probabilities)


def crime(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Communities and Crime: ten inputs (1994, 10) and the violent crimes per head (1994,), all scaled to [0, 1].

    Args:
        folder: holds communities.names and communities.data as published at `CRIME_ADDRESS`.
    """
    lines = (folder / "communities.names").read_text(encoding="utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    wanted = [*(names.index(name) for name in CRIME_INPUTS), len(names) - 1]
    # Other columns hold names and "?"; these are complete.
    table = np.genfromtxt(folder / "communities.data", delimiter=",", usecols=wanted)
    return table[:, :-1], table[:, -1]


def crime_folder(data: Path | None = None) -> Path | None:
    """Where the set lies: under `data`, else under the folder that STREAMMOE_DATA names; None if not there."""
    place = data or (Path(os.environ["STREAMMOE_DATA"]) if os.environ.get("STREAMMOE_DATA") else None)
    folder = place and place / "communities_crime"
    return folder if folder and (folder / "communities.data").exists() else None


def folds(n: int, repetition: int, parts: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to learn, in the order of the stream, and rows to score, for each part of a shuffled set."""
    pieces = np.array_split(np.random.default_rng(repetition).permutation(n), parts)
    return [(np.concatenate(pieces[:at] + pieces[at + 1 :]), pieces[at]) for at in range(parts)]


def rmse(y: np.ndarray, predictions: np.ndarray) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((y - predictions) ** 2)))


def _mixture(rng: np.random.Generator, X: np.ndarray, slopes: np.ndarray, gate: np.ndarray, noise: float) -> Stream:
    """Draws an expert for each row under softmax(gate · x), and a target around what that expert says."""
    g = _softmax(X @ gate.T)
    drawn = _drawn(rng, g)
    means = X @ slopes.T
    y = means[np.arange(len(X)), drawn] + noise * rng.normal(size=len(X))
    return Stream(X, y, (g * means).sum(axis=1))


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _drawn(rng: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    """One index for each row of (n, m) probabilities."""
    return (probabilities.cumsum(axis=1) > rng.random(len(probabilities))[:, None]).argmax(axis=1)
