"""The mirror of a checkpoint's position in the consumer group, and the mark by which its owner is known.

Positions live in checkpoints. What the group has committed is for lag tools, and trails. The text beside each offset
says whose it is and since when, so that a second daemon on the same partitions is refused.
"""

from __future__ import annotations

import msgspec

from streammoe.ports import Partition, Position


class CommittedOffset(msgspec.Struct, frozen=True):
    """What is written beside a committed offset."""

    owner: str
    """Who reads this partition, empty once it has been let go of."""
    at: float
    """When that was written, in seconds since 1970."""
    generation: int
    """Of the checkpoint that the offset belongs to."""

    def is_held_by_another(self, owner: str, now: float, seconds: float) -> bool:
        """Whether someone else has given a sign of life within the last `seconds`."""
        return self.owner not in {"", owner} and now - self.at < seconds


def offset_metadata(owner: str, generation: int, now: float) -> str:
    """What to write beside a committed offset.

    Args:
        owner: from the position.
        generation: of the checkpoint that holds it.
        now: seconds since 1970.
    """
    return msgspec.json.encode(CommittedOffset(owner, round(now, 3), generation)).decode()


def parse_offset_metadata(text: str | None) -> CommittedOffset | None:
    """What `offset_metadata` has written; ``None`` for anything else, such as other tools' notes."""
    try:
        return msgspec.json.decode(text or "", type=CommittedOffset)
    except (msgspec.DecodeError, UnicodeError):
        return None


def offsets_of(position: Position) -> dict[Partition, int]:
    """The next offset of each partition that a `KafkaSource`'s position holds."""
    return {
        Partition(topic, int(partition)): offset
        for topic, held in position["topics"].items()
        for partition, offset in held["partitions"].items()
    }
