"""The member that forgets at once: where it is trusted, when it leaves, and what checkpoints hold of it."""

import numpy as np

from streammoe import MoERegressor
from streammoe.model import checkpoint
from streammoe.options import WarmUp

RNG = np.random.default_rng(3)
NAMES = ["a", "b", "c"]
X = RNG.normal(size=(2_400, 3))
MOVING = (X * np.cumsum(0.05 * RNG.normal(size=X.shape), axis=0)).sum(axis=1) + 0.3 * RNG.normal(size=len(X))
"""Coefficients walk at random, faster than a hundred events tell."""
BENT = np.where(X[:, 0] > 0.0, X @ [3.0, 1.0, 0.0], X @ [-3.0, 0.0, 2.0]) + 0.2 * RNG.normal(size=len(X))


def learned(y, kind=MoERegressor, **more):
    options = {"n_experts": 2, "warmup": WarmUp(400, restarts=1), "curved": "off", "refits": False, **more}
    model = kind(**options)
    return model, model.learn_array(X[: len(y)], y, feature_names=NAMES)


def without(arrays):
    """The arrays of a checkpoint in which such a member has left."""
    weights, means = arrays["portfolio.weights"][:-1], arrays["portfolio.mean_weights"][:-1]
    kept = {name: array for name, array in arrays.items() if ".quick" not in name}
    return {**kept, "portfolio.weights": weights / weights.sum(), "portfolio.mean_weights": means / means.sum()}


def test_it_is_trusted_where_a_relation_moves_fast_and_leaves_for_good_where_none_does():
    model, losses = learned(MOVING)
    assert model.member_weights["quick"] > 0.9
    old, _ = learned(MOVING[:420])
    checkpoint.restore(old.learner, without(old.arrays()))
    without_it = old.learn_array(X[420:], MOVING[420:], feature_names=NAMES)
    assert losses[420:].mean() < without_it.mean() - 0.1
    assert "quick" not in old.member_weights
    assert "quick" not in learned(BENT)[0].member_weights


def test_it_takes_part_only_where_there_is_a_portfolio():
    model, _ = learned(BENT[:500], serve="polyak")
    assert "quick" not in {*model.member_weights, *model.member_names}
