"""How the cost of an event grows with features, experts, outputs, classes and rows per call."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.performance.events import short
from benchmarks.report import Target, markdown
from streammoe import Gaussian, MoEClassifier, MoEMultiTargetRegressor, MoERegressor

FEATURES = (10, 50, 100, 200, 400)
EVENTS_SO_FAR = 20_000
"""Where models start: refreshes are then as rare as in real use."""
SECONDS = 0.1
"""Time of a measurement, about."""
MOST = 20_000
"""Events of a measurement."""
ALONE: dict[str, Any] = {"serve": "polyak"}


class Case(NamedTuple):
    """A model whose cost is measured, p features with the intercept."""

    p: int = 11
    K: int = 4
    outputs: int = 1
    classes: int = 0
    family: str = "gaussian"
    rows: int = MOST
    """In a call."""
    top_k: int | None = None


CASES = {
    **{f"p = {p}": Case(p=p) for p in FEATURES},
    **{f"K = {K}": Case(K=K) for K in (1, 2, 4, 8, 16, 64)},
    **{f"{Q} outputs": Case(outputs=Q) for Q in (2, 8)},
    **{f"{M} classes, K = 2": Case(K=2, classes=M) for M in (2, 3, 10, 100)},
    **{f"{n:,} rows in a call": Case(rows=n) for n in (1, 10, 100, 1_000, 10_000)},
    **{name: Case(family=name) for name in ("student_t", "laplace")},
    "gaussian, full covariance, 3 outputs": Case(family="full", outputs=3),
    **{f"p = 51, K = 32, top_k = {top_k}": Case(p=51, K=32, top_k=top_k) for top_k in (None, 8, 4, 1)},
}
"""p = 11 features with the intercept and K = 4 experts where they are not named."""


def model_of(case: Case, options: dict[str, Any]) -> Any:
    """Create a model at event 20,000 with random parameters, and Gram matrices of N(0, I) inputs."""
    rng = np.random.default_rng(0)
    options = {**options, "top_k": case.top_k}
    p, K = case.p, case.K
    N = case.classes - 1 if case.classes else case.outputs
    is_full = "full" in case.family
    parameters = {
        "n": EVENTS_SO_FAR,
        "gate": rng.normal(size=(K - 1, p)) / np.sqrt(p),
        "experts": rng.normal(size=(K, N, p)) / np.sqrt(N * p),
        "masses": np.full(K, 1.0 / K),
        "gate_gram": np.eye(p),
        "expert_grams": np.stack([np.eye(p) / K] * K),
    }
    names = [f"x{j:03}" for j in range(p - 1)]
    if case.classes:
        return MoEClassifier.from_parameters(parameters, feature_names=names, **options)
    parameters["variances"] = np.stack([np.eye(N)] * K) if is_full else np.ones((K, N))
    if case.outputs > 1:
        expert = Gaussian("full" if is_full else "diagonal")
        return MoEMultiTargetRegressor.from_parameters(parameters, feature_names=names, expert=expert, **options)
    return MoERegressor.from_parameters(parameters, feature_names=names, expert=case.family, **options)


def events_of(case: Case, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Generate inputs, and targets of two crossing experts, or classes from their quantiles."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(count, case.p - 1))
    slopes = rng.normal(size=(2, case.p - 1)) / np.sqrt(case.p)
    y = np.where(X[:, 0] > 0, X @ slopes[0], X @ slopes[1]) + 0.3 * rng.normal(size=count)
    if case.classes:
        edges = np.quantile(y, np.linspace(0.0, 1.0, case.classes + 1)[1:-1])
        return X, np.searchsorted(edges, y)
    return X, y[:, None] + 0.3 * rng.normal(size=(count, case.outputs)) if case.outputs > 1 else y


class Timed:
    """A model that learns arrays, and goes on wherever it was timed last."""

    def __init__(self, case: Case, options: dict[str, Any]) -> None:
        """Find how many events take long enough."""
        self._rows = case.rows
        self._X, self._y = events_of(case, MOST)
        self._model = model_of(case, options)
        self._at = 0
        self._count = min(300, MOST)
        self()
        self._count = int(np.clip(SECONDS / self(), 200, MOST))

    def __call__(self) -> float:
        """Return the CPU seconds of an event."""
        if self._at + self._count > len(self._y):
            self._at = 0
        stop = self._at + self._count
        X, y, learn, rows = self._X, self._y, self._model.learn_array, self._rows
        started = time.process_time()
        for start in range(self._at, stop, rows):
            end = min(start + rows, stop)
            learn(X[start:end], y[start:end])
        self._at = stop
        return (time.process_time() - started) / self._count


def tables(rounds: int) -> tuple[str, list[Target]]:
    """Time all cases in turn, and return their table and the target."""
    options = ({}, ALONE)
    timers = {name: [Timed(case, each) for each in options] for name, case in CASES.items()}
    turns = [[[timer() for timer in pair] for pair in timers.values()] for _ in range(rounds)]
    found = dict(zip(timers, 1e6 * np.median(turns, axis=0), strict=True))
    rows = [[name, *map(short, pair)] for name, pair in found.items()]
    headers = ["p = 11, K = 4, but for", "portfolio, µs/event", "polyak, µs/event"]
    wide = [(p, found[f"p = {p}"][1]) for p in FEATURES if p >= 50]
    slope = float(np.polyfit(*np.log(wide).T, 1)[0])
    target = Target("log-log slope in p, 50 to 400, polyak", slope, 2.1)
    return f"{rounds} rounds\n\n{markdown(headers, rows)}", [target]
