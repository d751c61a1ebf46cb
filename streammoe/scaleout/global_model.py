"""The file of a global model: the model, its version, and what it contains of each shard."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from streammoe.checked import is_count, is_finite_number, require, restoring, table_of
from streammoe.errors import CheckpointError, RetriableCheckpointError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.persistence import NewerCheckpointError, decode, pieces
from streammoe.ports import Position
from streammoe.scaleout.places import MissingFileError, Place
from streammoe.text import shown

LOGGER = logging.getLogger("streammoe.shards")
KEY = "global"
"""The entry of a checkpoint's metadata that makes it a global model."""
KEEP = 3
"""Versions that are kept, so that a slow reader finds what it has listed."""
MOST_SHARDS = 10_000
SHARD_NAME = "a shard's name is 1 to 100 printable characters without '/' and without blanks at its ends"
_LONGEST_NAME = 100
_FILE = re.compile(r"global-(\d{12,})\.safetensors", re.ASCII)
_DIGEST = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Contained:
    """What a global model contains of one shard."""

    generation: int
    """Of the shard's checkpoint, in the shard's own folder."""
    n: int
    """Number of events of its own source that the shard had learned."""
    positions: list[Position | None]
    """Where reading would resume, as in the shard's checkpoint: all events before are contained, none after."""
    state_digest: str
    """As in the shard's checkpoint; another one of the same generation is another checkpoint."""
    weight: float
    """Weight of the shard's model in the reduction."""
    share: float
    """The weight as a share of all shards' weights."""
    divergence: float | None
    """Mean divergence of the shard's model from the global one, in nats per event; None if it is not known."""


@dataclass(frozen=True)
class GlobalModel:
    """A model that contains what several shards have learned."""

    version: int
    """From 1 on, one more with each."""
    model: MixtureOfExperts
    shards: Mapping[str, Contained]
    """By the shards' names."""

    @property
    def n(self) -> int:
        """Number of events of all shards that it contains."""
        return sum(contained.n for contained in self.shards.values())


def is_shard_name(name: object) -> bool:
    """Whether this can be the name of a shard; see `SHARD_NAME`.

    >>> is_shard_name("state-0"), is_shard_name("a/b"), is_shard_name("")
    (True, False, False)
    """
    return (
        isinstance(name, str)
        and 0 < len(name) <= _LONGEST_NAME
        and name.isprintable()
        and name.strip() == name
        and "/" not in name
    )


def are_positions(value: object) -> bool:
    """Whether this can be the positions of a checkpoint; only their source understands what is in them."""
    return isinstance(value, list) and all(each is None or isinstance(each, dict) for each in value)


def is_digest(value: object) -> bool:
    """Whether this can be the digest of a state."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def file_name(version: int) -> str:
    """Return the name of the file of a version."""
    return f"global-{version:012d}.safetensors"


def versions(place: Place) -> list[int]:
    """Return the versions of which there is a file, sound or not, the oldest first.

    Raises:
        RetriableCheckpointError: the place cannot be listed for now.
    """
    matches = map(_FILE.fullmatch, place.names())
    return sorted(int(match[1]) for match in matches if match is not None)


def write(place: Place, global_model: GlobalModel, keep: int = KEEP) -> None:
    """Write a global model, and then remove all versions but the newest `keep`.

    A place has one writer. Readers never see a part of a file, and need no lock.

    Raises:
        RetriableCheckpointError: it cannot be written for now; the versions before are untouched.
        CheckpointError: there is a version that is not older, whose number must not be used again.
        PoisonedModel: a number in the model is not finite; nothing was written.
    """
    newest = max(versions(place), default=0)
    if global_model.version <= newest:
        raise CheckpointError(
            f"{place.name}: holds version {newest} of the global model, so version {global_model.version} cannot be "
            "written; let only one process write to each place"
        )
    shards = {name: asdict(contained) for name, contained in global_model.shards.items()}
    metadata = {**global_model.model.describe(), KEY: {"version": global_model.version, "shards": shards}}
    place.write(file_name(global_model.version), *pieces(global_model.model.arrays(), metadata))
    try:
        for version in versions(place)[:-keep]:
            place.delete(file_name(version))
    except RetriableCheckpointError as error:  # a surplus file must not stop anything; the next version tries again
        LOGGER.warning("an old global model was not removed: %s", error)


def read(place: Place, version: int) -> GlobalModel:
    """Read one version.

    Raises:
        MissingFileError: there is no such version any more.
        RetriableCheckpointError: it cannot be read for now.
        NewerCheckpointError: its format is that of a later version of streammoe.
        CheckpointError: it is damaged, or not a global model.
    """
    name = file_name(version)
    origin = place.file(name)
    checkpoint = decode(place.read(name), origin)
    with restoring(origin):
        require(KEY in checkpoint.metadata, "it is a model, but not a global one")
        described = table_of(checkpoint.metadata, KEY)
        found = described.get("version")
        require(is_count(found) and found == version, f"its version is {shown(found)}, but its name says {version}")
        tables = table_of(described, "shards")
        require(0 < len(tables) <= MOST_SHARDS, f"it contains {len(tables)} shards; there are 1 to {MOST_SHARDS}")
        shards = {shard: contained_of(shard, table_of(tables, shard)) for shard in tables}
    return GlobalModel(version, model_of(checkpoint, origin), shards)


def contained_of(name: object, table: Mapping[str, Any]) -> Contained:
    """Return what a table of the metadata says about a shard, once it is validated.

    Raises:
        CheckpointError: it is not what `write` writes; entries that a later version may add are ignored.
    """
    require(is_shard_name(name), f"{shown(name)} is not a shard's name")
    what = f"shard {shown(name)}"
    entries: dict[str, Any] = {field.name: table.get(field.name) for field in fields(Contained)}
    for entry in ("generation", "n"):
        require(is_count(entries[entry]), f"{entry} of {what} is {shown(entries[entry])}, not a whole number from 0 on")
    positions = entries["positions"]
    require(are_positions(positions), f"positions of {what} are {shown(positions)}, not a list of positions")
    digest = entries["state_digest"]
    require(is_digest(digest), f"state_digest of {what} is {shown(digest)}")
    weight, share, divergence = entries["weight"], entries["share"], entries["divergence"]
    require(is_finite_number(weight) and weight >= 0, f"weight of {what} is {shown(weight)}, not a number from 0 on")
    require(is_finite_number(share) and 0 <= share <= 1, f"share of {what} is {shown(share)}, not one from 0 to 1")
    known = divergence is None or (is_finite_number(divergence) and divergence >= 0)
    require(known, f"divergence of {what} is {shown(divergence)}, not a number from 0 on")
    return Contained(**entries)


def read_newest(
    place: Place, *, after: int = 0, on_damage: Callable[[int, CheckpointError], None] | None = None
) -> GlobalModel | None:
    """Return the newest sound version, or None if there is none.

    Args:
        place: which may be written at the same time.
        after: a version; only later ones count, so that what is known need not be read again.
        on_damage: called with each version that is passed over because it is damaged, and why; by default it logs a
            warning. Reading the same place again calls it again.

    Raises:
        RetriableCheckpointError: the place cannot be read for now.
        NewerCheckpointError: the newest is of a later version of streammoe; going back to an older one would undo what
            was learned since.
    """
    on_damage = on_damage or warn_of_damage
    for version in reversed(versions(place)):
        if version <= after:
            break
        try:
            return read(place, version)
        except MissingFileError:  # replaced by newer ones since it was listed, or taken away
            continue
        except (NewerCheckpointError, RetriableCheckpointError):
            raise
        except CheckpointError as error:
            on_damage(version, error)
    return None


def warn_of_damage(version: int, error: CheckpointError) -> None:
    """Log that a version is passed over."""
    LOGGER.warning("global model, version %d is passed over: %s", version, error)
