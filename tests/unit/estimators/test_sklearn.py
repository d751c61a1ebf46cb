"""The estimators for scikit-learn: its own checks, and what they hold and hand on is what River's estimators have."""

import importlib
import inspect
import sys

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import streammoe
from streammoe import batch
from streammoe.distributions import Gaussian
from streammoe.errors import ConfigError
from streammoe.sklearn import MoEClassifier, MoERegressor, from_stream, load
from tests.unit.estimators.models import NAMES, classes, numbers, several

pytestmark = pytest.mark.usefixtures("brief_fits")
UNMET = {
    "check_sample_weight_equivalence_on_dense_data": "starts of fits are drawn from rows, repeated ones more often"
}
KINDS = {
    "one output": (MoERegressor(2), streammoe.MoERegressor(2), numbers(200)),
    "several": (
        MoERegressor(2, expert=Gaussian("full")),
        streammoe.MoEMultiTargetRegressor(2, expert=Gaussian("full")),
        several(200),
    ),
    "labels": (MoEClassifier(2), streammoe.MoEClassifier(2), classes(200)),
}
each_kind = pytest.mark.parametrize(("given", "river", "rows"), KINDS.values(), ids=KINDS)


@parametrize_with_checks([MoERegressor(2), MoEClassifier(2)], expected_failed_checks=lambda _: UNMET)
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_arguments_are_those_of_river_s_estimator(kind):
    assert inspect.signature(kind) == inspect.signature(getattr(streammoe, kind.__name__))
    given = kind(3, schedule=streammoe.schedules.Power(0.7), lags="off")
    assert clone(given).get_params() == given.get_params()
    assert (given.n_experts, given.get_params()["lags"]) == (3, "off")


@each_kind
def test_fit_is_a_batch_fit_and_partial_fit_continues_event_by_event(given, river, rows):
    X, y = rows
    w = np.random.default_rng(1).uniform(0.5, 2.0, len(X))
    ours, theirs = clone(given).partial_fit(X[:50], y[:50], **labels(given)), river.clone()
    ours.fit(X[:150], y[:150], sample_weight=w[:150])  # what was learned before is forgotten
    batch.fit(theirs, X[:150], y[:150], w=w[:150])
    assert ours.model_.state_digest() == theirs.state_digest()
    ours.partial_fit(X[150:], y[150:], sample_weight=w[150:])
    theirs.learn_array(X[150:], y[150:], w=w[150:])
    assert ours.model_.state_digest() == theirs.state_digest()
    np.testing.assert_array_equal(ours.predict(X), theirs.predict_array(X))
    assert ours.score(X, y) > 0.7
    assert ours.n_features_in_ == 3
    assert not hasattr(ours, "feature_names_in_")


def labels(estimator):
    return {"classes": ["maybe", "no", "yes"]} if isinstance(estimator, MoEClassifier) else {}


@pytest.mark.parametrize("noise", ["gaussian", "student_t"])
def test_deviations_and_intervals_are_those_of_the_predicted_distributions(noise):
    X, y = numbers(300)
    model = MoERegressor(2, expert=noise, prior_strength=1.0).fit(X, y)
    found, std = model.predict(X[:5], return_std=True)
    np.testing.assert_array_equal(found, model.predict(X[:5]))
    events = [{f"x{j}": value for j, value in enumerate(row)} for row in X[:5].tolist()]
    expected = [model.model_.predict_distribution_one(event).variance() ** 0.5 for event in events]
    np.testing.assert_allclose(std, expected)
    np.testing.assert_allclose(
        model.predict_interval(X[:5], 0.5), [model.model_.predict_interval_one(event, 0.5) for event in events]
    )


def test_outputs_keep_the_order_and_the_names_of_their_frame():
    X, y = several(200)
    names = ["up", "down", "flat"]
    frame = pd.DataFrame(X, columns=["c", "a", "b"])
    model = MoERegressor(2, expert=Gaussian("full")).fit(frame, pd.DataFrame(y, columns=names))
    assert model.feature_names_in_.tolist() == ["c", "a", "b"]
    found, std = model.predict(frame[:4], return_std=True)
    (event, *_) = frame.to_dict("records")
    assert dict(zip(names, found[0], strict=True)) == pytest.approx(model.model_.predict_one(event))
    np.testing.assert_allclose(std[0] ** 2, model.model_.predict_distribution_one(event).variance())
    assert model.predict_interval(frame[:4]).shape == (4, 3, 2)


def test_what_has_to_be_installed_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.base", None)
    monkeypatch.delitem(sys.modules, "streammoe.sklearn")
    with pytest.raises(ConfigError, match="scikit-learn"):
        importlib.import_module("streammoe.sklearn")


# --- what rows hold -------------------------------------------------------------------------------------------------


def orders(n=240):
    rng = np.random.default_rng(0)
    color = rng.choice(["red", "blue"], n)
    day = pd.Timestamp("2026-01-01") + pd.to_timedelta(rng.integers(0, 360, n), unit="D")
    price = np.where(rng.random(n) < 0.1, np.nan, rng.normal(size=n))
    frame = pd.DataFrame({"price": price, "color": pd.Categorical(color), "day": day, "new": rng.random(n) < 0.5})
    y = 3.0 * (color == "red") + np.nan_to_num(price) + 0.1 * rng.normal(size=n)
    return frame, y


def test_columns_of_frames_reach_the_model_as_they_are_through_pipelines_and_searches():
    X, y = orders()
    X.index = X.index[::-1]
    columns = ColumnTransformer([("scaled", StandardScaler(), ["price"])], remainder="passthrough")
    whole = make_pipeline(columns.set_output(transform="pandas"), MoERegressor(2))
    assert cross_val_score(whole, X, y, cv=3).min() > 0.9
    search = GridSearchCV(whole, {"moeregressor__n_experts": [1, 2]}, cv=2).fit(X, y)
    kinds = search.best_estimator_[-1].model_.column_kinds
    assert kinds == {
        "remainder__color": "category",
        "remainder__day": "time",
        "remainder__new": "number",
        "scaled__price": "number",
    }
    assert search.score(X, y) > 0.9


@pytest.mark.parametrize(
    "damage", [lambda X: pl.from_pandas(X).lazy(), lambda X: X.set_axis(["a", "a", "b", "c"], axis=1)]
)
def test_a_frame_that_cannot_be_read_is_an_invalid_value(damage):
    X, y = orders()
    with pytest.raises(ValueError, match="X: "):
        MoERegressor(2).fit(damage(X), y)


@pytest.mark.parametrize("kind", [MoERegressor, MoEClassifier])
def test_docstrings_are_as_notebooks_read_them(kind):
    assert "\n\nExamples\n--------\n>>> " in kind.__doc__
    assert "n_experts" in kind()._repr_html_()


def test_arrays_hold_texts_and_missing_values():
    X, y = orders()
    rows = X[["price", "color"]].to_numpy()
    model = MoERegressor(2).fit(rows, y)
    assert model.model_.column_kinds == {"x0": "number", "x1": "category"}
    assert model.score(rows, y) > 0.9
    one, other = model.predict([[None, "red"], [np.nan, "blue"]])
    assert one - other == pytest.approx(3.0, abs=0.5)


def test_what_comes_from_a_checkpoint_names_no_defaults(tmp_path):
    river = streammoe.MoERegressor(3, averaging=streammoe.Polyak())
    river.learn_one({"a": 1.0}, 1.0)
    river.save(tmp_path / "m.model")
    assert repr(load(tmp_path / "m.model")) == "MoERegressor(n_experts=3)"


@each_kind
def test_what_joblib_maps_from_a_file_learns_on(given, river, rows, tmp_path):
    X, y = rows
    model = clone(given).fit(X[:150], y[:150])
    joblib.dump(model, tmp_path / "model.joblib")
    mapped = joblib.load(tmp_path / "model.joblib", mmap_mode="r").partial_fit(X[150:], y[150:])
    assert mapped.model_.state_digest() == model.partial_fit(X[150:], y[150:]).model_.state_digest()
    joblib.dump(model.model_, tmp_path / "river.joblib")
    joblib.load(tmp_path / "river.joblib", mmap_mode="r").learn_array(X, y)


# --- from and to River, files and daemons ---------------------------------------------------------------------------


@each_kind
def test_models_go_to_streams_and_files_and_come_back(given, river, rows, tmp_path):
    X, y = rows
    model = clone(given).fit(pd.DataFrame(X, columns=NAMES), y)
    streamed, before = model.to_stream(), model.model_.state_digest()
    assert type(streamed) is type(river)
    streamed.learn_array(pd.DataFrame(X, columns=NAMES), y)
    assert model.model_.state_digest() == before != streamed.state_digest()
    model.save(tmp_path / "model")
    for back in (load(tmp_path / "model"), from_stream(model.model_)):
        assert type(back) is type(given)
        assert {**back.get_params(), "expert": None} == {**given.get_params(), "expert": None}
        np.testing.assert_array_equal(
            back.predict(pd.DataFrame(X, columns=NAMES)), model.predict(pd.DataFrame(X, columns=NAMES))
        )
        back.partial_fit(pd.DataFrame(X, columns=NAMES), y)
        assert back.model_.state_digest() == streamed.state_digest()
        assert model.model_.state_digest() == before
