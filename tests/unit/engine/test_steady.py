"""The member that hardly forgets: where it is trusted, when it leaves, and what checkpoints hold of it."""

import numpy as np

from streammoe import MoEClassifier, MoERegressor
from streammoe.model import checkpoint
from streammoe.options import WarmUp

RNG = np.random.default_rng(3)
NAMES = ["a", "b", "c"]
X = RNG.normal(size=(3_200, 3))
LINE = (X @ [1.0, -1.0, 0.5] + RNG.logistic(size=len(X)) > 0).astype(int)
BENT = np.where(X[:, 0] > 0.0, X @ [3.0, 1.0, 0.0], X @ [-3.0, 0.0, 2.0]) + 0.2 * RNG.normal(size=len(X))


def model_of(kind, **more):
    options = {"warmup": WarmUp(400, restarts=1), "curved": "off", "refits": False, "standardize": True, **more}
    return kind(**{"n_experts": 2, **options})


def learned(kind, y, **more):
    model = model_of(kind, **more)
    return model, model.learn_array(X[: len(y)], y, feature_names=NAMES)


def test_it_is_trusted_where_regions_are_linear_and_leaves_for_good_where_they_are_not():
    model, losses = learned(MoEClassifier, LINE, n_experts=4)
    assert model.member_weights["steady"] > 0.1
    arrays = learned(MoEClassifier, LINE[:420], n_experts=4)[0].arrays()
    old = model_of(MoEClassifier, n_experts=4)
    checkpoint.restore(old.learner, without(arrays))
    without_it = old.learn_array(X[420:], LINE[420:], feature_names=NAMES)
    assert losses[420:].mean() < without_it.mean()
    assert "steady" not in old.member_weights
    assert "steady" not in learned(MoERegressor, BENT)[0].member_weights


def without(arrays):
    """The arrays of a checkpoint in which such a member has left."""
    weights = arrays["portfolio.weights"][:3]
    kept = {
        name: array
        for name, array in arrays.items()
        if not any(f".{left}" in name for left in ("steady", "quick", "floor"))
    }
    return {**kept, "portfolio.weights": weights / weights.sum()}


def test_it_takes_part_only_where_there_is_a_portfolio():
    model, _ = learned(MoERegressor, BENT[:500], serve="polyak")
    assert "steady" not in {*model.member_weights, *model.member_names}
