"""Shards that contain events of one another, as far as the positions in their checkpoints tell.

What a position holds is its source's own affair, and a position that is not known tells nothing. Of those of files and
of Kafka a little is read here, which only makes a shard be left out: where nothing proves that events would count
twice, both shards count.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple

from streammoe.checked import is_count
from streammoe.ports import Position
from streammoe.scaleout.shard import Shard
from streammoe.text import shown

FILES = "file"
KAFKA = "kafka"
Partition = tuple[str, str | None, str]
"""Topic, its id, and the partition's number."""


class _Claims(NamedTuple):
    """What the positions of a shard say that it has read."""

    whole: dict[Hashable, str]
    """What has been read from its beginning, so that two shards that have it contain the same events; in words."""
    offsets: dict[Partition, int]
    """The next offset of each partition of Kafka; where reading began is not known."""
    n: int | None
    """Events, if it is known that all of them are of these partitions."""


def overlapping(shards: Mapping[str, Shard]) -> dict[str, str]:
    """Return the shards that contain events of another one, and why; without them each event counts once.

    Of two that overlap the one with more events stays; of as many, the first.

    Args:
        shards: by their names, in the order in which they were named.
    """
    stay: dict[str, _Claims] = {}
    found: dict[str, str] = {}
    for name in sorted(shards, key=lambda name: -shards[name].n):  # the sort is stable
        claims = _claims_of(shards[name])
        overlaps = ((other, why) for other, before in stay.items() if (why := _common(claims, before)))
        other, why = next(overlaps, ("", ""))
        if why:
            rule = "give each shard files or partitions of its own, or leave one of the two folders out"
            found[name] = f"{why} as shard {other}, which has learned as many events or more and counts alone; {rule}"
        else:
            stay[name] = claims
    return found


def _common(one: _Claims, other: _Claims) -> str:
    """Return why two shards contain some events twice; an empty text if nothing proves it."""
    for key, words in one.whole.items():
        if key in other.whole:
            return words
    shared = one.offsets.keys() & other.offsets.keys()
    if not shared or one.n is None or other.n is None:
        return ""
    # A partition may have moved from one shard to another, which goes on where that has ended. Then together they
    # have learned at most as many events as there are offsets.
    most = {key: max(one.offsets.get(key, 0), other.offsets.get(key, 0)) for key in {**one.offsets, **other.offsets}}
    if one.n + other.n <= sum(most.values()):
        return ""
    topic, _, number = min(shared, key=str)
    return f"it has read the same events of partition {number} of topic {shown(topic)}"


def _claims_of(shard: Shard) -> _Claims:
    whole: dict[Hashable, str] = {}
    offsets: dict[Partition, int] = {}
    is_kafka_alone = True
    try:
        whole["state", shard.n, shard.state_digest, json.dumps(shard.positions, sort_keys=True)] = (
            "it is in the same state at the same positions"
        )
        for part in filter(None, shard.positions):
            is_kafka_alone = is_kafka_alone and part.get("kind") == KAFKA
            if part.get("kind") == FILES:
                whole.update(_files(part))
            elif part.get("kind") == KAFKA:
                original = str(part["owner"]).partition(".")[0]
                whole["owner", original] = "it goes on from a copy of the same checkpoint folder"
                offsets.update(_offsets(part["topics"]))
                offsets.update(_offsets(part.get("left", {})))  # partitions that belong to others by now
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError):  # another source's, or damaged
        return _Claims(whole, {}, None)
    # Of a topic that was created again, or a source that was replaced, there were events that no offset tells of.
    is_known = is_kafka_alone and shard.n <= sum(offsets.values())
    return _Claims(whole, offsets, shard.n if is_known else None)


def _files(position: Position) -> Iterator[tuple[Hashable, str]]:
    """Yield what identifies each file of which something was read; a copy of a file is another one."""
    for file in position["files"]:
        if file["offset"]:
            key = (FILES, file["inode"], file["head_bytes"], file["head_sha256"])
            yield key, f"it has read the same file {shown(file['path'])}"


def _offsets(topics: Mapping[str, Any]) -> Iterator[tuple[Partition, int]]:
    for topic, saved in topics.items():
        for number, offset in saved["partitions"].items():
            if not is_count(offset):
                raise ValueError(offset)
            yield (topic, saved["id"], number), offset
