"""The checkpoint of a global model: the model, its version, and what it contains of each shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import Field

from streammoe.checked import CheckedTable, Count, restoring, table_of
from streammoe.errors import ConfigError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.persistence import Checkpoint, CheckpointStore
from streammoe.scaleout.shard import FolderProblem, newest
from streammoe.secrets import masked

KEY = "global"
"""The entry of a checkpoint's metadata that makes it a global model."""


class Contained(CheckedTable, frozen=True):
    """What a global model contains of one shard."""

    generation: Count
    """Of the shard's checkpoint, in the shard's own folder."""
    n: Count
    """Number of events of its own source that the shard had learned, which is its weight."""
    state_digest: str
    """As in the shard's checkpoint; another one of the same generation is another checkpoint."""
    divergence: Annotated[float, Field(ge=0)] | None
    """Mean divergence of the shard's model from the global one, in nats per event; None if it is not known."""


@dataclass(frozen=True)
class GlobalModel:
    """A model that contains what several shards have learned."""

    version: int
    """The generation of its checkpoint: from 1 on, one more with each."""
    model: MixtureOfExperts
    shards: Mapping[str, Contained]
    """By the shards' names."""

    @property
    def n(self) -> int:
        """Number of events of all shards that it contains."""
        return sum(contained.n for contained in self.shards.values())


def folder_of(text: str, what: str) -> Path:
    """Return the folder that a user names; what names it is an option or setting.

    Raises:
        ConfigError: it is the URL of an object store.
    """
    if "://" in text:
        rule = "it must be a folder; mount the store, or a file system that all machines share, and name its folder"
        raise ConfigError(f"{what}: got {masked(text)}; {rule}")
    return Path(text)


def save(
    store: CheckpointStore, model: MixtureOfExperts, shards: Mapping[str, Contained], *, after: int = 0
) -> GlobalModel:
    """Save the next version, whose number is above `after`, as `CheckpointStore.save` does.

    Raises:
        RetriableCheckpointError: it cannot be written for now; the versions before are untouched.
        PoisonedModel: a number in the model is not finite; nothing was written.
    """
    described = {KEY: {"shards": {name: contained.model_dump() for name, contained in shards.items()}}}
    version = store.save(model.arrays(), {**model.describe(), **described}, after=after)
    return GlobalModel(version, model, shards)


def read(path: Path, version: int, checkpoint: Checkpoint) -> GlobalModel:
    """Return the global model that a checkpoint holds.

    Raises:
        CheckpointError: it is damaged.
        ConfigError: it is that of a daemon.
    """
    if KEY not in checkpoint.metadata:
        raise ConfigError(f"{path}: is no global model, but the checkpoint of a daemon; name a folder of its own")
    with restoring(path):
        tables = table_of(table_of(checkpoint.metadata, KEY), "shards")
        shards = {name: Contained.model_validate(table) for name, table in tables.items()}
    return GlobalModel(version, model_of(checkpoint, path), shards)


def read_newest(store: CheckpointStore, *, after: int = 0) -> tuple[GlobalModel | None, FolderProblem | None]:
    """Return the newest sound version, if there is any, and what is wrong with newer ones, or the folder.

    Args:
        store: which may be written at the same time.
        after: a version; only later ones count.

    Raises:
        ConfigError: the folder holds checkpoints of a daemon.
    """
    found, problem = newest(store, lambda version, each: read(store.path(version), version, each), after=after)
    return found, None if problem is not None and problem.reason == "empty" else problem
