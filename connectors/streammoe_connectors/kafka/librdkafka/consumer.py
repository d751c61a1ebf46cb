"""A consumer of assigned partitions on top of librdkafka's, see `AssignedConsumer`."""

from __future__ import annotations

import time
import uuid
from collections import defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.consumer import (
    END,
    FIRST,
    REQUEST_TIMEOUT_MS,
    ClusterUnavailableError,
    OffsetsLostError,
    TopicDescription,
    not_readable,
    unreachable,
    unusable,
)
from streammoe_connectors.kafka.librdkafka.options import LOGGER, error_of, error_text, metadata_of, own_options
from streammoe_connectors.kafka.offsets import OffsetMetadata
from streammoe_connectors.kafka.records import RECORD, Records
from streammoe_connectors.kafka.source_settings import ReadingSettings

_REQUEST_TIMEOUT = REQUEST_TIMEOUT_MS / 1000
_CLOSE_SECONDS = 1.0
# The largest values that librdkafka accepts of what follows from our settings.
_MAX_FETCH_BYTES = 1_000_000_000
_MAX_QUEUE_KIBIBYTES = 2_097_151
_MAX_AGE_MS = 3_600_000
_RESPONSE_BYTES = 64 << 20
"""Size of a response beyond what was asked for: its head, or a larger record."""
_SILENCE_SECONDS = 0.1
"""Time without records of a topic within which it might have been deleted, created again, and filled beyond the
position: librdkafka then reads on in the new one, without a word."""
_LOST = {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_UNKNOWN = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.UNKNOWN_TOPIC_ID,
    KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001 # its own codes begin so
    KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
}


class LibrdkafkaConsumer:
    """A consumer of assigned partitions; arguments and errors are those of `Client.create_consumer`."""

    def __init__(self, options: Mapping[str, Any], settings: ReadingSettings) -> None:
        self._settings = settings
        self.failed_commits: deque[str] = deque()
        self._positions: dict[TopicPartition, int] = {}
        self._received_at: dict[str, float] = {}  # when records of a topic were last received
        self._postponed: deque[Exception] = deque()
        self._ids: dict[str, str | None] = {}
        connection = own_options(options)
        fetch_bytes = min(max(settings.partition_fetch_bytes, settings.buffer_bytes // 2), _MAX_FETCH_BYTES)
        arguments = {
            # Checksums of records are checked, as by other clients.
            "check.crcs": True,
            # How long it waits after its own buffer was full; by default a second.
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": min(max(1_024, settings.buffer_bytes // 2_048), _MAX_QUEUE_KIBIBYTES),
            "receive.message.max.bytes": fetch_bytes + _RESPONSE_BYTES,
            "topic.metadata.refresh.interval.ms": min(max(1_000, int(settings.discover_seconds * 1000)), _MAX_AGE_MS),
            **connection,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "group.id": settings.group,
            "isolation.level": settings.isolation,
            "max.partition.fetch.bytes": min(settings.partition_fetch_bytes, _MAX_FETCH_BYTES),
            "fetch.max.bytes": fetch_bytes,
            "on_commit": self._record_commit,
            "logger": LOGGER,
        }
        try:
            self._consumer = Consumer(arguments)
            self._admin = AdminClient(connection, logger=LOGGER)
        except (KafkaException, TypeError, ValueError) as error:
            raise unusable(error_text(error)) from None
        try:
            self._consumer.list_topics(settings.topics[0] if settings.topics else None, timeout=_REQUEST_TIMEOUT)
        except KafkaException as error:
            self.close()
            reason, endpoint = error_text(error), connection.get("sasl.oauthbearer.token.endpoint.url")
            if endpoint is not None:  # it says only after 20 s that this does not answer
                reason = f"{reason}; there may be no token from {endpoint}"
            raise unreachable(reason, connection["security.protocol"]) from None

    # --- in any thread ----------------------------------------------------------------------------------------------

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicDescription]:
        try:
            with _answers():
                if topics is None:
                    listed = self._admin.list_topics(timeout=_REQUEST_TIMEOUT).topics
                    topics = [topic for topic in listed if self._settings.reads(topic)]
                if not topics:
                    return {}
                asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=_REQUEST_TIMEOUT)
                answers = {topic: _topic(topic, future) for topic, future in asked.items()}
        except ClusterUnavailableError:
            # What has not answered is the node that the client takes for the controller. If that is dead, it learns of
            # another one from a list of topics, for which it asks any node.
            with suppress(KafkaException):
                self._admin.list_topics(timeout=_REQUEST_TIMEOUT)
            raise
        found = {topic: answer for topic, answer in answers.items() if answer is not None}
        self._ids |= {topic: answer.id for topic, answer in found.items()}
        return found

    def offsets(
        self, partitions: Sequence[TopicPartition], time: int, *, stable: bool = False
    ) -> dict[TopicPartition, int]:
        specs = {FIRST: OffsetSpec.earliest(), END: OffsetSpec.latest()}
        spec = specs[time] if time in specs else OffsetSpec.for_timestamp(time)
        with _answers():
            found = self._admin.list_offsets(
                {ClientPartition(*partition): spec for partition in partitions},
                isolation_level=IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED,
                request_timeout=_REQUEST_TIMEOUT,
            )
            return {
                TopicPartition(each.topic, each.partition): future.result(_REQUEST_TIMEOUT + 1).offset
                for each, future in found.items()
            }

    # --- the group --------------------------------------------------------------------------------------------------

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata | None]]:
        asked = [ClientPartition(*partition) for partition in partitions]
        with _answers():
            answers = self._consumer.committed(asked, timeout=_REQUEST_TIMEOUT)
            for failed in filter(None, (found.error for found in answers)):
                raise KafkaException(failed)
        return {
            TopicPartition(found.topic, found.partition): (found.offset, OffsetMetadata.parse(metadata_of(found)))
            for found in answers
            if found.offset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait_ms: int = 0) -> None:
        commits = [ClientPartition(*partition, offset, metadata) for partition, offset in offsets.items()]
        commit = partial(self._consumer.commit, offsets=commits, asynchronous=not wait_ms)
        try:
            if wait_ms:
                self._record_commit(None, in_background(commit).result(wait_ms / 1000))
            else:
                commit()
        except KafkaException as error:
            self.failed_commits.append(error_text(error))
        except TimeoutError:
            self.failed_commits.append(f"no answer for {wait_ms / 1000:g} s")

    def _record_commit(self, error: KafkaError | None, partitions: Sequence[ClientPartition]) -> None:
        failed = next(filter(None, [error, *(partition.error for partition in partitions)]), None)
        if failed is not None:
            self.failed_commits.append(error_text(failed))

    # --- records ----------------------------------------------------------------------------------------------------

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._positions = dict(offsets)
        self._consumer.assign([ClientPartition(*partition, offset) for partition, offset in offsets.items()])

    def pause(self, partition: TopicPartition) -> None:
        self._consumer.pause([ClientPartition(*partition)])

    def resume(self, partition: TopicPartition) -> None:
        self._consumer.resume([ClientPartition(*partition)])

    def poll(self, seconds: float) -> dict[TopicPartition, Records]:
        if self._postponed:
            raise self._postponed.popleft()
        messages = self._consumer.consume(1, seconds)  # it would wait until it has as many as asked for
        if messages:
            messages += self._consumer.consume(self._settings.max_poll_records, 0)
        records = [message for message in messages if message.error() is None]
        self._confirm_topics(records)
        found = self._by_partition(records)
        for message in messages if len(records) < len(messages) else ():
            if (error := message.error()) is not None and (failure := self._failure(message, error)) is not None:
                self._postponed.append(failure)
        return found if found or not self._postponed else self.poll(0)  # which raises it

    def _confirm_topics(self, messages: list[Message]) -> None:
        """Learn the ids of topics again if there were no records for a while, so that `topic_id` tells of new ones."""
        now = time.monotonic()
        topics = {str(message.topic()) for message in (messages if len(self._ids) > 1 else messages[:1])}
        if any(now - self._received_at.get(topic, 0.0) > _SILENCE_SECONDS for topic in topics):
            try:
                self.describe(sorted(topics))
            except ClusterUnavailableError:
                self.assign(self._positions)  # they are fetched again
                raise
        self._received_at |= dict.fromkeys(topics, time.monotonic())

    def topic_id(self, topic: str) -> str | None:
        return self._ids.get(topic)

    def _by_partition(self, messages: list[Message]) -> dict[TopicPartition, Records]:
        groups: dict[TopicPartition, list[Message]] = defaultdict(list)
        if len(self._positions) == 1:
            groups[next(iter(self._positions))] = messages
        else:
            for message in messages:
                groups[_partition_of(message)].append(message)
        found = {tp: _as_records(group) for tp, group in groups.items() if group and tp in self._positions}
        self._positions |= {tp: int(records["offset"][-1]) + 1 for tp, records in found.items()}
        return found

    def _failure(self, message: Message, error: KafkaError) -> Exception | None:
        """Return the error to raise for what librdkafka returns in place of a record, if it is one."""
        code, partition = error.code(), _partition_of(message)
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            offset = message.offset()
            if partition in self._positions and offset is not None and offset >= 0:
                self._positions[partition] = max(self._positions[partition], offset)
            return None
        if code in _UNKNOWN:
            return None  # the next metadata tell whether the topic is gone
        if code in _LOST:
            return OffsetsLostError([partition])
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return not_readable(partition.topic)
        return ClusterUnavailableError(error_text(error))

    def place(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        known = self._consumer.get_watermark_offsets(ClientPartition(*partition), cached=True)
        return self._positions.get(partition), None if known is None or known[1] < 0 else int(known[1])

    def close(self) -> None:
        # It waits for brokers, and nothing depends on it.
        wait([in_background(self._consumer.close)], _CLOSE_SECONDS)


@contextmanager
def _answers() -> Iterator[None]:
    """Raise `ClusterUnavailableError` if a request fails."""
    try:
        yield
    except (KafkaException, TimeoutError) as error:
        raise ClusterUnavailableError(error_text(error)) from None


def _partition_of(message: Message) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())


def _as_records(messages: Sequence[Message]) -> Records:
    rows = (
        (each.offset(), each.timestamp()[1], each.value(), each.key(), each.headers() or (), None, 0, 0.0)
        for each in messages
    )
    return np.fromiter(rows, RECORD, len(messages))


def _topic(name: str, future: Any) -> TopicDescription | None:
    """Return what the cluster says of a topic; raise the error of a request that it does not answer."""
    try:
        found = future.result(_REQUEST_TIMEOUT + 1)
    except KafkaException as error:
        about = error_of(error)
        if about is None or about.code() < 0:  # its own codes, such as those of time-outs
            raise
        if about.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise not_readable(name) from None
        return None
    raw = found.topic_id
    number = (raw.get_most_significant_bits() % 2**64) << 64 | raw.get_least_significant_bits() % 2**64
    leaders = {
        each.id: None if each.leader is None or each.leader.id < 0 else each.leader.id for each in found.partitions
    }
    # As kafka-python writes it, so that positions of either client suit the other.
    return TopicDescription(str(uuid.UUID(int=number)) if number else None, dict(sorted(leaders.items())))
