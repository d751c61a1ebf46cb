"""What the model of a daemon contains besides the events of its own source: a model that it has adopted.

The entry ``contains`` of the metadata, absent as long as nothing was adopted, has the ``version`` adopted last, in
``adopted_n`` what adopting has added to the number of events that the model counts as learned, and in ``shards`` by the
other shards' names ``generation``, ``n`` and ``positions``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streammoe.checked import is_count, require, table_of
from streammoe.text import shown


def adopted_events(metadata: Mapping[str, Any]) -> int:
    """Return what adopting has added to ``n`` of a checkpoint, which has been checked.

    >>> adopted_events({"n": 30, "contains": {"version": 2, "adopted_n": 20, "shards": {}}}), adopted_events({"n": 30})
    (20, 0)
    """
    return int(metadata.get("contains", {}).get("adopted_n", 0))


def check_contains(metadata: Mapping[str, Any]) -> None:
    """Check the entry, if there is one; raise `CheckpointError` if it is invalid."""
    if "contains" not in metadata:
        return
    said = table_of(metadata, "contains")
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
