"""River models: regression with one output or several, and classification."""

from __future__ import annotations

import os

from streammoe.checked import restoring
from streammoe.errors import CheckpointError
from streammoe.estimators.base import MixtureOfExperts
from streammoe.estimators.classifier import MoEClassifier
from streammoe.estimators.multitarget import MoEMultiTargetRegressor
from streammoe.estimators.regressor import MoERegressor
from streammoe.model.coefficients import Coefficient
from streammoe.model.explaining import Explanation
from streammoe.model.learn_rows import Outcome
from streammoe.model.undo import POISON
from streammoe.persistence import Checkpoint, read_checkpoint
from streammoe.text import shown

ESTIMATORS: dict[str, type[MixtureOfExperts]] = {
    kind.__name__: kind for kind in (MoERegressor, MoEMultiTargetRegressor, MoEClassifier)
}
"""Kinds of models, by the names that checkpoints have."""

__all__ = [
    "ESTIMATORS",
    "POISON",
    "Coefficient",
    "Explanation",
    "MixtureOfExperts",
    "MoEClassifier",
    "MoEMultiTargetRegressor",
    "MoERegressor",
    "Outcome",
    "load",
    "model_of",
    "problem_of",
]


def problem_of(given: object) -> str | None:
    """Return why something that was given as a model is none; None if it is one."""
    if issubclass(type(given), MixtureOfExperts):  # River's pipelines pass isinstance for their last step
        return None
    if hasattr(type(given), "to_stream"):
        return f"got {shown(given)} of streammoe.sklearn; give its model_, which it has once it is fitted"
    kinds = "MoERegressor, MoEMultiTargetRegressor or MoEClassifier"
    return f"got {shown(given)}; give a {kinds}, without a pipeline around it"


def load(path: str | os.PathLike[str]) -> MixtureOfExperts:
    """Load a model from a file that `save` wrote, or the newest valid one from a daemon's checkpoint folder.

    Raises:
        CheckpointError: there is none, it is damaged, or it needs a newer version.
    """
    return model_of(read_checkpoint(path), path)


def model_of(checkpoint: Checkpoint, path: str | os.PathLike[str]) -> MixtureOfExperts:
    """Restore the model of a checkpoint that was read from `path`.

    Raises:
        CheckpointError: it needs a newer version, or is not a valid model.
    """
    with restoring(path):
        description = checkpoint.metadata["model"]
        if description["kind"] not in ESTIMATORS:
            kind = shown(description["kind"])
            raise CheckpointError(
                f"holds a {kind}, which streammoe.load does not know; load it with its class, or upgrade streammoe"
            )
        return ESTIMATORS[description["kind"]].from_checkpoint(dict(checkpoint.arrays), description)
