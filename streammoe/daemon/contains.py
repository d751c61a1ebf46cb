"""What the model of a shard contains besides the events of its own source: an adopted global model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from streammoe.checked import is_count, require, table_of
from streammoe.text import shown

KEY = "contains"
"""The entry of a daemon's metadata; absent as long as nothing was adopted."""


class Contains(NamedTuple):
    """Which global model a shard has adopted last, and what it contained of the other shards."""

    version: int
    """Of that global model; 0 if there is none."""
    shards: Mapping[str, Mapping[str, Any]]
    """By the other shards' names ``generation``, ``n`` and ``positions``, as in the global model."""

    def to_json(self, adopted_n: int) -> dict[str, Any]:
        """Return the entry of the metadata.

        Args:
            adopted_n: what adopting has added to the number of events that the model counts as learned; the others are
                of its own source.
        """
        return {"version": self.version, "adopted_n": adopted_n, "shards": dict(self.shards)}


NOTHING = Contains(0, {})


def contains_of(metadata: Mapping[str, Any]) -> Contains:
    """Return what a checkpoint says; its metadata have been checked."""
    said = metadata.get(KEY)
    return NOTHING if said is None else Contains(said["version"], said["shards"])


def adopted_events(metadata: Mapping[str, Any]) -> int:
    """Return what adopting has added to ``n`` of a checkpoint, which has been checked; see `Contains.to_json`.

    >>> adopted_events({"n": 30, "contains": {"version": 2, "adopted_n": 20, "shards": {}}}), adopted_events({"n": 30})
    (20, 0)
    """
    said = metadata.get(KEY)
    return 0 if said is None else int(said["adopted_n"])


def check_contains(metadata: Mapping[str, Any]) -> None:
    """Check the entry, if there is one; raise `CheckpointError` if it is invalid."""
    if KEY not in metadata:
        return
    said = table_of(metadata, KEY)
    require(is_count(said.get("version")) and said["version"] > 0, f"contains.version is {shown(said.get('version'))}")
    adopted_n = said.get("adopted_n")
    is_number = isinstance(adopted_n, int) and not isinstance(adopted_n, bool)
    require(
        is_number and is_count(metadata["n"] - adopted_n),
        f"contains.adopted_n is {shown(adopted_n)}, of {metadata['n']} events",
    )
    shards = table_of(said, "shards")
    for name in shards:
        shard = table_of(shards, name)
        sound = is_count(shard.get("generation")) and is_count(shard.get("n"))
        require(sound and isinstance(shard.get("positions"), list), f"contains.shards.{shown(name)} is {shown(shard)}")
