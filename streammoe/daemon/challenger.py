"""The part of a checkpoint that is about a challenger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streammoe.checked import CheckedTable, Count
from streammoe.errors import PoisonedModel
from streammoe.persistence import Checkpoint
from streammoe.pipeline.challenger import Challenger
from streammoe.types import AnyArray

CHALLENGER = "challenger."
"""Prefix of the arrays of its model and its scores."""
CHAMPION = "champion."
"""Prefix of the arrays of the champion's scores over the same events."""


class SavedChallenger(CheckedTable):
    """The metadata of a challenger; the content of scores is checked where it is used."""

    model: dict[str, Any]
    n: Count
    missed: Count
    scores: dict[str, Any]
    champion_scores: dict[str, Any]


def saved(challenger: Challenger | None) -> Checkpoint:
    """Return what a checkpoint holds of a challenger: nothing if it fails because a number is not finite."""
    if challenger is None:
        return Checkpoint({}, {})
    model, scores, of_champion = challenger.model, challenger.pipeline.scores, challenger.champion_scores
    told = {"missed": challenger.missed, "scores": scores.to_json(), "champion_scores": of_champion.to_json()}
    try:
        arrays = _under(CHALLENGER, {**model.arrays(), **scores.arrays()}) | _under(CHAMPION, of_champion.arrays())
    except PoisonedModel as error:
        challenger.fail(error)
        return Checkpoint({}, {})
    return Checkpoint(arrays, {"challenger": {**model.identify(), **told}})


def parts_of(checkpoint: Checkpoint) -> tuple[Checkpoint, Checkpoint] | None:
    """Return the challenger, and the champion's scores over its events, each like a checkpoint without a challenger."""
    told = checkpoint.metadata.get("challenger")
    if told is None:
        return None
    own, of_champion = (_within(prefix, checkpoint.arrays) for prefix in (CHALLENGER, CHAMPION))
    return Checkpoint(own, told), Checkpoint(of_champion, {"scores": told["champion_scores"]})


def exchanged(checkpoint: Checkpoint, own: Checkpoint, of_champion: Checkpoint) -> Checkpoint:
    """Return a checkpoint in which the challenger is the model, and the other way round.

    What is counted and where reading goes on stay as they are. The scores are those over the events that both have
    learned, and what the guard knows of the model's usual loss is forgotten.

    Args:
        checkpoint: with a challenger.
        own, of_champion: `parts_of` it.
    """
    common = ("labels.", "guard.")
    others = (*common, "scores", CHALLENGER, CHAMPION)
    kept = {name: array for name, array in checkpoint.arrays.items() if name.startswith(common)}
    model = {name: array for name, array in checkpoint.arrays.items() if not name.startswith(others)}
    scores = {name: array for name, array in own.arrays.items() if name.startswith("scores")}
    arrays = kept | own.arrays | _under(CHALLENGER, model | of_champion.arrays) | _under(CHAMPION, scores)
    metadata, told = dict(checkpoint.metadata), own.metadata
    metadata.pop("guard", None)
    settings = metadata["settings"]
    metadata["challenger"] = {
        **{name: metadata[name] for name in ("model", "n")},
        "missed": 0,
        "scores": told["champion_scores"],
        "champion_scores": told["scores"],
    }
    metadata |= {name: told[name] for name in ("model", "n", "scores")}
    metadata["settings"] = {**settings, "model": settings["challenger"], "challenger": settings["model"]}
    return Checkpoint(arrays, metadata)


def _under(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    return {prefix + name: array for name, array in arrays.items()}


def _within(prefix: str, arrays: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
