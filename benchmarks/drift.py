"""Which steps, averages or portfolio follow a relation that stays, changes abruptly, changes slowly, or alternates?

Two linear experts under a fixed gate, as in `two_experts`, whose coefficients change with time. Errors are prequential,
each event predicted before it is learned, and shown over those of an oracle that knows the coefficients of the moment:
`before`, the last 2,000 events before the first change; `during`, the first 2,000 of the new relation, or the last
2,000 of a slow change; `after`, the last 2,000 of the stream; `all`, from event 2,000 on. `within 10 %` is how many
events after the change it takes until the last 500 are predicted that well (the median of the seeds; inf: never).

A second table counts false alarms of the detector on streams that do not change; `--events` is their length.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from benchmarks import tasks
from benchmarks.report import parsed, table
from streammoe import MoEClassifier, MoERegressor, schedules

N = 20_000
D = 10
NOISE = 0.1
SPAN = 2_000
WINDOW = 500
AT_ONCE = 50_000


class Changing(NamedTuple):
    """Events in order, and the event at which their relation changes."""

    X: np.ndarray
    y: np.ndarray
    truth: np.ndarray
    """(n,) what an oracle predicts."""
    begins: int
    """The first event of another relation; the middle where there is none."""
    ends: int
    """The first event of the new relation: `begins` unless the change is slow."""


def _stream(mix: np.ndarray, seed: int, begins: int, ends: int | None = None) -> Changing:
    """Generate events whose slopes lie between two random pairs, at the angle `mix` (n,) in quarter turns."""
    n = len(mix)
    rng = np.random.default_rng(seed)
    drawn = rng.normal(size=(2, D))
    X = rng.uniform(-1.0, 1.0, (n, D))
    angle = 0.5 * np.pi * mix[:, None]
    slopes = np.cos(angle) * drawn[0] + np.sin(angle) * drawn[1]
    # The second expert has the opposite slopes, except for two inputs in which both agree.
    agreeing = np.arange(D) >= D - 2
    means = np.stack([(X * slopes).sum(axis=1), (X * np.where(agreeing, slopes, -slopes)).sum(axis=1)])
    first = 1.0 / (1.0 + np.exp(-tasks.GATE_SLOPE * X[:, 0]))
    y = np.where(rng.random(n) < first, means[0], means[1]) + NOISE * rng.normal(size=n)
    return Changing(X, y, first * means[0] + (1.0 - first) * means[1], begins, begins if ends is None else ends)


def stationary(seed: int, n: int = N) -> Changing:
    """Nothing changes."""
    return _stream(np.zeros(n), seed, n // 2)


def abrupt(seed: int, n: int = N) -> Changing:
    """The experts change at half."""
    return _stream((np.arange(n) >= n // 2).astype(float), seed, n // 2)


def gradual(seed: int, n: int = N) -> Changing:
    """The coefficients turn slowly over the second third."""
    third = n // 3
    return _stream(np.clip((np.arange(n) - third) / third, 0.0, 1.0), seed, third, 2 * third)


def recurring(seed: int, n: int = N) -> Changing:
    """Two relations take turns, a quarter of the stream each."""
    return _stream((np.arange(n) // (n // 4) % 2).astype(float), seed, n // 4)


STREAMS: dict[str, Callable[[int], Changing]] = {
    make.__name__: make for make in (stationary, abrupt, gradual, recurring)
}
SLOW, QUICK = schedules.Constant(0.003), schedules.Constant(0.01)
OFF = {"drift": None}
ALONE = {"serve": "polyak"}
CHOICES: dict[str, dict[str, Any]] = {
    "default: drift on, portfolio": {},
    "drift off, portfolio": OFF,
    "the average alone, drift off": {**OFF, **ALONE},
    "… drift on": ALONE,
    '… drift on, "decay"': {**ALONE, "averaging": "decay"},
    '… drift off, "none"': {**OFF, **ALONE, "averaging": None},
    "… constant 0.003, drift off": {**OFF, **ALONE, "schedule": SLOW},
    "… constant 0.01, drift off": {**OFF, **ALONE, "schedule": QUICK},
    '… drift on, constant 0.003, "none"': {**ALONE, "schedule": SLOW, "averaging": None},
}


class Run(NamedTuple):
    """Results of a model on a stream."""

    errors: np.ndarray
    """(n,) prequential squared errors."""
    best: np.ndarray
    """(n,) those of the oracle."""
    drifts: int


class Measured(NamedTuple):
    """Return errors relative to those of an oracle."""

    before: float
    during: float
    after: float
    all: float
    recovery: float
    """Events; infinite if never."""
    drifts: float


def run(stream: Changing, **arguments: Any) -> Run:
    """Predict and learn a stream with two experts."""
    model = MoERegressor(n_experts=2, **arguments)
    predictions = tasks.predicted(model, stream.X, stream.y)
    return Run((stream.y - predictions) ** 2, (stream.y - stream.truth) ** 2, model.drifts)


def measured(stream: Changing, done: Run) -> Measured:
    """Compute the rows of the table for one stream."""

    def ratio(start: int, stop: int) -> float:
        return float(np.sqrt(done.errors[start:stop].mean() / done.best[start:stop].mean()))

    begins, ends, n = stream.begins, stream.ends, len(stream.y)
    during = begins if begins == ends else ends - SPAN
    return Measured(
        ratio(begins - SPAN, begins),
        ratio(during, during + SPAN),
        ratio(n - SPAN, n),
        ratio(SPAN, n),
        recovery(done, ends),
        done.drifts,
    )


def recovery(done: Run, change: int) -> float:
    """Count events from the change until the last `WINDOW` are within 10 % of the oracle; infinite if never."""
    sums = np.cumsum([done.errors[change:], done.best[change:]], axis=1)
    moving = sums[:, WINDOW:] - sums[:, :-WINDOW]
    good = np.flatnonzero(moving[0] <= 1.1**2 * moving[1])
    return float(good[0] + WINDOW + 1) if len(good) else float("inf")


def comparison(seeds: int) -> str:
    """Compute the table of all choices on all streams: means over seeds, and the median of the delay."""
    rows = []
    for name, make in STREAMS.items():
        streams = [make(seed) for seed in range(seeds)]
        for choice, arguments in CHOICES.items():
            found = np.array([measured(stream, run(stream, **arguments)) for stream in streams])
            took = "-" if name == "stationary" else f"{np.median(found[:, 4]):,.0f}"
            rows.append([name, choice, *(f"{mean:.3f}" for mean in found[:, :4].mean(axis=0)), took])
            rows[-1].append(f"{found[:, 5].mean():.1f}")
    return table(["stream", "steps, who predicts", "before", "during", "after", "all", "within 10 %", "drifts"], rows)


# -- False alarms ------------------------------------------------------------------------------------------------------


def tailed(draw: Callable[[np.random.Generator, int], np.ndarray]) -> Callable[[int], tasks.Stream]:
    """Generate two experts with noise from `draw`."""

    def make(n: int) -> tasks.Stream:
        rng = np.random.default_rng(1)
        X = rng.normal(size=(n, 4))
        means = X @ rng.normal(size=(4, 2))
        chosen = (rng.random(n) >= 1.0 / (1.0 + np.exp(-4.0 * X[:, 0]))).astype(int)
        return tasks.Stream(X, means[np.arange(n), chosen] + 0.3 * draw(rng, n), np.empty(0))

    return make


def slow_inputs(n: int) -> tasks.Stream:
    """Generate a curve that lines do not fit, with inputs that take about 100 events to move."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(n, 3))
    for i in range(1, n):
        X[i] = 0.99 * X[i - 1] + 0.141 * X[i]
    y = np.sin(2.0 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.2 * rng.normal(size=n)
    return tasks.Stream(X, y, np.empty(0))


STANDING: dict[str, tuple[type[MoERegressor | MoEClassifier], int, Callable[[int], tasks.Stream]]] = {
    "two experts": (MoERegressor, 2, lambda n: tasks.two_experts(n, 1)),
    "four experts, full gate": (MoERegressor, 4, lambda n: tasks.full_gate(n, 1)),
    "the same with two": (MoERegressor, 2, lambda n: tasks.full_gate(n, 1)),
    "Cauchy noise": (MoERegressor, 2, tailed(lambda rng, n: rng.standard_cauchy(n))),
    "log-normal noise": (MoERegressor, 2, tailed(lambda rng, n: rng.lognormal(size=n))),
    "slow inputs, a curve": (MoERegressor, 4, slow_inputs),
    "2 classes": (MoEClassifier, 2, lambda n: tasks.classes(2, n, 1)),
    "5 classes": (MoEClassifier, 2, lambda n: tasks.classes(5, n, 1)),
}


def alarms(n: int) -> str:
    """Compute the table of drifts that are found where there are none."""
    rows = []
    for name, (kind, n_experts, make) in STANDING.items():
        stream = make(n)
        model = kind(n_experts=n_experts)
        for start in range(0, n, AT_ONCE):
            model.learn_array(stream.X[start : start + AT_ONCE], stream.y[start : start + AT_ONCE])
        rows.append([name, model.drifts])
    return table([f"a default model, {n:,} events", "false alarms"], rows)


def main() -> None:
    """Print the tables."""
    given = parsed(__doc__, seeds=8, events=1_000_000)
    print(f"{N:,} events, means over {given.seeds} seeds; root mean squared errors over the oracle's\n")
    print(comparison(given.seeds), "\n", flush=True)
    print(alarms(given.events))


if __name__ == "__main__":
    main()
