"""Cost of one event: models that predict and learn the same events in turn, in one process."""

from __future__ import annotations

import gc
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from river import forest, linear_model, multiclass, preprocessing, tree

from benchmarks import tasks
from benchmarks.report import Target, markdown
from streammoe import MoEClassifier, MoERegressor, batch

REFERENCE = "River StandardScaler \\| LinearRegression"
BAYESIAN = "River StandardScaler \\| BayesianLinearRegression"
OURS, OURS_CLASSES = "streammoe, dicts", "streammoe, dicts, 3 classes"
OURS_ARRAYS, OURS_POLYAK = "streammoe, arrays", 'streammoe, arrays, serve="polyak"'
VOWPAL = "Vowpal Wabbit, Python, dicts"
EM = "streammoe.batch.fit (EM), 10,000 events"
START = ", the first 20,000 events"
SETTLED = 20_000
"""Events after which no fit runs any more."""
EVENTS = 100_000
"""Events of a stream; longer runs repeat it."""
STARTS = 3
"""Fresh models whose first events are timed."""
FITTED = 10_000
SAVES = 20

Run = Callable[[int, int], object]
"""Predict and learn the events from one index to another."""


class Events(NamedTuple):
    """The same events as dicts and as arrays."""

    dicts: list[dict[str, float]]
    targets: list[Any]
    stream: tasks.Stream


class Contender(NamedTuple):
    """A model that takes part."""

    name: str
    make: Callable[[Events], Any]
    """Creates a model."""
    steps: Callable[[Any, Events], Callable[[dict[str, float], Any], Any] | None]
    """Predicts and learns one event; None if rows are learned together."""
    is_classifier: bool = False
    at_once: int = 5_000
    """Events that are timed in each round."""
    before: int = SETTLED
    """Events learned before."""
    traced: int = 5_000
    """Events learned while memory is traced; 0 if it is not Python's."""


def has_vowpal() -> bool:
    """Return whether Vowpal Wabbit is installed, for which not every platform has a wheel."""
    return find_spec("vowpalwabbit") is not None


def events_of(stream: tasks.Stream) -> Events:
    names = [f"x{j}" for j in range(stream.X.shape[1])]
    return Events([dict(zip(names, row, strict=True)) for row in stream.X.tolist()], stream.y.tolist(), stream)


def one_by_one(model: Any, _: Events) -> Callable[[dict[str, float], Any], Any]:
    """Predict and learn by the interface of River's estimators."""
    predict, learn = model.predict_one, model.learn_one

    def step(x: dict[str, float], y: Any) -> None:
        predict(x)
        learn(x, y)

    return step


def _no_steps(_model: Any, _events: Events) -> None:
    return None


# -- Vowpal Wabbit -----------------------------------------------------------------------------------------------------


def _vowpal(options: str) -> Callable[[Events], Any]:
    def make(_: Events) -> Any:
        from vowpalwabbit import Workspace

        return Workspace(f"--quiet {options}")

    return make


def _vowpal_dicts(model: Any, _: Events) -> Callable[[dict[str, float], Any], Any]:
    """Predict an example without its label, then learn it: the fastest way of the bindings that was found."""

    def step(x: dict[str, float], y: Any) -> None:
        example = model.example({"f": x})
        model.predict(example)
        example.unsetup_example()
        example.set_label_string(str(y))
        example.setup_example()
        model.learn(example)
        model.finish_example(example)

    return step


def _vowpal_classes(model: Any, events: Events) -> Callable[[dict[str, float], Any], Any]:
    """Likewise; it counts classes from 1."""
    step = _vowpal_dicts(model, events)
    return lambda x, y: step(x, y + 1)


# -- Contenders --------------------------------------------------------------------------------------------------------


def _scaled(model: Any) -> Any:
    return preprocessing.StandardScaler() | model


CONTENDERS = (
    Contender(OURS, lambda _: MoERegressor(4), one_by_one),
    Contender(REFERENCE, lambda _: _scaled(linear_model.LinearRegression()), one_by_one),
    Contender(BAYESIAN, lambda _: _scaled(linear_model.BayesianLinearRegression()), one_by_one),
    Contender(
        "River HoeffdingAdaptiveTreeRegressor", lambda _: tree.HoeffdingAdaptiveTreeRegressor(seed=0), one_by_one,
        at_once=1_000,
    ),
    Contender("River ARFRegressor", lambda _: forest.ARFRegressor(seed=0), one_by_one, False, 200, 5_000, 2_000),
    Contender(VOWPAL, _vowpal(""), _vowpal_dicts, traced=0),
    Contender("Vowpal Wabbit, Python, dicts, -q ff", _vowpal("-q ff"), _vowpal_dicts, traced=0),
    Contender(OURS_ARRAYS, lambda _: MoERegressor(4), _no_steps, at_once=20_000),
    Contender(OURS_POLYAK, lambda _: MoERegressor(4, serve="polyak"), _no_steps, at_once=20_000),
    Contender(OURS_CLASSES, lambda _: MoEClassifier(2), one_by_one, is_classifier=True),
    Contender(
        "River StandardScaler \\| OneVsRest(LogisticRegression), 3 classes",
        lambda _: _scaled(multiclass.OneVsRestClassifier(linear_model.LogisticRegression())), one_by_one, True, 2_000,
    ),
    Contender(
        "River StandardScaler \\| SoftmaxRegression, 3 classes",
        lambda _: _scaled(linear_model.SoftmaxRegression()), one_by_one, True, 2_000,
    ),
    Contender("Vowpal Wabbit, Python, dicts, --oaa 3", _vowpal("--oaa 3"), _vowpal_classes, True, traced=0),
)  # fmt: skip


# -- Measuring ---------------------------------------------------------------------------------------------------------


def run_of(contender: Contender, model: Any, events: Events) -> Run:
    """Return what predicts and learns some events."""
    step = contender.steps(model, events)
    if step is None:
        return lambda start, stop: model.learn_array(events.stream.X[start:stop], events.stream.y[start:stop])

    def run(start: int, stop: int) -> None:
        for x, y in zip(events.dicts[start:stop], events.targets[start:stop], strict=True):
            step(x, y)

    return run


def latencies_of(step: Callable[[dict[str, float], Any], Any], events: Events, start: int, stop: int) -> list[float]:
    """Return the CPU seconds of each event, in which other programs have no part."""
    found = []
    for x, y in zip(events.dicts[start:stop], events.targets[start:stop], strict=True):
        started = time.thread_time()
        step(x, y)
        found.append(time.thread_time() - started)
    return found


def cpu_seconds(call: Callable[[], Any]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """Return median and 99 % quantile, µs."""
    middle, high = 1e6 * np.quantile(seconds, [0.5, 0.99])
    return {"p50": float(middle), "p99": float(high)}


def measured(rounds: int) -> dict[str, dict[str, float]]:
    """Time all contenders in turn; return CPU microseconds, latencies and bytes by their names."""
    regression, classes = events_of(tasks.full_gate(EVENTS)), events_of(tasks.classes(3, EVENTS))
    # Or each full collection, which any contender may cause, would walk through all events.
    gc.collect()
    gc.freeze()
    contenders = [contender for contender in CONTENDERS if has_vowpal() or not contender.name.startswith("Vowpal")]
    found: dict[str, dict[str, float]] = {}
    for contender in contenders:
        if contender.name in (OURS, OURS_CLASSES):
            found[contender.name + START] = _first(contender, classes if contender.is_classifier else regression)
    runs = []
    for contender in contenders:
        events = classes if contender.is_classifier else regression
        model = contender.make(events)
        run = run_of(contender, model, events)
        run(0, contender.before)
        runs.append((contender, events, model, run, contender.steps(model, events)))
    costs: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    waits: dict[str, list[float]] = {contender.name: [] for contender in contenders}
    places = dict.fromkeys(costs, SETTLED)
    for _ in range(rounds):
        for contender, events, _, run, step in runs:
            start, count = places[contender.name], contender.at_once
            if start + 2 * count > EVENTS:
                start = SETTLED
            costs[contender.name].append(cpu_seconds(lambda run=run, a=start, b=start + count: run(a, b)) / count)
            if step is not None:
                waits[contender.name] += latencies_of(step, events, start + count, start + 2 * count)
            places[contender.name] = start + 2 * count
    for name, seconds in costs.items():
        found[name] = {"us": 1e6 * float(np.median(seconds)), **(quantiles(waits[name]) if waits[name] else {})}
    X, y, _ = regression.stream
    fits = [cpu_seconds(lambda: batch.fit(MoERegressor(4), X[:FITTED], y[:FITTED])) for _ in range(STARTS)]
    found[EM] = {"us": 1e6 * float(np.median(fits)) / FITTED}
    for contender, _, model, _, _ in runs:
        if contender.name in (OURS, OURS_CLASSES):
            found[contender.name] |= _saved(model)
    runs.clear()
    for contender in contenders:
        if contender.traced:
            found[contender.name]["memory"] = _memory(contender, classes if contender.is_classifier else regression)
    gc.unfreeze()
    return found


def tables(rounds: int) -> tuple[str, list[Target]]:
    """Return the table of single events, and the targets."""
    found = measured(rounds)
    reference = found[REFERENCE]["us"]
    rows = [
        [
            name, short(one["us"]), f"{one['us'] / reference:.2f}",
            *(short(one[key]) if key in one else "–" for key in ("p50", "p99")),
            *(f"{one[key] / 1024:,.0f}" if key in one else "–" for key in ("memory", "checkpoint")),
            f"{one['save']:.1f}" if "save" in one else "–",
        ]
        for name, one in found.items()
    ]  # fmt: skip
    headers = ["", "CPU µs/event", f"/ {REFERENCE}", "p50, µs", "p99, µs"]
    headers += ["memory, KiB", "checkpoint, KiB", "save, ms"]
    ours = found[OURS]
    targets = [
        Target("dicts / River's scaler and LinearRegression", ours["us"] / reference, 0.85),
        Target("the first 20,000 of them", found[OURS + START]["us"] / reference, 1.3),
        Target("dicts / BayesianLinearRegression", ours["us"] / found[BAYESIAN]["us"], 1.0),
        Target("dicts: p99 / median", ours["p99"] / ours["p50"], 3.0),
    ]
    if VOWPAL in found:
        targets.append(Target("dicts / Vowpal Wabbit's bindings", ours["us"] / found[VOWPAL]["us"], 1.0))
    return f"Predict and learn one event; {rounds} rounds\n\n{markdown(headers, rows)}", targets


def short(value: float) -> str:
    """Show three digits."""
    return f"{value:,.0f}" if value >= 100.0 else f"{value:.3g}"


def _first(contender: Contender, events: Events) -> dict[str, float]:
    """Time the first events of fresh models, after one that loads the kernels."""
    costs, waits = [], []
    for turn in range(STARTS + 1):
        step = contender.steps(contender.make(events), events)
        assert step is not None
        started = time.process_time()
        seconds = latencies_of(step, events, 0, SETTLED)
        if turn:
            costs.append((time.process_time() - started) / SETTLED)
            waits += seconds
    return {"us": 1e6 * float(np.median(costs)), **quantiles(waits)}


def _saved(model: Any) -> dict[str, float]:
    """Return the bytes of a checkpoint, and the milliseconds by the clock in which one is saved."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.safetensors")
        seconds = []
        for _ in range(SAVES):
            started = time.perf_counter()
            model.save(path)
            seconds.append(time.perf_counter() - started)
        return {"checkpoint": path.stat().st_size, "save": 1e3 * float(np.median(seconds))}


def _memory(contender: Contender, events: Events) -> float:
    """Return the largest number of bytes that Python and NumPy held for a model during its first events."""
    gc.collect()
    tracemalloc.start()
    try:
        model = contender.make(events)
        run_of(contender, model, events)(0, contender.traced)
        return float(tracemalloc.get_traced_memory()[1])
    finally:
        tracemalloc.stop()
