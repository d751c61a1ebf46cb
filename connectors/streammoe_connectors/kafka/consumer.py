"""Access to a Kafka cluster through kafka-python's consumer.

kafka-python has no public API to request topics without waiting, nor for their ids; so this also uses the consumer's
``_cluster``, whose methods are documented.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)
from kafka.net.compat import KafkaNetClient

from streammoe.errors import SourceError
from streammoe.ports import Partition
from streammoe_connectors.kafka.offsets import CommittedOffset, parse_offset_metadata
from streammoe_connectors.kafka.partitions import LogRecord
from streammoe_connectors.kafka.source_settings import ReadingSettings

ANSWER_MS = 5_000
"""Longest time of a request before it is retried."""


class Unanswered(Exception):  # noqa: N818 - nothing is wrong with the question
    """The cluster did not respond in time, or not usefully; the request may be repeated."""


class Lost(Exception):  # noqa: N818 - what has happened, not what went wrong
    """Partitions no longer hold the records to be read next."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        super().__init__()
        self.partitions = sorted(partitions)


class Cluster:
    """A consumer of assigned partitions, which uses its group only to commit.

    All requests raise `Unanswered` if the cluster does not respond usefully.

    Raises:
        SourceError: the options are invalid, or do not allow to read.
        Unanswered: no broker responded.
    """

    def __init__(self, options: Mapping[str, Any], settings: ReadingSettings) -> None:
        clients: list[Any] = []

        def client(**arguments: Any) -> Any:
            clients.append(KafkaNetClient(**arguments))
            return clients[-1]

        arguments = {
            "fetch_max_bytes": max(settings.partition_fetch_bytes, settings.buffer_bytes // 2),
            "metadata_max_age_ms": max(1_000, int(settings.discover_seconds * 1000)),
            **options,
            "allow_auto_create_topics": False,
            "auto_offset_reset": "none",
            "bootstrap_timeout_ms": ANSWER_MS,
            "enable_auto_commit": False,
            "group_id": settings.group,
            "isolation_level": settings.isolation,
            "kafka_client": client,
            "max_partition_fetch_bytes": settings.partition_fetch_bytes,
            "max_poll_records": settings.max_poll_records,
        }
        if "api_version" in arguments:
            arguments["api_version"] = tuple(arguments["api_version"])
        try:
            self._consumer = KafkaConsumer(**arguments)
        except KafkaError as error:
            for made in clients:  # its thread would keep trying
                made.close()
            if not getattr(error, "retriable", False):
                raise SourceError(f"Kafka cannot be reached with these settings: {_said(error)}") from None
            # Brokers just close a connection with a wrong login or protocol.
            protocol = options.get("security_protocol", "PLAINTEXT")
            check = "security_protocol and the login" if "SASL" in protocol else "security_protocol"
            raise Unanswered(f"{_said(error)}; check bootstrap_servers, {check}") from None
        self._asked: Any = None
        self._asked_at = 0.0
        self._failed_commits: deque[str] = deque()

    # --- topics -----------------------------------------------------------------------------------------------------

    def ask(self, topics: Sequence[str]) -> None:
        """Request topics and their partitions; `asking_seconds` is ``None`` once the response is there."""
        cluster = self._consumer._cluster  # noqa: SLF001 - see the module's docstring
        cluster.set_topics(topics)
        self._asked = cluster.request_update()
        self._asked_at = time.monotonic()

    @property
    def asking_seconds(self) -> float | None:
        """How long the last request has been waiting for its response; ``None`` once that is there."""
        if self._asked is None or self._asked.is_done:
            return None
        return time.monotonic() - self._asked_at

    def partitions(self, topic: str) -> list[int] | None:
        """Return partitions as of the last response, in order; ``None`` if there is no such topic.

        Raises:
            SourceError: these settings do not allow to read it.
        """
        cluster = self._consumer._cluster  # noqa: SLF001
        if topic in cluster.unauthorized_topics:
            raise SourceError(
                f"Kafka topic {topic}: this user may not read it; allow it to describe and read the topic, or log in "
                "as another one"
            )
        found = cluster.partitions_for_topic(topic)
        return None if found is None else sorted(found)

    def topic_id(self, topic: str) -> str | None:
        """Return the id of a topic, which distinguishes it from later ones; ``None`` from brokers older than 2.8."""
        found = self._consumer._cluster.topic_id(topic)  # noqa: SLF001
        return None if found is None else str(found)

    # --- offsets ----------------------------------------------------------------------------------------------------

    def first_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset of each partition's first record."""
        return self._offsets("beginning_offsets", partitions)

    def end_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """Return the offset after the last readable record, which excludes open transactions."""
        return self._offsets("end_offsets", partitions)

    def offsets_at(self, partitions: Sequence[Partition], milliseconds: int) -> dict[Partition, int]:
        """Return the offset of the first record at that time or later, or the end."""
        ends = self.end_offsets(partitions)
        try:
            found = self._consumer.offsets_for_times(
                {TopicPartition(*partition): milliseconds for partition in partitions}, timeout_ms=ANSWER_MS
            )
        except KafkaError as error:
            raise Unanswered(_said(error)) from None
        return {
            partition: ends[partition] if at is None else min(at.offset, ends[partition])
            for partition in partitions
            for at in [found[TopicPartition(*partition)]]
        }

    def _offsets(self, method: str, partitions: Sequence[Partition]) -> dict[Partition, int]:
        if not partitions:
            return {}
        try:
            found = getattr(self._consumer, method)(
                [TopicPartition(*partition) for partition in partitions], timeout_ms=ANSWER_MS
            )
        except (KafkaError, KeyError) as error:  # KeyError: the partition is not known yet
            raise Unanswered(_said(error)) from None
        return {Partition(*partition): offset for partition, offset in found.items()}

    # --- the group --------------------------------------------------------------------------------------------------

    def committed(self, partition: Partition) -> tuple[int, CommittedOffset | None] | None:
        """Return the committed offset of the group, with its metadata if they are ours."""
        try:
            found = self._consumer.committed(TopicPartition(*partition), metadata=True, timeout_ms=ANSWER_MS)
        except KafkaError as error:
            raise Unanswered(_said(error)) from None
        return None if found is None or found.offset < 0 else (found.offset, parse_offset_metadata(found.metadata))

    def commit(self, offsets: Mapping[Partition, int], metadata: str, *, wait_ms: int = 0) -> None:
        """Commit these offsets with these metadata; `failed_commits` reports failures."""
        wanted = {TopicPartition(*tp): OffsetAndMetadata(offset, metadata, -1) for tp, offset in offsets.items()}
        try:
            if wait_ms:
                self._consumer.commit(wanted, timeout_ms=wait_ms)
            else:
                self._consumer.commit_async(wanted, callback=self._note)
        except KafkaError as error:
            self._failed_commits.append(_said(error))

    def failed_commits(self) -> list[str]:
        """Return the reasons of commits that failed since the last call."""
        failed = []
        while self._failed_commits:
            failed.append(self._failed_commits.popleft())
        return failed

    def _note(self, _: object, response: object) -> None:
        """Note a failed commit; called by kafka-python's own thread."""
        if isinstance(response, Exception):
            self._failed_commits.append(_said(response))

    # --- records ----------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Assign these partitions, each read from its offset."""
        self._consumer.assign([TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(*partition), offset)

    def seek(self, partition: Partition, offset: int) -> None:
        """Continue reading a partition at this offset."""
        self._consumer.seek(TopicPartition(*partition), offset)

    def pause(self, partition: Partition) -> None:
        """Stop fetching from this partition for now."""
        self._consumer.pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        """Fetch from this partition again."""
        self._consumer.resume(TopicPartition(*partition))

    def poll(self, seconds: float) -> dict[Partition, list[LogRecord]]:
        """Return records that arrived within so many seconds.

        Raises:
            Lost: partitions no longer hold the records to be read next.
            SourceError: they may not be read.
            Unanswered: any other, transient failure.
        """
        self._reset_fetcher()
        try:
            found = self._consumer.poll(int(seconds * 1000))
        except OffsetOutOfRangeError as error:
            raise Lost(Partition(*partition) for partition in error.args[0]) from None
        except LogTruncationError as error:
            raise Lost(Partition(*partition) for partition in error.divergent_offsets) from None
        except TopicAuthorizationFailedError as error:
            raise SourceError(f"Kafka: this user may not read {_said(error)}; allow it to read the topic") from None
        except UnsupportedCodecError as error:
            raise SourceError(f"Kafka: records are compressed in a way that needs a package ({_said(error)})") from None
        except KafkaError as error:
            raise Unanswered(_said(error)) from None
        return {Partition(*partition): records for partition, records in found.items()}

    def _reset_fetcher(self) -> None:
        """Let kafka-python return records of resumed partitions that it fetched before they were paused.

        It does so only when no other records are pending, and (3.0.12) does not notice that these are used up. Without
        records from other partitions it would then return nothing at all.
        """
        fetcher = self._consumer._fetcher  # noqa: SLF001 - the only alternative is to reconnect
        if not getattr(fetcher, "_next_partition_records", None):
            fetcher._next_partition_records = None  # noqa: SLF001

    def fetched(self, partition: Partition) -> int | None:
        """Return the next offset to fetch."""
        state = self._consumer._subscription.assignment.get(TopicPartition(*partition))  # noqa: SLF001 - `position`
        # may send a request to the cluster, and is slow
        return None if state is None or state.position is None else int(state.position.offset)

    def log_end(self, partition: Partition) -> int | None:
        """Return the end of the log as of the last fetch, including records of open transactions."""
        found: int | None = self._consumer.highwater(TopicPartition(*partition))
        return found

    def close(self) -> None:
        """Close connections, within a second or two."""
        self._consumer.close(autocommit=False, timeout_ms=1_000)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
