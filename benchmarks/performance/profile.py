"""Measure the cost of an event by the number of events that one call learns, in a model whose fits are over."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np

from benchmarks import tasks
from benchmarks.performance.contenders import SETTLED, events_of
from benchmarks.report import Record
from streammoe import MoERegressor

AT_ONCE = 10_000
LENGTHS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000)
"""Numbers of rows of a call of `learn_array`."""
SLOW = 3.0
"""How many times the median an event takes at which something is due."""


def measured(rounds: int) -> Record:
    """Time the same events in turn, by calls of different lengths; return CPU microseconds of an event."""
    events = events_of(tasks.full_gate(SETTLED + AT_ONCE))
    X, y, _ = events.stream
    model = MoERegressor(4)
    model.learn_array(X[:SETTLED], y[:SETTLED])
    X, y, dicts, targets = X[SETTLED:], y[SETTLED:], events.dicts[SETTLED:], events.targets[SETTLED:]
    whole, watched, arrays = (copy.copy(model) for _ in range(3))

    def predict() -> None:
        for x in dicts:
            whole.predict_one(x)

    def learn() -> None:
        for x, target in zip(dicts, targets, strict=True):
            whole.learn_one(x, target)

    def learn_arrays(length: int) -> Callable[[], None]:
        def call() -> None:
            for start in range(0, AT_ONCE, length):
                arrays.learn_array(X[start : start + length], y[start : start + length])

        return call

    calls: dict[str, Callable[[], None]] = {"predict_one": predict, "learn_one": learn}
    calls |= {str(length): learn_arrays(length) for length in LENGTHS}
    due = []
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            call()
            turns[name].append(1e6 * (time.process_time() - started) / AT_ONCE)
        due.append(_due(watched, dicts, targets))
    us = {name: float(np.median(found)) for name, found in turns.items()}
    return {"rounds": rounds, "us": us, "due": np.median(due, axis=0).tolist()}


def _due(model: MoERegressor, dicts: list[dict[str, float]], targets: list[float]) -> tuple[float, float, float]:
    """Return microseconds an event, and the share of events, that take three times the median; and p99 in medians."""
    seconds = []
    for x, target in zip(dicts, targets, strict=True):
        started = time.thread_time()
        model.learn_one(x, target)
        seconds.append(time.thread_time() - started)
    found = np.array(seconds)
    usual = np.median(found)
    is_slow = found > SLOW * usual
    extra = 1e6 * float((found - usual)[is_slow].sum()) / len(found)
    return extra, float(is_slow.mean()), float(np.quantile(found, 0.99) / usual)
