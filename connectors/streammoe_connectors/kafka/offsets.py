"""Committed offsets, which mirror a checkpoint's position in the consumer group and identify its owner.

Checkpoints hold the authoritative positions. Committed offsets are for lag tools, and follow. The metadata of each
offset name its owner and the time, so that a second daemon on the same partitions is rejected.
"""

from __future__ import annotations

import msgspec

from streammoe.ports import Partition, Position


class CommittedOffset(msgspec.Struct, frozen=True):
    """The metadata of a committed offset."""

    owner: str
    """The reader of this partition, empty once released."""
    at: float
    """Time of the commit in seconds since 1970."""
    generation: int
    """Of the checkpoint that the offset belongs to."""

    def is_held_by_another(self, owner: str, now: float, seconds: float) -> bool:
        """Whether another owner has committed within the last `seconds`."""
        return self.owner not in {"", owner} and now - self.at < seconds


def offset_metadata(owner: str, generation: int, now: float) -> str:
    """Encode the metadata of an offset, committed `now` in seconds since 1970."""
    return msgspec.json.encode(CommittedOffset(owner, round(now, 3), generation)).decode()


def parse_offset_metadata(text: str | None) -> CommittedOffset | None:
    """Decode the result of `offset_metadata`; ``None`` for anything else, such as metadata of other tools."""
    try:
        return msgspec.json.decode(text or "", type=CommittedOffset)
    except (msgspec.DecodeError, UnicodeError):
        return None


def offsets_of(position: Position) -> dict[Partition, int]:
    """Return the next offset of each partition in the position of a `KafkaSource`."""
    return {
        Partition(topic, int(partition)): offset
        for topic, held in position["topics"].items()
        for partition, offset in held["partitions"].items()
    }
