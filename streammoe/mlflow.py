"""Models in MLflow, as the flavour ``python_function``: the artifact is the file that `save` writes, and no pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from streammoe.errors import ConfigError, not_installed
from streammoe.estimators import MixtureOfExperts, load, problem_of
from streammoe.model.members import kept_rows

if TYPE_CHECKING:
    import pandas as pd
    from mlflow.models import ModelSignature
    from mlflow.models.model import ModelInfo

__all__ = ["log_model", "save_model", "signature_of"]


def save_model(model: MixtureOfExperts, path: str | os.PathLike[str], **arguments: Any) -> None:
    """Save a model in a new folder, from which `mlflow.pyfunc.load_model` loads it.

    The loaded model predicts the rows of a frame of pandas as `predict_many` does, in a frame of the column
    ``prediction``, or one for each output. With ``params={"interval": 0.9}`` a regressor adds the ends of such
    intervals, ``prediction:low`` and ``prediction:high``; with ``params={"probabilities": True}`` a classifier adds
    ``probability:label`` of each label. Its `get_raw_model` returns the estimator, which can learn on.

    Further arguments are those of `mlflow.pyfunc.save_model`, such as ``metadata`` or ``input_example``; by default the
    signature is `signature_of` the model, and the only requirement this version of streammoe.

    Raises:
        ConfigError: it is no model, or has learned nothing.
    """
    with TemporaryDirectory() as folder:
        _mlflow().pyfunc.save_model(path, **_arguments(model, folder, arguments))


def log_model(model: MixtureOfExperts, name: str = "model", **arguments: Any) -> ModelInfo:
    """Log a model in the current run, or a new one, as `save_model` saves it.

    Further arguments are those of `mlflow.pyfunc.log_model`, such as ``registered_model_name``; errors are as there.
    """
    with TemporaryDirectory() as folder:
        return _mlflow().pyfunc.log_model(name=name, **_arguments(model, folder, arguments))


def signature_of(model: MixtureOfExperts) -> ModelSignature:
    """Return the signature of a model: its columns, in which values may be missing, what it predicts, and a parameter.

    A column in which the model keeps fractions is a ``double``. Others are of any type: MLflow lets no whole numbers,
    truth values, categories of pandas or times with a zone through that a signature calls double, string or datetime.

    Raises:
        ConfigError: it is no model, or knows no columns.
    """
    if problem := problem_of(model):
        raise ConfigError(f"model: {problem}")
    if not model.fields:
        raise ConfigError("model: knows no columns yet, of which a signature consists; let it learn events first")
    found, index = _mlflow().types.schema, model.learner.encoder.columns.index
    has_fractions = np.any(kept_rows(model.learner)[0] % 1.0 > 0.0, axis=0)
    inputs = [
        (name, "double" if kind == "number" and has_fractions[index[name]] else found.AnyType())
        for name, kind in model.column_kinds.items()
    ]
    of_output, parameter = "double", found.ParamSpec("interval", "double", None)
    if model.is_classifier:
        of_output, parameter = found.AnyType(), found.ParamSpec("probabilities", "boolean", False)
    return _mlflow().models.ModelSignature(
        found.Schema([found.ColSpec(kind, name) for name, kind in inputs]),
        found.Schema([found.ColSpec(of_output, name) for name in _outputs(model)]),
        found.ParamSchema([parameter]),
    )


def _outputs(model: MixtureOfExperts) -> list[str]:
    """Return the columns of predictions."""
    return ["prediction"] if model.is_classifier else [*map(str, model.output_names)] or ["prediction"]


def _mlflow() -> Any:
    try:
        import mlflow.pyfunc
    except ImportError:
        raise not_installed("streammoe.mlflow", "mlflow-skinny", "mlflow") from None
    return mlflow


def _arguments(model: MixtureOfExperts, folder: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that save a model, which is written to this folder, unless others are given."""
    signature = given.get("signature") or signature_of(model)
    model.save(file := Path(folder, "model.safetensors"))
    own = {"signature": signature, "loader_module": __name__, "data_path": str(file)}
    needed = {} if "conda_env" in given else {"pip_requirements": [f"streammoe[mlflow]=={version('streammoe')}"]}
    return {**needed, **given, **own}


class _Loaded:
    """A model as MLflow asks it for predictions."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def get_raw_model(self) -> Any:
        """Return the estimator."""
        return self._model

    def predict(self, model_input: pd.DataFrame, params: Mapping[str, Any] | None = None) -> pd.DataFrame:
        """Predict the rows of a frame; see `save_model`."""
        import pandas as pd

        model, X, wanted = self._model, model_input, params or {}
        found, names = pd.DataFrame(model.predict_many(X)), _outputs(model)
        found.columns = pd.Index(names)
        if (level := wanted.get("interval")) is not None:
            ends = [f"{name}:{end}" for name in names for end in ("low", "high")]
            found[ends] = model.predict_interval_array(X, level).reshape(len(X), -1)
        if wanted.get("probabilities"):
            found[[f"probability:{label}" for label in model.output_names]] = model.predict_proba_array(X)
        return found


def _load_pyfunc(path: str) -> _Loaded:
    """Load a model for MLflow, which calls a function of this name; nothing in the file is run."""
    return _Loaded(load(path))
