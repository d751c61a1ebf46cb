"""Models that MLflow saves, logs and loads."""

import sys
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from streammoe import MoEClassifier, MoEMultiTargetRegressor, MoERegressor
from streammoe.errors import ConfigError
from streammoe.mlflow import log_model, save_model, signature_of

# All in one process: to import MLflow takes a second or more.
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("brief_fits")]


@pytest.fixture
def mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ALLOW_PICKLE_DESERIALIZATION", "false")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # which takes no database
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "runs").as_uri())
    monkeypatch.chdir(tmp_path)  # it would take uv.lock from here along
    import mlflow.pyfunc

    return mlflow


def frame(n, seed=0):
    """Columns of types that MLflow is strict about, and a name that is no text."""
    rng = np.random.default_rng(seed)
    X = pd.DataFrame({"temp": rng.normal(size=n), "hour": rng.integers(0, 24, n), 7: rng.random(n) < 0.5})
    X["color"] = pd.Categorical(rng.choice(["red", "blue"], n))
    X["at"] = pd.date_range("2026-01-31", periods=n, freq="137ms", tz="UTC")
    X.loc[rng.random(n) < 0.1, ["temp", "color"]] = None
    return X.set_index(100 + np.arange(n))


def learned(kind=MoERegressor, n=300):
    X, model = frame(n), kind(2)
    y = X["temp"].fillna(0.0) * np.where(X[7], 3.0, -2.0)
    if kind is MoEMultiTargetRegressor:
        y = pd.DataFrame({"up": y, "down": -y + X["hour"]})
    model.learn_many(X, (y > 0.0).to_numpy() if kind is MoEClassifier else y)
    return model


@pytest.mark.parametrize("kind", [MoERegressor, MoEMultiTargetRegressor, MoEClassifier])
def test_a_loaded_model_predicts_frames_as_before(kind, mlflow, tmp_path):
    model, X = learned(kind), frame(20, 1)
    save_model(model, tmp_path / "model", metadata={"of": "a test"})
    loaded = mlflow.pyfunc.load_model(str(tmp_path / "model"))
    expected = pd.DataFrame(model.predict_many(X))
    if kind is not MoEMultiTargetRegressor:
        expected.columns = ["prediction"]
    pd.testing.assert_frame_equal(loaded.predict(X), expected)
    assert loaded.metadata.signature.outputs.input_names() == [*expected.columns]
    if kind is MoEClassifier:
        more, params = model.predict_proba_many(X).add_prefix("probability:"), {"probabilities": True}
    else:
        ends = [f"{name}:{end}" for name in expected.columns for end in ("low", "high")]
        intervals = model.predict_interval_array(X, 0.8).reshape(len(X), -1)
        more, params = pd.DataFrame(intervals, X.index, ends), {"interval": 0.8}
    pd.testing.assert_frame_equal(loaded.predict(X, params), pd.concat([expected, more], axis=1))


def test_a_logged_model_is_the_file_that_save_writes_and_learns_on(mlflow, tmp_path):
    model = learned()
    info = log_model(model, "rides")
    folder = Path(mlflow.artifacts.download_artifacts(info.model_uri, dst_path=str(tmp_path / "copy")))
    assert {path.suffix for path in folder.rglob("*") if path.is_file()} == {"", ".safetensors", ".txt", ".yaml"}
    model.save(tmp_path / "own.safetensors")
    assert (folder / "data" / "model.safetensors").read_bytes() == (tmp_path / "own.safetensors").read_bytes()
    requirements = (folder / "requirements.txt").read_text(encoding="utf-8").splitlines()
    assert f"streammoe[mlflow]=={version('streammoe')}" in requirements
    again = mlflow.pyfunc.load_model(info.model_uri).get_raw_model()
    for one in (model, again):
        one.learn_one({"temp": 0.5, "hour": 3, 7: True, "color": "red"}, 1.0)
    assert again.state_digest() == model.state_digest()


def test_a_signature_knows_the_columns(mlflow, tmp_path):
    save_model(learned(), tmp_path / "model")
    loaded, X = mlflow.pyfunc.load_model(str(tmp_path / "model")), frame(3)
    kinds = {name: str(spec.type) for name, spec in loaded.metadata.signature.inputs.input_dict().items()}
    assert kinds == {"temp": "DataType.double"} | dict.fromkeys([7, "at", "color", "hour"], "Any")
    with pytest.raises(mlflow.exceptions.MlflowException, match="temp"):
        loaded.predict(X.drop(columns="temp"))


@pytest.mark.parametrize("model", [MoERegressor(), 3])
def test_what_has_no_signature_is_refused(model, mlflow, tmp_path):
    with pytest.raises(ConfigError):
        save_model(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_without_mlflow_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    with pytest.raises(ConfigError, match="mlflow-skinny"):
        signature_of(learned(n=10))
