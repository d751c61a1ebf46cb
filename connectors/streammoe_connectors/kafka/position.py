"""Positions of a `KafkaSource` in checkpoints, and the marks of those that are committed to the consumer group.

The checkpoint is authoritative. Offsets are committed after it, for lag monitoring only. Partitions are assigned
manually, so the group cannot fence off a second daemon. Instead the metadata of each commit hold the owner and the
time, and a daemon is rejected while another owner's commit is recent.
"""

from __future__ import annotations

from typing import Annotated, Any, Self

import msgspec

from streammoe.errors import SourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.settings import ReadingSettings
from streammoe_connectors.positions import check_kind, invalid

KIND = "kafka"


class OffsetMetadata(msgspec.Struct, frozen=True, rename={"committed_at": "at", "checkpoint_generation": "generation"}):
    """The metadata of a committed offset, as a JSON object."""

    owner: str
    """The reader of this partition, empty once released."""
    committed_at: float
    """Time of the commit in seconds since 1970."""
    checkpoint_generation: int
    """Generation of the checkpoint that holds the offset; not that of the consumer group."""

    @classmethod
    def parse(cls, text: str | None) -> Self | None:
        """Decode the result of `encode`; return ``None`` for anything else, such as metadata of other tools.

        What follows the object is ignored: confluent-kafka appends a zero byte to what it commits, and reads beyond the
        end of what others have committed.
        """
        text = text or ""
        try:
            return msgspec.json.decode(text[: text.find("}") + 1], type=cls)
        except (msgspec.DecodeError, UnicodeError):
            return None

    def encode(self) -> str:
        """Encode the metadata as text for a commit.

        >>> OffsetMetadata("me", committed_at=1.5, checkpoint_generation=7).encode()
        '{"owner":"me","at":1.5,"generation":7}'
        """
        return msgspec.json.encode(self).decode()


_Number = Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,10}\Z")]
_Offset = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class _Topic(msgspec.Struct):
    id: str | None
    partitions: dict[_Number, _Offset]


class _Saved(msgspec.Struct):
    owner: str
    shard: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,6}/[0-9]{1,6}\Z")]
    topics: dict[str, _Topic]
    left: dict[str, _Topic] = {}
    pattern: str | None = None


def check_position(position: Position) -> None:
    """Raise `SourceError` unless a position is a valid one of Kafka."""
    check_kind(position, KIND)
    try:
        index, count = msgspec.convert(position, _Saved).shard.split("/")
    except msgspec.ValidationError as error:
        said = f"it must hold owner, shard, and topics with partitions and their offsets ({error})"
        raise invalid(KIND, said) from None
    if int(index) >= int(count):
        raise invalid(KIND, f"there is no shard {index}/{count}")


def check_shard(settings: ReadingSettings, position: Position) -> None:
    """Raise `SourceError` if a position is that of another shard of the same division."""
    shard = position["shard"]
    if shard != settings.shard and shard.partition("/")[2] == settings.shard.partition("/")[2]:
        raise SourceError(
            f"the checkpoint is that of shard {shard}, and source.shard is {settings.shard!r}: its partitions would be "
            "read from their first records, though another checkpoint has their positions. Correct source.shard or "
            "checkpoint.dir, or start over with --fresh"
        )


def offsets_of(position: Position) -> dict[TopicPartition, int]:
    """Return the next offset of each partition in the position of a `KafkaSource`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, saved in position["topics"].items()
        for partition, offset in saved["partitions"].items()
    }


def offsets_left(settings: ReadingSettings, position: Position) -> dict[str, Any]:
    """Return the positions of partitions that are no longer read, in the form of a position's topics.

    Positions include them, so that nothing is learned twice when they are read again.
    """

    def left_of(topic: str, saved: dict[str, Any]) -> dict[str, int]:
        offsets = saved["partitions"]
        return {n: offset for n, offset in offsets.items() if not settings.reads_partition(topic, int(n))}

    left: dict[str, Any] = {}
    for topic, saved in [*position.get("left", {}).items(), *position["topics"].items()]:
        unread = left_of(topic, saved)
        before = left.get(topic, saved)
        if before["id"] != saved["id"]:  # the topic was recreated in between
            before = {"partitions": {}}
        if unread or topic in left:
            kept = left_of(topic, before)
            left[topic] = {"id": saved["id"], "partitions": {**kept, **unread}}
    return left
