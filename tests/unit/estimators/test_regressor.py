import copy
import functools
import math
import pickle
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest

from streammoe import CheckpointError, ConfigError, InvalidEvent, MoERegressor, load, schedules

WARM = 60
QUICK = {"n_experts": 2, "warmup": WARM, "warmup_restarts": 1}
FIRST = (QUICK["warmup"] - 14) // 2
"""Iterates that its warm-up counts for: half of its events less the parameters of two experts of three inputs."""


def stream(n, P=3, seed=0):
    """Two experts that cross, chosen by a gate along the first input."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, P))
    slopes = np.linspace(2.0, 1.0, P)
    first = rng.random(n) < 1.0 / (1.0 + np.exp(-6.0 * X[:, 0]))
    return X, np.where(first, 1.0 + X @ slopes, -1.0 - X @ slopes) + 0.2 * rng.normal(size=n)


def events(X, names="abcdefghij"):
    return [dict(zip(names, row.tolist(), strict=False)) for row in X]


def trained(n=150, P=3, **arguments):
    model = MoERegressor(**{**QUICK, **arguments})
    if n:
        model.learn_array(*stream(n, P), feature_names=list("abcdefghij")[:P])
    return model


def same(one, other):
    return one.state_digest() == other.state_digest()


class TestLearning:
    def test_reaches_the_noise_of_two_crossing_experts(self):
        X, y = stream(6000)
        model = MoERegressor(2, warmup=300)
        losses = model.learn_array(X, y)
        # Entropy of the noise, and what not knowing the expert costs near the gate's boundary.
        noise = 0.5 * math.log(2 * math.pi * math.e * 0.2**2)
        assert losses[-2000:].mean() < noise + 0.25
        assert np.sort(np.sqrt(model.parameters()["variances"].ravel())) == pytest.approx([0.2, 0.2], abs=0.03)
        assert model.masses == pytest.approx([0.5, 0.5], abs=0.05)

    def test_prequential_losses_are_the_log_likelihood_before_each_event(self):
        for standardize in (False, True):
            model = MoERegressor(**QUICK, standardize=standardize)
            X, y = stream(90)
            expected = []
            for i in range(90):
                expected.append(-model.log_likelihood_array(X[i : i + 1], y[i : i + 1])[0])
                model.learn_array(X[i : i + 1], y[i : i + 1])
            losses = MoERegressor(**QUICK, standardize=standardize).learn_array(X, y)
            np.testing.assert_allclose(losses[1:], expected[1:], rtol=1e-12)

    def test_losses_are_in_the_targets_own_units(self):
        X, y = stream(400)
        losses = MoERegressor(**QUICK, standardize=True).learn_array(X, y)
        scaled = MoERegressor(**QUICK, standardize=True).learn_array(X, 1000.0 * y - 7.0)
        np.testing.assert_allclose(scaled[WARM:], losses[WARM:] + math.log(1000.0), rtol=1e-5)

    @pytest.mark.parametrize("gamma", [0.02, 0.1])
    def test_constant_steps_follow_a_stream_that_turns_around(self, gamma):
        X, y = stream(4000)
        turned = np.where(np.arange(4000) < 2000, y, -y + 3.0)
        tracking = MoERegressor(**QUICK, schedule=schedules.constant(gamma))
        converging = MoERegressor(**QUICK, schedule=schedules.power(1.0))
        late = slice(2500, 4000)
        assert tracking.learn_array(X, turned)[late].mean() < converging.learn_array(X, turned)[late].mean() - 0.3
        assert tracking.step_size == gamma


class TestOneExpertIsRidgeRegression:
    """The n-th event weighs γ_n Π(1−γ) of those after it; the prior is so many more events."""

    @staticmethod
    def weighted_ridge(R, y, weights, ridge):
        return np.linalg.solve((weights[:, None] * R).T @ R + np.diag(ridge), (weights[:, None] * R).T @ y)

    def test_running_means_from_the_prior(self):
        X, y = stream(200)
        R = np.column_stack([np.ones(200), X])
        model = MoERegressor(1, warmup=0, prior_strength=2.5, schedule=schedules.power(1.0), averaging=None)
        model.learn_array(X, y)
        # Steps 1/n weigh all events alike. From the third on the prior has the weight s/n, which is ridge regression.
        theta = self.weighted_ridge(R, y, np.ones(200), np.full(4, 2.5))
        np.testing.assert_allclose(model.parameters()["experts"][0, 0], theta, rtol=1e-9)
        assert model.predict_array(X[:5]) == pytest.approx(R[:5] @ theta)

    def test_any_steps_from_a_warm_up(self):
        X, y = stream(300)
        R = np.column_stack([np.ones(300), X])
        schedule = schedules.power(0.6)
        model = MoERegressor(1, warmup=100, prior_strength=1.0, schedule=schedule, averaging=None)
        model.learn_array(X, y)
        weights = np.full(300, np.nan)
        weights[:100] = 1.0 / 101.0
        ridge = weight = 1.0 / 101.0
        kept = 1.0
        for n in range(101, 301):
            gamma = schedule(n)
            weights[: n - 1] *= 1.0 - gamma
            weights[n - 1] = gamma
            weight *= 1.0 - gamma
            kept *= 1.0 - gamma
            if kept < 0.5:
                kept, weight = 1.0, max(weight, gamma)
            ridge = weight
        squares = np.mean(R[:100] ** 2, axis=0)
        first = np.linalg.lstsq(R[:100], y[:100], rcond=None)[0]
        # The prior's target is the one-expert fit of the buffer.
        theta = first + self.weighted_ridge(R, y - R @ first, weights, ridge * squares)
        np.testing.assert_allclose(model.parameters()["experts"][0, 0], theta, rtol=1e-5)
        np.testing.assert_allclose(
            model.parameters()["gate_gram"], (weights[:, None] * R).T @ R + ridge * np.diag(squares)
        )

    def test_without_a_prior_it_is_least_squares(self):
        X, y = stream(300)
        R = np.column_stack([np.ones(300), X])
        model = MoERegressor(1, warmup=50, prior_strength=0.0, schedule=schedules.power(1.0), averaging=None)
        model.learn_array(X, y)
        theta = np.linalg.lstsq(R, y, rcond=None)[0]
        np.testing.assert_allclose(model.parameters()["experts"][0, 0], theta, rtol=1e-4)
        assert model.parameters()["variances"][0, 0] == pytest.approx(np.mean((y - R @ theta) ** 2), rel=1e-4)


class TestAveraging:
    def raw_and_served(self, model, X, y):
        raw, served = [], []
        for i in range(len(X)):
            model.learn_array(X[i : i + 1], y[i : i + 1])
            if not model.is_warming_up:
                raw.append(model.parameters())
                served.append(model.parameters(averaged=True))
        return raw, served

    @pytest.mark.parametrize(("warmup", "first"), [(0, 1), (1, 1), (30, 3), (61, 19)])
    def test_polyak_is_the_mean_of_the_iterates_since_warm_up(self, warmup, first):
        """What the warm-up ends with counts for half of its events less its 23 parameters."""
        model = MoERegressor(3, warmup=warmup, warmup_restarts=1, prior_strength=1.0)
        raw, served = self.raw_and_served(model, *stream(120))
        for name in ("gate", "experts", "variances"):
            for m in (1, 2, 50, len(raw)):
                iterates = [raw[0][name]] * first + [entry[name] for entry in raw[1:m]]
                np.testing.assert_allclose(served[m - 1][name], np.mean(iterates, axis=0), rtol=1e-10, atol=1e-13)

    def test_decay_weighs_the_m_th_iterate_3_by_m_plus_2(self):
        raw, served = self.raw_and_served(MoERegressor(**QUICK, averaging="decay"), *stream(130))
        expected = raw[0]["experts"]
        for m, entry in enumerate(raw, start=FIRST):
            expected = expected + 3.0 / (m + 2.0) * (entry["experts"] - expected)
        np.testing.assert_allclose(served[-1]["experts"], expected, rtol=1e-10)

    def test_with_constant_steps_the_average_forgets_too(self):
        model = MoERegressor(**QUICK, schedule=schedules.constant(0.05))
        raw, served = self.raw_and_served(model, *stream(130))
        expected = raw[0]["experts"]
        for m, entry in enumerate(raw, start=FIRST):
            expected = expected + max(1.0 / m, 0.05) * (entry["experts"] - expected)
        np.testing.assert_allclose(served[-1]["experts"], expected, rtol=1e-10)

    def test_none_serves_the_raw_iterate(self):
        raw, served = self.raw_and_served(MoERegressor(**QUICK, averaging=None), *stream(80))
        assert served[-1]["experts"].tobytes() == raw[-1]["experts"].tobytes()

    def test_what_is_served_does_not_touch_what_is_learned(self):
        models = [trained(averaging=averaging) for averaging in ("polyak", "decay", None)]
        assert len({model.parameters()["experts"].tobytes() for model in models}) == 1
        assert len({model.predict_one({"a": 1.0}) for model in models}) == 3


class TestPredicting:
    def test_before_learning_it_is_zero(self):
        model = MoERegressor()
        assert model.predict_one({"a": 1.0}) == 0.0
        assert model.predict_one({}) == 0.0
        assert model.predict_array(np.ones((2, 3))).tolist() == [0.0, 0.0]
        assert np.isnan(model.masses).all()
        assert math.isnan(model.convergence_residual)
        assert (model.n, model.feature_names, model.is_warming_up, model.is_finite()) == (0, [], True, True)

    def test_warm_up_predicts_by_one_expert(self):
        X, _ = stream(200)
        straight = X @ np.array([1.0, -2.0, 3.0])
        model = MoERegressor(2, warmup=1000)
        model.learn_array(X, straight)
        assert model.is_warming_up
        assert model.predict_array(X[:5]) == pytest.approx(straight[:5], abs=0.1)

    def test_is_the_gates_mixture_of_the_served_experts(self):
        model = trained()
        X, _ = stream(20, seed=5)
        theta = model.parameters(averaged=True)
        R = np.column_stack([np.ones(20), X])
        logits = np.column_stack([R @ theta["gate"].T, np.zeros(20)])
        shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        expected = np.sum(shares * (R @ theta["experts"][:, 0].T), axis=1)
        np.testing.assert_allclose(model.predict_array(X), expected, rtol=1e-10)
        assert [model.predict_one(x) for x in events(X)] == model.predict_array(X).tolist()

    @pytest.mark.parametrize("n", [0, 10, 150])
    def test_leaves_no_trace(self, n):
        model = trained(n)
        before = model.state_digest()
        X, y = stream(5, seed=3)
        model.predict_one({"a": 1.0, "new": 3.0})
        model.predict_array(X)
        model.log_likelihood_array(X, y)
        model.predict_one({"a": 1e40})
        assert model.state_digest() == before
        assert "new" not in model.feature_names

    @pytest.mark.parametrize("value", [1e7, 1e49, -1e51, 1e300])
    def test_never_raises_on_range(self, value):
        assert isinstance(trained().predict_one({"a": value}), float)
        assert trained().predict_array(np.array([[value, 0.0, 0.0]])).shape == (1,)


class TestMissingAndLateFeatures:
    def test_a_missing_value_takes_the_columns_mean_from_warm_up(self):
        model = trained()
        X, _ = stream(150)
        mean = float(X[:WARM, 1].mean())
        assert model.predict_one({"a": 0.3, "c": 1.0}) == pytest.approx(
            model.predict_one({"a": 0.3, "b": mean, "c": 1.0}), rel=1e-12
        )
        absent, given = trained(), trained()
        absent.learn_one({"a": 0.3, "c": 1.0}, 2.0)
        given.learn_one({"a": 0.3, "b": mean, "c": 1.0}, 2.0)
        np.testing.assert_allclose(absent.parameters()["experts"], given.parameters()["experts"], rtol=1e-9)

    def test_it_is_left_out_of_the_mean_itself(self):
        model = MoERegressor(1, warmup=4)
        for x in ({"a": 1.0, "b": 5.0}, {"a": 2.0}, {"a": 3.0, "b": 7.0}, {"a": 4.0}):
            model.learn_one(x, x["a"])
        assert model.predict_one({"a": 1.0}) == pytest.approx(model.predict_one({"a": 1.0, "b": 6.0}))

    def test_columns_stand_by_name_in_the_first_event_then_as_they_come(self):
        model = MoERegressor(**QUICK)
        model.learn_one({"z": 1.0, "b": 2.0}, 1.0)
        model.learn_one({"a": 1.0, "z": 2.0}, 1.0)
        assert model.feature_names == ["b", "z", "a"]

    @pytest.mark.parametrize("late", [30, 100])
    @pytest.mark.parametrize("warmup", [0, WARM])
    def test_a_late_feature_is_learned(self, warmup, late):
        X, _ = stream(1500)
        y = X @ np.array([1.0, -1.0, 2.0])
        model = MoERegressor(1, warmup=warmup, averaging=None)
        for i, x in enumerate(events(X)):
            if i < late:
                del x["c"]
            model.learn_one(x, y[i])
        assert model.feature_names == ["a", "b", "c"]
        assert model.parameters()["experts"][0, 0] == pytest.approx([0.0, 1.0, -1.0, 2.0], abs=0.02)

    def test_a_feature_that_vanished_goes_on_as_its_mean(self):
        model = trained()
        for x, y in zip(events(stream(50, P=2)[0]), stream(50, P=2)[1], strict=True):
            model.learn_one(x, y)
        assert model.is_finite()
        assert model.feature_names == ["a", "b", "c"]

    @pytest.mark.parametrize("n", [20, 100])
    def test_an_event_without_any_feature(self, n):
        model = trained(n)
        model.learn_one({}, 1.0)
        assert model.n == n + 1
        assert math.isfinite(model.predict_one({}))

    def test_a_stream_without_features_is_its_mean(self):
        model = MoERegressor(1, warmup=0, schedule=schedules.power(1.0), averaging=None, prior_strength=0.01)
        for y in (1.0, 2.0, 6.0):
            model.learn_one({}, y)
        assert model.predict_one({}) == pytest.approx(3.0, abs=0.02)

    @pytest.mark.parametrize("warmup", [0, 3])
    def test_features_may_come_after_an_event_without_any(self, warmup):
        model = MoERegressor(1, warmup=warmup, averaging=None)
        model.learn_one({}, 1.0)
        X, _ = stream(200, P=9)
        y = X.sum(axis=1)
        for i, x in enumerate(events(X)):
            model.learn_one(x, y[i])
        assert model.parameters()["experts"][0, 0] == pytest.approx([0.0] + [1.0] * 9, abs=0.05)


BAD_VALUES = [
    (math.nan, "not_finite"),
    (math.inf, "not_finite"),
    (-math.inf, "not_finite"),
    (10**400, "out_of_range"),
    (1e300, "out_of_range"),
    (-1e300, "out_of_range"),
    (1e12, "out_of_range"),
    ("1.0", "wrong_type"),
    (None, "wrong_type"),
    ([1.0], "wrong_type"),
    (1j, "wrong_type"),
    (Decimal(1), "wrong_type"),
]


@pytest.mark.parametrize("n", [0, 20, 150], ids=["fresh", "warming up", "streaming"])
class TestPoison:
    @pytest.mark.parametrize(("value", "reason"), BAD_VALUES, ids=lambda v: str(v)[:12])
    def test_a_bad_feature_is_named_and_changes_nothing(self, n, value, reason):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="b") as refused:
            model.learn_one({"a": 1.0, "b": value, "c": 2.0, "new": 1.0}, 1.0)
        assert (refused.value.reason, refused.value.feature) == (reason, "b")
        assert model.state_digest() == before
        assert "new" not in model.feature_names

    @pytest.mark.parametrize(("value", "reason"), BAD_VALUES, ids=lambda v: str(v)[:12])
    def test_a_bad_target_changes_nothing(self, n, value, reason):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="target") as refused:
            model.learn_one({"a": 1.0, "b": 1.0, "new": 1.0}, value)
        assert refused.value.reason == reason
        assert model.state_digest() == before

    @pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, 1e12])
    def test_one_bad_row_of_an_array_is_named_and_nothing_is_learned(self, n, value):
        model = trained(n)
        before = model.state_digest()
        X, y = stream(90, P=4, seed=4)
        X[70, 2] = value
        with pytest.raises(InvalidEvent, match="row 70") as refused:
            model.learn_array(X, y, feature_names=list("abcd"))
        assert (refused.value.row, refused.value.feature) == (70, "c")
        assert model.state_digest() == before
        X[70, 2], y[80] = 0.0, value
        with pytest.raises(InvalidEvent, match="row 80") as refused:
            model.learn_array(X, y, feature_names=list("abcd"))
        assert (refused.value.row, refused.value.feature) == (80, "target")
        assert model.state_digest() == before

    def test_the_first_bad_row_is_the_one_that_is_named(self, n):
        X, y = stream(30, P=3, seed=4)
        X[12, 0], X[20, 1] = 1e12, 1e300
        with pytest.raises(InvalidEvent) as refused:
            trained(n).learn_array(X, y, feature_names=list("abc"))
        assert refused.value.row == 12

    @pytest.mark.parametrize(
        ("X", "y"),
        [
            (np.array([["1", "2", "3"]]), np.ones(1)),
            (np.array([[1.0, None, 2.0]], dtype=object), np.ones(1)),
            (np.ones((1, 3)), np.array(["a"])),
            (np.ones((1, 3)) * 1j, np.ones(1)),
            (np.ones(3), np.ones(3)),
            (np.ones((2, 3)), np.ones(4)),
        ],
        ids=["text", "object", "text target", "complex", "one dimension", "two targets a row"],
    )
    def test_arrays_of_something_else(self, n, X, y):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent):
            model.learn_array(X, y, feature_names=list("abc") if np.ndim(X) == 2 else None)
        assert model.state_digest() == before

    @pytest.mark.parametrize("method", ["learn_array", "log_likelihood_array"])
    @pytest.mark.parametrize("size", [1, 7, 9])
    def test_as_many_targets_as_rows(self, n, method, size):
        with pytest.raises(InvalidEvent, match="y: got shape"):
            getattr(trained(n), method)(np.ones((3, 3)), np.ones(size))

    @pytest.mark.parametrize("y", [5.0, np.float64(5.0), np.array(5.0)])
    def test_one_number_is_no_array_of_targets(self, n, y):
        with pytest.raises(InvalidEvent, match=r"y: got shape \(\)"):
            trained(n).learn_array(np.ones((3, 3)), y)


class TestRanges:
    def test_values_far_beyond_what_was_accepted_are_refused_until_the_column_has_grown(self):
        model = MoERegressor(**QUICK)
        for value in (1.0, 1e6, 1e12):
            model.learn_one({"a": value}, 1.0)
        with pytest.raises(InvalidEvent, match="range_factor"):
            model.learn_one({"a": 1.1e18}, 1.0)

    def test_zero_turns_the_rule_off_and_leaves_the_limit(self):
        model = MoERegressor(**QUICK, range_factor=0)
        model.learn_one({"a": 9e49}, 1.0)
        with pytest.raises(InvalidEvent, match="limit"):
            model.learn_one({"a": 1e51}, 1.0)


class TestArrays:
    def test_columns_may_stand_in_any_order_under_their_names(self):
        X, y = stream(200)
        straight, mixed = MoERegressor(**QUICK), MoERegressor(**QUICK)
        losses = straight.learn_array(X, y, feature_names=["a", "b", "c"])
        assert mixed.learn_array(X[:, [2, 0, 1]], y, feature_names=["c", "a", "b"]).tobytes() == losses.tobytes()
        assert same(straight, mixed)
        one = straight.predict_array(X, feature_names=["a", "b", "c"])
        assert mixed.predict_array(X[:, ::-1], feature_names=["c", "b", "a"]).tobytes() == one.tobytes()

    @pytest.mark.parametrize("P", [3, 12])
    def test_default_names_are_x0_x1(self, P):
        """Beyond ten columns the order by name, x0, x1, x10, …, is not that of the array."""
        X, y = stream(150, P)
        arrays, dicts = MoERegressor(**QUICK), MoERegressor(**QUICK)
        arrays.learn_array(X, y)
        for i, row in enumerate(X):
            dicts.learn_one({f"x{j}": value for j, value in enumerate(row.tolist())}, y[i])
        assert same(arrays, dicts)
        assert arrays.feature_names == sorted(f"x{j}" for j in range(P))
        expected = dicts.predict_one({f"x{j}": value for j, value in enumerate(X[0].tolist())})
        assert arrays.predict_array(X[:1])[0] == expected

    def test_without_names_columns_are_taken_in_the_models_own_order(self):
        model = trained()
        X, _ = stream(10, seed=9)
        named = model.predict_array(X, feature_names=["a", "b", "c"])
        assert model.predict_array(X).tobytes() == named.tobytes()

    def test_a_column_left_out_is_missing_and_an_unknown_one_is_ignored_by_predictions(self):
        model = trained()
        X, _ = stream(5, seed=9)
        found = model.predict_array(X, feature_names=["a", "other", "c"])
        assert found.tolist() == [model.predict_one({"a": x["a"], "c": x["c"]}) for x in events(X)]

    def test_names_must_fit_and_differ(self):
        for names in (["a"], ["a", "a", "b"]):
            with pytest.raises(InvalidEvent, match="feature_names"):
                trained().predict_array(np.ones((1, 3)), feature_names=names)

    @pytest.mark.parametrize("dtype", [np.float32, np.int64, bool, list])
    def test_other_numbers_and_lists_are_taken_as_floats(self, dtype):
        X, y = np.round(stream(100)[0]) > 0, np.round(stream(100)[1])
        plain, other = MoERegressor(**QUICK), MoERegressor(**QUICK)
        plain.learn_array(X.astype(float), y)
        other.learn_array(X.tolist() if dtype is list else X.astype(dtype), y.tolist() if dtype is list else y)
        assert same(plain, other)

    def test_memory_order_and_a_column_of_targets_make_no_difference(self):
        X, y = stream(100)
        plain, other = MoERegressor(**QUICK), MoERegressor(**QUICK)
        plain.learn_array(X, y)
        other.learn_array(np.asfortranarray(X), y[:, None])
        assert same(plain, other)

    def test_what_was_given_is_neither_changed_nor_kept(self):
        X, y = stream(100)
        X_before, y_before = X.copy(), y.copy()
        model = MoERegressor(**QUICK)
        model.learn_array(X[:30], y[:30])
        assert X.tobytes() == X_before.tobytes()
        before = model.state_digest()
        X[:], y[:] = 7.0, 7.0
        assert model.state_digest() == before
        assert y_before[0] != 7.0

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_no_rows_are_nothing(self, n):
        model = trained(n)
        before = model.state_digest()
        X, y = np.empty((0, 3)), np.empty(0)
        assert model.predict_array(X).shape == (0,)
        assert model.learn_array(X, y).shape == (0,)
        assert model.log_likelihood_array(X, y).shape == (0,)
        assert model.state_digest() == before


class TestWeights:
    @pytest.mark.parametrize("warmup", [0, WARM])
    def test_one_by_one_equals_arrays_and_frames(self, warmup):
        X, y = stream(150)
        weights = np.random.default_rng(0).choice([0.0, 0.5, 2.0, 10.0], size=150)
        loop, arrays, frames = (MoERegressor(2, warmup=warmup, warmup_restarts=1) for _ in range(3))
        for x, target, w in zip(events(X), y.tolist(), weights.tolist(), strict=True):
            loop.learn_one(x, target, w=w)
        losses = arrays.learn_array(X, y, weights=weights, feature_names=list("abc"))
        frames.learn_many(pd.DataFrame(X, columns=list("abc")), pd.Series(y), w=weights)
        assert same(loop, arrays)
        assert same(loop, frames)
        assert loop.n == np.count_nonzero(weights)
        assert np.isnan(losses).tolist() == (weights == 0.0).tolist()

    @pytest.mark.parametrize("n", [20, 150])
    def test_2_is_not_1_and_the_array_says_the_same(self, n):
        X, y = stream(1, seed=4)
        one, two, array = trained(n), trained(n), trained(n)
        one.learn_one(events(X)[0], y[0])
        two.learn_one(events(X)[0], y[0], w=2)
        array.learn_array(X, y, weights=np.array([2]), feature_names=list("abc"))
        assert same(two, array)
        assert not same(one, two)

    def test_during_warm_up_a_weight_of_2_is_the_event_twice(self):
        """One expert, no prior: the batch fit and steps 1/n leave only the weights to tell events apart."""
        X, y = stream(100)
        given = {"warmup_restarts": 1, "prior_strength": 0.0, "averaging": None}
        doubled, repeated = MoERegressor(1, warmup=100, **given), MoERegressor(1, warmup=140, **given)
        doubled.learn_array(X, y, weights=np.where(np.arange(100) < 40, 2.0, 1.0))
        rows = np.concatenate([np.arange(40), np.arange(100)])
        repeated.learn_array(X[rows], y[rows])
        for name in ("experts", "variances"):
            np.testing.assert_allclose(doubled.parameters()[name], repeated.parameters()[name], rtol=1e-4)
        np.testing.assert_allclose(doubled.masses, repeated.masses)

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_0_is_no_event(self, n):
        model = trained(n)
        before = model.state_digest()
        model.learn_one({"a": 1.0, "new": 1.0}, 1.0, w=0)
        losses = model.learn_array(*stream(10, P=4), weights=np.zeros(10), feature_names=list("abcd"))
        assert np.isnan(losses).all()
        assert model.state_digest() == before
        assert "new" not in model.feature_names

    @pytest.mark.parametrize("n", [0, 20, 150])
    @pytest.mark.parametrize("w", [-1.0, math.nan, math.inf, 1.1e6, "1", None, [1.0]], ids=str)
    def test_bad_ones_are_refused_and_change_nothing(self, n, w):
        model = trained(n)
        before = model.state_digest()
        with pytest.raises(InvalidEvent, match="w: got") as refused:
            model.learn_one({"a": 1.0, "new": 1.0}, 1.0, w=w)
        assert refused.value.feature == "w"
        X, y = stream(5, seed=4)
        if isinstance(w, float):
            with pytest.raises(InvalidEvent, match="row 3") as refused:
                model.learn_array(X, y, weights=np.array([1.0, 1.0, 1.0, w, 1.0]), feature_names=list("abc"))
            assert refused.value.row == 3
        for wrong in (np.ones(4), np.ones((5, 1)), np.array(["1"] * 5), 1.0):
            with pytest.raises(InvalidEvent, match="weights"):
                model.learn_array(X, y, weights=wrong, feature_names=list("abc"))
        assert model.state_digest() == before


class TestFrames:
    @pytest.mark.parametrize("warmup", [0, WARM])
    def test_learn_many_equals_the_loop(self, warmup):
        X, y = stream(150)
        frame, targets = pd.DataFrame(X, columns=list("abc"), index=np.arange(150) * 3), pd.Series(y)
        loop = MoERegressor(2, warmup=warmup, warmup_restarts=1)
        for x, target in zip(events(X), y.tolist(), strict=True):
            loop.learn_one(x, target)
        for cuts in ([], [1, 59, 60, 61, 149]):
            model = loop.clone()
            for part in np.split(np.arange(150), cuts):
                model.learn_many(frame.iloc[part][["c", "a", "b"]], targets.iloc[part])
            assert same(model, loop)
        predictions = loop.predict_many(frame)
        assert predictions.index.tolist() == frame.index.tolist()
        assert predictions.tolist() == [loop.predict_one(x) for x in events(X)]

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_a_column_of_something_else_is_named(self, n):
        model = trained(n)
        before = model.state_digest()
        good = {"a": [1.0], "b": [1], "c": [True]}
        for bad in (["x"], [None], pd.Categorical(["x"]), pd.array([1], dtype="Int64"), pd.to_datetime(["2020-01-01"])):
            frame = pd.DataFrame({**good, "b": bad})
            with pytest.raises(InvalidEvent, match="'b'"):
                model.learn_many(frame, pd.Series([1.0]))
            with pytest.raises(InvalidEvent, match="'b'"):
                model.predict_many(frame)
        with pytest.raises(InvalidEvent, match="b is nan"):
            model.learn_many(pd.DataFrame({**good, "b": [math.nan]}), pd.Series([1.0]))
        assert model.state_digest() == before
        model.learn_many(pd.DataFrame(good), pd.Series([1.0]))
        assert model.n == n + 1


class TestDistribution:
    @pytest.mark.parametrize("standardize", [False, True])
    @pytest.mark.parametrize("n", [1, 20, 150])
    def test_says_what_the_predictions_and_likelihoods_say(self, n, standardize):
        model = trained(n, standardize=standardize)
        X, y = stream(10, seed=9)
        for x, target, row in zip(events(X), y.tolist(), X, strict=True):
            found = model.predict_distribution_one(x)
            assert found.mean() == pytest.approx(model.predict_one(x), rel=1e-12)
            likelihood = math.exp(model.log_likelihood_array(row[None], np.array([target]))[0])
            assert found.pdf(target) == pytest.approx(likelihood, rel=1e-9)
            low, high = found.interval(0.9)
            assert found.cdf(high) - found.cdf(low) == pytest.approx(0.9, abs=1e-6)

    def test_before_learning_it_is_a_standard_normal(self):
        found = MoERegressor().predict_distribution_one({"a": 1.0})
        assert (found.mean(), found.variance()) == (0.0, 1.0)

    def test_intervals_hold_what_they_promise(self):
        X, y = stream(4000)
        model = MoERegressor(2, warmup=300)
        model.learn_array(X[:3000], y[:3000], feature_names=list("abc"))
        inside = []
        for x, target in zip(events(X[3000:3400]), y[3000:3400], strict=True):
            low, high = model.predict_distribution_one(x).interval(0.8)
            inside.append(low <= target <= high)
        assert np.mean(inside) == pytest.approx(0.8, abs=0.07)

    def test_shares_and_responsibilities_sum_to_1_and_are_nan_during_warm_up(self):
        model, young = trained(n_experts=3), trained(10, n_experts=3)
        for x in events(stream(10, seed=9)[0]):
            shares, tau = model.gate_one(x), model.responsibilities_one(x, 1.0)
            assert shares.shape == tau.shape == (3,)
            assert [shares.sum(), tau.sum()] == pytest.approx([1.0, 1.0])
            assert (shares >= 0.0).all()
            assert (tau >= 0.0).all()
            assert np.isnan(young.gate_one(x)).all()
            assert np.isnan(young.responsibilities_one(x, 1.0)).all()

    @pytest.mark.parametrize("value", [math.nan, None, "1"])
    def test_responsibilities_of_a_bad_target(self, value):
        with pytest.raises(InvalidEvent, match="target"):
            trained().responsibilities_one({"a": 1.0}, value)


def reloaded(model, path):
    model.save(path)
    return load(path)


COPIES = {
    "pickle": lambda model, path: pickle.loads(pickle.dumps(model)),
    "deepcopy": lambda model, path: copy.deepcopy(model),
    "save and load": reloaded,
    "river clone with state": lambda model, path: model.clone(include_attributes=True),
}


class TestKeeping:
    @pytest.mark.parametrize("how", COPIES)
    @pytest.mark.parametrize("n", [0, 1, WARM - 2, WARM, 173])
    @pytest.mark.parametrize(
        "arguments", [{}, {"standardize": True, "degree": 2, "schedule": schedules.power(0.7)}], ids=str
    )
    @pytest.mark.sampled(one_in=4)
    def test_a_copy_goes_on_bit_for_bit_and_by_itself(self, tmp_path, how, n, arguments):
        model = trained(n, **arguments)
        twin = COPIES[how](model, tmp_path / "model")
        assert same(model, twin)
        assert twin.n == n
        X, y = stream(200, P=4, seed=8)
        before = model.state_digest()
        losses = twin.learn_array(X, y, feature_names=list("abcd"))
        assert model.state_digest() == before
        assert model.learn_array(X, y, feature_names=list("abcd")).tobytes() == losses.tobytes()
        assert same(model, twin)
        assert model.predict_array(X).tobytes() == twin.predict_array(X).tobytes()
        assert model.convergence_residual == twin.convergence_residual

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_clone_begins_anew_with_the_same_arguments(self, n):
        model = trained(n, standardize=True, schedule=schedules.constant(0.1))
        fresh = model.clone()
        assert fresh.n == 0
        assert fresh._get_params() == model._get_params()
        assert same(fresh, MoERegressor(**{**QUICK, "standardize": True, "schedule": schedules.constant(0.1)}))

    def test_names_may_be_integers_and_keep_their_type(self, tmp_path):
        model = MoERegressor(**QUICK)
        model.learn_one({3: 1.0, "3": 2.0}, 1.0)
        assert reloaded(model, tmp_path / "m").feature_names == model.feature_names == [3, "3"]

    def test_a_damaged_or_missing_file_is_a_checkpoint_error(self, tmp_path):
        path = tmp_path / "m"
        trained().save(path)
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)
        for place in (path, tmp_path / "absent", tmp_path):
            with pytest.raises(CheckpointError):
                load(place)

    def test_equal_seeds_and_events_are_equal_bits_and_another_seed_is_another_model(self):
        assert same(trained(n_experts=3), trained(n_experts=3))
        assert not same(trained(n_experts=3), trained(n_experts=3, seed=1))

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_the_digest_sees_every_event(self, n):
        model = trained(n)
        before = model.state_digest()
        model.learn_one({"a": 0.0, "b": 0.0, "c": 0.0}, 0.0)
        assert model.state_digest() != before


class TestFromParameters:
    @pytest.mark.parametrize(
        "arguments",
        [
            {},
            {"n_experts": 1},
            {"n_experts": 4, "bound": "paper", "degree": 2},
            {"degree": 1, "gate_degree": 2},
            {"prior_strength": 0.0},
            {"prior_strength": 5.0, "schedule": schedules.power(0.6, gamma0=0.7, offset=2)},
            {"standardize": True},
            {"schedule": schedules.constant(0.03)},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("n", [WARM, 137])
    def test_continues_the_raw_iterate_within_1e_9(self, n, arguments):
        model = trained(n, **arguments)
        twin = MoERegressor.from_parameters(
            model.parameters(), feature_names=model.feature_names, **{**QUICK, **arguments}
        )
        X, y = stream(400, seed=6)
        model.learn_array(X, y)
        twin.learn_array(X, y)
        ours, theirs = model.parameters(), twin.parameters()
        assert theirs["n"] == ours["n"] == n + 400
        for name in ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams"):
            if ours[name].size:
                difference = np.abs(ours[name] - theirs[name]).max() / np.abs(ours[name]).max()
                assert difference <= 1e-9, name

    def test_restarts_the_average_unless_it_is_given(self):
        model = trained()
        parameters, average = model.parameters(), model.parameters(averaged=True)
        make = functools.partial(MoERegressor.from_parameters, parameters, feature_names=model.feature_names, **QUICK)
        X, y = stream(50, seed=6)
        anew, going_on = make(), make(average=average, n_average=90 + FIRST)
        assert anew.parameters(averaged=True)["experts"].tobytes() == parameters["experts"].tobytes()
        np.testing.assert_allclose(going_on.predict_array(X), model.predict_array(X), rtol=1e-12)
        for each in (model, going_on):
            each.learn_array(X, y)
        np.testing.assert_allclose(
            going_on.parameters(averaged=True)["experts"], model.parameters(averaged=True)["experts"], rtol=1e-9
        )

    def test_needs_no_more_than_the_documented_entries(self):
        model = trained()
        entries = ("gate", "experts", "variances", "masses", "gate_gram", "expert_grams", "n")
        parameters = {name: model.parameters()[name] for name in entries}
        twin = MoERegressor.from_parameters(parameters, feature_names=["a", "b", "c"], averaging=None)
        assert (twin.n_experts, twin.n, twin.is_warming_up) == (2, 150, False)
        X, y = stream(50, seed=6)
        twin.learn_array(X, y)
        assert twin.is_finite()

    def test_what_it_was_given_stays_the_callers(self):
        model = trained()
        parameters = model.parameters()
        before = {name: np.copy(value) for name, value in parameters.items() if name != "prior"}
        MoERegressor.from_parameters(parameters, feature_names=["a", "b", "c"]).learn_array(*stream(50))
        assert all(np.array_equal(parameters[name], before[name]) for name in before)
        digest = model.state_digest()
        for array in parameters.values():
            if isinstance(array, np.ndarray):
                array.fill(9.0)
        assert model.state_digest() == digest

    @pytest.mark.parametrize("name", ["gate", "experts", "variances", "masses", "gate_gram", "expert_grams"])
    def test_a_wrong_shape_or_missing_entry_is_named(self, name):
        parameters = trained().parameters()
        shapeless = {**parameters, name: parameters[name][..., :1]}
        names = ["a", "b", "c"]
        if name != "variances":
            with pytest.raises(ConfigError, match=name):
                MoERegressor.from_parameters(shapeless, feature_names=names)
        if name != "experts":
            with pytest.raises(ConfigError, match=f"'{name}' is missing"):
                MoERegressor.from_parameters({k: v for k, v in parameters.items() if k != name}, feature_names=names)
        with pytest.raises(ConfigError):
            MoERegressor.from_parameters(parameters, feature_names=["a", "b"])

    def test_parameters_before_there_are_any(self):
        with pytest.raises(ConfigError, match="warm-up is not over"):
            trained(10).parameters()

    @pytest.mark.parametrize(("degree", "gate_degree"), [(1, 1), (2, 1), (2, 3)])
    def test_shapes(self, degree, gate_degree):
        found = trained(n_experts=3, degree=degree, gate_degree=gate_degree).parameters()
        p_w, p_v = 1 + 3 * gate_degree, 1 + 3 * degree
        shapes = {name: np.shape(found[name]) for name in ("gate", "experts", "variances", "masses")}
        assert shapes == {"gate": (2, p_w), "experts": (3, 1, p_v), "variances": (3, 1), "masses": (3,)}
        assert found["gate_gram"].shape == (p_w, p_w)
        assert found["expert_grams"].shape == (3, p_v, p_v)
        assert found["n"] == 150


class TestArguments:
    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("n_experts", 0),
            ("degree", 0),
            ("gate_degree", 0),
            ("covariance", "full"),
            ("bound", "loose"),
            ("prior_strength", -0.1),
            ("prior_strength", math.nan),
            ("warmup", -1),
            ("warmup_restarts", 0),
            ("averaging", "mean"),
            ("range_factor", -1.0),
        ],
    )
    def test_a_value_that_cannot_be_is_named(self, name, value):
        with pytest.raises(ConfigError, match=name) as refused:
            MoERegressor(**{name: value})
        assert str(value) in str(refused.value)

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("n_experts", 2.5),
            ("n_experts", "4"),
            ("degree", 1.5),
            ("warmup", 2.5),
            ("warmup_restarts", 1.5),
            ("prior_strength", math.inf),
            ("seed", -1),
            ("seed", "a"),
            ("schedule", 0.1),
            ("schedule", "power"),
        ],
    )
    def test_a_value_of_the_wrong_kind_is_named(self, name, value):
        with pytest.raises(ConfigError, match=name):
            MoERegressor(**{name: value})

    def test_what_does_not_go_together(self):
        with pytest.raises(ConfigError, match="standardize"):
            MoERegressor(warmup=0, standardize=True)
        with pytest.raises(ConfigError, match="prior_strength"):
            MoERegressor(warmup=0, prior_strength=0.0)

    def test_every_problem_is_told_at_once(self):
        with pytest.raises(ConfigError) as refused:
            MoERegressor(0, degree=0, warmup=-5)
        assert len(refused.value.problems) == 3

    def test_hyper_parameters_are_keyword_only(self):
        with pytest.raises(TypeError):
            MoERegressor(4, 2)


class TestWarmUpLength:
    @pytest.mark.parametrize("warmup", [2, 7, 100])
    def test_ends_with_the_event_that_fills_the_buffer(self, warmup):
        model = MoERegressor(2, warmup=warmup, warmup_restarts=1)
        X, y = stream(warmup)
        model.learn_array(X[:-1], y[:-1])
        assert model.is_warming_up
        model.learn_array(X[-1:], y[-1:])
        assert not model.is_warming_up
        assert model.n == warmup
        assert model.step_size == (warmup + 1) ** -0.6

    def test_zero_starts_at_once(self):
        model = MoERegressor(2, warmup=0)
        model.learn_one({"a": 1.0}, 2.0)
        assert not model.is_warming_up
        assert model.masses.sum() == pytest.approx(1.0)

    def test_by_default_grows_with_the_parameters_but_holds_400_at_least(self):
        X, y = stream(700, P=10)
        small, large = MoERegressor(2), MoERegressor(4)
        small.learn_array(X[:400, :2], y[:400])
        large.learn_array(X[:700], y[:700])
        assert not small.is_warming_up
        assert large.is_warming_up

    def test_a_late_column_widens_the_buffer(self):
        model = MoERegressor(2, warmup=40, warmup_restarts=1)
        X, y = stream(40)
        for i, x in enumerate(events(X)):
            model.learn_one(x if i >= 20 else {"a": x["a"]}, y[i])
        assert not model.is_warming_up
        assert model.parameters()["experts"].shape == (2, 1, 4)
        mean = X[20:, 1].mean()
        assert model.predict_one({"a": 1.0, "c": 0.0}) == pytest.approx(
            model.predict_one({"a": 1.0, "b": mean, "c": 0.0})
        )

    def test_a_column_that_first_appears_in_the_last_event_of_it(self):
        model = trained(WARM - 1)
        X, y = stream(200, P=4, seed=8)
        model.learn_array(X, y, feature_names=list("abcd"))
        assert model.is_finite()


class TestRowsForTheDaemon:
    """`learn_rows` refuses single rows and goes on; NaN is missing, or an event without target."""

    def test_good_rows_are_learned_as_if_the_bad_ones_were_not_there(self):
        X, y = stream(200)
        Y = y[:, None]
        clean = MoERegressor(**QUICK)
        clean.set_columns(["a", "b", "c"])
        clean.learn_rows(X, Y)
        bad = np.insert(X, [10, 120], [[1e60, 0, 0], [0, np.inf, 0]], axis=0)
        spoilt = MoERegressor(**QUICK)
        spoilt.set_columns(["a", "b", "c"])
        outcome = spoilt.learn_rows(bad, np.insert(Y, [10, 120], 0.0, axis=0))
        assert {row: (error.reason, error.feature) for row, error in outcome.refused.items()} == {
            10: ("out_of_range", "a"),
            121: ("out_of_range", "b"),
        }
        assert np.flatnonzero(~outcome.learned).tolist() == [10, 121]
        assert np.isnan(outcome.losses[[10, 121]]).all()
        assert np.isfinite(np.delete(outcome.losses, [10, 121])).all()
        assert same(clean, spoilt)

    @pytest.mark.parametrize("n", [0, 20, 150])
    def test_a_row_without_target_is_predicted_and_not_learned(self, n):
        model = trained(n)
        if n == 0:
            model.set_columns(["a", "b", "c"])
        before = model.state_digest()
        X, _ = stream(5, seed=2)
        expected = model.predict_array(X)
        outcome = model.learn_rows(X, np.full((5, 1), np.nan))
        assert np.isnan(outcome.losses).all()
        assert not outcome.learned.any()
        assert outcome.refused == {}
        assert outcome.predictions[:, 0].tolist() == expected.tolist()
        if n:
            assert model.state_digest() == before
        assert model.n == n

    def test_equals_learn_array_where_all_is_well(self):
        X, y = stream(150)
        rows, arrays = MoERegressor(**QUICK), MoERegressor(**QUICK)
        rows.set_columns(["a", "b", "c"])
        outcome = rows.learn_rows(X, y[:, None])
        losses = arrays.learn_array(X, y, feature_names=["a", "b", "c"])
        assert outcome.losses.tobytes() == losses.tobytes()
        assert same(rows, arrays)
