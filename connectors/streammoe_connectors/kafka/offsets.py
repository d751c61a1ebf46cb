"""Offsets committed to the consumer group, and their metadata, which serve as a lease on the partitions.

The checkpoint is authoritative. Offsets are committed after it, for lag monitoring only. Partitions are assigned
manually, so the group cannot fence off a second daemon. Instead the metadata of each commit hold the owner and the
time, and a daemon is rejected while another owner's commit is recent.
"""

from __future__ import annotations

from typing import Self

import msgspec

from streammoe.ports import Position, TopicPartition


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


def offsets_of(position: Position) -> dict[TopicPartition, int]:
    """Return the next offset of each partition in the position of a `KafkaSource`."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, saved in position["topics"].items()
        for partition, offset in saved["partitions"].items()
    }
