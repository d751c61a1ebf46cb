"""What the reader asks of a Kafka client: a consumer of assigned partitions, which uses its group only to commit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.offsets import OffsetMetadata
from streammoe_connectors.kafka.records import Records

REQUEST_TIMEOUT_MS = 5_000
"""Timeout of a request."""
METADATA_RETRY_SECONDS = 0.2
"""Shortest time between two attempts of a metadata request."""


class ClusterUnavailableError(Exception):
    """A request timed out or failed with a retriable error."""


class OffsetsLostError(Exception):
    """Partitions no longer hold the records to be read next."""

    def __init__(self, partitions: Iterable[TopicPartition]) -> None:
        super().__init__()
        self.partitions = sorted(partitions)


def unusable(text: str) -> SourceError:
    """Return the error for settings that a client rejects, in its words."""
    return SourceError(f"Kafka cannot be reached with these settings: {text}")


def unreachable(text: str, protocol: str) -> ClusterUnavailableError:
    """Return the error for brokers that do not respond, in the client's words."""
    # Brokers just close a connection with a wrong login or protocol.
    check = "security_protocol and the login" if "SASL" in protocol else "security_protocol"
    return ClusterUnavailableError(f"{text}; check bootstrap_servers, {check}")


def not_described(topic: str) -> SourceError:
    """Return the error for a topic that the user may not even see."""
    return SourceError(
        f"Kafka topic {topic}: this user may not read it; allow it to describe and read the topic, or log in as "
        "another one"
    )


def not_readable(topics: str) -> SourceError:
    """Return the error for records that the user may not read."""
    return SourceError(f"Kafka: this user may not read {topics}; allow it to read the topic")


class AssignedConsumer(Protocol):
    """A consumer of assigned partitions.

    All requests raise `ClusterUnavailableError` if they time out or fail with a retriable error.
    """

    # --- topics -----------------------------------------------------------------------------------------------------

    def request_metadata(self, topics: Sequence[str] | None) -> None:
        """Request metadata of topics, ``None`` for all; `metadata_request_age` is ``None`` once they have arrived."""
        ...

    @property
    def metadata_request_age(self) -> float | None:
        """Seconds since the last metadata request, which is repeated if it fails; ``None`` once there is a response."""
        ...

    def topics(self) -> list[str]:
        """Return the names of all topics as of the last response, if metadata of all of them were requested."""
        ...

    def partitions(self, topic: str) -> list[int] | None:
        """Return partitions as of the last response, in order; ``None`` if there is no such topic.

        Raises:
            SourceError: the user is not authorized to read it.
        """
        ...

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic, which distinguishes it from later ones; ``None`` from brokers older than 2.8."""
        ...

    # --- offsets ----------------------------------------------------------------------------------------------------

    def beginning_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record."""
        ...

    def end_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the last stable offsets (high watermarks under ``read_uncommitted``)."""
        ...

    def offsets_for_time(self, partitions: Sequence[TopicPartition], timestamp_ms: int) -> dict[TopicPartition, int]:
        """Return the offset of each partition's first record at that time or later, or of its end."""
        ...

    # --- the group --------------------------------------------------------------------------------------------------

    def committed(self, partition: TopicPartition) -> tuple[int, OffsetMetadata | None] | None:
        """Return the committed offset of the group, with its metadata if they are ours."""
        ...

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait_ms: int = 0) -> None:
        """Commit these offsets with these metadata; `failed_commits` reports failures."""
        ...

    def failed_commits(self) -> list[str]:
        """Return the reasons of commits that failed since the last call."""
        ...

    # --- records ----------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Assign these partitions, each read from its offset."""
        ...

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Continue reading a partition at this offset."""
        ...

    def pause(self, partition: TopicPartition) -> None:
        """Stop fetching from this partition for now."""
        ...

    def resume(self, partition: TopicPartition) -> None:
        """Fetch from this partition again."""
        ...

    def poll(self, seconds: float) -> dict[TopicPartition, Records]:
        """Return records that arrived within so many seconds.

        Raises:
            OffsetsLostError: partitions no longer hold the records to be read next.
            SourceError: they may not be read.
            ClusterUnavailableError: any other failure, which is transient.
        """
        ...

    def fetch_position(self, partition: TopicPartition) -> int | None:
        """Return the next offset to fetch, as far as that is known."""
        ...

    def high_watermark(self, partition: TopicPartition) -> int | None:
        """Return the high watermark as of the last fetch, which includes records of open transactions."""
        ...

    def close(self) -> None:
        """Close connections, within a second or two."""
        ...
