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

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load
from streammoe.distributions import Gaussian
from streammoe.model import fits, streaming
from streammoe.persistence import encode

SHORT = {"n_experts": 2, "warmup": 40}
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
def beginning():
    """Before its first fit, with fields of every kind."""
    model = MoERegressor(**SHORT | {"warmup": 500}, categorical=("c",), timestamps=("t",), max_levels=3)
    for i in range(20):
        model.learn_one({"a": X[i, 0], "c": "rgb"[i % 3], "t": 1e9 + i}, X[i, 1])
    return model


@cache
@quiet()
def identifiers():
    model = MoEClassifier(**SHORT, max_levels=3)
    for i in range(20):
        model.learn_one({"a": X[i, 0], "c": f"c{i % 9}"}, ["no", "yes", "maybe"][i % 3])
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
def curved():
    """With a member of squares and products."""
    rows = np.random.default_rng(0).normal(size=(900, 2))
    model = MoERegressor(2, warmup=400)
    model.learn_array(rows, (rows**2).sum(axis=1))
    return model


@cache
@quiet()
def fitting():
    """Amid its second fit, three events after that began, to rows without a column and a class that came since."""
    rng = np.random.default_rng(0)
    model = MoEClassifier(2, warmup=40, drift=None)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "AT_ONCE", 1.0)
        for i in range(83):
            x = dict(zip("abc" if i > 80 else "ab", rng.normal(size=3).tolist(), strict=False))
            model.learn_one(x, "late" if i > 80 else "up" if x["a"] > 0.0 else "down")
    return model


@cache
@quiet()
def sampled():
    """With a sample of its events, and parameters of before in case of a drift."""
    model = MoEClassifier(**SHORT, reservoir=25, drift="page_hinkley")
    rows = np.random.default_rng(0).normal(size=(200, 2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streaming, "KEEP_EVERY", 100)
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
    "whole numbers": lambda a: a.update({"state.masses": np.ones(2, np.int64)}),
    "NaN": lambda a: a["state.experts"].fill(np.nan),
    "negative count": lambda a: a["state.n"].fill(-1),
    "no mass": lambda a: a["state.masses"].fill(0.0),
    "residual": lambda a: a.update({"diagnostics.residual": np.zeros(3)}),
    "columns": lambda a: a.update({"encoder.columns": text(["x0", "x0"])}),
    "no JSON": lambda a: a.update({"encoder.columns": np.zeros(3, np.uint8)}),
    "deep": lambda a: a.update({"encoder.columns": np.full(9999, ord("["), np.uint8)}),
    "more columns": lambda a: a.update({"encoder.columns": text(["x0", "x1", "x2"])}),
    "no scale": lambda a: a["encoder.target_scale"].fill(0.0),
    "range": lambda a: a["encoder.largest"].fill(-1.0),
}

BEGINNING = {
    "out of range": cell("recent.X", (0, 0), 1e300),
    "a code beyond": cell("recent.X", (0, 1), 3.0),
    "fewer rows": lambda a: a.update({"recent.X": a["recent.X"][1:]}),
    "room for fewer rows": array("recent.capacity", [19]),
    "kinds": lambda a: a.update({"encoder.kinds": text(["numeric"])}),
    "another kind": lambda a: a.update({"encoder.kinds": text(["numeric", "numeric", "timestamp"])}),
    "level of a number": lambda a: a.update({"encoder.plan": text([[0, None], [0, "x"]])}),
    **{
        f"columns that wait {names}": lambda a, names=names: a.update({"encoder.awaited": text(names)})
        for names in (["a"], [[1]], "q")
    },
    **{f"fitted at {claimed}": array("progress.fits", claimed) for claimed in ([-2, 0], [21, 0], [-1, 2])},
}

PORTFOLIO = {
    "two members": lambda a: a.update({"portfolio.weights": np.full(2, 0.5)}),
    "no weight": lambda a: a["portfolio.weights"].__setitem__(slice(None), [1.0] + [0.0] * 8),
    "means of two members": lambda a: a.update({"portfolio.mean_weights": np.full(3, 1 / 3)}),
    "negative errors of means": lambda a: a["portfolio.mean_squares"].fill(-1.0),
    "a part into which no target falls": lambda a: a["portfolio.ranks"].__setitem__((0, 3), 0.0),
    "ends of intervals on the median": lambda a: a["portfolio.stretch"].fill(0.0),
    "no belief in calibration": lambda a: a["portfolio.belief"].fill(0.0),
    "more targets than are remembered": lambda a: a["portfolio.ranks"].fill(60.0),
    "means of a negative number": lambda a: a["portfolio.mean_count"].fill(-1),
    "endless surprise": lambda a: a["portfolio.surprise"].fill(1e3),
    "fitted with a third expert": lambda a: a.update({"fitted.experts": np.ones((3, 1, 4))}),
    "two experts": lambda a: a.update({"portfolio.recent.masses": np.ones(2)}),
    "an expert of more events": lambda a: a["portfolio.quick.n"].__iadd__(1),
    "a floor with features": lambda a: a.update({"portfolio.floor.experts": np.ones((1, 1, 3))}),
}
CURVED = {
    "a term of no feature": lambda a: a["portfolio.curved_terms"].__setitem__((3, 1), 99),
    "too many terms": lambda a: a.update({"portfolio.curved_terms": np.zeros((129, 2), dtype=np.int64)}),
    "fewer terms": lambda a: a.update({"portfolio.curved_terms": a["portfolio.curved_terms"][:-1]}),
    "idle for too long": lambda a: a["portfolio.curved_notes"].fill(2),
    "half at rest": lambda a: a["portfolio.curved_notes"].__setitem__(2, 2),
}
FITTING = {
    **{
        f"plan {claimed}": array("fit.plan", claimed)
        for claimed in (
            [0, 80, 1, 1, 0, 2, 2],
            [80, 80, 1, 1, 0, 4, 2],
            [80, 80, 1, 1, 0, 2, 0],
        )
    },
    "scales of all columns": array("fit.encoder.scale", np.ones(3)),
    "no scale": lambda a: a["fit.encoder.target_scale"].fill(0.0),
    "a start without experts": lambda a: a.update({"fit.start.experts": np.zeros((0, 1, 3))}),
    "a start of a third expert": lambda a: a.update({"fit.start.experts": np.ones((3, 1, 3))}),
    "a start without gate": lambda a: a.pop("fit.start.gate"),
}
SAMPLED = {
    **{
        f"{of}: {what}": change
        for of in ("reservoir", "recent")
        for what, change in {
            "inputs out of range": cell(f"{of}.X", (3, 0), 1e60),
            "no class": cell(f"{of}.Y", (3, 0), 7.0),
            "too wide": array(f"{of}.X", np.zeros((25, 3))),
            "negative weight": cell(f"{of}.weights", 0, -1.0),
        }.items()
    },
    "reservoir: fewer events than rows": array("reservoir.seen", [24]),
    "reservoir: none": lambda a: [a.pop(name) for name in [*a] if name.startswith("reservoir.")],
    "recent: more than are kept": array("recent.losses", np.zeros(10_000)),
    "recent: parameters of the future": lambda a: a["recent.earlier.n"].fill(201),
}
CLASSES = {
    **{f"index {value}": cell("recent.Y", (0, 0), value) for value in (2.0, -1.0, 0.5)},
    **{f"last index {value}": cell("lags.past", (0, 0), value) for value in (2.0, -1.0, 0.5, 1e300)},
    **{
        f"labels {labels}": lambda a, labels=labels: a.update({"encoder.classes": text(labels)})
        for labels in (["no"], ["no", "no"], ["no", None], {"no": 1})
    },
}
LEVELS = {
    "an identifier that is a number": lambda a: a.update({"encoder.identifiers": text(["a"])}),
    "no identifier": lambda a: a.pop("encoder.identifiers"),
    "identifiers without a name": lambda a: a.update({"encoder.identifiers": text([["c"]])}),
    "too many identifiers": lambda a: a.update({"encoder.identifiers": text([f"c{i}" for i in range(17)])}),
    "a level with a column": lambda a: a["encoder.plan"].__setitem__(
        slice(None), np.frombuffer(a["encoder.plan"].tobytes().replace(b"null", b'"c1"', 1), np.uint8)
    ),
    "a code between": cell("recent.X", (0, 3), -1.0),
    "shares of three classes but the first": array("level_means.overall", np.zeros(4)),
    "shares of no class": array("level_means.overall", np.zeros(1)),
    "a key in another slot": lambda a: a["level_means.keys"].__setitem__(0, a["level_means.keys"][0, ::-1].copy()),
    "a key that is none": lambda a: a["level_means.keys"].__setitem__(a["level_means.keys"] >= 0.0, 0.5),
    "more events than are counted": cell("level_means.counts", (0, 0), 1001.0),
    "an infinite mean": cell("level_means.means", (0, 0, 0), np.inf),
    "a share above 1": cell("level_means.means", (0, 0, 0), 1.5),
    "fewer events than none": cell("level_means.overall", 0, -1.0),
    "a value that is no class": lambda a: a.update({"level_means.values": text(["yes", "up"])}),
    "no values": lambda a: a.update({"level_means.values": text([])}),
}
DAMAGES = {
    "state": (learned, STATE),
    "before the first fit": (beginning, BEGINNING),
    "classes": (classes, CLASSES),
    "portfolio": (learned, PORTFOLIO),
    "curved member": (curved, CURVED),
    "fit in progress": (fitting, FITTING),
    "identifiers": (identifiers, LEVELS),
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
