"""Of the estimators: arguments, events that are rejected, checkpoints that hold no model, batch fits and mixtures."""

import math
import warnings
from functools import cache, partial
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
from river import datasets, drift, preprocessing

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch, evaluate, reduce, schedules
from streammoe.columns.encoder import Encoder
from streammoe.columns.kinds import GivenKinds
from streammoe.distributions import Gaussian, Laplace, StudentT
from streammoe.options import Auto, Exponential, Lags, PageHinkley
from streammoe.schedules import Constant, Power
from streammoe.sklearn import MoEClassifier as SklearnClassifier
from streammoe.sklearn import from_stream
from tests.unit import test_batch, test_distributions
from tests.unit.estimators.damages import DAMAGES, DESCRIPTIONS, learned, outputs, quiet, restored
from tests.unit.estimators.refusals import LATER, REFUSALS, trained

HUGE = 10**400
"""Larger than any float."""
WRONG = {
    MoERegressor: dict.fromkeys(("n_experts", "degree", "gate_degree", "top_k"), 0)
    | dict.fromkeys(("bound", "averaging", "drift", "expert", "schedule"), "loose")
    | dict.fromkeys(("prior_strength", "range_factor"), math.nan)
    | dict.fromkeys(("warmup", "seed"), -1)
    | {"reservoir": 10**6, "max_levels": 2.5}
    | {"categorical": "color", "timestamps": 3},
    MoEMultiTargetRegressor: {"expert": "laplace"},
    MoEClassifier: {"classes": ("a", "a"), "max_classes": 2.5},
}
WRONG_TOGETHER = (
    (MoERegressor, {"warmup": 0, "prior_strength": 0.0}),
    (MoERegressor, {"warmup": 0, "n_experts": "auto"}),
    (MoERegressor, {"curved": "on", "hold": False}),
    (MoERegressor, {"categorical": ("c", "t"), "timestamps": ("t",)}),
    (MoERegressor, {"expert": Gaussian("full")}),
)


def constructed():
    """Cases of wrong arguments of models."""
    for kind, given in WRONG.items():
        yield f"{kind.__name__}, every argument wrong", lambda _, kind=kind, given=given: kind(**given)
    for kind, given in WRONG_TOGETHER:
        text = ", ".join(f"{name} {value!r}" for name, value in given.items())
        yield f"{kind.__name__}, {text}", lambda _, kind=kind, given=given: kind(**given)


def far_out(_):
    X = np.random.default_rng(0).normal(size=(300, 2))
    y = X[:, 0].copy()
    y[[3, 50]] = 1e10, -99_999.0
    MoERegressor(2, warmup=200).learn_array(X, y)


def from_parameters(change):
    def call(_):
        parameters = learned().parameters()
        change(parameters)
        MoERegressor.from_parameters(parameters, feature_names=["a", "b"])

    return call


def poisoned(_):
    """Learn values that are in range, and would leave no finite model."""
    model = MoERegressor(2, warmup=20, degree=3, range_factor=0.0, hold=False, prior_strength=0.0)
    rows = np.random.default_rng(0).normal(size=(30, 2))
    with quiet():
        model.learn_array(rows, rows[:, 0])
    model.learn_one({"x0": 9e49, "x1": 1.0}, 1.0, w=1e6)


def of_two_types(_):
    model = MoEClassifier()
    model.learn_one({"a": 1.0}, "yes")
    model.learn_one({"a": 2.0}, 7)
    from_stream(model)


def scaled_before(_):
    """Learn what a scaler that learns as it goes makes of the first events."""
    model = preprocessing.StandardScaler() | MoERegressor(1, warmup=40)
    for x, y in islice(datasets.TrumpApproval(), 40):
        model.learn_one(x, y)


def with_codes(_):
    """Learn a column in which a number stands for missing values."""
    model = MoERegressor(1, warmup=64)
    for i in range(64):
        model.learn_one({"the load": -200.0 if i % 9 == 4 else i / 7}, i % 5)


def learning(*xs, y=1.0, kind=MoERegressor, **arguments):
    """Learn events one after the other, the last of which is rejected."""

    def call(_):
        model = kind(**arguments)
        for x in xs:
            model.learn_one(x, y)

    return call


def _with_frames(call):
    """Call a method of a model that has learned a frame."""

    def case(_):
        model = MoERegressor(n_experts=1)
        model.learn_many(FRAME, FRAME["a"])
        call(model)

    return case


def _warned(model):
    """Predict a frame that lacks a column, and return what is warned of."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.predict_many(FRAME.rename(columns={"a": "A"}))
    raise said[-1].message


def wide(n):
    return {f"x{j}": 0.5 for j in range(n)}


def fitted(*rows, model=None, **given):
    """A batch fit of a model that has learned nothing."""
    return lambda _: batch.fit(test_batch.regressor() if model is None else model(), *rows, **given)


def _with_columns():
    model = test_batch.regressor()
    model.set_columns(["a", "gone"])
    return model


@cache
@quiet()
def worker(**arguments):
    """Return a model whose warm-up is over, to be reduced with others."""
    model = MoERegressor(**{"n_experts": 2, "warmup": 60, **arguments})
    model.learn_array(X_OF_WORKERS, np.abs(X_OF_WORKERS[:, 0]))
    return model


def reduced(*others, **more):
    """Return a case: a model that keeps rows is reduced with others, which are made then."""
    return lambda _: reduce([worker(reservoir=50), *(make() for make in others)], **more)


X_OF_WORKERS = np.random.default_rng(0).normal(size=(100, 2))
IN_PYTHONS_WORDS = {"no JSON", "deep"}
"""They differ from version to version."""
X, Y = np.arange(8.0).reshape(4, 2), np.arange(4.0)
TWENTY = test_batch.rows(20)
WRONG_FITS = [
    *({"start": value} for value in ("zero", "model")),
    *({"rounds": value} for value in (0, 2.5)),
    *({"tolerance": value} for value in (-1.0, math.nan)),
    {"start": "x", "rounds": -1, "tolerance": -1.0},
]
UNUSABLE = [
    (np.empty((0, 2)), np.empty(0), {}),
    (np.ones((4, 2)), np.ones(4), {"w": np.zeros(4)}),
    ([], [], {}),
    (pd.DataFrame({"a": []}), pd.Series([], dtype=float), {}),
    (np.ones((4, 2)), np.ones(3), {}),
    ([{"a": 1.0}] * 4, [1.0] * 3, {}),
    (pd.DataFrame({"a": [1.0]}), pd.Series([1.0]), {"feature_names": ["b"]}),
]
FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})

CASES = {
    # Columns
    "a scaler in front": scaled_before,
    "a code for missing values": with_codes,
    "targets far out before a fit": far_out,
    # Arguments
    **dict(constructed()),
    "a detector of River's": lambda _: MoERegressor(drift=drift.PageHinkley()),
    "Auto, fewer than two": lambda _: Auto(1),
    "StudentT without a variance": lambda _: StudentT(2.0),
    "Exponential, a rate of 1": lambda _: Exponential(1.0),
    "PageHinkley, no event": lambda _: PageHinkley(0),
    "Gaussian, another covariance": lambda _: Gaussian("banded"),
    "Gaussian, a tail too near": lambda _: Gaussian(tail=1.0),
    "a changed argument out of range": lambda _: MoERegressor().change("range_factor", -1.0),
    "an argument that cannot change": lambda _: MoEClassifier().change("degree", 2),
    "MoERegressor, an unknown argument": lambda _: MoERegressor(max_experts=3),
    "MoEMultiTargetRegressor, an unknown argument": lambda _: MoEMultiTargetRegressor(experts=3),
    "MoEClassifier, an unknown argument": lambda _: MoEClassifier(expert="laplace"),
    "MoERegressor, two arguments by position": lambda _: MoERegressor(2, 1),
    "MoEClassifier, an argument of regressors": lambda _: MoEClassifier(lags=3),
    "MoERegressor, an argument of classifiers": lambda _: MoERegressor(classes=["a", "b"]),
    "MoEClassifier, an argument twice": lambda _: MoEClassifier(2, n_experts=2),
    "MoERegressor, None": lambda _: MoERegressor(n_experts=None, expert=None),
    "MoEClassifier, more classes than max_classes": lambda _: MoEClassifier(classes=("a", "b", "c"), max_classes=2),
    "Laplace, an argument": lambda _: Laplace(0.5),
    "several bounds": lambda _: MoEClassifier(n_experts=0, warmup=10**9, prior_strength=1e12, max_classes=1),
    "set_columns, there are some": lambda _: learned().set_columns(["a"]),
    "listed columns, too many": lambda _: MoERegressor().set_columns(wide(9000)),
    "set_targets, there are some": lambda _: outputs().set_targets(["a"]),
    "set_targets, none": lambda _: MoEMultiTargetRegressor().set_targets([]),
    # Schedules
    "power, alpha out of range": lambda _: schedules.Power(alpha=0.4),
    "power, two numbers out of range": lambda _: schedules.Power(2, gamma0=-1),
    "power, unknown name": lambda _: MoERegressor(schedule={"kind": "power", "alfa": 1}),
    "constant, nothing": lambda _: MoERegressor(schedule="constant"),
    "unknown kind": lambda _: MoERegressor(schedule={"kind": "cosine"}),
    "Power, alpha out of range": lambda _: MoERegressor(schedule=Power(5.0)),
    "Constant, gamma out of range": lambda _: MoERegressor(schedule=Constant(7.0)),
    # Huge numbers
    "StudentT, a huge number": lambda _: StudentT(HUGE),
    "power, a huge number": lambda _: schedules.Power(HUGE),
    "arguments, huge numbers": lambda _: MoERegressor(HUGE, seed=HUGE, range_factor=HUGE, timestamps=HUGE),
    "classes, a huge number": lambda _: MoEClassifier(classes=(1, HUGE)),
    "a feature, a huge number": learning({"a": HUGE}),
    "a target, a huge number": learning({"a": 1.0}, y=HUGE),
    "a label, a huge number": learning({"a": 1.0}, y=HUGE, kind=MoEClassifier),
    "a category, a huge number": learning({"c": HUGE}, categorical=("c",)),
    # Events
    **{
        name: lambda _, refusal=refusal, name=name: refusal.call(trained(refusal.kind, 10 if name in LATER else 0))
        for name, refusal in REFUSALS.items()
    },
    "lags, too many": lambda _: MoERegressor(lags=1001),
    "lags, no such thing": lambda _: MoERegressor(lags="many"),
    "lags of a category": lambda _: MoERegressor(lags=Lags(1, ("c",)), categorical=("c",)),
    "lags of a text": lambda _: MoERegressor(lags=Lags(1, ("c",))).learn_one({"c": "red"}, 1.0),
    "lags of a column that there is not": learning(*[{"temp": 1.5}] * 100, n_experts=1, lags=Lags(2, ("tmep",))),
    "lags of a target": lambda _: MoERegressor(lags=Lags(1, ("y",))).learn_one({"y": 1.0}, 1.0),
    "a column named as a lag": lambda _: MoERegressor(lags=1).set_columns(["a", "y:lag1"]),
    **{
        f"a number as text: {text}": learning({"a": 1.0}, {"a": text})
        for text in ("12.5", "1,234,567.5", "1,234", "0,5")
    },
    "numbers as text": learning(*[{"zip": "10115"}] * 30, n_experts=1),
    "a type of categories for numbers": _with_frames(lambda m: m.predict_many(FRAME.astype("category"))),
    "a frame that lacks a column": _with_frames(lambda m: m.predict_array(FRAME[["a"]])),
    "a frame that lacks a column, by rows": _with_frames(_warned),
    "a frame with names besides": _with_frames(lambda m: m.predict_array(FRAME, feature_names=["a", "b"])),
    "a lazy frame": _with_frames(lambda m: m.predict_many(pl.LazyFrame({"a": [1.0]}))),
    "a frame of an unknown kind": _with_frames(lambda m: m.predict_array(SimpleNamespace(columns=["a", "b"]))),
    "a target in quotes": learning({"a": 1.0}, y="12.5"),
    "names that no event has": learning(
        *[{"color": "red", "size": 1.5}] * 100, n_experts=1, categorical=("colour",), timestamps=("when",)
    ),
    "an event with too many features": learning(wide(1000), degree=20),
    "a warm-up too long for its features": learning(wide(100), warmup=10**7),
    "more levels than get a column": learning(
        {"c": "red"}, {"c": "blue"}, n_experts=2, categorical=("c",), max_levels=1
    ),
    "more such columns than may be": learning(
        *({f"c{i:02}": color for i in range(17)} for color in ("red", "blue", "green")), n_experts=2, max_levels=1
    ),
    "a time, a truth value": learning({"t": True}, timestamps=("t",)),
    "a time in milliseconds": learning({"t": 1_700_000_000_000}, timestamps=("t",)),
    "too far from what was accepted": learning(*[{"a": 3.0}] * 31, {"a": 4e9}, n_experts=2),
    "a feature name, a tuple": lambda _: MoERegressor().predict_one({("a", "b"): 1.0}),
    "a feature name, beyond 64 bits": learning({2**70: 1.0}),
    "a feature name, NumPy's": learning({np.int64(3): 1.0}),
    "a feature name, None": learning({None: 1.0}),
    "a value, a dict": learning({"a": {}}),
    "a target, None": learning({"a": 1.0}, y=None),
    "no outputs": learning({"a": 1.0}, y={}, kind=MoEMultiTargetRegressor),
    "outputs, None": learning({"a": 1.0}, y=None, kind=MoEMultiTargetRegressor),
    "an array, None": lambda _: MoERegressor().learn_array(None, None),
    "evaluate, a pipeline": lambda _: evaluate(preprocessing.StandardScaler() | MoERegressor(), FRAME, [1.0, 2.0]),
    "a file in no folder": lambda folder: MoERegressor().save(folder / "no" / "model"),
    "a file, a folder": lambda folder: MoERegressor().save(folder),
    "feature names of no layout": lambda _: Encoder(
        n_outputs=1, degree=1, gate_degree=1, range_factor=0.0, given=GivenKinds(timestamps=("t",))
    ).columns.named(["t:day_sin", "x"]),
    "targets of an array, a dict": lambda _: MoERegressor().learn_array(X, {"y": Y}),
    "feature_names, one text": lambda _: MoERegressor().learn_array(X, Y, feature_names="ab"),
    "a frame, an array": lambda _: MoERegressor().learn_many(X, Y),
    "poison": poisoned,
    # Parameters, files and checkpoints
    "parameters during the warm-up": lambda _: outputs().parameters(),
    "parameters without a gate": from_parameters(lambda parameters: parameters.pop("gate")),
    "parameters, masses too short": from_parameters(lambda parameters: parameters.update(masses=np.ones(1))),
    "parameters of another number of classes": lambda _: MoEClassifier.from_parameters(
        trained(MoEClassifier, 30).parameters(), feature_names=["a", "b"], classes=["p"]
    ),
    "from_parameters, no mapping": lambda _: MoERegressor.from_parameters(None, feature_names=["x"]),
    "save, no path": lambda _: MoERegressor().save(None),
    **{
        f"checkpoint, {of}: {name}": lambda folder, make=make, change=change: restored(folder, make(), change)
        for of, (make, changes) in DAMAGES.items()
        for name, change in changes.items()
        if name not in IN_PYTHONS_WORDS
    },
    **{
        f"checkpoint, described as {said!r}": lambda folder, said=said: restored(folder, learned(), model=said)
        for said in DESCRIPTIONS
    },
    # Batch fits
    **{
        f"batch fit, {', '.join(f'{name} {value!r}' for name, value in given.items())}": fitted(*TWENTY, **given)
        for given in WRONG_FITS
    },
    **{f"batch fit, unusable rows {at}": fitted(rows, y, **more) for at, (rows, y, more) in enumerate(UNUSABLE)},
    "batch fit, fewer rows than parameters": fitted([{"a": a} for a in TWENTY[0][:7, 0].tolist()], TWENTY[1][:7]),
    "batch fit, a column without a value": fitted(
        [{"a": a} for a in TWENTY[0][:, 0].tolist()], TWENTY[1], model=_with_columns
    ),
    "batch fit of a model that has learned": fitted(*TWENTY, model=learned),
    "fit, on_round no function": fitted(X, Y, model=MoERegressor, on_round=1),
    # scikit-learn
    "from_stream, a pipeline": lambda _: from_stream(preprocessing.StandardScaler() | MoERegressor()),
    "from_stream, of scikit-learn": lambda _: from_stream(SklearnClassifier()),
    "from_stream, labels of two types": of_two_types,
    "partial_fit without classes": lambda _: SklearnClassifier().partial_fit(X, ["a", "b"] * (len(X) // 2)),
    "partial_fit, another label": lambda _: (
        SklearnClassifier().partial_fit([[1.0]], ["a"], ["a", "b"]).partial_fit([[1.0]], ["c"])
    ),
    # Reductions
    "reduce, no model": lambda _: reduce([]),
    "reduce, text": reduced(lambda: "a"),
    "reduce, a warm-up": reduced(MoERegressor),
    "reduce, another kind": reduced(MoEClassifier),
    "reduce, other columns": reduced(partial(trained, MoERegressor, 30)),
    "reduce, another degree": reduced(partial(worker, degree=2)),
    "reduce, another family": reduced(partial(worker, expert="laplace")),
    "reduce, no rows kept": lambda _: reduce([worker()]),
    "reduce, n_experts 0": reduced(n_experts=0),
    "reduce, more experts than there are": reduced(n_experts=9),
    "reduce, weights no list": reduced(weights=5),
    "reduce, weights too large": reduced(weights=[1e308]),
    "reduce, too many weights": reduced(weights=[1.0, 1.0]),
    "reduce, a weight of 0": reduced(weights=[0.0]),
    "reduce, too few inputs": reduced(support=np.zeros((2, 2))),
    "reduce, an invalid input": reduced(support=[{"x0": 1.0, "x1": 2.0}, {"x0": "seven", "x1": 1.0}]),
    "reduce, a column without a value": reduced(support=[{"x1": float(at)} for at in range(20)]),
    # Distributions
    "a distribution before there are outputs": lambda _: MoEMultiTargetRegressor().predict_distribution_one({"a": 1.0}),
    "predict_one, both at once": lambda _: MoERegressor().predict_one({}, with_dist=True, with_interval=True),
    "a distribution that is to learn": lambda _: learned().predict_one({"a": 1.0}, with_dist=True).update(2.0),
    "quantile of 1": lambda _: test_distributions.TWO.quantile(1.0),
    "sample, a seed": lambda _: test_distributions.TWO.sample(1),
    "density at too few outputs": lambda _: test_distributions.CORRELATED.pdf([1.0]),
    "marginal of another output": lambda _: test_distributions.CORRELATED.marginal("weight"),
}
