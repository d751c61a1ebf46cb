"""The members that hardly forget and that forget at once: where they are trusted, and where they leave."""

import numpy as np
import pytest

from streammoe import MoEClassifier, MoERegressor
from streammoe.options import WarmUp

RNG = np.random.default_rng(3)
X = RNG.normal(size=(2_400, 3))
MOVING = (X * np.cumsum(0.05 * RNG.normal(size=X.shape), axis=0)).sum(axis=1) + 0.3 * RNG.normal(size=len(X))
"""Coefficients walk at random, faster than a hundred events tell."""
LINE = (X @ [1.0, -1.0, 0.5] + RNG.logistic(size=len(X)) > 0).astype(int)
BENT = np.where(X[:, 0] > 0.0, X @ [3.0, 1.0, 0.0], X @ [-3.0, 0.0, 2.0]) + 0.2 * RNG.normal(size=len(X))


def learned(kind, y, n_experts=2, **more):
    model = kind(n_experts, warmup=WarmUp(400, restarts=1), curved="off", refits=False, **more)
    model.learn_array(X[: len(y)], y)
    return model


@pytest.mark.parametrize(
    ("name", "kind", "y", "n_experts", "least"),
    [("steady", MoEClassifier, LINE, 4, 0.1), ("quick", MoERegressor, MOVING, 2, 0.9)],
    ids=["steady", "quick"],
)
def test_a_member_is_trusted_where_its_pace_is_right_and_leaves_for_good_where_it_is_not(
    name, kind, y, n_experts, least
):
    assert learned(kind, y, n_experts).member_weights[name] > least
    assert name not in learned(MoERegressor, BENT).member_weights
