"""What estimators reject: calls on a model of features `a` and `b`, and what the error says of each.

`tests/messages/estimators.py` writes out the sentences.
"""

import math
from decimal import Decimal
from typing import NamedTuple

import numpy as np
import pandas as pd

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.model.learn_rows import introduce
from tests.unit.estimators.damages import quiet

NAMES = ["a", "b"]
TOO_LONG = 10**5000
"""Python itself cannot write this number."""
FRAME = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]})
SERIES = pd.Series([1.0, 2.0])
ROWS = np.ones((3, 2))


class Refusal(NamedTuple):
    kind: type
    call: object
    reason: str
    feature: object = None
    row: int | None = None


def regressor(value, reason, feature="b"):
    return Refusal(MoERegressor, lambda m: m.learn_one({"a": 1.0, "b": value, "new": 1.0}, 1.0), reason, feature)


def target(value, reason, kind=MoERegressor):
    return Refusal(kind, lambda m: m.learn_one({"a": 1.0, "b": 1.0, "new": 1.0}, value), reason, "target")


def outputs(value, reason, feature="target"):
    return target(value, reason, MoEMultiTargetRegressor)._replace(feature=feature)


def label(value, reason):
    return target(value, reason, MoEClassifier)


def weight(value, reason):
    return Refusal(MoERegressor, lambda m: m.learn_one({"a": 1.0, "new": 1.0}, 1.0, w=value), reason, "w")


def array(X, y, reason, feature=None, row=None, kind=MoERegressor, **more):
    more = {"feature_names": NAMES, **more}
    return Refusal(kind, lambda m: m.learn_array(X, y, **more), reason, feature, row)


def frame(column, reason, row=None):
    X = FRAME.assign(b=column)
    return Refusal(MoERegressor, lambda m: m.learn_many(X, SERIES), reason, "b", row)


def targets(column, reason, row=None):
    return Refusal(MoERegressor, lambda m: m.learn_many(FRAME, pd.Series(column)), reason, "target", row)


def changed(at, value):
    rows = ROWS.copy()
    rows[at] = value
    return rows


def predicting(x, kind):
    return Refusal(kind, lambda m: m.predict_one(x), "wrong_type")


REFUSALS = {
    "feature infinite": regressor(-math.inf, "not_finite"),
    "feature text": regressor("1.0", "wrong_type"),
    "event None": Refusal(MoERegressor, lambda m: m.learn_one(None, 1.0), "wrong_type"),
    "event list of pairs": Refusal(MoEClassifier, lambda m: m.learn_one([("a", 1.0)], "p"), "wrong_type"),
    "asked number": predicting(TOO_LONG, MoEMultiTargetRegressor),
    "target NaN": target(math.nan, "not_finite"),
    "target of classes": target("up", "wrong_type"),
    "outputs one of two": outputs({"u": 1.0}, "wrong_type"),
    "outputs one more": outputs({"u": 1.0, "v": 1.0, "z": 1.0}, "wrong_type"),
    "outputs one NaN": outputs({"u": 1.0, "v": math.nan}, "not_finite", "v"),
    "label None": label(None, "wrong_type"),
    "label that no file could hold": label(TOO_LONG, "out_of_range"),
    "label one too many": label("q4", "unknown_class"),
    "weight below 0": weight(-1, "out_of_range"),
    "weight above a million": weight(1.1e6, "out_of_range"),
    "array with NaN": array(changed((1, 1), math.nan), np.ones(3), "not_finite", "b", 1),
    "array out of range": array(changed((2, 0), 1e60), np.ones(3), "out_of_range", "a", 2),
    "array, row behind one of weight 0": array(
        changed((2, 0), 1e60), np.ones(3), "out_of_range", "a", 2, w=np.array([0.0, 1.0, 1.0])
    ),
    "array of text": array(np.array([["1", "2"]]), np.ones(1), "wrong_type", "X"),
    "array masked": array(np.ma.masked_array(np.ones((2, 2)), mask=np.eye(2)), np.ones(2), "wrong_type", "X"),
    "array of one dimension": array(np.ones(3), np.ones(3), "wrong_shape", feature_names=None),
    "array of unequal rows": array([[1.0], [1.0, 2.0]], [1.0, 2.0], "wrong_shape", "X", feature_names=None),
    "array, too few names": array(ROWS, np.ones(3), "wrong_shape", feature_names=["a"]),
    "array, names twice": array(ROWS, np.ones(3), "wrong_shape", feature_names=["a", "a"]),
    "array target NaN": array(ROWS, np.array([1.0, math.nan, 1.0]), "not_finite", "target", 1),
    "array, too many targets": array(ROWS, np.ones(7), "wrong_shape", "target"),
    "array, one number for all": array(ROWS, 5.0, "wrong_shape", "target"),
    "array, too few outputs": array(ROWS, np.ones(3), "wrong_shape", "target", kind=MoEMultiTargetRegressor),
    "array, bad output": array(
        ROWS, changed((1, 1), math.inf), "not_finite", "target", 1, kind=MoEMultiTargetRegressor
    ),
    "array, bad label": array(ROWS, ["p", None, "p"], "wrong_type", "target", 1, kind=MoEClassifier),
    "array, label too many": array(
        np.ones((5, 2)), ["p", "r1", "r2", "r3", "r4"], "unknown_class", "target", 1, kind=MoEClassifier
    ),
    "array weight below 0": array(ROWS, np.ones(3), "out_of_range", "w", 2, w=np.array([1.0, 1.0, -1.0])),
    "array weights text": array(ROWS, np.ones(3), "wrong_type", "w", w=np.array(["1"] * 3)),
    "array, too few weights": array(ROWS, np.ones(3), "wrong_shape", "w", w=np.ones(2)),
    "frame of text": frame(["1", "2"], "wrong_type", 0),
    "frame with infinity": frame([1.0, math.inf], "not_finite", 1),
    "frame with text among objects": frame([1, "1,5"], "wrong_type", 1),
    "frame, a target of text among objects": targets([1.0, "up"], "wrong_type", 1),
    "frame, a target of None among objects": targets(pd.Series([1.0, None], dtype=object), "wrong_type", 1),
    "frame, a decimal target that is infinite": targets([Decimal(1), Decimal("Infinity")], "not_finite", 1),
    "frame, targets of categories": targets(pd.Categorical(["up", "down"]), "wrong_type", 0),
    "frame, dates for targets": targets(pd.to_datetime(SERIES), "wrong_type"),
    "label decimal": label(Decimal(2), "wrong_type"),
    "asked array of another width": Refusal(MoERegressor, lambda m: m.predict_array(np.ones((2, 3))), "wrong_shape"),
    "frame, names twice": Refusal(
        MoERegressor, lambda m: m.learn_many(FRAME.set_axis(["a", "a"], axis=1), SERIES), "wrong_shape"
    ),
    "frame, dates for labels": Refusal(
        MoEClassifier, lambda m: m.learn_many(FRAME, pd.to_datetime(SERIES)), "wrong_type", "target"
    ),
    "frame, other outputs": Refusal(
        MoEMultiTargetRegressor, lambda m: m.learn_many(FRAME, FRAME[["a"]]), "wrong_type", "target"
    ),
    "rows of another width": Refusal(
        MoERegressor, lambda m: m.learn_rows(np.ones((1, 7)), np.ones((1, 1))), "wrong_shape"
    ),
    "no feature at all": Refusal(
        MoERegressor, lambda m: introduce(m.learner, [], np.empty((1, 0)), np.ones((1, 1))), "no_features"
    ),
}


def trained(kind, n):
    """A model that has learned so many events: none, some of its warm-up, or more."""
    more = {"max_classes": 4} if kind is MoEClassifier else {}
    model = kind(2, warmup=20, **more)
    rng = np.random.default_rng(0)
    with quiet():
        for i in range(n):
            a, b = rng.normal(size=2).tolist()
            y = "pqrs"[i % 4] if kind is MoEClassifier else {"u": a, "v": b}
            model.learn_one({"a": a, "b": b}, a if kind is MoERegressor else y)
    return model


LATER = {
    "feature text",
    "frame of text",
    "label one too many",
    "array, label too many",
    "outputs one of two",
    "outputs one more",
    "frame, other outputs",
    "asked array of another width",
}
"""Sound first events, such as text, which makes a column one of categories, or too few for it."""
