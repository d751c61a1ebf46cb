"""Regressors whose experts have heavier tails than a Gaussian."""

import numpy as np

from streammoe import MoERegressor
from streammoe.options import WarmUp

RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(1_500, 2))
TRUTH = np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], 1.0 - X[:, 1])
HIT = RNG.random(1_500) < 0.05
Y = TRUTH + 0.1 * RNG.normal(size=1_500) + np.where(HIT, 30.0 * RNG.normal(size=1_500), 0.0)


def test_outliers_do_not_pull_them_away():
    errors, likelihoods = {}, {}
    for expert in ("gaussian", "student_t", "laplace"):
        model = MoERegressor(2, expert=expert, warmup=WarmUp(300, restarts=2))
        model.learn_array(X, Y)
        errors[expert] = np.sqrt(np.mean((model.predict_array(X) - TRUTH) ** 2))
        likelihoods[expert] = model.log_likelihood_array(X, Y).mean()
    assert errors["student_t"] < 0.2
    assert errors["gaussian"] > 0.3
    assert errors["laplace"] < errors["gaussian"]
    assert likelihoods["student_t"] > likelihoods["gaussian"]
