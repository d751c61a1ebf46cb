"""Positions of a `KafkaSource` in checkpoints."""

from __future__ import annotations

from typing import Any

from streammoe.errors import SourceError
from streammoe.ports import Position
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.positions import check_kind, invalid, is_count

KIND = "kafka"


def check_position(position: Position) -> None:
    """Raise `SourceError` unless a position is a valid one of Kafka."""
    check_kind(position, KIND)
    try:
        for topic in [*position["topics"].values(), *position.get("left", {}).values()]:
            if not all(_is_number(number) and is_count(at) for number, at in topic["partitions"].items()):
                raise TypeError
            if not isinstance(topic["id"], str | None):
                raise TypeError
        if not isinstance(position["owner"], str) or not isinstance(position.get("pattern"), str | None):
            raise TypeError
        index, _, count = position["shard"].partition("/")
        if not (_is_number(index) and _is_number(count) and int(index) < int(count)):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise invalid(KIND, "it must hold owner, shard, and topics with partitions and their offsets") from None


def _is_number(text: str) -> bool:
    """Whether `text` is the number of a partition, which is below 2^31 in Kafka."""
    return text.isascii() and text.isdecimal() and len(text) <= 10


def check_shard(settings: ReadingSettings, position: Position) -> None:
    """Raise `SourceError` if a position is that of another shard of the same division."""
    shard = position["shard"]
    if shard != settings.shard and shard.partition("/")[2] == settings.shard.partition("/")[2]:
        raise SourceError(
            f"the checkpoint is that of shard {shard}, and source.shard is {settings.shard!r}: its partitions would be "
            "read from their first records, though another checkpoint has their positions. Correct source.shard or "
            "checkpoint.dir, or start over with --fresh"
        )


def is_read(settings: ReadingSettings, topic: str, number: int | str) -> bool:
    """Whether the settings read a partition."""
    return settings.reads(topic) and settings.is_in_shard(int(number))


def offsets_left(settings: ReadingSettings, position: Position) -> dict[str, Any]:
    """Return the positions of partitions that are no longer read, in the form of a position's topics.

    Positions include them, so that nothing is learned twice when they are read again.
    """
    left: dict[str, Any] = {}
    for topic, saved in [*position.get("left", {}).items(), *position["topics"].items()]:
        unread = {n: offset for n, offset in saved["partitions"].items() if not is_read(settings, topic, n)}
        before = left.get(topic, saved)
        if before["id"] != saved["id"]:  # the topic was recreated in between
            before = {"partitions": {}}
        if unread or topic in left:
            kept = {n: offset for n, offset in before["partitions"].items() if not is_read(settings, topic, n)}
            left[topic] = {"id": saved["id"], "partitions": {**kept, **unread}}
    return left
