"""What is asked of a Kafka cluster through kafka-python: the one module that knows that package.

kafka-python has no public way to ask for topics without waiting, nor for their ids; so this also uses its consumer's
``_cluster``, whose methods it documents.
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
"""How long one question may take before it is asked again."""


class Unanswered(Exception):  # noqa: N818 - nothing is wrong with the question
    """The cluster did not answer in time, or not in a useful way; it may be asked again."""


class Lost(Exception):  # noqa: N818 - what has happened, not what went wrong
    """Partitions no longer hold what was to be read next."""

    def __init__(self, partitions: Iterable[Partition]) -> None:
        super().__init__()
        self.partitions = sorted(partitions)


class Cluster:
    """A consumer of some partitions, which belongs to its group only for the sake of committing.

    Args:
        options: arguments of kafka-python's clients.
        settings: of the reading.

    Raises:
        SourceError: the options cannot be used, or nobody may read with them.
        Unanswered: no broker answered.
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
            for made in clients:  # its thread would go on trying
                made.close()
            if not getattr(error, "retriable", False):
                raise SourceError(f"Kafka cannot be reached with these settings: {_said(error)}") from None
            # Brokers just hang up on whoever logs in wrongly or speaks another protocol.
            protocol = options.get("security_protocol", "PLAINTEXT")
            check = "security_protocol and the login" if "SASL" in protocol else "security_protocol"
            raise Unanswered(f"{_said(error)}; check bootstrap_servers, {check}") from None
        self._asked: Any = None
        self._asked_at = 0.0
        self._failed_commits: deque[str] = deque()

    # --- topics -----------------------------------------------------------------------------------------------------

    def ask(self, topics: Sequence[str]) -> None:
        """Ask for topics and their partitions; `answered` tells when that has been answered."""
        cluster = self._consumer._cluster  # noqa: SLF001 - see the module's docstring
        cluster.set_topics(topics)
        self._asked = cluster.request_update()
        self._asked_at = time.monotonic()

    @property
    def asking_seconds(self) -> float | None:
        """For how long the last question has been waiting for its answer; ``None`` once that is there."""
        if self._asked is None or self._asked.is_done:
            return None
        return time.monotonic() - self._asked_at

    def partitions(self, topic: str) -> list[int] | None:
        """Of the last answer, in order; ``None`` if there is no such topic.

        Raises:
            SourceError: nobody may read it with these settings.
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
        """By which a topic differs from one that has its name later; ``None`` if brokers older than 2.8 are asked."""
        found = self._consumer._cluster.topic_id(topic)  # noqa: SLF001
        return None if found is None else str(found)

    # --- offsets ----------------------------------------------------------------------------------------------------

    def first_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """The offset of each partition's first record.

        Raises:
            Unanswered: see there.
        """
        return self._offsets("beginning_offsets", partitions)

    def end_offsets(self, partitions: Sequence[Partition]) -> dict[Partition, int]:
        """What is behind the last record that may be read: open transactions are not.

        Raises:
            Unanswered: see there.
        """
        return self._offsets("end_offsets", partitions)

    def offsets_at(self, partitions: Sequence[Partition], milliseconds: int) -> dict[Partition, int]:
        """The first record of that time or later, or the end.

        Raises:
            Unanswered: see there.
        """
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
        except (KafkaError, KeyError) as error:  # KeyError: the partition is not known there yet
            raise Unanswered(_said(error)) from None
        return {Partition(*partition): offset for partition, offset in found.items()}

    # --- the group --------------------------------------------------------------------------------------------------

    def committed(self, partition: Partition) -> tuple[int, CommittedOffset | None] | None:
        """What the group has committed, and by whom.

        Raises:
            Unanswered: see there.
        """
        try:
            found = self._consumer.committed(TopicPartition(*partition), metadata=True, timeout_ms=ANSWER_MS)
        except KafkaError as error:
            raise Unanswered(_said(error)) from None
        return None if found is None or found.offset < 0 else (found.offset, parse_offset_metadata(found.metadata))

    def commit(self, offsets: Mapping[Partition, int], metadata: str, *, wait_ms: int = 0) -> None:
        """Commit these offsets with this text beside each; failures are told by `failed_commits`."""
        wanted = {TopicPartition(*tp): OffsetAndMetadata(offset, metadata, -1) for tp, offset in offsets.items()}
        try:
            if wait_ms:
                self._consumer.commit(wanted, timeout_ms=wait_ms)
            else:
                self._consumer.commit_async(wanted, callback=self._note)
        except KafkaError as error:
            self._failed_commits.append(_said(error))

    def failed_commits(self) -> list[str]:
        """Why commits have failed since the last call."""
        failed = []
        while self._failed_commits:
            failed.append(self._failed_commits.popleft())
        return failed

    def _note(self, _: object, response: object) -> None:
        """Called by kafka-python's own thread."""
        if isinstance(response, Exception):
            self._failed_commits.append(_said(response))

    # --- records ----------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[Partition, int]) -> None:
        """Read these partitions, each from its offset."""
        self._consumer.assign([TopicPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(*partition), offset)

    def seek(self, partition: Partition, offset: int) -> None:
        """Go on reading there."""
        self._consumer.seek(TopicPartition(*partition), offset)

    def pause(self, partition: Partition) -> None:
        """Fetch nothing of this partition for now."""
        self._consumer.pause(TopicPartition(*partition))

    def resume(self, partition: Partition) -> None:
        """Fetch of it again."""
        self._consumer.resume(TopicPartition(*partition))

    def poll(self, seconds: float) -> dict[Partition, list[LogRecord]]:
        """What has come, after up to so many seconds.

        Raises:
            Lost: partitions no longer hold what was to be read.
            SourceError: they may not be read.
            Unanswered: anything else that may pass.
        """
        self._take_up_resumed()
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

    def _take_up_resumed(self) -> None:
        """Let kafka-python go on with what it had fetched of partitions that were paused since.

        It takes that up when nothing else is in its hands, and does not see (3.0.12) that what is there is used up. If
        nothing more comes of other partitions, nothing more comes at all.
        """
        fetcher = self._consumer._fetcher  # noqa: SLF001 - there is no other way but to connect anew
        if not getattr(fetcher, "_next_partition_records", None):
            fetcher._next_partition_records = None  # noqa: SLF001

    def fetched(self, partition: Partition) -> int | None:
        """The next offset to be fetched."""
        state = self._consumer._subscription.assignment.get(TopicPartition(*partition))  # noqa: SLF001 - `position`
        # would ask the cluster under certain conditions, and is slow
        return None if state is None or state.position is None else int(state.position.offset)

    def log_end(self, partition: Partition) -> int | None:
        """Behind the last record in the log, as of what was fetched last; records of open transactions count."""
        found: int | None = self._consumer.highwater(TopicPartition(*partition))
        return found

    def close(self) -> None:
        """Let go of connections, in a second or two."""
        self._consumer.close(autocommit=False, timeout_ms=1_000)


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
