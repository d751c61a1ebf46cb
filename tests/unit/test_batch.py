"""`streammoe.batch.fit`: the model that comes of it predicts, saves and streams on, as after a warm-up of its rows."""

import copy
import math

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch, load
from streammoe.errors import ConfigError, InvalidEvent

N = 400


def rows(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    values = np.where(X[:, 0] > 0, 1.0 + 2.0 * X[:, 1], -X[:, 1])
    return X, values + 0.2 * rng.normal(size=n)


def labels(y):
    return np.where(y > 1.0, "high", np.where(y > -0.5, "middle", "low"))


def regressor(**more):
    return MoERegressor(**{"n_experts": 2, "warmup_restarts": 1, "prior_strength": 0.5, **more})


@pytest.fixture(scope="module")
def fitted():
    """A model of each kind, fitted, and its rows."""
    X, y = rows()
    both = np.column_stack([y, X[:, 0] - y + 0.1 * X[:, 1]])
    classifier = MoEClassifier(n_experts=2, warmup_restarts=1)
    several = MoEMultiTargetRegressor(n_experts=2, covariance="full", warmup_restarts=1)
    return {
        "regressor": (batch.fit(regressor(), X, y, rounds=30), X, y),
        "several": (batch.fit(several, X, both, rounds=30), X, both),
        "classifier": (batch.fit(classifier, X, labels(y), rounds=30), X, labels(y)),
    }


KINDS = ["regressor", "several", "classifier"]


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_model_is_the_one_that_was_given_and_streams_on_from_the_rows(fitted, kind, tmp_path):
    done, X, y = fitted[kind]
    model = done.model
    assert model.n == done.n == N
    assert not model.is_warming_up
    assert model.is_finite()
    model.save(tmp_path / "model")
    read = load(tmp_path / "model")
    assert read.state_digest() == model.state_digest()
    on = copy.deepcopy(model)
    for each in (on, read):
        each.learn_array(X[:50], y[:50])
    assert on.n == N + 50
    assert on.state_digest() == read.state_digest() != model.state_digest()


@pytest.mark.parametrize("kind", KINDS)
def test_its_figures_are_those_of_the_model_on_its_rows(fitted, kind):
    done, X, y = fitted[kind]
    assert done.log_loss == pytest.approx(-done.model.log_likelihood_array(X, y).mean(), rel=1e-12)
    predictions = done.model.predict_array(X)
    if kind == "classifier":
        assert done.rmse is None
        assert done.accuracy == np.mean(predictions == y) > 0.8
    else:
        assert done.accuracy is None
        assert done.rmse == pytest.approx(np.sqrt(np.mean((predictions - y) ** 2)), rel=1e-12)
        assert done.rmse < 0.5
    assert done.objective == pytest.approx(done.trace[-1].objective, abs=1e-12)
    assert done.rounds == len(done.trace) - 1


def test_it_is_what_a_warm_up_of_the_same_rows_comes_to():
    X, y = rows()
    streamed = regressor(warmup=N, standardize=True)
    streamed.learn_array(X, y)
    done = batch.fit(regressor(standardize=True), X, y, tolerance=1e-10)
    ours, theirs = done.model.parameters(), streamed.parameters()
    assert (ours["n"], ours["prior_weight"], ours["decay"]) == (theirs["n"], theirs["prior_weight"], theirs["decay"])
    np.testing.assert_array_equal(ours["scale"]["center"], theirs["scale"]["center"])
    np.testing.assert_allclose(ours["experts"], theirs["experts"], atol=1e-2)
    np.testing.assert_allclose(ours["masses"], theirs["masses"], atol=1e-3)
    assert done.log_loss == pytest.approx(-streamed.log_likelihood_array(X, y).mean(), abs=1e-4)
    assert done.model.step_size == streamed.step_size


def test_it_starts_at_what_the_model_serves_and_keeps_its_scales():
    X, y = rows()
    model = regressor(warmup=100, standardize=True, prior_strength=1e-3)
    model.learn_array(X, y)
    before, served = model.parameters(), model.parameters(averaged=True)
    log_loss = -model.log_likelihood_array(X, y).mean()
    scale = before["scale"]["target_scale"][0]
    done = batch.fit(model, X, y, start="model", rounds=1, on_round=lambda each: True)
    # Without any prior to speak of, what it starts at is what the model says of the rows.
    penalty = done.trace[0].objective + log_loss - math.log(scale)
    assert abs(penalty) < 0.01
    after = model.parameters()
    np.testing.assert_array_equal(after["scale"]["target_scale"], before["scale"]["target_scale"])
    np.testing.assert_allclose(after["experts"], served["experts"], atol=0.2)
    assert after["n"] == N


# --- rows -----------------------------------------------------------------------------------------------------------


def test_frames_dicts_and_arrays_are_the_same_rows():
    X, y = rows(150)
    names = ["b", "a"]
    arrays, frames, dicts = (regressor() for _ in range(3))
    batch.fit(arrays, X, y, feature_names=names, rounds=5)
    batch.fit(frames, pd.DataFrame(X, columns=names), pd.Series(y), rounds=5)
    batch.fit(dicts, [dict(zip(names, row, strict=True)) for row in X.tolist()], y.tolist(), rounds=5)
    assert arrays.feature_names == frames.feature_names == dicts.feature_names == ["a", "b"]
    assert arrays.state_digest() == frames.state_digest() == dicts.state_digest()


def test_categories_times_and_holes_go_through_the_encoder():
    X, y = rows(200)
    events = []
    for i, (a, b) in enumerate(X.tolist()):
        event = {"a": a, "b": b, "color": "rgb"[i % 3], "t": 1e9 + 3600.0 * i}
        if i % 5 == 4:
            del event["b"]
        events.append(event)
    y = y + 3.0 * (np.arange(200) % 3 == 0)
    model = regressor(categorical=("color",), timestamps=("t",), standardize=True)
    done = batch.fit(model, events, y, rounds=20)
    assert {"color=r", "color=g", "color=b", "t:day_sin"} <= set(model.feature_names)
    fill = model.parameters()["scale"]["fill"][model.feature_names.index("b")]
    assert fill == pytest.approx(np.mean([event["b"] for event in events if "b" in event]))
    assert done.rmse < 1.2
    streamed = regressor(categorical=("color",), timestamps=("t",), standardize=True, warmup=200)
    for event, target in zip(events, y, strict=True):
        streamed.learn_one(event, target)
    np.testing.assert_array_equal(model.parameters()["scale"]["scale"], streamed.parameters()["scale"]["scale"])


def test_weights_are_repetitions():
    X, y = rows(150)
    counts = np.random.default_rng(2).integers(0, 4, size=150)
    start = regressor(warmup=100)
    start.learn_array(X[:100], y[:100])
    weighted, repeated = copy.deepcopy(start), copy.deepcopy(start)
    ours = batch.fit(weighted, X, y, weights=counts.astype(float), start="model", rounds=3, tolerance=0.0)
    theirs = batch.fit(repeated, X.repeat(counts, 0), y.repeat(counts), start="model", rounds=3, tolerance=0.0)
    assert (ours.n, theirs.n) == (int((counts > 0).sum()), counts.sum())
    assert ours.log_loss == pytest.approx(theirs.log_loss, rel=1e-4)
    assert ours.rmse == pytest.approx(theirs.rmse, rel=1e-4)
    np.testing.assert_allclose(weighted.parameters()["experts"], repeated.parameters()["experts"], rtol=1e-5)


def test_new_columns_and_labels_join_a_model_that_goes_on():
    X, y = rows(300)
    model = MoEClassifier(n_experts=2, warmup=100, warmup_restarts=1)
    known = labels(y) != "high"
    model.learn_array(X[known][:120], labels(y)[known][:120])
    events = [{"x0": a, "x1": b, "extra": a * b} for a, b in X.tolist()]
    batch.fit(model, events, labels(y).tolist(), start="model", rounds=3)
    assert sorted(model.class_labels) == ["high", "low", "middle"]
    assert model.feature_names == ["x0", "x1", "extra"]
    assert model.predict_proba_array(X[:3], feature_names=["x0", "x1"]).shape == (3, 3)


@pytest.mark.parametrize("K", [1, 3])
def test_any_number_of_experts_and_no_prior(K):
    X, y = rows(150)
    done = batch.fit(regressor(n_experts=K, prior_strength=0.0), X, y, rounds=10)
    assert done.model.parameters()["prior_weight"] == 0.0
    assert len(done.model.masses) == K
    if K == 1:
        design = np.column_stack([np.ones(150), X])
        expected = np.linalg.lstsq(design, y, rcond=None)[0]
        np.testing.assert_allclose(done.model.parameters()["experts"][0, 0], expected, atol=1e-4)


def test_going_on_without_a_prior_has_enough_of_one_for_targets_without_noise():
    X = rows(30)[0]
    model = regressor(n_experts=1, prior_strength=0.0, warmup=30)
    model.learn_array(X, rows(30)[1])
    done = batch.fit(model, X, 1.0 + 2.0 * X[:, 0], start="model")
    assert 2.0 < done.objective < 8.0  # the variance falls to about 0.001/30 of what it was, and no further


def test_the_number_of_experts_is_chosen_where_nobody_says_it():
    X, y = rows(300)
    model = regressor(n_experts="auto", max_experts=4)
    done = batch.fit(model, X, y, rounds=20)
    assert model.chosen_n_experts == len(model.masses) == 2
    assert model.n_candidates == 1
    alone = batch.fit(regressor(n_experts=2), X, y, rounds=20)
    assert [each.objective for each in done.trace] == [each.objective for each in alone.trace]
    assert model.parameters()["experts"].tobytes() == alone.model.parameters()["experts"].tobytes()
    batch.fit(model, X, y, start="model", rounds=2)
    assert model.chosen_n_experts == 2


def test_a_race_ends_with_the_fit():
    X, y = rows(300)
    model = regressor(n_experts="auto", max_experts=3, warmup=200)
    model.learn_array(X, y)
    assert model.n_candidates > 1
    leading = model.chosen_n_experts
    batch.fit(model, X, y, start="model", rounds=2)
    assert (model.n_candidates, model.chosen_n_experts) == (1, leading)


def test_a_fit_is_a_function_of_rows_settings_and_seed():
    X, y = rows(150)
    digests = []
    for seed in (1, 1, 2):
        model = regressor(n_experts=3, seed=seed)
        batch.fit(model, X, y, method="gradient_em", rounds=5)
        digests.append(model.state_digest())
    assert digests[0] == digests[1] != digests[2]


# --- the way there --------------------------------------------------------------------------------------------------


# --- what cannot be done --------------------------------------------------------------------------------------------


WRONG = [
    {"method": "newton"},
    {"start": "zero"},
    {"start": "model"},
    {"rounds": 0},
    {"rounds": 2.5},
    {"tolerance": -1.0},
    {"tolerance": math.nan},
    {"step": 0.0, "method": "gradient_em"},
    {"step": 0.1},
    {"method": "x", "rounds": -1, "step": -1.0},
]


def test_arguments_that_cannot_be_used_are_rejected():
    X, y = rows(20)
    for arguments in WRONG:
        model = regressor()
        with pytest.raises(ConfigError) as rejected:
            batch.fit(model, X, y, **arguments)
        assert len(rejected.value.problems) == max(1, len(arguments) if "x" in arguments.values() else 1)
        assert model.n == 0
        assert not model.fields


def test_only_our_estimators_can_be_fitted():
    from river import linear_model, preprocessing

    for model in (linear_model.LinearRegression(), preprocessing.StandardScaler() | regressor()):
        with pytest.raises(ConfigError):
            batch.fit(model, *rows(20))


def test_a_model_that_has_learned_is_no_new_one():
    X, y = rows(150)
    for warmup in (100, 400):
        model = regressor(warmup=warmup)
        model.learn_array(X, y)
        before = model.state_digest()
        with pytest.raises(ConfigError):
            batch.fit(model, X, y)
        assert model.state_digest() == before


def test_a_bad_row_is_named_and_nothing_is_changed():
    X, y = rows(50)
    dirty = X.copy()
    dirty[17, 1] = np.nan
    model = MoEMultiTargetRegressor(n_experts=2)
    before = model.state_digest()
    with pytest.raises(InvalidEvent) as caught:
        batch.fit(model, dirty, np.column_stack([y, y]))
    assert caught.value.row == 17
    events = [{"a": a, "b": b} for a, b in X.tolist()]
    events[23]["b"] = "?"
    with pytest.raises(InvalidEvent) as caught:
        batch.fit(model, events, [{"u": each, "v": each} for each in y.tolist()])
    assert caught.value.row == 23
    assert model.state_digest() == before
    assert model.output_names == []
    batch.fit(model, X, np.column_stack([y, -y]), rounds=2)
    assert model.output_names == ["y0", "y1"]


UNUSABLE = [
    (np.empty((0, 2)), np.empty(0), {}, ConfigError),
    (np.ones((4, 2)), np.ones(4), {"weights": np.zeros(4)}, ConfigError),
    ([], [], {}, ConfigError),
    (pd.DataFrame({"a": []}), pd.Series([], dtype=float), {}, ConfigError),
    (np.ones((4, 2)), np.ones(3), {}, InvalidEvent),
    ([{"a": 1.0}] * 4, [1.0] * 3, {}, InvalidEvent),
    (pd.DataFrame({"a": [1.0]}), pd.Series([1.0]), {"feature_names": ["b"]}, ConfigError),
]


def test_rows_that_cannot_be_used_are_rejected():
    for X, y, more, error in UNUSABLE:
        with pytest.raises(error):
            batch.fit(regressor(), X, y, **more)


def test_rows_that_cannot_support_the_model_are_told_of(caplog):
    X, y = rows(30)
    events = [{"a": a} for a in X[:, 0].tolist()]
    batch.fit(regressor(), events, y)
    assert not caplog.messages
    batch.fit(regressor(), events[:7], y[:7])
    (told,) = caplog.messages  # 1 · 2 of the gate, 2 · (2 + 1) of the experts
    assert "7 rows were fitted by a model of 8 free numbers" in told
    caplog.clear()
    model = regressor()
    model.set_columns(["a", "gone"])
    batch.fit(model, events, y)
    assert caplog.messages == ["no row holds a value of 'gone', so nothing was learned from it"]


def test_rows_of_which_nothing_finite_comes(monkeypatch):
    from streammoe.engine.state import UnsoundError

    def unsound(*_, **__):
        raise UnsoundError(["gate"])

    monkeypatch.setattr("streammoe.engine.batch.statistics_at", unsound)
    model = regressor()
    with pytest.raises(ConfigError):
        batch.fit(model, *rows(50))
    assert model.n == 0
