"""`streammoe.batch.fit`: the model that comes of it predicts, saves and streams on, as after a warm-up of its rows."""

import copy

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor, batch, load
from streammoe.distributions import Gaussian
from streammoe.errors import InvalidEvent

N = 200


def rows(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    values = np.where(X[:, 0] > 0, 1.0 + 2.0 * X[:, 1], -X[:, 1])
    return X, values + 0.2 * rng.normal(size=n)


def labels(y):
    return np.where(y > 1.0, "high", np.where(y > -0.5, "middle", "low"))


def regressor(**more):
    return MoERegressor(**{"n_experts": 2, "prior_strength": 0.5, **more})


X, BOTH = rows()[0], np.column_stack([rows()[1], rows()[0][:, 0] - rows()[1]])
KINDS = {
    "regressor": (regressor(), BOTH[:, 0]),
    "several": (MoEMultiTargetRegressor(2, expert=Gaussian("full")), BOTH),
    "classifier": (MoEClassifier(2), labels(BOTH[:, 0])),
}


# --- the model ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("given", "y"), KINDS.values(), ids=KINDS)
def test_the_model_predicts_saves_and_streams_on_from_the_rows(given, y, tmp_path):
    model = given.clone()
    done = batch.fit(model, X, y, rounds=20)
    assert done.model is model
    assert model.n == done.n == N
    assert not model.is_warming_up
    model.arrays()  # raises if a number in it is not finite
    assert done.log_loss == pytest.approx(-model.log_likelihood_array(X, y).mean(), rel=1e-12)
    predictions = model.predict_array(X)
    if isinstance(model, MoEClassifier):
        assert done.rmse is None
        assert done.accuracy == np.mean(predictions == y) > 0.8
    else:
        assert done.accuracy is None
        assert done.rmse == pytest.approx(np.sqrt(np.mean((predictions - y) ** 2)), rel=1e-12)
        assert done.rmse < 0.5
    assert done.objective == pytest.approx(done.trace[-1].objective, abs=1e-12)
    assert done.rounds == len(done.trace) - 1
    model.save(tmp_path / "model")
    read, before = load(tmp_path / "model"), model.state_digest()
    assert read.state_digest() == before
    for each in (model, read):
        each.learn_array(X[:50], y[:50])
    assert model.n == N + 50
    assert model.state_digest() == read.state_digest() != before


def test_it_is_what_a_warm_up_of_the_same_rows_comes_to():
    X, y = rows(400)
    # Members of a portfolio are equally trusted after a warm-up, but not after a fit.
    streamed = regressor(warmup=400, standardize=True, serve="polyak")
    streamed.learn_array(X, y)
    done = batch.fit(regressor(standardize=True, serve="polyak"), X, y, tolerance=1e-10)
    ours, theirs = done.model.parameters(), streamed.parameters()
    assert (ours["n"], ours["prior_weight"], ours["decay"]) == (theirs["n"], theirs["prior_weight"], theirs["decay"])
    np.testing.assert_array_equal(ours["scale"]["center"], theirs["scale"]["center"])
    np.testing.assert_allclose(ours["experts"], theirs["experts"], atol=1e-2)
    np.testing.assert_allclose(ours["masses"], theirs["masses"], atol=1e-3)
    assert done.log_loss == pytest.approx(-streamed.log_likelihood_array(X, y).mean(), abs=1e-4)
    assert done.model.step_size == streamed.step_size


# --- rows -----------------------------------------------------------------------------------------------------------


def test_frames_dicts_and_arrays_are_the_same_rows_and_the_seed_is_all_of_the_chance():
    X, y = rows(150)
    names = ["b", "a"]
    arrays, frames, dicts, other = (regressor(seed=seed) for seed in (1, 1, 1, 2))
    batch.fit(arrays, X, y, feature_names=names, rounds=5)
    batch.fit(frames, pd.DataFrame(X, columns=names), pd.Series(y), rounds=5)
    batch.fit(dicts, [dict(zip(names, row, strict=True)) for row in X.tolist()], y.tolist(), rounds=5)
    batch.fit(other, X, y, feature_names=names, rounds=5)
    assert arrays.feature_names == frames.feature_names == dicts.feature_names == ["a", "b"]
    assert arrays.state_digest() == frames.state_digest() == dicts.state_digest() != other.state_digest()


def test_weights_are_repetitions():
    X, y = rows(150)
    counts = np.random.default_rng(2).integers(0, 4, size=150)
    start = regressor(warmup=100)
    start.learn_array(X[:100], y[:100])
    weighted, repeated = copy.deepcopy(start), copy.deepcopy(start)
    ours = batch.fit(weighted, X, y, w=counts.astype(float), start="model", rounds=3, tolerance=0.0)
    theirs = batch.fit(repeated, X.repeat(counts, 0), y.repeat(counts), start="model", rounds=3, tolerance=0.0)
    assert (ours.n, theirs.n) == (int((counts > 0).sum()), counts.sum())
    assert ours.log_loss == pytest.approx(theirs.log_loss, rel=1e-4)
    assert ours.rmse == pytest.approx(theirs.rmse, rel=1e-4)
    np.testing.assert_allclose(weighted.parameters()["experts"], repeated.parameters()["experts"], rtol=1e-5)


def test_new_columns_and_labels_join_a_model_that_continues():
    X, y = rows(300)
    model = MoEClassifier(n_experts=2, warmup=100)
    known = labels(y) != "high"
    model.learn_array(X[known][:120], labels(y)[known][:120])
    events = [{"x0": a, "x1": b, "extra": a * b} for a, b in X.tolist()]
    batch.fit(model, events, labels(y).tolist(), start="model", rounds=3)
    assert sorted(model.output_names) == ["high", "low", "middle"]
    assert model.feature_names == ["x0", "x1", "extra"]


# --- what cannot be done --------------------------------------------------------------------------------------------


def test_a_bad_row_is_named_and_nothing_is_changed():
    dirty = X.copy()
    dirty[17, 1] = np.nan
    events = [{"a": a, "b": b} for a, b in X.tolist()]
    events[23]["b"] = "?"
    model = KINDS["several"][0].clone()
    before = model.state_digest()
    for row, inputs, targets in [(17, dirty, BOTH), (23, events, [{"u": u, "v": v} for u, v in BOTH.tolist()])]:
        with pytest.raises(InvalidEvent) as caught:
            batch.fit(model, inputs, targets)
        assert caught.value.row == row
        assert model.state_digest() == before
