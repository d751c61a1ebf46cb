"""What the reader asks of a Kafka client: a consumer of assigned partitions, which uses its group only to commit."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.offsets import OffsetMetadata
from streammoe_connectors.kafka.records import Records

REQUEST_TIMEOUT_MS = 5_000
"""Timeout of a request."""
FIRST, END = -2, -1
"""The times that stand for the first record of a partition and for its end."""


class ClusterUnavailableError(Exception):
    """A request timed out or failed with a retriable error."""


class OffsetsLostError(Exception):
    """Partitions no longer hold the records to be read next."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__()
        self.partitions = sorted(partitions)


class TopicDescription(NamedTuple):
    """What the cluster says of a topic."""

    id: str | None
    """Distinguishes it from others of the same name, earlier or later; ``None`` from brokers older than 2.8."""
    leaders: Mapping[int, int | None]
    """The nodes that lead its partitions, by their numbers in order; ``None`` for one without a leader."""


def unusable(text: str) -> SourceError:
    """Return the error for settings that a client rejects, in its words."""
    return SourceError(f"Kafka cannot be reached with these settings: {text}")


def unreachable(text: str, protocol: str) -> ClusterUnavailableError:
    """Return the error for brokers that do not respond, in the client's words."""
    # Brokers just close a connection with a wrong login or protocol.
    check = "security_protocol and the login" if "SASL" in protocol else "security_protocol"
    return ClusterUnavailableError(f"{text}; check bootstrap_servers, {check}")


def not_readable(topics: str) -> SourceError:
    """Return the error for topics that the user may not read, or not even see."""
    return SourceError(
        f"Kafka: this user may not read {topics}; allow it to describe and read the topic, or log in as another one"
    )


class AssignedConsumer(Protocol):
    """A consumer of assigned partitions.

    All requests raise `ClusterUnavailableError` if they time out or fail with a retriable error. The first two may be
    called in any thread, several at a time; the others in the one that reads.
    """

    failed_commits: deque[str]
    """The reasons of commits that failed; the caller takes them out."""

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicDescription]:
        """Return what the cluster says of those of these topics that exist; ``None`` for all that the settings read.

        Raises:
            SourceError: the user is not authorized to read one of them.
        """

    def offsets(
        self, partitions: Sequence[TopicPartition], time: int, *, stable: bool = False
    ) -> dict[TopicPartition, int]:
        """Return an offset of each partition; all of them have one leader.

        Args:
            partitions: to ask for.
            time: `FIRST`, `END`, or milliseconds since 1970; for these the offset of the first record at that time or
                later, −1 if there is none.
            stable: whether the end is before the first open transaction.
        """

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata | None]]:
        """Return the committed offsets of the group, each with its metadata if they are ours."""

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait_ms: int = 0) -> None:
        """Commit these offsets with these metadata."""

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Assign these partitions, each read from its offset."""

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching from this partition for now."""

    def resume(self, partition: TopicPartition) -> None:
        """Fetch from this partition again."""

    def poll(self, seconds: float) -> dict[TopicPartition, Records]:
        """Return records that arrived within so many seconds.

        Raises:
            OffsetsLostError: partitions no longer hold the records to be read next.
            SourceError: they may not be read.
            ClusterUnavailableError: any other failure, which is transient.
        """

    def topic_id(self, topic: str) -> str | None:
        """Return the id of the topic that the latest records came from, as far as that is known."""

    def place(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        """Return the next offset to fetch and the high watermark of the last fetch, as far as they are known.

        Records of open transactions are before the high watermark.
        """

    def close(self) -> None:
        """Close connections, within a second or two."""
