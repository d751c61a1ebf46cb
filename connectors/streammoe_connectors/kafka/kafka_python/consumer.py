"""A consumer of assigned partitions on top of kafka-python's, see `AssignedConsumer`.

kafka-python has no public API for the position as of the last poll, nor for the id of the topic that it fetches from;
these are read from its consumer's ``_subscription`` and ``_cluster``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import numpy as np
from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as ClientPartition
from kafka.errors import (
    KafkaError,
    LogTruncationError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)
from kafka.net.compat import KafkaNetClient

from streammoe.errors import SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.consumer import (
    REQUEST_TIMEOUT_MS,
    ClusterUnavailableError,
    OffsetsLostError,
    TopicDescription,
    not_readable,
    unreachable,
    unusable,
)
from streammoe_connectors.kafka.kafka_python.options import own_options
from streammoe_connectors.kafka.offsets import OffsetMetadata
from streammoe_connectors.kafka.records import RECORD, Records
from streammoe_connectors.kafka.source_settings import ReadingSettings

_PRODUCER_OPTIONS = KafkaProducer.DEFAULT_CONFIG.keys() - KafkaConsumer.DEFAULT_CONFIG.keys()


class KafkaPythonConsumer:
    """A consumer of assigned partitions; arguments and errors are those of `Client.create_consumer`."""

    def __init__(self, options: Mapping[str, Any], settings: ReadingSettings) -> None:
        clients: list[Any] = []

        def create_client(**arguments: Any) -> Any:
            clients.append(KafkaNetClient(**arguments))
            return clients[-1]

        self._settings = settings
        self.failed_commits: deque[str] = deque()
        arguments: dict[str, Any] = {
            "fetch_max_bytes": max(settings.partition_fetch_bytes, settings.buffer_bytes // 2),
            "metadata_max_age_ms": max(1_000, int(settings.discover_seconds * 1000)),
            **{name: value for name, value in own_options(options).items() if name not in _PRODUCER_OPTIONS},
            "allow_auto_create_topics": False,
            "auto_offset_reset": "none",
            "bootstrap_timeout_ms": REQUEST_TIMEOUT_MS,
            "enable_auto_commit": False,
            "group_id": settings.group,
            "isolation_level": settings.isolation,
            "kafka_client": create_client,
            "max_partition_fetch_bytes": settings.partition_fetch_bytes,
            "max_poll_records": settings.max_poll_records,
        }
        shared = {name: value for name, value in arguments.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
        try:
            self._consumer = KafkaConsumer(**arguments)
            self._admin = KafkaAdminClient(**shared | {"request_timeout_ms": REQUEST_TIMEOUT_MS})
        except KafkaError as error:
            for client in clients:  # its thread would keep trying
                client.close()
            if not getattr(error, "retriable", False):
                raise unusable(_error_text(error)) from None
            raise unreachable(_error_text(error), arguments["security_protocol"]) from None

    # --- in any thread ----------------------------------------------------------------------------------------------

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicDescription]:
        described = {}
        with _answers():
            answer = self._admin.describe_topics(None if topics is None else list(topics))
        for found in answer:
            name, error, topic_id = found["name"], found["error_code"], found.get("topic_id")
            if error == TopicAuthorizationFailedError.errno and topics is not None:
                raise not_readable(name)
            if error or not self._settings.reads(name):
                continue
            leaders = {each["partition_index"]: each["leader_id"] for each in found["partitions"]}
            described[name] = TopicDescription(
                str(topic_id) if topic_id is not None and UUID(str(topic_id)).int else None,
                {number: leader if leader >= 0 else None for number, leader in sorted(leaders.items())},
            )
        return described

    def offsets(
        self, partitions: Sequence[TopicPartition], time: int, *, stable: bool = False
    ) -> dict[TopicPartition, int]:
        isolation = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
        times = {ClientPartition(*partition): time for partition in partitions}
        with _answers():
            found = self._admin.list_partition_offsets(times, isolation, REQUEST_TIMEOUT_MS)
        return {TopicPartition(*partition): at.offset for partition, at in found.items()}

    # --- the group --------------------------------------------------------------------------------------------------

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata | None]]:
        marks = {}
        for partition in partitions:
            with _answers():  # of the consumer: the admin client does not wait for transactions that hold offsets
                at = ClientPartition(*partition)
                found = self._consumer.committed(at, metadata=True, timeout_ms=REQUEST_TIMEOUT_MS)
            if found is not None and found.offset >= 0:
                marks[partition] = (found.offset, OffsetMetadata.parse(found.metadata))
        return marks

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait_ms: int = 0) -> None:
        commits = {ClientPartition(*tp): OffsetAndMetadata(offset, metadata, -1) for tp, offset in offsets.items()}
        try:
            if wait_ms:
                self._consumer.commit(commits, timeout_ms=wait_ms)
            else:
                self._consumer.commit_async(commits, callback=self._record_commit_failure)
        except KafkaError as error:
            self.failed_commits.append(_error_text(error))

    def _record_commit_failure(self, _: object, response: object) -> None:
        """Record a failed commit; called by kafka-python's own thread."""
        if isinstance(response, Exception):
            self.failed_commits.append(_error_text(response))

    # --- records ----------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign([ClientPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(ClientPartition(*partition), offset)

    def pause(self, partition: TopicPartition) -> None:
        self._consumer.pause(ClientPartition(*partition))

    def resume(self, partition: TopicPartition) -> None:
        self._consumer.resume(ClientPartition(*partition))

    def poll(self, seconds: float) -> dict[TopicPartition, Records]:
        self._reset_fetcher()
        try:
            fetched = self._consumer.poll(int(seconds * 1000))
        except OffsetOutOfRangeError as error:
            raise OffsetsLostError(TopicPartition(*partition) for partition in error.args[0]) from None
        except LogTruncationError as error:
            raise OffsetsLostError(TopicPartition(*partition) for partition in error.divergent_offsets) from None
        except TopicAuthorizationFailedError as error:
            raise not_readable(_error_text(error)) from None
        except UnsupportedCodecError as error:
            said = f"records are compressed in a way that kafka-python cannot read ({_error_text(error)})"
            raise SourceError(
                f"Kafka: {said}; install streammoe[kafka] with what it needs, or use another codec"
            ) from None
        except KafkaError as error:
            raise ClusterUnavailableError(_error_text(error)) from None
        return {TopicPartition(*partition): _as_records(records) for partition, records in fetched.items()}

    def _reset_fetcher(self) -> None:
        """Let kafka-python return records of resumed partitions that it fetched before they were paused.

        It does so only when no other records are pending, and (3.0.12) does not notice that these are used up. Without
        records from other partitions it would then return nothing at all.
        """
        fetcher = self._consumer._fetcher  # noqa: SLF001 - the only alternative is to reconnect
        if not getattr(fetcher, "_next_partition_records", None):
            fetcher._next_partition_records = None  # noqa: SLF001

    def topic_id(self, topic: str) -> str | None:
        topic_id = self._consumer._cluster.topic_id(topic)  # noqa: SLF001 - see the module's docstring
        return None if topic_id is None else str(topic_id)

    def place(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        at = ClientPartition(*partition)
        # `position` is slow, and may send a request to the cluster.
        state = self._consumer._subscription.assignment.get(at)  # noqa: SLF001
        position = None if state is None or state.position is None else int(state.position.offset)
        return position, self._consumer.highwater(at)

    def close(self) -> None:
        self._admin.close()
        self._consumer.close(autocommit=False, timeout_ms=1_000)


def _as_records(found: Sequence[Any]) -> Records:
    rows = (  # the oldest format has no time
        (r.offset, -1 if r.timestamp is None else r.timestamp, r.value, r.key, r.headers, None, 0, 0.0) for r in found
    )
    return np.fromiter(rows, RECORD, len(found))


@contextmanager
def _answers() -> Iterator[None]:
    """Raise `ClusterUnavailableError` if a request fails."""
    try:
        yield
    except (KafkaError, KeyError) as error:  # KeyError: what is asked for is not known yet
        raise ClusterUnavailableError(_error_text(error)) from None


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
