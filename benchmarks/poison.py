"""What does one bad event do to a model, between 500 and 2,000 good ones?

Each model is compared with a twin of its kind that never saw the bad event, by the error over the last 1,000 events,
each predicted before it is learned: the mean squared error, or the share of wrong classes.

- `ok`: the error is that of the twin; for our models every bit is, too, and the bad event was rejected with
  `InvalidEvent` or went to the dead letters.
- `damaged`: more than ten times the twin's root mean squared error, or share of wrong classes, or half of them wrong.
- `dead`: it predicts NaN or an infinity, or raises at valid events.
- `raises`: the bad event itself raised something, and the model is as good as its twin.
- –: there is no such value: neither pandas nor Parquet has numbers of 400 digits, NumPy has no lists among numbers; in
  the daemon None is a missing value; River's models have no weights, and accept any target as a class.
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pandas as pd
from river import forest, linear_model, preprocessing, tree

from benchmarks.report import machine, table
from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.options import WarmUp
from streammoe.pipeline.pipeline import Pipeline, Schema
from streammoe.pipeline.scores import ClassificationScores, PrequentialScores
from tests.batches import batch_of

BEFORE, AFTER, JUDGED = 500, 2_000, 1_000
CASES: dict[str, tuple[str, Any]] = {
    "x nan": ("a", math.nan),
    "x inf": ("a", math.inf),
    "x 1e300": ("a", 1e300),
    "x 10^400": ("a", 10**400),
    "x text": ("a", "abc"),
    "x list": ("a", [1.0]),
    "x None": ("a", None),
    "y nan": ("y", math.nan),
    "y inf": ("y", math.inf),
    "y 1e300": ("y", 1e300),
    "y list": ("y", [1.0]),
    "w nan": ("w", math.nan),
    "w -1": ("w", -1.0),
    "w 1e300": ("w", 1e300),
}
KINDS = ("regressor", "outputs", "classifier")
WAYS = ("learn_one", "learn_many", "learn_array", "csv", "jsonl", "parquet")
QUICK = {"n_experts": 2, "warmup": WarmUp(200, restarts=1)}
NONE = "–"
ABSENT = {("learn_many", "x 10^400"), ("parquet", "x 10^400"), ("learn_array", "x list"), ("learn_array", "y list")}
ABSENT |= {("learn_array", "x 10^400")} | {(way, "x None") for way in ("csv", "jsonl", "parquet")}


# --- events ---------------------------------------------------------------------------------------------------------


@cache
def events(kind: str) -> tuple[dict[str, Any], ...]:
    """Generate valid events: two features, with a slope that depends on the sign of the first."""
    rng = np.random.default_rng(0)
    found = []
    for a, b, noise in rng.normal(size=(BEFORE + AFTER, 3)).tolist():
        value = (b if a > 0 else -b) + 0.1 * noise
        target = "up" if value > 0 else "down"
        held = {"a": a, "b": b, "w": 1.0, "y": target if kind == "classifier" else value}
        found.append({**held, "z": -value} if kind == "outputs" else held)
    return tuple(found)


def targets(kind: str) -> tuple[str, ...]:
    return ("y", "z") if kind == "outputs" else ("y",)


def bad_event(kind: str, case: str) -> dict[str, Any]:
    field, value = CASES[case]
    return {**events(kind)[0], field: value}


# --- ours -----------------------------------------------------------------------------------------------------------


def model_of(kind: str) -> Any:
    match kind:
        case "regressor":
            return MoERegressor(**QUICK)
        case "outputs":
            return MoEMultiTargetRegressor(**QUICK)
        case _:
            return MoEClassifier(**QUICK, classes=("up", "down"))


def learn(model: Any, kind: str, way: str, held: list[dict[str, Any]]) -> None:
    """Learn these events at once, or one by one."""
    names, outputs = ["a", "b"], list(targets(kind))
    if way == "learn_one":
        for each in held:
            y = {name: each[name] for name in outputs} if kind == "outputs" else each["y"]
            model.learn_one({name: each[name] for name in names}, y, w=each["w"])
        return
    if way == "learn_many":
        X = pd.DataFrame({name: [each[name] for each in held] for name in names})
        y = pd.DataFrame({name: [each[name] for each in held] for name in outputs})
        model.learn_many(X, y if kind == "outputs" else y["y"], [each["w"] for each in held])
        return
    X = np.array([[each[name] for name in names] for each in held])
    Y = np.array([[each[name] for name in outputs] for each in held])
    weights = np.array([each["w"] for each in held])
    model.learn_array(X, Y if kind == "outputs" else Y[:, 0], feature_names=names, w=weights)


def ours(kind: str, way: str, case: str) -> str:
    """Return `ok`, or what is wrong."""
    if (way, case) in ABSENT:
        return NONE
    if way in {"csv", "jsonl", "parquet"}:
        return _daemon(kind, way, case)
    model, twin = model_of(kind), model_of(kind)
    good, bad = list(events(kind)), bad_event(kind, case)
    for each in (model, twin):
        learn(each, kind, way, good[:BEFORE])
    try:
        learn(model, kind, way, [bad] if way == "learn_one" else [good[0], bad, good[1]])
        return "learned"
    except InvalidEvent:
        pass  # as it should
    for each in (model, twin):
        learn(each, kind, way, good[BEFORE:])
    return "ok" if model.state_digest() == twin.state_digest() else "damaged"


def _daemon(kind: str, way: str, case: str) -> str:
    line, twin = _line(kind), _line(kind)
    good, bad = list(events(kind)), bad_event(kind, case)
    for part in (good[:BEFORE], [bad], good[BEFORE:]):
        done = line.process(batch_of(part, way))
        if done.outcomes["rejected"] != (part[0] is bad):
            return "learned" if part[0] is bad else "dead"
        if part[0] is not bad:
            twin.process(batch_of(part, way))
    return "ok" if line.model.state_digest() == twin.model.state_digest() else "damaged"


def _line(kind: str) -> Pipeline:
    model, names = model_of(kind), targets(kind)
    if kind == "outputs":
        model.set_targets(names)
    scores = ClassificationScores() if kind == "classifier" else PrequentialScores(len(names))
    return Pipeline(model, Schema(names, ("a", "b"), weight="w"), scores)


# --- River's --------------------------------------------------------------------------------------------------------

PEERS: dict[str, dict[str, Callable[[], Any]]] = {
    "regressor": {
        "river LinearRegression": linear_model.LinearRegression,
        "river StandardScaler | LinearRegression": lambda: (
            preprocessing.StandardScaler() | linear_model.LinearRegression()
        ),
        "river BayesianLinearRegression": linear_model.BayesianLinearRegression,
        "river HoeffdingTreeRegressor": tree.HoeffdingTreeRegressor,
        "river ARFRegressor": lambda: forest.ARFRegressor(n_models=3, seed=0),
    },
    "classifier": {
        "river LogisticRegression": linear_model.LogisticRegression,
        "river StandardScaler | LogisticRegression": lambda: (
            preprocessing.StandardScaler() | linear_model.LogisticRegression()
        ),
        "river SoftmaxRegression": linear_model.SoftmaxRegression,
    },
}


def peer(kind: str, make: Callable[[], Any], case: str) -> str:
    """Return what becomes of a River model."""
    field, value = CASES[case]
    if field == "w" or (kind == "classifier" and field == "y"):
        return NONE
    model, raised = make(), False
    good = _for_river(kind)
    for x, y in good[:BEFORE]:
        model.learn_one(x, y)
    x, y = good[0]
    try:
        model.learn_one(*((x, value) if field == "y" else ({**x, field: value}, y)))
    except Exception:  # noqa: BLE001 - River promises nothing of what it raises
        raised = True
    try:
        errors = _errors(kind, model, good[BEFORE:])
    except Exception:  # noqa: BLE001 - same
        return "dead"
    if not np.isfinite(errors).all():
        return "dead"
    error, usual = float(np.mean(errors[-JUDGED:])), _usual(kind, make)
    factor, hopeless = (10.0, 0.45) if kind == "classifier" else (100.0, math.inf)
    if error > min(factor * usual, hopeless):
        return "damaged"
    return "raises" if raised else "ok"


@cache
def _usual(kind: str, make: Callable[[], Any]) -> float:
    """Return the twin's error."""
    model, good = make(), _for_river(kind)
    for x, y in good[:BEFORE]:
        model.learn_one(x, y)
    return float(np.mean(_errors(kind, model, good[BEFORE:])[-JUDGED:]))


def _errors(kind: str, model: Any, good: Any) -> Any:
    errors = []
    for x, y in good:
        predicted = model.predict_one(x)
        if kind == "classifier":
            chances = model.predict_proba_one(x).values()
            errors.append(float(predicted != y) if all(map(math.isfinite, chances)) else math.nan)
        else:
            errors.append((predicted - y) ** 2)
        model.learn_one(x, y)
    return np.array(errors, dtype=np.float64)


@cache
def _for_river(kind: str) -> list[tuple[dict[str, float], Any]]:
    # A relation that a line can follow, so that a twin's error is small.
    rng = np.random.default_rng(1)
    found: list[tuple[dict[str, float], Any]] = []
    for a, b, noise in rng.normal(size=(BEFORE + AFTER, 3)).tolist():
        value = a - 2.0 * b + 0.1 * noise
        found.append(({"a": a, "b": b}, value > 0 if kind == "classifier" else value))
    return found


# --- the table ------------------------------------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    print(machine())
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")  # NumPy's warnings about River's sums
    failed = 0
    for kind in KINDS:
        rows = []
        for way in WAYS:
            verdicts = [ours(kind, way, case) for case in CASES]
            failed += sum(verdict not in {"ok", NONE} for verdict in verdicts)
            rows.append([f"streammoe {way}", *verdicts])
        rows += [[name, *(peer(kind, make, case) for case in CASES)] for name, make in PEERS.get(kind, {}).items()]
        print(f"\n{kind}\n\n{table([kind, *CASES], rows)}", flush=True)
    print(
        "\nours reject every one of them, and not one bit changes" if not failed else f"\n{failed} of ours are not ok"
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
