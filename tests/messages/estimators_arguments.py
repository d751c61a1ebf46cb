"""Of wrong arguments of estimators, batch fits, distributions, `load` and `save`."""

import numpy as np

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch, load
from streammoe.distributions import GaussianMixture

X, Y = np.arange(8.0).reshape(4, 2), np.arange(4.0)
MIXTURE = GaussianMixture(np.ones(1), np.zeros(1), np.ones(1))


def wide(n):
    return {f"x{j}": 0.5 for j in range(n)}


CASES = {
    "degree, too high": lambda _: MoERegressor(degree=2000),
    "several bounds": lambda _: MoEClassifier(n_experts=0, warmup=10**9, prior_strength=1e12, max_classes=1),
    "n_experts, a word": lambda _: MoERegressor(n_experts="many"),
    "averaging, a list": lambda _: MoERegressor(averaging=["polyak"]),
    "expert, an array": lambda _: MoERegressor(expert=np.ones(2)),
    "an event with too many features": lambda _: MoERegressor(degree=20).learn_one(wide(1000), 1.0),
    "listed columns, too many": lambda _: MoERegressor().set_columns(wide(9000)),
    "a warm-up too long for its features": lambda _: MoERegressor(warmup=10**7).learn_one(wide(100), 1.0),
    "an event, None": lambda _: MoERegressor().learn_one(None, 1.0),
    "a value, None": lambda _: MoERegressor().learn_one({"x": None}, 1.0),
    "a value, bytes": lambda _: MoERegressor().learn_one({"x": b"1"}, 1.0),
    "a category, a list": lambda _: MoERegressor(categorical=("c",)).learn_one({"c": ["red"]}, 1.0),
    "a time, a truth value": lambda _: MoERegressor(timestamps=("t",)).learn_one({"t": True}, 1.0),
    "a feature name, a tuple": lambda _: MoERegressor().predict_one({("a", "b"): 1.0}),
    "a feature name, None": lambda _: MoERegressor().learn_one({None: 1.0}, 1.0),
    "a feature name, beyond 64 bits": lambda _: MoERegressor().learn_one({2**70: 1.0}, 1.0),
    "an output name, a number": lambda _: MoEMultiTargetRegressor().learn_one({"x": 1.0}, {0.5: 1.0}),
    "several targets, one number": lambda _: MoEMultiTargetRegressor().learn_one({"x": 1.0}, 1.0),
    "a label, None": lambda _: MoEClassifier().learn_one({"x": 1.0}, None),
    "a label, infinite": lambda _: MoEClassifier().learn_one({"x": 1.0}, float("inf")),
    "targets of an array, a dict": lambda _: MoERegressor().learn_array(X, {"y": Y}),
    "weights of an array, one number": lambda _: MoERegressor().learn_array(X, Y, weights=float("nan")),
    "feature_names, one text": lambda _: MoERegressor().learn_array(X, Y, feature_names="ab"),
    "a frame, an array": lambda _: MoERegressor().learn_many(X, Y),
    "fit, a text for a model": lambda _: batch.fit("model", X, Y),
    "fit, method a list": lambda _: batch.fit(MoERegressor(), X, Y, method=["em"]),
    "fit, on_round no function": lambda _: batch.fit(MoERegressor(), X, Y, on_round=1),
    "from_parameters, no mapping": lambda _: MoERegressor.from_parameters(None, feature_names=["x"]),
    "from_parameters, text": lambda _: MoERegressor.from_parameters({"experts": "x"}, feature_names=["x"]),
    "interval, text": lambda _: MIXTURE.interval("0.9"),
    "sample, a seed": lambda _: MIXTURE.sample(1),
    "save, no path": lambda _: MoERegressor().save(None),
    "load, a list": lambda _: load(["model"]),
}
