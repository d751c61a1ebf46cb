"""Division of the positions of several shards among another number of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from streammoe.errors import SourceError
from streammoe.ports import Position
from streammoe.text import counted, listed, shown
from streammoe_connectors.kafka.position import KIND, check_position


def redistributed(positions: Sequence[Position], count: int) -> list[Position]:
    """Return the positions of `count` shards that together go on where these shards have ended.

    Each partition's offset goes to the shard that its number belongs to. Partitions that are not read, because topics
    were taken out of the settings, stay known to the shard that would read them. A partition that no shard has read
    begins at its first record, as it would have in its own shard. Each new position has an owner of its own.

    Args:
        positions: of all shards of one group, one each, in any order.
        count: the new number of shards.

    Raises:
        SourceError: they are not the positions of all shards, or of different groups or topics.
    """
    for position in positions:
        check_position(position)
    _check_shards(positions)
    groups = sorted({str(position.get("group")) for position in positions})
    if len(groups) > 1:
        raise SourceError(f"they belong to different groups ({', '.join(groups)}); name the shards of one group")
    pattern = positions[0].get("pattern")
    topics = {topic: _id_of(topic, positions) for topic in _common_topics(positions)}
    offsets = dict(_offsets(positions, topics))
    left = dict(_left_offsets(positions, topics))
    # A shard has not begun with these, and another one, which has, does not read them any more.
    offsets |= {key: offset for key, (_, offset) in left.items() if key[0] in topics and key not in offsets}
    divided = []
    for index in range(count):
        read: dict[str, Any] = {topic: {"id": topic_id, "partitions": {}} for topic, topic_id in topics.items()}
        unread: dict[str, Any] = {}
        for (topic, number), offset in sorted(offsets.items()):
            if number % count == index:
                read[topic]["partitions"][str(number)] = offset
        for (topic, number), (topic_id, offset) in sorted(left.items()):
            if topic not in topics and number % count == index:
                unread.setdefault(topic, {"id": topic_id, "partitions": {}})["partitions"][str(number)] = offset
        divided.append(
            {
                "kind": KIND,
                "group": groups[0],
                "owner": uuid.uuid4().hex,
                "shard": f"{index}/{count}",
                **({"pattern": pattern} if pattern is not None else {}),
                "topics": read,
                **({"left": unread} if unread else {}),
            }
        )
    return divided


def _check_shards(positions: Sequence[Position]) -> None:
    """Raise `SourceError` unless each of the N shards is there once and has read its own partitions alone."""
    shards = [str(position["shard"]) for position in positions]
    totals = sorted({shard.partition("/")[2] for shard in shards})
    if len(totals) > 1:
        raise SourceError(f"their shards are {listed(shards, 'and')}, which are not of one division")
    missing = sorted({f"{index}/{totals[0]}" for index in range(int(totals[0]))} - set(shards))
    if missing:
        raise SourceError(
            f"there is none of shard {listed(missing, 'and')}, whose partitions would be read again; "
            f"name the checkpoint folders of all {counted(int(totals[0]), 'shard')}"
        )
    if repeated := sorted({shard for shard in shards if shards.count(shard) > 1}):
        raise SourceError(f"{listed(repeated, 'and')} is there more than once; name one folder of each shard")
    for position, shard in zip(positions, shards, strict=True):
        index, total = map(int, shard.split("/"))
        for topic, saved in position["topics"].items():
            if others := [number for number in saved["partitions"] if int(number) % total != index]:
                raise SourceError(
                    f"shard {shard} has read partition {others[0]} of topic {topic}, which belongs to another one; "
                    "start its daemon once with its own source.shard, and stop it again"
                )


def _common_topics(positions: Sequence[Position]) -> list[str]:
    """Return the topics; where a pattern selects them, not all shards need have found each of them yet."""
    patterns = {position.get("pattern") for position in positions}
    found = {tuple(sorted(position["topics"])) for position in positions}
    if len(patterns) > 1 or (patterns == {None} and len(found) > 1):
        each = " and ".join(sorted(shown(", ".join(topics)) for topics in found))
        raise SourceError(
            f"they read different topics ({each}), or by different settings; start their daemons once with the same "
            "source.topics or topics_pattern, and stop them"
        )
    return sorted(set().union(*found))


def _id_of(topic: str, positions: Sequence[Position]) -> str | None:
    found = {position["topics"][topic]["id"] for position in positions if topic in position["topics"]} - {None}
    if len(found) > 1:
        raise SourceError(
            f"topic {topic} was deleted and created again, which not all of them have noticed; start their daemons "
            "once, with source.on_lost set, and stop them again"
        )
    return next(iter(found), None)


def _offsets(positions: Sequence[Position], topics: Mapping[str, str | None]) -> Iterator[tuple[tuple[str, int], int]]:
    for position in positions:
        for topic in topics.keys() & position["topics"].keys():
            for number, offset in position["topics"][topic]["partitions"].items():
                yield (topic, int(number)), offset


def _left_offsets(
    positions: Sequence[Position], topics: Mapping[str, str | None]
) -> Iterator[tuple[tuple[str, int], tuple[str | None, int]]]:
    """Yield ids and offsets of what is not read, the furthest last."""
    found = [
        ((topic, int(number)), (saved["id"], offset))
        for position in positions
        for topic, saved in position.get("left", {}).items()
        for number, offset in saved["partitions"].items()
        # An offset of a topic that has been created again since tells nothing of the present one.
        if topic not in topics or None in {saved["id"], topics[topic]} or saved["id"] == topics[topic]
    ]
    yield from sorted(found, key=lambda entry: entry[1][1])
