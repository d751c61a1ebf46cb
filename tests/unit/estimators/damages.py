"""Changes to a sound checkpoint of a model, none of which leaves one; its digest is right each time.

`tests/messages/estimators.py` writes out what is said of them.
"""

import json
import logging
import warnings
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, schedules
from streammoe.distributions import Gaussian
from streammoe.engine import warmup
from streammoe.engine.cost import row_cost
from streammoe.options import WarmUp
from streammoe.persistence import encode

SHORT = {"n_experts": 2, "warmup": WarmUp(40, restarts=1)}
X = np.random.default_rng(0).normal(size=(60, 2))


@contextmanager
def quiet():
    """What a model logs is nobody's message here, and numbers that overflow are no finding."""
    logging.disable()
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            yield
    finally:
        logging.disable(logging.NOTSET)


@cache
@quiet()
def learned():
    model = MoERegressor(**SHORT)
    model.learn_array(X, X[:, 0])
    return model


@cache
@quiet()
def warming():
    model = MoERegressor(**SHORT | {"warmup": 500}, categorical=("c",), timestamps=("t",), max_levels=3)
    for i in range(20):
        model.learn_one({"a": X[i, 0], "c": "rgb"[i % 3], "t": 1e9 + i}, X[i, 1])
    return model


@cache
@quiet()
def classes(events=20):
    model = MoEClassifier(**SHORT)
    model.learn_array(X[:events], np.array(["no", "yes"])[(X[:events, 0] > 0).astype(int)])
    return model


@cache
@quiet()
def outputs():
    model = MoEMultiTargetRegressor(**SHORT | {"warmup": 500}, expert=Gaussian("full"))
    model.learn_array(X, X)
    return model


@cache
@quiet()
def interim():
    """In a warm-up that is long enough for a mixture meanwhile."""
    rows = np.random.default_rng(0).normal(size=(405, 2))
    model = MoERegressor(2, warmup=WarmUp(600, restarts=1))
    model.learn_array(rows, np.abs(rows[:, 0]))
    return model


@cache
@quiet()
def curved():
    """With a member of squares and products."""
    rows = np.random.default_rng(0).normal(size=(900, 2))
    model = MoERegressor(2, warmup=WarmUp(400, restarts=1), standardize=True)
    model.learn_array(rows, (rows**2).sum(axis=1))
    return model


@cache
@quiet()
def growing():
    """Amid a fit to more events, with a member from the fit before."""
    model = MoERegressor(2, warmup=WarmUp(50, restarts=1), schedule=schedules.Constant(0.05), curved="off")
    rows = np.random.default_rng(0).normal(size=(205, 2))
    model.learn_array(rows, np.abs(rows[:, 0]))
    return model


@cache
@quiet()
def scaling():
    """Early in a long warm-up, while its scales are still being taken."""
    model = MoEClassifier(2, warmup=400, standardize=True)
    rows = np.random.default_rng(0).normal(size=(40, 3))
    model.learn_array(rows, np.digitize(rows[:, 0], [-0.5, 0.5]))
    return model


@cache
@quiet()
def fitting():
    """Amid the fit that ends its warm-up, three events after that was full."""
    model = MoERegressor(2, warmup=WarmUp(60, restarts=1))
    rows = np.random.default_rng(0).normal(size=(63, 3))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warmup, "pace", lambda family, shape, n: 10.0 * n * row_cost(family, shape))
        model.learn_array(rows, np.abs(rows[:, 0]))
    return model


@cache
@quiet()
def sampled():
    """With a sample of its events, and the latest of them in case of a drift."""
    model = MoEClassifier(**SHORT, reservoir=25, drift="page_hinkley")
    rows = np.random.default_rng(0).normal(size=(200, 2))
    model.learn_array(rows, (rows[:, 0] > 0).astype(int))
    return model


def restored(folder, model, change=lambda arrays: None, /, **metadata):
    """The model after a change to its arrays and to its description."""
    arrays = {name: array.copy() for name, array in model.arrays().items()}
    change(arrays)
    path = folder / "model.safetensors"
    path.write_bytes(encode(arrays, {**model.describe(), **metadata}))
    return load(path)


def text(value):
    return np.frombuffer(json.dumps(value).encode(), np.uint8)


def cell(name, at, value):
    return lambda a: a[name].__setitem__(at, value)


def array(name, value):
    return lambda a: a.update({name: np.array(value)})


STATE = {
    "unknown": lambda a: a.update({"state.more": np.zeros(1)}),
    "wider": lambda a: a.update({"state.gate": np.zeros((1, 8))}),
    "huge and empty": lambda a: a.update({"state.gate": np.empty((0, 2**40))}),
    "whole numbers": lambda a: a.update({"state.masses": np.ones(2, np.int64)}),
    "NaN": lambda a: a["state.experts"].fill(np.nan),
    "negative count": lambda a: a["state.n"].fill(-1),
    "endless count": lambda a: a["state.n"].fill(2**63 - 1),
    "no decay": lambda a: a["state.decay"].fill(0.0),
    "heavy prior": lambda a: a["state.prior_weight"].fill(2e9),
    "negative mass": lambda a: a["state.masses"].__setitem__(0, -1.0),
    "no mass": lambda a: a["state.masses"].fill(0.0),
    "no variance": lambda a: a["state.variances"].fill(0.0),
    "residual": lambda a: a.update({"diagnostics.residual": np.zeros(3)}),
    "columns": lambda a: a.update({"encoder.columns": text(["x0", "x0"])}),
    "no JSON": lambda a: a.update({"encoder.columns": np.zeros(3, np.uint8)}),
    "deep": lambda a: a.update({"encoder.columns": np.full(9999, ord("["), np.uint8)}),
    "more columns": lambda a: a.update({"encoder.columns": text(["x0", "x1", "x2"])}),
    "no scale": lambda a: a["encoder.target_scale"].fill(0.0),
    "range": lambda a: a["encoder.largest"].fill(-1.0),
}

WARMING = {
    "out of range": cell("warmup.X", (0, 0), 1e300),
    "a code beyond": cell("warmup.X", (0, 1), 3.0),
    "a time beyond": cell("warmup.X", (0, 2), 1e15),
    "no target": cell("warmup.Y", (0, 0), np.nan),
    "no weight": cell("warmup.weights", 0, 0.0),
    "fewer rows": lambda a: a.update({"warmup.X": a["warmup.X"][1:]}),
    "kinds": lambda a: a.update({"encoder.kinds": text(["numeric"])}),
    "another kind": lambda a: a.update({"encoder.kinds": text(["numeric", "numeric", "timestamp"])}),
    "level of a number": lambda a: a.update({"encoder.plan": text([[0, None], [0, "x"]])}),
    "level twice": lambda a: a.update({"encoder.plan": text([[0, None], [1, None], [1, "r"], [1, "r"], [2, None]])}),
    "levels": lambda a: a.update(
        {"encoder.plan": text([[0, None], [1, None], *([1, str(i)] for i in range(4)), [2, None]])}
    ),
    **{
        f"columns that wait {names}": lambda a, names=names: a.update({"encoder.awaited": text(names)})
        for names in (["a"], [[1]], "q")
    },
    "field beyond": lambda a: a.update({"encoder.plan": text([[0, None], [1, None], [2, None], [3, None]])}),
}

PORTFOLIO = {
    "two members": lambda a: a.update({"portfolio.weights": np.full(2, 0.5)}),
    "half of the weight": lambda a: a["portfolio.weights"].__imul__(0.5),
    "no weight": lambda a: a["portfolio.weights"].__setitem__(slice(None), [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]),
    "weights NaN": lambda a: a["portfolio.weights"].fill(np.nan),
    "a gate": lambda a: a.update({"portfolio.one_expert.gate": np.zeros((0, 4))}),
    "two experts": lambda a: a.update({"portfolio.one_expert.masses": np.ones(2)}),
    "an expert without variance": lambda a: a["portfolio.one_expert.variances"].fill(0.0),
    "an expert of other events": lambda a: a["portfolio.one_expert.n"].__iadd__(1),
    "means of two members": lambda a: a.update({"portfolio.mean_weights": np.full(3, 1 / 3)}),
    "means of less than all": lambda a: a["portfolio.mean_weights"].fill(0.125),
    "negative errors of means": lambda a: a["portfolio.mean_squares"].fill(-1.0),
    "means of a negative number": lambda a: a["portfolio.mean_count"].fill(-1),
    **{
        f"{name} idle {idle}": array(f"portfolio.{name}_idle", [idle])
        for name in ("steady", "quick")
        for idle in (2, -1)
    },
    "steady of other events": lambda a: a["portfolio.steady.n"].__iadd__(1),
    "quick of other events": lambda a: a["portfolio.quick.n"].__iadd__(1),
}
CURVED = {
    "a term of no feature": lambda a: a["portfolio.curved_terms"].__setitem__((3, 1), 99),
    "too many terms": lambda a: a.update({"portfolio.curved_terms": np.zeros((129, 2), dtype=np.int64)}),
    "idle for too long": lambda a: a["portfolio.curved_notes"].fill(2),
    "two members": lambda a: a.update({"portfolio.weights": np.full(2, 1 / 2)}),
}
GROWING = {
    "of a third expert": lambda a: a.update({"portfolio.refitted.experts": np.ones((3, 1, 4))}),
    "without variance": lambda a: a["portfolio.refitted.variances"].fill(0.0),
    "idle for too long": lambda a: a["portfolio.refitted_idle"].fill(2),
    "gain NaN": lambda a: a["portfolio.refitted_gain"].fill(np.nan),
    "fitted to rows that are not there": lambda a: a["portfolio.growing.counts"].__setitem__(1, 999),
    "begun in the future": lambda a: a["portfolio.growing.counts"].__setitem__(2, 999),
    "more rows than events": lambda a: a["state.n"].fill(100),
    "no first fit": lambda a: a["portfolio.growing.counts"].__setitem__(0, 0),
    "a start without variance": lambda a: a["portfolio.growing.start.variances"].fill(0.0),
    "inputs out of range": lambda a: a["portfolio.growing.X"].fill(1e60),
    "inputs endless": lambda a: a["portfolio.growing.X"].fill(np.inf),
    "too wide": lambda a: a.update({"portfolio.growing.X": np.zeros((205, 9))}),
    "targets of fewer rows": lambda a: a.update({"portfolio.growing.Y": np.zeros((5, 1))}),
    "negative weights": lambda a: a["portfolio.growing.weights"].fill(-1.0),
}
INTERIM = {
    "another count": lambda a: a["warmup.interim.n"].__iadd__(1),
    "no scale": lambda a: a["warmup.scale"].__imul__(0.0),
    "totals NaN": lambda a: a["warmup.totals"].fill(np.nan),
    "negative errors": lambda a: a["warmup.errors"].fill(-1.0),
}
SCALING = {
    **{
        f"new scale {claimed}": array("warmup.rescaling", claimed) for claimed in ([0, 40], [8, 41], [33, 32], [-1, -1])
    },
    **{f"scale of {claimed} events": array("warmup.scaling", [claimed]) for claimed in (-1, 41)},
    "half of the trust": lambda a: a["warmup.trust"].__imul__(0.5),
    "trust in fewer": lambda a: a.update({"warmup.trust": a["warmup.trust"][:-1]}),
    "a companion of other events": lambda a: a["warmup.modest.n"].__iadd__(1),
    "terms beyond": lambda a: a["warmup.curved_terms"].__iadd__(4),
    "fewer terms": lambda a: a.update({"warmup.curved_terms": a["warmup.curved_terms"][:-1]}),
}
FITTING = {
    **{
        f"search {claimed}": array("warmup.search", claimed)
        for claimed in ([0, 3, 1, 0], [64, 3, 1, 0], [60, 4, 1, 0], [60, 2, 1, 0], [60, 3, 2, 0], [60, 3, 1, 2])
    },
    **{f"replay {claimed}": array("warmup.replay", [claimed]) for claimed in (-1, 59, 64)},
}
SAMPLED = {
    **{
        f"{of}: {what}": change
        for of in ("reservoir", "recent")
        for what, change in {
            "inputs out of range": cell(f"{of}.X", (3, 0), 1e60),
            "no class": cell(f"{of}.Y", (3, 0), 7.0),
            "half a class": cell(f"{of}.Y", (3, 0), 0.5),
            "too wide": array(f"{of}.X", np.zeros((25, 3))),
            "fewer targets": array(f"{of}.Y", np.zeros((5, 1))),
            "negative weight": cell(f"{of}.weights", 0, -1.0),
        }.items()
    },
    "reservoir: fewer events than rows": array("reservoir.seen", [24]),
    "reservoir: none": lambda a: [a.pop(name) for name in [*a] if name.startswith("reservoir.")],
    "recent: more than are kept": array("recent.losses", np.zeros(10_000)),
}
CLASSES = {
    **{f"index {value}": cell("warmup.Y", (0, 0), value) for value in (2.0, -1.0, 0.5)},
    **{
        f"labels {labels}": lambda a, labels=labels: a.update({"encoder.classes": text(labels)})
        for labels in (["no"], ["no", "no"], ["no", None], {"no": 1})
    },
}
DAMAGES = {
    "state": (learned, STATE),
    "warm-up": (warming, WARMING),
    "classes": (classes, CLASSES),
    "mixture of a warm-up": (interim, INTERIM),
    "portfolio": (learned, PORTFOLIO),
    "curved member": (curved, CURVED),
    "more fits": (growing, GROWING),
    "scales": (scaling, SCALING),
    "fit": (fitting, FITTING),
    "events": (sampled, SAMPLED),
}
DESCRIPTIONS = [
    "MoERegressor",
    {"kind": "os.system", "arguments": {}},
    {"kind": "MoERegressor", "arguments": {"schedule": None, "__class__": 1}},
    {"kind": "MoERegressor", "arguments": {"schedule": None, "n_experts": -1}},
    {"kind": "MoERegressor", "arguments": {"schedule": {"kind": "eval"}}},
    {"kind": "MoERegressor", "arguments": {"schedule": None, "n_experts": 10**12}},
]
