"""Groups of events that make one step."""

import copy

import numpy as np
import pytest

from streammoe import InvalidEvent, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, load, schedules
from streammoe.errors import CheckpointError, ConfigError
from streammoe.kernels.groups import add_outers

RNG = np.random.default_rng(0)
X = RNG.normal(size=(400, 3))
Y = np.abs(X[:, 0]) + 0.1 * RNG.normal(size=400)
QUICK = {"n_experts": 2, "warmup": 100, "warmup_restarts": 1}


def regressor(**arguments):
    model = MoERegressor(**{**QUICK, "batch_size": 8, **arguments})
    model.learn_array(X[:100], Y[:100])
    return model


def test_outer_products_are_the_dense_ones():
    rng = np.random.default_rng(0)
    for n in (0, 1, 3, 4, 9):
        rows, weights = rng.normal(size=(n, 5)), rng.uniform(size=n)
        weights[4:8] = 0.0
        matrix = np.eye(5)
        add_outers(matrix, rows, weights)
        np.testing.assert_allclose(matrix, np.eye(5) + (rows.T * weights) @ rows, rtol=1e-13, atol=1e-14)
        assert (matrix == matrix.T).all()


class TestWaiting:
    def test_nothing_moves_before_the_group_is_full(self):
        model = regressor()
        before = model.parameters()
        said = model.predict_array(X)
        model.learn_array(X[100:107], Y[100:107])
        assert model.n == 107
        assert model.parameters()["n"] == 100
        assert (model.parameters()["experts"] == before["experts"]).all()
        assert (model.predict_array(X) == said).all()
        model.learn_array(X[107:108], Y[107:108])
        assert model.parameters()["n"] == model.n == 108
        assert (model.parameters()["experts"] != before["experts"]).all()

    def test_a_group_counts_as_many_iterates_as_it_has_events(self):
        one, eight = regressor(batch_size=1), regressor()
        for model in (one, eight):
            model.learn_array(X[100:108], Y[100:108])
        assert one._state.n_average == eight._state.n_average > 8
        assert one._state.decay == pytest.approx(eight._state.decay, rel=1e-12)
        assert one._state.prior_weight == pytest.approx(eight._state.prior_weight, rel=1e-12)

    def test_what_cannot_wait_is_rejected(self, tmp_path):
        model = regressor()
        model.learn_array(X[100:105], Y[100:105])
        classes = MoEClassifier(**QUICK, batch_size=8)
        classes.learn_array(X[:105], Y[:105] > 1.0)
        for broken, place, change in [
            (model, np.s_[:, -2], 1.0),  # a full group
            (model, np.s_[2, -2], -1.0),  # a weight below 0
            (model, np.s_[2, -2], 0.0),  # an event behind an empty row
            (model, np.s_[2, -1], 2.0),  # a step outside of 0 to 1
            (model, np.s_[2, 1], 1e31),
            (classes, np.s_[2, -3], 2.0),  # no index of a class
        ]:
            copied = copy.deepcopy(broken)
            copied._state.group[place] = change
            copied.save(tmp_path / "m")
            with pytest.raises(CheckpointError):
                load(tmp_path / "m")

    def test_a_class_that_comes_late_finds_what_waits(self):
        model = MoEClassifier(**QUICK, batch_size=8)
        labels = np.where(np.arange(200) >= 103, np.where(X[:200, 1] > 0, 2, 1), (X[:200, 0] > 0).astype(int))
        model.learn_array(X[:200], labels)
        assert model.n == 200
        assert set(model.predict_proba_one({"x0": 0.0, "x1": 1.0, "x2": 0.0})) == {0, 1, 2}

    def test_candidates_do_not_share_what_waits(self):
        model = MoERegressor("auto", max_experts=3, warmup=100, warmup_restarts=1, batch_size=8)
        model.learn_array(X[:105], Y[:105])
        assert model.n_candidates > 1
        states = [runner.state for runner in model._race.runners]
        assert not np.shares_memory(states[0].group, states[1].group)
        model.learn_array(X[105:], Y[105:])
        assert model.n == 400


class TestDrift:
    def test_events_that_wait_keep_their_steps_where_a_drift_is_found(self):
        batch_size, drift_restart = 64, 20
        rng = np.random.default_rng(0)
        inputs = rng.normal(size=(9_000, 2))
        y = np.where(np.arange(9_000) < 6_000, 1, -1) * 3 * inputs[:, 0] + 0.1 * rng.normal(size=9_000)
        given = {"drift": "page_hinkley", "batch_size": batch_size, "drift_restart": drift_restart}
        model = MoERegressor(2, **given)
        begin = 5_500
        model.learn_array(inputs[:begin], y[:begin])
        for i in range(begin, 7_500):
            model.learn_array(inputs[i : i + 1], y[i : i + 1])
            group = model._state.group
            waiting = group[: model.n - model.parameters()["n"]]
            numbers = np.arange(model.n - len(waiting) + 1, model.n + 1)
            old = numbers <= (model.last_drift.n if model.last_drift else np.inf)
            np.testing.assert_allclose(waiting[old, -1], numbers[old] ** -0.6, rtol=1e-12)
        assert model.drifts == 1
        whole = MoERegressor(2, **given)
        whole.learn_array(inputs[:7_500], y[:7_500])
        assert whole.state_digest() == model.state_digest()


class TestPoison:
    def test_what_might_spoil_a_group_is_rejected_when_it_comes(self):
        model = regressor(range_factor=0.0)
        model.learn_array(X[100:103], Y[100:103])
        before = model.state_digest()
        with pytest.raises(InvalidEvent) as found:
            model.learn_one(dict(zip(model.feature_names, X[0].tolist(), strict=True)), 1e31)
        assert found.value.reason == "poison"
        assert model.state_digest() == before
        model.learn_array(X[103:300], Y[103:300])
        assert model.n == 300
        assert model.is_finite()

    @pytest.mark.parametrize(
        ("expert", "far", "degree", "weight"),
        [("gaussian", 1e20, 1, 1.0), ("gaussian", 1e5, 3, 1.0), ("student_t", 9e5, 5, 1.0), ("laplace", 9e3, 2, 1e6)],
    )
    def test_an_event_far_out_does_no_more_harm_than_without_groups(self, expert, far, degree, weight):
        rng = np.random.default_rng(1)
        inputs, fresh = rng.normal(size=(3_000, 3)), rng.normal(size=(500, 3))
        slopes = np.array([1.0, 2.0, 3.0])
        y = inputs @ slopes + 0.1 * rng.normal(size=3_000)
        inputs[1_000, 0], y[1_000] = far, 1.0
        weights = np.where(np.arange(3_000) == 1_000, weight, 1.0)
        errors = []
        for batch_size in (1, 8):
            given = {"warmup": 200, "warmup_restarts": 1, "degree": degree, "range_factor": 0.0}
            model = MoERegressor(2, expert=expert, batch_size=batch_size, **given)
            model.learn_array(inputs, y, weights=weights)
            errors.append(float(np.sqrt(np.mean((model.predict_array(fresh) - fresh @ slopes) ** 2))))
        assert errors[1] < 1.5 * errors[0] + 0.02, errors

    def test_an_event_far_out_ends_the_group_before_it(self):
        model = regressor(range_factor=0.0)
        model.learn_array(X[100:103], Y[100:103])
        assert model.parameters()["n"] == 100
        far = X[103:104] * 1e6
        model.learn_array(far, Y[103:104])
        assert model.parameters()["n"] == model.n == 104
        cut, whole = regressor(range_factor=0.0), regressor(range_factor=0.0)
        rows, targets = np.concatenate([X[100:103], far, X[104:200]]), Y[100:200]
        whole.learn_array(rows, targets)
        for i in range(100):
            cut.learn_array(rows[i : i + 1], targets[i : i + 1])
        assert cut.state_digest() == whole.state_digest()

    @pytest.mark.parametrize(
        "model",
        [
            MoERegressor(3, warmup=0, batch_size=4, range_factor=0.0, top_k=1, schedule=schedules.constant(0.9)),
            MoEMultiTargetRegressor(2, warmup=0, batch_size=4, range_factor=0.0, covariance="full"),
        ],
    )
    def test_it_goes_on_whatever_has_been(self, model):
        """Values of any size that may wait; none of them makes a group that can never be learned."""
        rng = np.random.default_rng(3)
        model = model.clone()
        several = isinstance(model, MoEMultiTargetRegressor)
        rejected = 0
        for _ in range(400):
            size = 10.0 ** rng.choice([0, 0, 0, 6, 15, 29, -20], size=3)
            x = dict(zip("abc", (rng.normal(size=3) * size).tolist(), strict=True))
            y = float(rng.normal() * 10.0 ** rng.choice([0, 0, 10, 28]))
            try:
                model.learn_one(x, {"u": y, "v": 1.0} if several else y)
            except InvalidEvent:
                rejected += 1
        assert model.is_finite()
        assert rejected < 40
        n = model.n
        for i in range(40):
            x = dict(zip("abc", X[i].tolist(), strict=True))
            model.learn_one(x, {"u": Y[i], "v": 1.0} if several else Y[i])
        assert model.n == n + 40


def test_a_batch_size_is_a_number_of_events():
    for batch_size in (0, -1, 1.5, None, True, 100_001):
        with pytest.raises(ConfigError):
            MoERegressor(2, batch_size=batch_size)
