"""Exported models, by onnxruntime, against what the models themselves predict."""

import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest

from streammoe import Gaussian, Laplace, MoEClassifier, MoEMultiTargetRegressor, MoERegressor, StudentT
from streammoe.errors import ConfigError
from streammoe.onnx import export

pytestmark = pytest.mark.usefixtures("brief_fits")
CASES = {
    "a portfolio": (MoERegressor, {}, 700),
    "powers of inputs": (MoERegressor, {"degree": 3, "expert": StudentT(3.0)}, 700),
    "powers in the gate": (MoERegressor, {"gate_degree": 2, "expert": Laplace()}, 700),
    "powers in both": (MoEClassifier, {"degree": 2, "gate_degree": 2}, 700),
    "nothing held": (MoERegressor, {"hold": False, "n_experts": "auto"}, 500),
    "nothing scaled": (MoERegressor, {"standardize": False, "serve": "polyak"}, 500),
    "three events": (MoERegressor, {}, 3),
    "before the first fit": (MoEClassifier, {}, 40),
    "several outputs": (MoEMultiTargetRegressor, {}, 500),
    "several that go together": (MoEMultiTargetRegressor, {"expert": Gaussian("full")}, 500),
    "classes": (MoEClassifier, {}, 700),
}


def frame(n, seed):
    """Numbers, some missing, one of them far off and one that stands still for long; categories; times of a night."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, 2)), columns=["a", "mean"])
    X["far"], X["still"] = 1e6 + rng.normal(size=n), 7e8 + rng.normal(size=n) * (np.arange(n) > 450)
    X["color"] = rng.choice(["red", "größer", "blue"], n)
    X["at"] = pd.Timestamp("2026-01-31T23:00:00") + pd.to_timedelta(rng.integers(0, 7200, n), "s")
    for name in ("mean", "color", "at"):
        X.loc[rng.random(n) < 0.1, name] = None
    return X


def strange(n):
    """The same with numbers, categories and times as the model has never seen them."""
    X, rng = frame(n, 1), np.random.default_rng(2)
    odd = {"a": (40.0, -1e5, 1e60), "mean": (9.0, None), "still": (8.0, 7e8 + 1e-3), "far": (0.0, None, 3e6)}
    for name, values in odd.items():
        X.loc[rng.random(n) < 0.5, name] = pd.Series(rng.choice(np.array(values, dtype=float), n))
    X.loc[rng.random(n) < 0.2, "color"] = "green"
    for time in ("1961-07-11T05:00:00", "2031-07-11T05:00:00"):
        X.loc[rng.random(n) < 0.3, "at"] = pd.Timestamp(time)
    return X


def learned(kind, arguments, n):
    X, rng = frame(n, 0), np.random.default_rng(3)
    y = np.where(X["a"] > 0, 2.0 * X["mean"].fillna(0.0), 3.0 + (X["color"] == "red")) + 0.1 * rng.normal(size=n)
    y += X["far"] - 1e6 + X["still"] - 7e8
    model = kind(**{"n_experts": 3, **arguments})
    if kind is MoEMultiTargetRegressor:
        y = pd.DataFrame({"up": y, "down": 50.0 - y + 0.2 * rng.normal(size=n)})
    model.learn_many(X, np.array(["low", "high", "top"])[np.digitize(y, [0.0, 3.0])] if model.is_classifier else y)
    return model


def predicted(path, X, dtype=np.float64):
    """What a file predicts, by the names of its outputs."""
    session = onnxruntime.InferenceSession(path)
    given = {}
    for name in (each.name for each in session.get_inputs()):
        column = X[name]
        if name == "at":
            column = (column - pd.Timestamp(0)).dt.total_seconds()
        values = column.fillna("") if name == "color" else column.astype(np.float64 if name == "at" else dtype)
        given[name] = values.to_numpy()[:, None]
    return dict(zip((each.name for each in session.get_outputs()), session.run(None, given), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_file_predicts_what_the_model_does(case, tmp_path):
    model, X = learned(*CASES[case]), strange(60)
    export(model, tmp_path / "model.onnx")
    onnx.checker.check_model(tmp_path / "model.onnx", full_check=True)
    found, events = predicted(tmp_path / "model.onnx", X), X.to_dict("records")
    if not model.is_warming_up:
        np.testing.assert_allclose(found["gate"], [*map(model.gate_one, events)], rtol=1e-9, atol=1e-12)
    if model.is_classifier:
        np.testing.assert_allclose(found["probabilities"], model.predict_proba_many(X), rtol=1e-9, atol=1e-12)
        assert found["label"].tolist() == model.predict_many(X).tolist()
    else:
        expected = model.predict_many(X).to_numpy().reshape(len(X), -1)
        # A column is called mean, too.
        np.testing.assert_allclose(found["mean'"], expected, rtol=1e-9, atol=1e-9)
        variances = [np.reshape(model.predict_distribution_one(event).variance(), -1) for event in events]
        np.testing.assert_allclose(found["variance"], variances, rtol=1e-9)


def test_numbers_may_be_smaller(tmp_path):
    model, X = MoERegressor(2), frame(400, 1).drop(columns=["far", "still"])
    model.learn_many(X, X["a"] * X["mean"].fillna(1.0))
    export(model, tmp_path / "model.onnx", dtype="float32")
    found = predicted(tmp_path / "model.onnx", X, np.float32)["mean'"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found[:, 0], model.predict_many(X), atol=1e-4)


def with_identifiers():
    model = MoERegressor(2, max_levels=3)
    for i in range(30):
        model.learn_one({"device": f"d{i % 10}", "x": float(i % 7)}, float(i % 3))
    return model


def without_columns():
    model = MoERegressor(2)
    model.learn_one({}, 1.0)
    return model


REFUSED = {
    "no model": lambda: 3,
    "nothing learned": MoERegressor,
    "no columns": without_columns,
    "lags": lambda: learned(MoERegressor, {"lags": 2}, 40),
    "identifiers": with_identifiers,
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_file_cannot_hold_is_refused(case, tmp_path):
    with pytest.raises(ConfigError):
        export(REFUSED[case](), tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_other_numbers_are_refused(tmp_path):
    with pytest.raises(ConfigError):
        export(learned(*CASES["three events"]), tmp_path / "model.onnx", dtype="float16")
