"""Streams that two experts explain, and models that have learned the beginning of one."""

import numpy as np

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor

ESTIMATORS = [MoERegressor, MoEMultiTargetRegressor, MoEClassifier]
NAMES = ["a", "b", "c"]
OUTPUTS = ["down", "flat", "up"]
LABELS = ["no", "yes", "maybe"]
WARM = 60
QUICK = {"n_experts": 2, "warmup": WARM}
COVARIANCE = np.array([[0.04, 0.03, 0.0], [0.03, 0.09, 0.0], [0.0, 0.0, 0.09]])


def crossing(n, P, seed):
    """Inputs, and which of two experts each belongs to, 1 or -1, by a steep gate along the first input."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, P))
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-6.0 * X[:, 0])), 1.0, -1.0), rng


def numbers(n, seed=0):
    X, sign, rng = crossing(n, 3, seed)
    return X, sign * (1.0 + X @ [2.0, 1.5, 1.0]) + 0.2 * rng.normal(size=n)


def several(n, seed=0):
    """Three outputs, of which the errors go together."""
    X, sign, rng = crossing(n, 3, seed)
    slopes = np.array([[2.0, 1.0, -1.0], [0.0, 0.0, 1.0], [-1.0, 2.0, 0.5]])
    return X, sign[:, None] * (1.0 + X @ slopes.T) + rng.multivariate_normal(np.zeros(3), COVARIANCE, n)


def classes(n, seed=0, labels=LABELS):
    X, sign, rng = crossing(n, 3, seed)
    slopes = 5.0 * np.random.default_rng(3).normal(size=(3, len(labels)))
    index = (sign[:, None] * (X @ slopes) + rng.gumbel(size=(n, len(labels)))).argmax(axis=1)
    return X, np.array(labels)[index]


STREAMS = {MoERegressor: numbers, MoEMultiTargetRegressor: several, MoEClassifier: classes}


def dicts(rows, names=NAMES):
    return [dict(zip(names, row.tolist(), strict=True)) for row in rows]


def pairs(kind, n, seed=0):
    """Events one by one, as `learn_one` takes them."""
    X, y = STREAMS[kind](n, seed)
    return list(zip(dicts(X), dicts(y, OUTPUTS) if kind is MoEMultiTargetRegressor else y.tolist(), strict=True))


def trained(kind=MoERegressor, n=150, **arguments):
    model = kind(**{**QUICK, **arguments})
    if kind is MoEMultiTargetRegressor:
        model.set_targets(OUTPUTS)
    if n:
        X, y = STREAMS[kind](n)
        model.learn_array(X, y, feature_names=NAMES)
    return model


def same(one, other):
    return one.state_digest() == other.state_digest()
