"""Regressors whose experts have heavier tails than a Gaussian."""

import numpy as np
import pytest

from streammoe import MoERegressor

HEAVY = ["student_t", "laplace"]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(1_500, 2))
TRUTH = np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], 1.0 - X[:, 1])
HIT = RNG.random(1_500) < 0.05
Y = TRUTH + 0.1 * RNG.normal(size=1_500) + np.where(HIT, 30.0 * RNG.normal(size=1_500), 0.0)


def test_outliers_do_not_pull_them_away():
    errors, likelihoods = {}, {}
    for expert in ("gaussian", *HEAVY):
        model = MoERegressor(2, expert=expert, warmup=300, warmup_restarts=2)
        model.learn_array(X, Y)
        errors[expert] = np.sqrt(np.mean((model.predict_array(X) - TRUTH) ** 2))
        likelihoods[expert] = model.log_likelihood_array(X, Y).mean()
    assert errors["student_t"] < 0.2
    assert errors["gaussian"] > 0.4
    assert errors["laplace"] < errors["gaussian"]
    assert likelihoods["student_t"] > likelihoods["gaussian"]


@pytest.mark.parametrize(("expert", "scale"), [("student_t", 1e-6), ("laplace", 1e7)])
def test_units_of_the_target_do_not_matter_to_the_one_expert_of_the_warm_up(expert, scale):
    """It starts with the scale of its first target: with a far too small one all events would be far out."""
    plain, scaled = (MoERegressor(2, expert=expert, warmup=400, range_factor=0) for _ in range(2))
    plain.learn_array(X[:300], Y[:300])
    scaled.learn_array(X[:300], scale * Y[:300])
    np.testing.assert_allclose(scaled.predict_array(X) / scale, plain.predict_array(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("expert", HEAVY)
def test_a_first_target_far_from_the_scale_is_outgrown(expert):
    model = MoERegressor(1, expert=expert, warmup=400)
    model.learn_array(X[:300], np.where(np.arange(300) == 0, 1e-6, X[:300, 1]))
    np.testing.assert_allclose(model.predict_array(X[:50]), X[:50, 1], atol=0.05)
