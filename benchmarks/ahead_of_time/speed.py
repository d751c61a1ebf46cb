"""The same events by all of them in turn: seconds, calls, and bits."""

from __future__ import annotations

import copy
import ctypes
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from benchmarks.ahead_of_time.built import AHEAD, WIDE, Built, library, model_at, module
from benchmarks.performance.growth import ALONE, Case, events_of, model_of
from streammoe.distributions import Gaussian
from streammoe.engine.mixture import learning_options, new_residual, no_trace, random_start
from streammoe.experts import family_of
from streammoe.kernels.gaussian import learn_rows
from streammoe.layout import padded
from streammoe.schedules import Power

FEATURES = (11, 100)
K = 4
EVENTS = 20_000
CALLS = 2_000
"""Single events of a turn."""


class Stream:
    """Events, and a mixture that has learned as many before, so that refreshes are as rare as in use."""

    def __init__(self, p: int) -> None:
        width, family, schedule = padded(p), family_of(Gaussian()), Power()
        X, y = events_of(Case(p=p), EVENTS)
        self.W = np.zeros((EVENTS, width))
        self.W[:, 0], self.W[:, 1:p] = 1.0, X
        self.R, self.Y = self.W.copy(), y[:, None].copy()
        self.state = random_start(
            family, n_experts=K, p_w=width, p_v=width, n_outputs=1, prior_strength=0.1, seed=0, n_features=p
        )
        self.options = learning_options(
            bound="adaptive", n_experts=K, n_rows=1, prior_strength=0.1, averaging="polyak", schedule=schedule
        )
        self.residual = new_residual(family, self.state, 1)
        compiled = family.compiled(self.state.experts)
        assert compiled is not None
        self.shape = compiled[1]
        self.weights, self.losses, self.predictions = np.ones(EVENTS), np.empty(EVENTS), np.empty((EVENTS, 1))
        self.gammas = schedule.steps(1, EVENTS)
        self.by_numba(self.state, self.residual)(0, EVENTS)
        self.gammas = schedule.steps(EVENTS + 1, EVENTS)

    def rows(self, start: int, stop: int) -> tuple[np.ndarray, ...]:
        given = (self.gammas, self.weights, self.W, self.R, self.Y, self.losses, self.predictions)
        return tuple(each[start:stop] for each in given)

    def by_numba(self, state: Any, residual: np.ndarray) -> Callable[[int, int], None]:
        trace = no_trace()

        def learn(start: int, stop: int) -> None:
            learn_rows(self.shape, state, residual, self.options, *self.rows(start, stop), trace)

        return learn

    def by_library(self, path: Path, state: Any, residual: np.ndarray) -> Callable[[int, int], None]:
        model, call = model_at(self.shape, state, residual, self.options), library(path)

        def learn(start: int, stop: int) -> None:
            call(ctypes.addressof(model), stop - start, *(each.ctypes.data for each in self.rows(start, stop)))

        return learn

    def by_module(self, path: Path, state: Any, residual: np.ndarray) -> Callable[[int, int], None]:
        model, call = model_at(self.shape, state, residual, self.options), module(path).learn_rows

        def learn(start: int, stop: int) -> None:
            call(ctypes.addressof(model), *self.rows(start, stop))

        return learn

    def by_numba_ahead(self, path: Path, state: Any, residual: np.ndarray) -> Callable[[int, int], None]:
        trace, call = no_trace(), module(path).learn_rows

        def learn(start: int, stop: int) -> None:
            call(self.shape, state, residual, self.options, *self.rows(start, stop), trace)

        return learn


def arrays(built: Sequence[Built], rounds: int) -> dict[str, Any]:
    """Return nanoseconds an event by features and contender, and digests of what each has learned."""
    found: dict[str, Any] = {"ns": {}, "digests": {}}
    for p in FEATURES:
        stream = Stream(p)
        states = {name: copy.deepcopy((stream.state, stream.residual)) for name in ("numba", *(b.name for b in built))}
        contenders = {"numba": stream.by_numba(*states["numba"])}
        for each in built:
            by = {"Cython": stream.by_module, AHEAD: stream.by_numba_ahead}.get(each.language, stream.by_library)
            contenders[each.name] = by(each.path, *states[each.name])
        count = EVENTS // (2 if p < 50 else 5)
        turns: dict[str, list[float]] = {name: [] for name in contenders}
        said = {}
        for turn in range(-1, rounds):  # the first one warms up
            start = (turn + 1) * count % (EVENTS - count + 1)
            for name, learn in contenders.items():
                began = time.process_time()
                learn(start, start + count)
                if turn >= 0:
                    turns[name].append(1e9 * (time.process_time() - began) / count)
                said[name] = stream.losses[start : start + count].copy()
        found["ns"][p] = turns
        found["digests"][p] = {
            name: hashlib.sha256(b"".join(a.tobytes() for a in (*state, residual, said[name]))).hexdigest()
            for name, (state, residual) in states.items()
        }
    return found


def _does_nothing(*_: Any) -> int:
    return 0


_nothing: Any = numba.njit(_does_nothing)


def calls(built: Sequence[Built], rounds: int) -> dict[str, list[float]]:
    """Return CPU microseconds of one event by each way to call a loop, p = 11."""
    case, stream = Case(p=FEATURES[0]), Stream(FEATURES[0])
    model = model_at(stream.shape, stream.state, stream.residual, stream.options)
    at, trace, paths = ctypes.addressof(model), no_trace(), {b.language: b.path for b in built if b.target == WIDE}
    own = (stream.shape, stream.state, stream.residual, stream.options)
    keys = tuple(f"x{j:03}" for j in range(case.p - 1))
    rows = [stream.rows(i, i + 1) for i in range(CALLS)]
    addresses = [[each.ctypes.data for each in row] for row in rows]
    inputs = [row[2][:, 1 : case.p].copy() for row in rows]
    events = [
        (dict(zip(keys, x[0].tolist(), strict=True)), float(row[4][0, 0]), float(row[0][0]))
        for x, row in zip(inputs, rows, strict=True)
    ]
    targets = [(x, row[4], float(row[0][0])) for x, row in zip(inputs, rows, strict=True)]
    by_c, by_ctypes, ahead = module(paths["C"]), library(paths["C"]), module(paths[AHEAD]).learn_rows

    def whole(options: dict[str, Any]) -> Callable[[Any], Any]:
        served = model_of(case, options)
        served.learn_array(*events_of(case, 3_000))

        def predict_and_learn(event: Any) -> None:
            served.predict_one(event[0])
            served.learn_one(event[0], event[1])

        return predict_and_learn

    ways: dict[str, tuple[Callable[[Any], Any], list[Any]]] = {
        "numba, nothing done, arguments of learn_rows": (lambda row: _nothing(*own, *row, trace), rows),
        "numba, nothing done, arguments of learn_event": (
            lambda given: _nothing(stream.shape, at, at, at, *given, 1.0),
            targets,
        ),
        "numba, learn_rows": (lambda row: learn_rows(*own, *row, trace), rows),
        "numba ahead, learn_rows": (lambda row: ahead(*own, *row, trace), rows),
        "C by ctypes, addresses": (lambda given: by_ctypes(at, 1, *given), addresses),
        "C module, 7 arrays": (lambda row: by_c.learn_rows(at, *row), rows),
        "C module, a dict of 10": (lambda event: by_c.learn_dict(at, keys, *event), events),
    }
    if "Cython" in paths:
        by_cython = module(paths["Cython"]).learn_rows
        ways["Cython, 7 arrays as memoryviews"] = (lambda row: by_cython(at, *row), rows)
    ways["streammoe, predict_one and learn_one of a dict"] = (whole({}), events)
    ways['the same, serve="polyak"'] = (whole(ALONE), events)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(-1, rounds):
        for name, (way, given) in ways.items():
            began = time.process_time()
            for each in given:
                way(each)
            if turn >= 0:
                found[name].append(1e6 * (time.process_time() - began) / len(given))
    return found
