import functools
import math

import numpy as np
import pytest

from streammoe import CheckpointError, ConfigError, MoERegressor, load, schedules

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

    def test_losses_are_in_the_targets_own_units(self):
        X, y = stream(400)
        losses = MoERegressor(**QUICK, standardize=True).learn_array(X, y)
        scaled = MoERegressor(**QUICK, standardize=True).learn_array(X, 1000.0 * y - 7.0)
        np.testing.assert_allclose(scaled[WARM:], losses[WARM:] + math.log(1000.0), rtol=1e-5)

    def test_constant_steps_follow_a_stream_that_turns_around(self):
        gamma = 0.1
        X, y = stream(4000)
        turned = np.where(np.arange(4000) < 2000, y, -y + 3.0)
        tracking = MoERegressor(**QUICK, schedule=schedules.constant(gamma))
        converging = MoERegressor(**QUICK, schedule=schedules.power(1.0))
        late = slice(2500, 4000)
        assert tracking.learn_array(X, turned)[late].mean() < converging.learn_array(X, turned)[late].mean() - 0.3
        assert tracking.step_size == gamma


class TestAveraging:
    def raw_and_served(self, model, X, y):
        raw, served = [], []
        for i in range(len(X)):
            model.learn_array(X[i : i + 1], y[i : i + 1])
            if not model.is_warming_up:
                raw.append(model.parameters())
                served.append(model.parameters(averaged=True))
        return raw, served

    @pytest.mark.parametrize(("warmup", "first"), [(1, 1), (61, 19)])
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

    def test_never_raises_on_range(self):
        model = trained()
        for value in (1e7, 1e49, -1e51, 1e300):
            assert math.isfinite(model.predict_one({"a": value}))
            assert model.predict_array(np.array([[value, 0.0, 0.0]])).shape == (1,)


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

    @pytest.mark.parametrize(("warmup", "late"), [(0, 100), (WARM, 30), (WARM, 100)])
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


class TestArrays:
    def test_columns_may_stand_in_any_order_under_their_names(self):
        X, y = stream(200)
        straight, mixed = MoERegressor(**QUICK), MoERegressor(**QUICK)
        losses = straight.learn_array(X, y, feature_names=["a", "b", "c"])
        assert mixed.learn_array(X[:, [2, 0, 1]], y, feature_names=["c", "a", "b"]).tobytes() == losses.tobytes()
        assert same(straight, mixed)
        one = straight.predict_array(X, feature_names=["a", "b", "c"])
        assert mixed.predict_array(X[:, ::-1], feature_names=["c", "b", "a"]).tobytes() == one.tobytes()

    def test_columns_are_named_x0_x1_and_beyond_ten_their_order_by_name_is_not_that_of_the_array(self):
        X, y = stream(150, 12)
        arrays, dicts = MoERegressor(**QUICK), MoERegressor(**QUICK)
        arrays.learn_array(X, y)
        rows = [{f"x{j}": value for j, value in enumerate(row)} for row in X.tolist()]
        for x, target in zip(rows, y.tolist(), strict=True):
            dicts.learn_one(x, target)
        assert same(arrays, dicts)
        assert arrays.feature_names == sorted(rows[0])
        assert arrays.predict_array(X[:1])[0] == dicts.predict_one(rows[0])

    def test_rows_without_target_are_predicted(self):
        model = trained()
        X, _ = stream(5, seed=2)
        outcome = model.learn_rows(X, np.full((5, 1), np.nan))
        assert (outcome.refused, outcome.learned.any(), model.n) == ({}, False, 150)
        assert outcome.predictions[:, 0].tobytes() == model.predict_array(X).tobytes()

    def test_a_column_left_out_is_missing_and_an_unknown_one_is_ignored_by_predictions(self):
        model = trained()
        X, _ = stream(5, seed=9)
        found = model.predict_array(X, feature_names=["a", "other", "c"])
        assert found.tolist() == [model.predict_one({"a": x["a"], "c": x["c"]}) for x in events(X)]

    def test_numbers_of_any_type_and_memory_order_are_taken_as_floats(self):
        X, y = (np.round(stream(100)[0]) > 0).astype(float), np.round(stream(100)[1])
        plain = MoERegressor(**QUICK)
        plain.learn_array(X, y)
        others = [(X.astype(dtype), y) for dtype in (np.float32, np.int64, bool)]
        for rows, targets in (*others, (X.tolist(), y.tolist()), (np.asfortranarray(X), y[:, None])):
            other = MoERegressor(**QUICK)
            other.learn_array(rows, targets)
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


class TestWeights:
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


class TestDistribution:
    @pytest.mark.parametrize(("n", "standardize"), [(1, True), (20, False), (150, True)])
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


class TestKeeping:
    def test_clone_begins_anew_with_the_same_arguments(self):
        model = trained(150, standardize=True, schedule=schedules.constant(0.1))
        fresh = model.clone()
        assert fresh.n == 0
        assert fresh._get_params() == model._get_params()
        assert same(fresh, MoERegressor(**{**QUICK, "standardize": True, "schedule": schedules.constant(0.1)}))

    def test_names_may_be_integers_and_keep_their_type(self, tmp_path):
        model = MoERegressor(**QUICK)
        model.learn_one({3: 1.0, "3": 2.0}, 1.0)
        model.save(tmp_path / "m")
        assert load(tmp_path / "m").feature_names == model.feature_names == [3, "3"]

    def test_a_damaged_or_missing_file_is_a_checkpoint_error(self, tmp_path):
        path = tmp_path / "m"
        trained().save(path)
        data = bytearray(path.read_bytes())
        data[-9] ^= 1
        path.write_bytes(data)
        for place in (path, tmp_path / "absent", tmp_path):
            with pytest.raises(CheckpointError):
                load(place)


class TestFromParameters:
    @pytest.mark.parametrize(
        "arguments",
        [
            {"n_experts": 1, "standardize": True},
            {"n_experts": 4, "bound": "paper", "degree": 2, "prior_strength": 0.0},
            {"gate_degree": 2, "prior_strength": 5.0, "schedule": schedules.power(0.6, gamma0=0.7, offset=2)},
            {"schedule": schedules.constant(0.03), "expert": "student_t"},
        ],
        ids=str,
    )
    def test_continues_the_raw_iterate_within_1e_9(self, arguments):
        n = 137
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

    def test_a_wrong_shape_or_missing_entry_is_rejected(self):
        parameters, names = trained().parameters(), ["a", "b", "c"]
        for name in ("gate", "experts", "masses", "gate_gram", "expert_grams"):
            with pytest.raises(ConfigError):
                MoERegressor.from_parameters({**parameters, name: parameters[name][..., :1]}, feature_names=names)
        for name in ("gate", "variances", "masses", "gate_gram", "expert_grams"):
            with pytest.raises(ConfigError):
                MoERegressor.from_parameters({k: v for k, v in parameters.items() if k != name}, feature_names=names)
        with pytest.raises(ConfigError):
            MoERegressor.from_parameters(parameters, feature_names=["a", "b"])

    def test_parameters_before_there_are_any(self):
        with pytest.raises(ConfigError):
            trained(10).parameters()


class TestArguments:
    def test_every_problem_is_told_at_once(self):
        with pytest.raises(ConfigError) as refused:
            MoERegressor(0, degree=0, warmup=-5)
        assert len(refused.value.problems) == 3

    def test_hyper_parameters_are_keyword_only(self):
        with pytest.raises(TypeError):
            MoERegressor(4, 2)


class TestWarmUpLength:
    @pytest.mark.parametrize("warmup", [2, 100])
    def test_ends_with_the_event_that_fills_the_buffer(self, warmup):
        model = MoERegressor(2, warmup=warmup, warmup_restarts=1)
        X, y = stream(warmup)
        model.learn_array(X[:-1], y[:-1])
        assert model.is_warming_up
        model.learn_array(X[-1:], y[-1:])
        assert not model.is_warming_up
        assert model.n == warmup
        assert model.step_size == (warmup + 1) ** -0.6

    def test_by_default_grows_with_the_parameters_but_holds_400_at_least(self):
        X, y = stream(700, P=10)
        small, large = MoERegressor(2), MoERegressor(4)
        small.learn_array(X[:400, :2], y[:400])
        large.learn_array(X[:700], y[:700])
        assert not small.is_warming_up
        assert large.is_warming_up
