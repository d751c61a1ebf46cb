import copy
import math
import pickle

import numpy as np
import pandas as pd
import pytest
from scipy.stats import multivariate_normal

from streammoe import ConfigError, InvalidEvent, MoEMultiTargetRegressor, MoERegressor, load, schedules

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
    def test_a_full_covariance_finds_how_errors_go_together(self):
        X, Y = stream(6000)
        full = MoEMultiTargetRegressor(2, warmup=300, covariance="full")
        diagonal = MoEMultiTargetRegressor(2, warmup=300)
        losses = [model.learn_array(X, Y)[3000:].mean() for model in (full, diagonal)]
        assert losses[0] < losses[1] - 0.1
        for covariance in full.parameters(averaged=True)["variances"]:
            np.testing.assert_allclose(covariance, NOISE, atol=0.025)
        for variances in diagonal.parameters(averaged=True)["variances"]:
            np.testing.assert_allclose(variances, np.diag(NOISE), atol=0.025)

    @COVARIANCES
    @pytest.mark.parametrize("standardize", [False, True])
    @pytest.mark.parametrize("warmup", [0, WARM, 1000])
    def test_arrays_frames_and_events_are_one(self, warmup, standardize, covariance):
        if warmup == 0 and standardize:
            return
        given = {**QUICK, "warmup": warmup, "standardize": standardize, "covariance": covariance}
        loop = trained(150, **given)
        X, Y = stream(150)
        for cuts in ([], [1, 59, 60, 61], range(1, 150)):
            arrays = MoEMultiTargetRegressor(**given)
            arrays.set_targets(OUTPUTS)
            for part in np.split(np.arange(150), cuts):
                arrays.learn_array(X[part], Y[part], feature_names=NAMES)
            assert same(arrays, loop)
        frame = pd.DataFrame(X, columns=NAMES)
        # Outputs are known by name: the order of the columns does not matter.
        targets = pd.DataFrame(Y, columns=OUTPUTS)[["up", "down", "flat"]]
        frames = MoEMultiTargetRegressor(**given)
        frames.learn_many(frame.iloc[:40], targets.iloc[:40])
        frames.learn_many(frame.iloc[40:], targets.iloc[40:])
        assert same(frames, loop)
        assert frames.predict_many(frame).columns.tolist() == OUTPUTS
        assert frames.predict_many(frame).to_numpy().tobytes() == loop.predict_array(X).tobytes()
        assert [loop.predict_one(x) for x in dicts(X[:5])] == dicts(loop.predict_array(X[:5]), OUTPUTS)

    @COVARIANCES
    def test_one_output_is_the_regressor(self, covariance):
        X, Y = stream(200)
        several = MoEMultiTargetRegressor(**QUICK, covariance=covariance)
        one = MoERegressor(**QUICK)
        np.testing.assert_allclose(several.learn_array(X, Y[:, :1]), one.learn_array(X, Y[:, 0]), rtol=1e-8, atol=1e-9)
        np.testing.assert_allclose(several.predict_array(X)[:, 0], one.predict_array(X), rtol=1e-8)

    @COVARIANCES
    def test_weights(self, covariance):
        X, Y = stream(150)
        weights = np.random.default_rng(0).choice([0.0, 0.5, 2.0], size=150)
        loop, arrays, frames = (MoEMultiTargetRegressor(**QUICK, covariance=covariance) for _ in range(3))
        for x, y, w in zip(dicts(X), dicts(Y, OUTPUTS), weights.tolist(), strict=True):
            loop.learn_one(x, y, w=w)
        arrays.set_targets(OUTPUTS)
        arrays.learn_array(X, Y, weights=weights, feature_names=NAMES)
        frames.learn_many(pd.DataFrame(X, columns=NAMES), pd.DataFrame(Y, columns=OUTPUTS), w=weights)
        assert same(loop, arrays)
        assert same(loop, frames)

    @pytest.mark.parametrize("scale", [1e-9, 1e9])
    @COVARIANCES
    def test_losses_follow_the_outputs_units(self, covariance, scale):
        X, Y = stream(200)
        given = {**QUICK, "covariance": covariance, "standardize": True, "range_factor": 0}
        plain, scaled = MoEMultiTargetRegressor(**given), MoEMultiTargetRegressor(**given)
        losses = plain.learn_array(X, Y)[WARM:]
        np.testing.assert_allclose(scaled.learn_array(X, scale * Y)[WARM:], losses + 3.0 * math.log(scale), atol=1e-4)

    @COVARIANCES
    def test_forty_outputs_that_depend_on_each_other(self, covariance):
        X, Y = stream(200)
        mixed = Y @ np.random.default_rng(0).normal(size=(3, 40))
        model = MoEMultiTargetRegressor(**QUICK, covariance=covariance)
        losses = model.learn_array(X, mixed)
        assert np.isfinite(losses).all()
        assert model.is_finite()

    def test_no_rows_are_nothing(self):
        model = MoEMultiTargetRegressor()
        before = model.state_digest()
        assert model.learn_array(np.empty((0, 3)), np.empty((0, 2))).shape == (0,)
        assert model.n == 0
        assert model.state_digest() == before


class TestOutputs:
    def test_are_those_of_the_first_event_by_name(self):
        model = MoEMultiTargetRegressor(**QUICK)
        assert model.output_names == []
        assert model.predict_one({"a": 1.0}) == {}
        model.learn_one({"a": 1.0}, {"z": 1.0, "b": 2.0})
        assert model.output_names == ["b", "z"]
        assert list(model.predict_one({"a": 1.0})) == ["b", "z"]
        assert model.predict_array(np.ones((2, 1))).shape == (2, 2)

    def test_of_an_array_are_numbered(self):
        model = MoEMultiTargetRegressor(**QUICK)
        model.learn_array(*stream(5))
        assert model.output_names == ["y0", "y1", "y2"]

    def test_are_fixed_once(self):
        with pytest.raises(ConfigError, match="outputs already"):
            trained(1).set_targets(["y"])
        for names in ([], ["y", "y"]):
            with pytest.raises(ConfigError, match="set_targets"):
                MoEMultiTargetRegressor().set_targets(names)

    @COVARIANCES
    @pytest.mark.parametrize("n", [1, 20, 150])
    @pytest.mark.parametrize(
        "y", [{}, {"down": 1.0, "up": 1.0}, {"down": 1.0, "flat": 1.0, "up": 1.0, "more": 1.0}, {"x": 1.0}], ids=str
    )
    def test_every_event_brings_all_of_them_and_no_others(self, covariance, n, y):
        model = trained(n, covariance=covariance)
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="outputs"):
            model.learn_one({"a": 1.0, "new": 1.0}, y)
        if y:
            with pytest.raises(InvalidEvent, match="outputs"):
                model.learn_many(pd.DataFrame([{"a": 1.0}]), pd.DataFrame([y]))
        assert model.state_digest() == before


BAD = [math.nan, math.inf, 1e300, "1.0", None, 1j]


class TestPoison:
    @pytest.mark.parametrize("value", BAD, ids=str)
    @pytest.mark.parametrize("n", [0, 20, 150], ids=["fresh", "warming up", "streaming"])
    @COVARIANCES
    def test_a_bad_value_anywhere_changes_nothing(self, covariance, n, value):
        model = trained(n, covariance=covariance)
        before, known = model.state_digest(), model.output_names
        y = {"down": 1.0, "flat": 1.0, "up": 1.0}
        for x, target in (({"a": value, "new": 1.0}, y), ({"a": 1.0, "new": 1.0}, {**y, "up": value})):
            with pytest.raises(InvalidEvent):
                model.learn_one(x, target)
            assert model.state_digest() == before
            assert model.output_names == known
        X, Y = stream(30)
        for table in (X, Y):
            if isinstance(value, float):
                kept = table[7, 2]
                table[7, 2] = value
                with pytest.raises(InvalidEvent, match="row 7"):
                    model.learn_array(X, Y, feature_names=NAMES)
                table[7, 2] = kept
                assert model.state_digest() == before
                assert model.output_names == known

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_a_refused_first_event_leaves_the_outputs_open(self, n):
        model = trained(n)
        if n == 0:
            with pytest.raises(InvalidEvent):
                model.learn_one({"a": 1e300}, {"wrong": 1.0})
            with pytest.raises(InvalidEvent):
                model.learn_array(np.array([[math.nan]]), np.ones((1, 5)))
            with pytest.raises(InvalidEvent):
                model.learn_many(pd.DataFrame({"a": [1e300]}), pd.DataFrame({"wrong": [1.0]}))
        for x, y in zip(*map(dicts, stream(80, seed=4), (NAMES, OUTPUTS)), strict=True):
            model.learn_one(x, y)
        clean = trained(n)
        for x, y in zip(*map(dicts, stream(80, seed=4), (NAMES, OUTPUTS)), strict=True):
            clean.learn_one(x, y)
        assert same(model, clean)

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_scoring_and_weights_of_0_leave_no_trace(self, n):
        model = trained(n)
        before, known = model.state_digest(), model.output_names
        X, Y = stream(5, seed=3)
        model.log_likelihood_array(X, Y)
        model.predict_one({"a": 1.0, "new": 1.0})
        model.predict_array(X)
        y = dict.fromkeys(OUTPUTS, 1.0)
        model.learn_one({"a": 1.0, "new": 1.0}, y, w=0.0)
        model.learn_array(X, Y, weights=np.zeros(5), feature_names=NAMES)
        assert (model.state_digest(), model.output_names) == (before, known)

    @pytest.mark.parametrize("n", [0, 20, 150])
    @pytest.mark.parametrize("Y", [np.ones(3), np.ones((2, 3)), np.ones((3, 0)), np.array(1.0), np.ones((3, 3, 1))])
    def test_shapes_that_do_not_fit(self, n, Y):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent):
            model.learn_array(np.ones((3, 3)), Y, feature_names=NAMES)
        assert model.state_digest() == before


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

    @COVARIANCES
    @pytest.mark.parametrize("n", [1, 20])
    def test_the_distribution_during_warm_up_is_one_expert(self, n, covariance):
        found = trained(n, covariance=covariance).predict_distribution_one({"a": 1.0})
        assert np.isfinite(found.mean()).all()

    def test_before_an_event_the_outputs_are_not_known(self):
        with pytest.raises(ConfigError, match="not known yet"):
            MoEMultiTargetRegressor().predict_distribution_one({"a": 1.0})
        model = MoEMultiTargetRegressor()
        model.set_targets(["y", "z"])
        assert model.predict_distribution_one({"a": 1.0}).mean().tolist() == [0.0, 0.0]

    @COVARIANCES
    def test_responsibilities_sum_to_1(self, covariance):
        y = dict.fromkeys(OUTPUTS, 0.5)
        assert trained(covariance=covariance).responsibilities_one({"a": 1.0}, y).sum() == pytest.approx(1.0)
        assert np.isnan(trained(10, covariance=covariance).responsibilities_one({"a": 1.0}, y)).all()


COPIES = {
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "save and load": lambda model, path: (model.save(path), load(path))[1],
    "river clone with state": lambda model, path: model.clone(include_attributes=True),
}


@COVARIANCES
class TestKeeping:
    @pytest.mark.parametrize("how", COPIES)
    @pytest.mark.parametrize("n", [0, 1, WARM - 2, WARM, 133])
    @pytest.mark.sampled(one_in=4)
    def test_a_copy_goes_on_bit_for_bit_and_by_itself(self, tmp_path, how, n, covariance):
        model = trained(n, covariance=covariance, standardize=n % 2 == 1)
        twin = COPIES[how](model, tmp_path / "model")
        assert same(model, twin)
        assert (twin.n, twin.output_names) == (n, model.output_names)
        X, Y = stream(100, seed=8)
        before = model.state_digest()
        losses = twin.learn_array(X, Y, feature_names=NAMES)
        assert model.state_digest() == before
        assert model.learn_array(X, Y, feature_names=NAMES).tobytes() == losses.tobytes()
        assert same(model, twin)
        assert model.predict_array(X).tobytes() == twin.predict_array(X).tobytes()

    @pytest.mark.parametrize(
        "arguments", [{}, {"standardize": True, "bound": "adaptive"}, {"schedule": schedules.constant(0.03)}], ids=str
    )
    @pytest.mark.parametrize("n", [WARM, 137])
    def test_from_parameters_continues_within_1e_9(self, n, arguments, covariance):
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

    def test_rows_for_the_daemon(self, covariance):
        X, Y = stream(150)
        clean, mixed = (MoEMultiTargetRegressor(**QUICK, covariance=covariance) for _ in range(2))
        clean.learn_array(X, Y, feature_names=NAMES)
        mixed.set_columns(NAMES)
        mixed.set_targets(["y0", "y1", "y2"])
        rows, targets = np.insert(X, [10, 100], 0.5, axis=0), np.insert(Y, [10, 100], 0.5, axis=0)
        rows[10, 1], targets[101] = 1e60, np.nan
        outcome = mixed.learn_rows(rows, targets, traced=True)
        assert same(clean, mixed)
        assert outcome.refused[10].feature == "b"
        assert np.flatnonzero(~outcome.learned).tolist() == [10, 101]
        assert np.isnan(outcome.predictions[10]).all()
        assert np.isfinite(outcome.predictions[101]).all()
