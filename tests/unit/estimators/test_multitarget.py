import math

import numpy as np
import pytest
from scipy.stats import multivariate_normal

from streammoe import ConfigError, MoEMultiTargetRegressor, schedules

WARM = 60
QUICK = {"n_experts": 2, "warmup": WARM, "warmup_restarts": 1}
NAMES = ["a", "b", "c"]
OUTPUTS = ["down", "flat", "up"]
NOISE = np.array([[0.04, 0.03, 0.0], [0.03, 0.09, 0.0], [0.0, 0.0, 0.01]])
COVARIANCES = pytest.mark.parametrize("covariance", ["diagonal", "full"])


def stream(n, seed=0):
    """Three outputs, whose errors go together, of two experts that cross."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 3))
    slopes = np.array([[2.0, 1.0, -1.0], [0.0, 0.0, 1.0], [-1.0, 2.0, 0.5]])
    sign = np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-6.0 * X[:, 0])), 1.0, -1.0)
    return X, sign[:, None] * (X @ slopes.T + 1.0) + rng.multivariate_normal(np.zeros(3), NOISE, n)


def dicts(rows, names=NAMES):
    return [dict(zip(names, row.tolist(), strict=True)) for row in rows]


def trained(n=150, **arguments):
    model = MoEMultiTargetRegressor(**{**QUICK, **arguments})
    for x, y in zip(*map(dicts, stream(n), (NAMES, OUTPUTS)), strict=True):
        model.learn_one(x, y)
    return model


def same(one, other):
    return one.state_digest() == other.state_digest()


class TestLearning:
    @pytest.mark.parametrize(("covariance", "scale"), [("diagonal", 1e-9), ("full", 1e9)])
    def test_losses_follow_the_outputs_units(self, covariance, scale):
        X, Y = stream(200)
        given = {**QUICK, "covariance": covariance, "standardize": True, "range_factor": 0}
        plain, scaled = MoEMultiTargetRegressor(**given), MoEMultiTargetRegressor(**given)
        losses = plain.learn_array(X, Y)[WARM:]
        np.testing.assert_allclose(scaled.learn_array(X, scale * Y)[WARM:], losses + 3.0 * math.log(scale), atol=1e-4)


class TestOutputs:
    def test_are_those_of_the_first_event_by_name(self):
        model = MoEMultiTargetRegressor(**QUICK)
        assert model.output_names == []
        assert model.predict_one({"a": 1.0}) == {}
        model.learn_one({"a": 1.0}, {"z": 1.0, "b": 2.0})
        assert model.output_names == ["b", "z"]
        assert list(model.predict_one({"a": 1.0})) == ["b", "z"]
        assert model.predict_array(np.ones((2, 1))).shape == (2, 2)

    def test_are_fixed_once(self):
        with pytest.raises(ConfigError):
            trained(1).set_targets(["y"])
        for names in ([], ["y", "y"]):
            with pytest.raises(ConfigError):
                MoEMultiTargetRegressor().set_targets(names)


class TestPredicting:
    @COVARIANCES
    @pytest.mark.parametrize("standardize", [False, True])
    def test_the_distribution_is_the_mixture_of_the_served_experts(self, standardize, covariance):
        model = trained(covariance=covariance, standardize=standardize)
        X, Y = stream(5, seed=9)
        theta = model.parameters(averaged=True)
        for x, y, row in zip(dicts(X), Y, X, strict=True):
            found = model.predict_distribution_one(x)
            prediction = np.array(list(model.predict_one(x).values()))
            np.testing.assert_allclose(found.mean(), prediction, rtol=1e-10)
            if not standardize:
                r = np.append(1.0, row)
                means = theta["experts"] @ r
                shares = model.gate_one(x)
                sigmas = [np.diag(v) if v.ndim == 1 else v for v in theta["variances"]]
                expected = sum(
                    g * (sigma + np.outer(m, m)) for g, m, sigma in zip(shares, means, sigmas, strict=True)
                ) - np.outer(prediction, prediction)
                np.testing.assert_allclose(found.covariance(), expected, rtol=1e-8, atol=1e-10)
                density = sum(
                    g * multivariate_normal(m, sigma).pdf(y) for g, m, sigma in zip(shares, means, sigmas, strict=True)
                )
                log_likelihood = model.log_likelihood_array(row[None], y[None])[0]
                assert log_likelihood == pytest.approx(math.log(density), rel=1e-8)
            log_density = math.log(found.pdf(y))
            assert log_density == pytest.approx(model.log_likelihood_array(row[None], y[None])[0], rel=1e-8)

    def test_before_an_event_the_outputs_are_not_known(self):
        with pytest.raises(ConfigError):
            MoEMultiTargetRegressor().predict_distribution_one({"a": 1.0})
        model = MoEMultiTargetRegressor()
        model.set_targets(["y", "z"])
        assert model.predict_distribution_one({"a": 1.0}).mean().tolist() == [0.0, 0.0]

    @COVARIANCES
    def test_responsibilities_sum_to_1(self, covariance):
        y = dict.fromkeys(OUTPUTS, 0.5)
        assert trained(covariance=covariance).responsibilities_one({"a": 1.0}, y).sum() == pytest.approx(1.0)
        assert np.isnan(trained(10, covariance=covariance).responsibilities_one({"a": 1.0}, y)).all()


@COVARIANCES
class TestKeeping:
    @pytest.mark.parametrize("arguments", [{"standardize": True}, {"schedule": schedules.constant(0.03)}], ids=str)
    def test_from_parameters_continues_within_1e_9(self, arguments, covariance):
        n = 137
        model = trained(n, covariance=covariance, **arguments)
        twin = MoEMultiTargetRegressor.from_parameters(
            model.parameters(), feature_names=NAMES, target_names=OUTPUTS, **{**QUICK, **arguments}
        )
        assert (twin.covariance, twin.output_names) == (covariance, OUTPUTS)
        X, Y = stream(300, seed=6)
        for each in (model, twin):
            each.learn_array(X, Y)
        ours, theirs = model.parameters(), twin.parameters()
        assert theirs["n"] == ours["n"] == n + 300
        for name in ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams"):
            difference = np.abs(ours[name] - theirs[name]).max() / np.abs(ours[name]).max()
            assert difference <= 1e-9, name
