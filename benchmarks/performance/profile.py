"""Where the time of a single event goes, in a model whose fits are over."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable

import numpy as np

from benchmarks import tasks
from benchmarks.performance.contenders import SETTLED, events_of
from benchmarks.report import Record
from streammoe import MoERegressor
from streammoe.model.one_event import OneEvent
from streammoe.model.undo import EVERY, Notes

AT_ONCE = 4_000
SLOW = 3.0
"""How many times the median an event takes at which something is due."""


class _NoUndo:
    """Takes the place of a model's undo record, whose copies are another line of the table."""

    def new_notes(self, n_fields: int, n_targets: int) -> Notes:
        return Notes(EVERY, n_fields, n_targets)


def measured(rounds: int) -> Record:
    """Time the steps of an event on the same events in turn; return CPU microseconds."""
    events = events_of(tasks.full_gate(SETTLED + AT_ONCE))
    X, y, _ = events.stream
    models = {
        "default": MoERegressor(4),
        "no detector": MoERegressor(4, drift=None),
        "polyak": MoERegressor(4, serve="polyak"),
    }
    for model in models.values():
        model.learn_array(X[:SETTLED], y[:SETTLED])
    dicts, targets = events.dicts[SETTLED:], events.targets[SETTLED:]
    context = models["default"].learner.context
    encoder = context.encoder
    rows = [tuple(encoder.row(x)[0].tolist()) for x in dicts]
    # Of copies, which may be spoilt.
    bound_to = {name: copy.copy(model).learner for name, model in models.items()}
    bound = {name: OneEvent(learner.context, learner.phase) for name, learner in bound_to.items()}
    whole, arrays = copy.copy(models["default"]), copy.copy(models["default"])
    watched = copy.copy(models["default"])

    def predict() -> None:
        for x in dicts:
            whole.predict_one(x)

    def learn() -> None:
        for x, target in zip(dicts, targets, strict=True):
            whole.learn_one(x, target)

    def encode() -> None:
        for x in dicts:
            encoder.plain_row(x)

    def read_target() -> None:
        for target in targets:
            context.targets.plain(target)

    def kernel_predicts() -> None:
        for row in rows:
            bound["default"].predict(row)

    def kernel_learns(name: str) -> Callable[[], float]:
        def call() -> float:
            own, learner, undone, elsewhere = bound[name], bound_to[name], _NoUndo(), 0.0
            for row, target, x in zip(rows, targets, dicts, strict=True):
                if not own.learn(row, target, 1.0, undone):
                    # Something is due, and the event is learned the longer way, which is another line of the table.
                    started = time.process_time()
                    learner.learn_one(x, target, 1.0)
                    if own.is_of(learner.context, learner.phase):
                        own.refresh()
                    else:
                        own = bound[name] = OneEvent(learner.context, learner.phase)
                    elsewhere += time.process_time() - started
            return elsewhere

        return call

    def look_at_binding() -> None:
        own, of = bound["default"], bound_to["default"]
        for _ in dicts:
            own.is_of(of.context, of.phase)

    def learn_arrays() -> None:
        arrays.learn_array(X[SETTLED:], y[SETTLED:])

    calls: dict[str, Callable[[], float | None]] = {
        "predict_one": predict,
        "learn_one": learn,
        "row": encode,
        "target": read_target,
        "binding": look_at_binding,
        "kernel predicts": kernel_predicts,
        **{f"kernel learns, {name}": kernel_learns(name) for name in models},
        "arrays": learn_arrays,
    }
    due = []
    turns: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            started = time.process_time()
            elsewhere = call() or 0.0
            turns[name].append(1e6 * (time.process_time() - started - elsewhere) / AT_ONCE)
        due.append(_due(watched, dicts, targets))
    us = {name: float(np.median(found)) for name, found in turns.items()}
    return {"rounds": rounds, "us": us, "due": np.median(due, axis=0).tolist()}


def _due(model: MoERegressor, dicts: list[dict[str, float]], targets: list[float]) -> tuple[float, float]:
    """Return microseconds an event, and the share of events, that take three times the median to be learned."""
    seconds = []
    for x, target in zip(dicts, targets, strict=True):
        started = time.thread_time()
        model.learn_one(x, target)
        seconds.append(time.thread_time() - started)
    found = np.array(seconds)
    usual = np.median(found)
    is_slow = found > SLOW * usual
    return 1e6 * float((found - usual)[is_slow].sum()) / len(found), float(is_slow.mean())
