"""Regressors whose experts have another noise than a Gaussian's."""

import math

import numpy as np
import pytest

from streammoe import MoEMultiTargetRegressor, MoERegressor, load
from streammoe.distributions import (
    MultivariateGaussianMixture,
    MultivariateStudentTMixture,
    StudentTMixture,
)
from streammoe.estimators.noise import family_of
from streammoe.experts import families
from streammoe.kernels.laplace import TIP

HEAVY = ["student_t", "laplace"]
RNG = np.random.default_rng(0)
X = RNG.uniform(-1.0, 1.0, size=(2_000, 2))
TRUTH = np.where(X[:, 0] > 0.0, 2.0 * X[:, 1], 1.0 - X[:, 1])
HIT = RNG.random(2_000) < 0.05
Y = TRUTH + 0.1 * RNG.normal(size=2_000) + np.where(HIT, 30.0 * RNG.normal(size=2_000), 0.0)


@pytest.fixture(scope="module")
def models():
    found = {}
    for expert in ("gaussian", *HEAVY):
        found[expert] = MoERegressor(2, expert=expert, warmup=300, warmup_restarts=2)
        found[expert].learn_array(X, Y)
    return found


@pytest.fixture(scope="module")
def several():
    model = MoEMultiTargetRegressor(2, expert="student_t", degrees_of_freedom=5.0, warmup=300, warmup_restarts=2)
    model.learn_array(X, np.column_stack([Y, -Y, 100.0 * TRUTH]))
    return model


def test_outliers_do_not_pull_them_away(models):
    errors = {expert: np.sqrt(np.mean((model.predict_array(X) - TRUTH) ** 2)) for expert, model in models.items()}
    assert errors["student_t"] < 0.2
    assert errors["gaussian"] > 0.4
    assert errors["laplace"] < errors["gaussian"]
    assert models["student_t"].log_likelihood_array(X, Y).mean() > models["gaussian"].log_likelihood_array(X, Y).mean()


@pytest.mark.parametrize("expert", HEAVY)
def test_density_and_likelihood_say_the_same(models, expert):
    model = models[expert]
    for row, y in zip(X[:20], Y[:20], strict=True):
        found = model.predict_distribution_one({"x0": row[0], "x1": row[1]})
        expected = model.log_likelihood_array(row[None], np.array([y]))[0]
        assert math.log(found.pdf(y)) == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert found.mean() == pytest.approx(model.predict_one({"x0": row[0], "x1": row[1]}), rel=1e-12)


@pytest.mark.parametrize("expert", HEAVY)
def test_the_same_during_warm_up_and_in_units_of_ones_own(expert):
    model = MoERegressor(2, expert=expert, warmup=300, standardize=True, range_factor=0)
    model.learn_array(X[:299], 1e6 + 1e4 * Y[:299])
    for _ in range(2):
        found = model.predict_distribution_one({"x0": 0.4, "x1": 0.1})
        expected = model.log_likelihood_array(np.array([[0.4, 0.1]]), np.array([1.003e6]))[0]
        assert math.log(found.pdf(1.003e6)) == pytest.approx(expected, rel=1e-9)
        low, high = found.interval(0.5)
        assert 0.9e6 < low < found.mean() < high < 1.1e6
        model.learn_array(X[299:400], 1e6 + 1e4 * Y[299:400])


@pytest.mark.parametrize(("expert", "scale"), [("student_t", 1e-6), ("laplace", 1e7)])
def test_units_of_the_target_do_not_matter_to_one_expert_meanwhile(expert, scale):
    """It starts with the scale of its first target: with a far too small one all events would be far out."""
    plain, scaled = (MoERegressor(2, expert=expert, warmup=400, range_factor=0) for _ in range(2))
    plain.learn_array(X[:300], Y[:300])
    scaled.learn_array(X[:300], scale * Y[:300])
    np.testing.assert_allclose(scaled.predict_array(X) / scale, plain.predict_array(X), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("expert", HEAVY)
def test_a_first_target_that_says_nothing_of_the_scale_is_outgrown(expert):
    model = MoERegressor(1, expert=expert, warmup=400)
    model.learn_array(X[:300], np.where(np.arange(300) == 0, 1e-6, X[:300, 1]), feature_names=["a", "b"])
    np.testing.assert_allclose(model.predict_array(X[:50]), X[:50, 1], atol=0.05)


def test_several_outputs_share_one_t(several):
    found = several.predict_distribution_one({"x0": 0.3, "x1": 0.5})
    assert type(found) is MultivariateStudentTMixture
    assert found.degrees_of_freedom == 5.0
    row = np.array([[0.3, 0.5]])
    for y in (np.array([[1.0, -1.0, 100.0]]), np.array([[9.0, 5.0, -3.0]])):
        assert math.log(found.pdf(y[0])) == pytest.approx(several.log_likelihood_array(row, y)[0], rel=1e-9)
    assert type(found.marginal("y1")) is StudentTMixture
    np.testing.assert_allclose(found.mean(), several.predict_array(row)[0], rtol=1e-12)
    with_full = MoEMultiTargetRegressor(2, covariance="full", warmup=0)
    with_full.learn_array(X[:50], np.column_stack([Y[:50], -Y[:50]]))
    assert type(with_full.predict_distribution_one({"x0": 0.3, "x1": 0.5})) is MultivariateGaussianMixture


def test_predictive_variances_are_those_of_the_law(models):
    t = models["student_t"].predict_distribution_one({"x0": 0.3, "x1": 0.5})
    within = np.sum(t.shares * t.scales**2 * 2.0)
    assert t.variance() == pytest.approx(within + np.sum(t.shares * (t.means - t.mean()) ** 2))
    other = models["laplace"].predict_distribution_one({"x0": 0.3, "x1": 0.5})
    assert other.tip == TIP


@pytest.mark.parametrize("model", [{"expert": "student_t", "degrees_of_freedom": 7.0}, {"expert": "laplace"}], ids=str)
def test_arguments_survive_cloning_saving_and_from_parameters(model, tmp_path):
    first = MoERegressor(2, warmup=0, **model)
    assert first.clone()._get_params() == first._get_params()
    first.learn_array(X[:100], Y[:100])
    first.save(tmp_path / "model")
    read = load(tmp_path / "model")
    assert (read.expert, read.degrees_of_freedom) == (first.expert, first.degrees_of_freedom)
    assert read.noise == first.noise
    again = MoERegressor.from_parameters(first.parameters(), feature_names=first.feature_names, **model)
    for each in (read, again):
        each.learn_array(X[100:200], Y[100:200])
    np.testing.assert_allclose(again.parameters()["experts"], read.parameters()["experts"], rtol=1e-9)


def test_families_of_the_arguments():
    names = {
        ("gaussian", "diagonal"): "gaussian",
        ("gaussian", "full"): "gaussian_full",
        ("laplace", "diagonal"): "laplace",
    }
    for (expert, covariance), name in names.items():
        assert family_of(expert, covariance, 4.0) is families()[name]
    assert family_of("student_t", "diagonal", 6.0) is family_of("student_t", "diagonal", 6.0)
    assert family_of("student_t", "diagonal", 6.0).tails.degrees == 6.0
