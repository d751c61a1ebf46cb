"""Tasks of the benchmarks: generated streams with a known truth, and real data sets, which are not included.

Inputs carry no intercept column. Equal arguments give equal numbers.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

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


class Mixture(NamedTuple):
    """Parameters of two experts, over an intercept and the inputs; the second is the gate's reference."""

    gate: np.ndarray
    """(1, p)."""
    experts: np.ndarray
    """(2, p)."""
    variances: np.ndarray
    """(2,)."""

    def drawn(self, rng: np.random.Generator, X: np.ndarray) -> Stream:
        """Draw a target for each row."""
        W = np.column_stack([np.ones(len(X)), X])
        first = 1.0 / (1.0 + np.exp(-W @ self.gate[0]))
        chosen = (rng.random(len(X)) >= first).astype(int)
        means = W @ self.experts.T
        y = means[np.arange(len(X)), chosen] + np.sqrt(self.variances)[chosen] * rng.normal(size=len(X))
        return Stream(X, y, first * means[:, 0] + (1.0 - first) * means[:, 1])


def paper_5_2(n: int = 2000, seed: int = 0) -> tuple[Stream, Mixture]:
    """[MM] §5.2: experts −2.5 x₁ and 2.5 x₁ with unit noise, gate logit 8 x₁ for the first, a second, irrelevant input.

    The paper does not say how inputs are distributed; here they are uniform on [−1, 1]².
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, 2))
    mixture = Mixture(
        np.array([[0.0, GATE_SLOPE, 0.0]]), np.array([[0.0, -2.5, 0.0], [0.0, 2.5, 0.0]]), np.array([1.0, 1.0])
    )
    return mixture.drawn(rng, X), mixture


def paper_5_3(n: int = 1000, seed: int = 0, d: int = 10) -> tuple[Stream, Mixture]:
    """[MM] §5.3, Algorithm 4: two experts in x₁, the other inputs irrelevant; gate logit 8 x₁ for the first.

    Intercepts and slopes are uniform on [1.5, 5], the second expert's slope is negated, variances are uniform on
    [0.5, 1.5]. Inputs are uniform on [−1, 1]ᵈ here.
    """
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    experts = np.zeros((2, 1 + d))
    experts[:, 0] = rng.uniform(1.5, 5.0, 2)
    experts[:, 1] = rng.uniform(1.5, 5.0, 2) * [1.0, -1.0]
    gate = np.zeros((1, 1 + d))
    gate[0, 1] = GATE_SLOPE
    mixture = Mixture(gate, experts, rng.uniform(0.5, 1.5, 2))
    return mixture.drawn(rng, X), mixture


class Gridlock(NamedTuple):
    """A mixture without intercepts, to be recovered from its events."""

    X: np.ndarray
    """(n, d) inputs."""
    y: np.ndarray
    """(n,) targets."""
    regressors: np.ndarray
    """(k, d) of length 1."""
    gate: np.ndarray
    """(k, d) of length 1, but for the last, which is 0."""


def gridlock(
    n: int = 2000,
    seed: int = 0,
    k: int = 2,
    d: int = 10,
    sigma: float = 0.1,
    p: float | None = None,
    orthogonal: bool = False,
) -> Gridlock:
    """[CQT] §4: regressors and gate weights uniform on the unit sphere.

    Args:
        n: number of events.
        seed: of all random numbers.
        k: number of experts.
        d: number of inputs.
        sigma: deviation of the noise.
        p: if None, inputs are N(0, I), else a mixture of two normals, the first one's share p, with means on the
            sphere.
        orthogonal: whether regressors and gate weights are orthogonal to each other.
    """
    rng = np.random.default_rng(seed)
    regressors, weights = _on_sphere(rng, k, d), _on_sphere(rng, k - 1, d)
    if orthogonal:
        directions = np.linalg.qr(np.vstack([regressors, weights]).T)[0].T
        regressors, weights = directions[:k], directions[k:]
    gate = np.vstack([weights, np.zeros((1, d))])
    X = rng.normal(size=(n, d))
    if p is not None:
        means = _on_sphere(rng, 2, d)
        X += np.where(rng.random((n, 1)) < p, means[:1], means[1:])
    drawn = _drawn(rng, _softmax(X @ gate.T))
    y = (X @ regressors.T)[np.arange(n), drawn] + sigma * rng.normal(size=n)
    return Gridlock(X, y, regressors, gate)


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
    """k linear experts under a gate that uses every input, logit weights N(0, 16); the last is the reference."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1.0, 1.0, (n, d))
    slopes = rng.normal(size=(k, d))
    gate = 4.0 * rng.normal(size=(k, d))
    gate[-1] = 0.0
    return _mixture(rng, X, slopes, gate, noise)


MIXTURES: dict[str, tuple[int, Callable[..., Stream]]] = {"two experts": (2, two_experts), "full gate": (4, full_gate)}
"""How many experts a stream has, and its generator."""


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


class Truth(NamedTuple):
    """Parameters of [DMoE]'s simulation: K experts, d inputs that lie around K centers."""

    centers: np.ndarray
    """(K, d)"""
    intercepts: np.ndarray
    """(K,)"""
    slopes: np.ndarray
    """(d, K)"""
    variances: np.ndarray
    """(K,)"""
    gate_intercepts: np.ndarray
    """(K,) the last is 0."""
    gate: np.ndarray
    """(d, K) the last column is 0."""


def random_truth(seed: int, k: int = 4, d: int = 20) -> Truth:
    """Whole numbers in [−5, 5] ([DMoE] §5), and variances in [1, 5]: nearly hard gates, and rare experts."""
    rng = np.random.default_rng(1000 + seed)

    def whole(*shape: int) -> np.ndarray:
        return rng.integers(-5, 6, shape).astype(float)

    gate, gate_intercepts = whole(d, k), whole(k)
    gate[:, -1] = gate_intercepts[-1] = 0.0
    return Truth(whole(k, d), whole(k), whole(d, k), rng.integers(1, 6, k).astype(float), gate_intercepts, gate)


def published_truth(path: Path) -> Truth:
    """Read the parameters of one of [DMoE]'s draws from a JSON file with the tables `MU` and `param`."""
    tables = json.loads(path.read_text(encoding="utf-8"))
    found = {name: np.array(values, dtype=float) for name, values in tables["param"].items()}
    centers = np.array([tables["MU"][f"MU{k + 1}"] for k in range(len(found["beta0"]))], dtype=float)
    return Truth(centers, found["beta0"], found["Beta"], found["sigma2"], found["alpha0"], found["Alpha"])


def distributed(truth: Truth, n: int, seed: int = 0) -> Stream:
    """[DMoE] §5: n/K inputs around each center, with covariance ¼^|u−v|, in random order."""
    rng = np.random.default_rng(seed)
    k, d = truth.centers.shape
    covariance = 0.25 ** np.abs(np.subtract.outer(np.arange(d), np.arange(d)))
    near = rng.permutation(np.arange(n) % k)
    X = truth.centers[near] + rng.normal(size=(n, d)) @ np.linalg.cholesky(covariance).T
    shares = _softmax(X @ truth.gate + truth.gate_intercepts)
    drawn = _drawn(rng, shares)
    means = X @ truth.slopes + truth.intercepts
    y = means[np.arange(n), drawn] + np.sqrt(truth.variances[drawn]) * rng.normal(size=n)
    return Stream(X, y, (shares * means).sum(axis=1))


def crime(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Communities and Crime: ten inputs (1994, 10) and the violent crimes per head (1994,), all scaled to [0, 1].

    Args:
        folder: holds communities.names and communities.data as published at `CRIME_ADDRESS`.
    """
    lines = (folder / "communities.names").read_text(encoding="utf-8").splitlines()
    names = [line.split()[1] for line in lines if line.startswith("@attribute")]
    wanted = [*(names.index(name) for name in CRIME_INPUTS), len(names) - 1]
    # Other columns contain names and "?"; these are complete.
    table = np.genfromtxt(folder / "communities.data", delimiter=",", usecols=wanted)
    return table[:, :-1], table[:, -1]


def crime_folder(data: Path | None = None) -> Path | None:
    """Return the location of the set in the data folder; None if it is missing."""
    folder = data_folder(data)
    folder = folder and folder / "communities_crime"
    return folder if folder and (folder / "communities.data").exists() else None


def distributed_file(data: Path | None = None) -> Path | None:
    """Return the location of [DMoE]'s published parameters in the data folder; None if they are missing."""
    folder = data_folder(data)
    path = folder and folder / "dmoe_sim_params" / "param_MU.json"
    return path if path and path.exists() else None


def data_folder(data: Path | None = None) -> Path | None:
    """The folder for data sets: `data`, else the one that STREAMMOE_DATA names; None if neither is given."""
    return data or (Path(os.environ["STREAMMOE_DATA"]) if os.environ.get("STREAMMOE_DATA") else None)


def folds(n: int, repetition: int, parts: int = 5) -> list[tuple[np.ndarray, np.ndarray]]:
    """Split into rows to learn, in stream order, and rows to score, for each fold of a shuffled set."""
    pieces = np.array_split(np.random.default_rng(repetition).permutation(n), parts)
    return [(np.concatenate(pieces[:at] + pieces[at + 1 :]), pieces[at]) for at in range(parts)]


def names_of(X: np.ndarray) -> list[str]:
    """Return names of inputs that keep their order when sorted."""
    return [f"x{j:02}" for j in range(X.shape[1])]


def predicted(model: Any, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the predictions of all numbers, each made before its event was learned (*prequential*)."""
    if not model.fields:
        model.set_columns(names_of(X))
    predictions: np.ndarray = model.learn_rows(X, y[:, None]).predictions[:, 0]
    return predictions


def rmse(y: np.ndarray, predictions: np.ndarray) -> float:
    """Root mean squared error."""
    return float(np.sqrt(np.mean((y - predictions) ** 2)))


def over_oracle(stream: Stream, predictions: np.ndarray, rows: slice | None = None) -> float:
    """Return the RMSE over that of the true regression function; by default over the last quarter of the stream."""
    rows = slice(-(len(stream.y) // 4), None) if rows is None else rows
    return rmse(stream.y[rows], predictions[rows]) / rmse(stream.y[rows], stream.truth[rows])


def _mixture(rng: np.random.Generator, X: np.ndarray, slopes: np.ndarray, gate: np.ndarray, noise: float) -> Stream:
    """Draw an expert for each row from softmax(gate · x), and a target around its prediction."""
    g = _softmax(X @ gate.T)
    drawn = _drawn(rng, g)
    means = X @ slopes.T
    y = means[np.arange(len(X)), drawn] + noise * rng.normal(size=len(X))
    return Stream(X, y, (g * means).sum(axis=1))


def _on_sphere(rng: np.random.Generator, m: int, d: int) -> np.ndarray:
    """(m, d), rows uniform on the unit sphere."""
    rows = rng.normal(size=(m, d))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def _softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def _drawn(rng: np.random.Generator, probabilities: np.ndarray) -> np.ndarray:
    """One index for each row of (n, m) probabilities."""
    return (probabilities.cumsum(axis=1) > rng.random(len(probabilities))[:, None]).argmax(axis=1)
