"""The file of a global model: the model, its version, and what it contains of each shard."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from streammoe.checked import is_count, is_finite_number, require, restoring, table_of
from streammoe.errors import CheckpointError, ConfigError, RetriableCheckpointError
from streammoe.estimators import MixtureOfExperts, model_of
from streammoe.persistence import NewerCheckpointError, pieces, read_checkpoint, replace
from streammoe.secrets import masked
from streammoe.text import shown

LOGGER = logging.getLogger("streammoe.shards")
KEY = "global"
"""The entry of a checkpoint's metadata that makes it a global model."""
KEEP = 3
"""Versions that are kept, so that a slow reader finds what it has listed."""
SHARD_NAME = "a shard's name is 1 to 100 printable characters without '/' and without blanks at its ends"
_LONGEST_NAME = 100
_FILE = re.compile(r"global-(\d{12,})\.safetensors", re.ASCII)


@dataclass(frozen=True)
class Contained:
    """What a global model contains of one shard."""

    generation: int
    """Of the shard's checkpoint, in the shard's own folder."""
    n: int
    """Number of events of its own source that the shard had learned, which is its weight."""
    state_digest: str
    """As in the shard's checkpoint; another one of the same generation is another checkpoint."""
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


def is_shard_name(name: str) -> bool:
    """Whether this can be the name of a shard; see `SHARD_NAME`.

    >>> is_shard_name("state-0"), is_shard_name("a/b"), is_shard_name("")
    (True, False, False)
    """
    return 0 < len(name) <= _LONGEST_NAME and name.isprintable() and name.strip() == name and "/" not in name


def folder_of(text: str, what: str) -> Path:
    """Return the folder that a user names; what names it is an option or setting.

    Raises:
        ConfigError: it is the URL of an object store.
    """
    if "://" in text:
        rule = "it must be a folder; mount the store, or a file system that all machines share, and name its folder"
        raise ConfigError(f"{what}: got {masked(text)}; {rule}")
    return Path(text)


def path_of(folder: Path, version: int) -> Path:
    """Return the path of the file of a version."""
    return folder / f"global-{version:012d}.safetensors"


def versions(folder: Path) -> list[int]:
    """Return the versions of which there is a file, sound or not, the oldest first.

    Raises:
        RetriableCheckpointError: the folder cannot be listed for now.
    """
    try:
        matches = [_FILE.fullmatch(path.name) for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RetriableCheckpointError(
            f"{folder}: cannot be listed ({error.strerror}); name a folder that this user may read"
        ) from error
    return sorted(int(match[1]) for match in matches if match is not None)


def write(folder: Path, merged: GlobalModel, keep: int = KEEP) -> None:
    """Write a global model durably, and then remove all versions but the newest `keep`.

    A folder has one writer. Readers never see a part of a file, and need no lock.

    Raises:
        RetriableCheckpointError: it cannot be written for now; the versions before are untouched.
        PoisonedModel: a number in the model is not finite; nothing was written.
    """
    path = path_of(folder, merged.version)
    shards = {name: asdict(contained) for name, contained in merged.shards.items()}
    metadata = {**merged.model.describe(), KEY: {"version": merged.version, "shards": shards}}
    content = pieces(merged.model.arrays(), metadata)
    try:
        replace(path, *content)
    except OSError as error:
        reason = f"cannot be written ({error.strerror}); make room on the disk or correct its permissions"
        raise RetriableCheckpointError(f"{path}: {reason}") from error
    try:
        for version in versions(folder)[:-keep]:
            path_of(folder, version).unlink(missing_ok=True)
    except (OSError, RetriableCheckpointError) as error:  # a surplus file must not stop anything
        LOGGER.warning("an old global model was not removed, which the next version tries again: %s", error)


def read(folder: Path, version: int) -> GlobalModel:
    """Read one version.

    Raises:
        CheckpointError: there is no such version, it is damaged, or not a global model.
    """
    path = path_of(folder, version)
    checkpoint = read_checkpoint(path)
    with restoring(str(path)):
        described = table_of(checkpoint.metadata, KEY)
        found = described.get("version")
        require(is_count(found) and found == version, f"its version is {shown(found)}, but its name says {version}")
        tables = table_of(described, "shards")
        shards = {name: _contained(name, table_of(tables, name)) for name in tables}
    return GlobalModel(version, model_of(checkpoint, path), shards)


def _contained(name: str, table: Mapping[str, Any]) -> Contained:
    """Return what a table of the metadata says about a shard, once it is validated."""
    entries: dict[str, Any] = {field.name: table.get(field.name) for field in fields(Contained)}
    sound = is_count(entries["generation"]) and is_count(entries["n"]) and isinstance(entries["state_digest"], str)
    divergence = entries["divergence"]
    sound = sound and (divergence is None or (is_finite_number(divergence) and divergence >= 0))
    require(sound, f"of shard {shown(name)} it says {shown(table)}")
    return Contained(**entries)


def read_newest(folder: Path, *, after: int = 0) -> tuple[GlobalModel | None, str]:
    """Return the newest sound version, None if there is none, and what is wrong with the first that was passed over.

    Args:
        folder: which may be written at the same time.
        after: a version; only later ones count, so that what is known need not be read again.

    Raises:
        RetriableCheckpointError: the folder cannot be read for now.
        NewerCheckpointError: the newest is of a later version of streammoe; going back to an older one would undo what
            was learned since.
    """
    problem = ""
    for version in reversed(versions(folder)):
        if version <= after:
            break
        try:
            return read(folder, version), problem
        except NewerCheckpointError:
            raise
        except CheckpointError as error:
            if path_of(folder, version).exists():  # else it was replaced by newer ones since it was listed
                problem = problem or str(error)
    return None, problem
