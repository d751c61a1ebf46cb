"""A model that was fitted elsewhere, to begin with instead of an empty one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streammoe import schedules
from streammoe.errors import CheckpointError
from streammoe.estimators import MixtureOfExperts, MoEClassifier, MoEMultiTargetRegressor, load
from streammoe.pipeline.pipeline import Schema

OF_THE_WARM_UP = {"warmup", "warmup_restarts"}
"""Arguments that say nothing any more once the warm-up is over."""
TAKEN_OVER = {"range_factor", "reseed"}
"""Arguments that are those of the settings, whatever the model had."""
OF_THE_SCHEMA = {"categorical", "timestamps"}
"""Arguments that a configuration has in ``[schema]``."""


def given_model(path: Path, like: MixtureOfExperts, schema: Schema) -> MixtureOfExperts:
    """Read a model that `save` or a daemon wrote, and see that it is the one that the settings describe.

    Args:
        path: a file, or a daemon's checkpoint folder, of which only the model is taken.
        like: an empty model as the settings describe it. Its `range_factor` and `reseed` are taken over.
        schema: of the settings.

    Raises:
        CheckpointError: there is no sound model, or it is another one; with everything that differs.
    """
    model = load(path)
    differences = list(_differences(model, like, schema))
    if differences:
        raise CheckpointError(
            f"--from-model {path}: it is not the model that the settings describe: {'; '.join(differences)}. "
            "Change the settings, or fit a model with these"
        )
    model.set_range_factor(like.range_factor)
    model.set_reseed(like.reseed)
    return model


def _differences(model: MixtureOfExperts, like: MixtureOfExperts, schema: Schema) -> Iterator[str]:
    if type(model) is not type(like):
        yield f"it is a {type(model).__name__}, and model.kind and schema.target ask for a {type(like).__name__}"
        return
    given, wanted = as_settings(model), as_settings(like)
    for name in given:
        passed = name in OF_THE_WARM_UP and not model.is_warming_up
        if given[name] != wanted[name] and name not in TAKEN_OVER and not passed:
            section = "schema" if name in OF_THE_SCHEMA else "model"
            yield f"{section}.{name} is {wanted[name]!r}, and it has {given[name]!r}"
    fields = model.fields
    if not fields:
        yield "it has learned nothing, so it has no features yet"
    elif not all(isinstance(name, str) for name in fields):
        yield f"its features are {fields!r}, and names in records are texts"
    elif schema.features is not None and set(fields) != set(schema.features):
        yield f"schema.features is {sorted(schema.features)!r}, and it has {sorted(fields)!r}"
    elif both := sorted(schema.others & set(fields)):
        yield f"its features hold {', '.join(map(repr, both))}, which the settings name as something else"
    if isinstance(model, MoEMultiTargetRegressor) and model.output_names != like.output_names:
        yield f"schema.target is {like.output_names!r}, and its outputs are {model.output_names!r}, in this order"
    if isinstance(model, MoEClassifier) and not all(isinstance(label, str) for label in model.class_labels):
        yield f"its classes are {model.class_labels!r}, and labels in records are texts"


def as_settings(model: MixtureOfExperts) -> dict[str, Any]:
    """The arguments of a model as settings would write them."""
    said = model.arguments()
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in said.items()}
    plain |= {name: list(plain[name] or ()) for name in OF_THE_SCHEMA}
    plain["averaging"] = plain["averaging"] or "none"
    plain["schedule"] = plain["schedule"] or schedules.to_settings(model.default_schedule)
    return plain
