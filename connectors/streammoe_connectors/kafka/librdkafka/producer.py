"""A producer on top of librdkafka's, see `Producer`."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import wait
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import Producer as ClientProducer
from confluent_kafka import TopicPartition as ClientPartition

from streammoe.errors import ConfigError
from streammoe.ports import Location, TopicPartition
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.clients import Cause, ClientError, Transactional, Undelivered
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.librdkafka.options import LOGGER, error_of, error_text, metadata_of, own_options

MAX_PENDING_KIBIBYTES = 32 << 10
"""Size of unacknowledged records from which on none is accepted."""
_MAX_MESSAGE_BYTES = 64 << 20  # large enough for the topic's max.message.bytes to be the only limit
_METADATA_TIMEOUT_SECONDS = 2.0
_METADATA_AGE_SECONDS = 60.0
_TRANSACTION_TIMEOUT_SECONDS = 10.0

Result = TypeVar("Result")


class LibrdkafkaProducer:
    """A producer; arguments and errors are those of `Client.create_producer`."""

    def __init__(
        self, options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None = None
    ) -> None:
        timeout_ms = int(1000 * delivery.delivery_timeout_seconds)
        connection = own_options(options)
        arguments: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": delivery.compression,
            "linger.ms": delivery.linger_ms,
            "batch.size": max(1, delivery.batch_bytes),
            "message.max.bytes": _MAX_MESSAGE_BYTES,
            "queue.buffering.max.kbytes": MAX_PENDING_KIBIBYTES,
            "queue.buffering.max.messages": 1_000_000,
            # As in Java's clients.
            "partitioner": "murmur2_random",
            "request.timeout.ms": min(30_000, timeout_ms // 2),
            **connection,
            "delivery.report.only.error": True,
            "logger": LOGGER,
        }
        if transactional is not None:
            transaction_ms = int(1000 * transactional.timeout)
            timeout_ms = min(timeout_ms, transaction_ms)
            arguments["transactional.id"] = transactional.name
            arguments["transaction.timeout.ms"] = transaction_ms
            arguments["socket.timeout.ms"] = min(60_000, max(100, transaction_ms - 100))
        arguments["delivery.timeout.ms"] = timeout_ms
        self._options = connection
        self._failed: deque[Undelivered] = deque()
        self._fatal: KafkaException | None = None
        self._known: dict[str, tuple[int, float]] = {}  # number of partitions, and until when that holds
        self._groups: dict[str, Any] = {}
        try:
            self._producer: Any = ClientProducer(arguments)
        except (KafkaException, TypeError, ValueError) as error:
            raise ConfigError(f"librdkafka rejects its settings: {error_text(error)}") from error

    def partitions(self, topic: str) -> int:
        known, until = self._known.get(topic, (0, 0.0))
        now = time.monotonic()
        if now < until:
            return known
        deadline = now + _METADATA_TIMEOUT_SECONDS
        while True:
            try:
                found = self._producer.list_topics(topic, timeout=_METADATA_TIMEOUT_SECONDS).topics[topic]
            except KafkaException as error:
                raise self._client_error(error) from error
            if found.error is None and found.partitions:
                self._known[topic] = len(found.partitions), now + _METADATA_AGE_SECONDS
                return len(found.partitions)
            if time.monotonic() >= deadline or not _may_be_created(found.error):
                raise client_error(KafkaException(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
            time.sleep(0.1)

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[tuple[str, bytes]],
        location: Location,
    ) -> bool:
        try:
            self._producer.produce(
                topic,
                value,
                key,
                -1 if partition is None else partition,
                partial(self._record_failure, location),
                headers=list(headers) if headers else None,
            )
        except BufferError:
            return False
        except KafkaException as error:
            raise self._client_error(error) from error
        return True

    def _record_failure(self, location: Location, error: KafkaError, message: Message) -> None:
        parts = [message.value(), message.key(), *(part for header in message.headers() or () for part in header)]
        size = sum(len(part) for part in parts if part is not None)
        self._failed.append(Undelivered(client_error(KafkaException(error)), size, location))

    @property
    def n_pending(self) -> int:
        return len(self._producer)

    def collect(self) -> Undelivered | None:
        self._serve(self._producer.poll, 0)
        return self.find_failure()

    def find_failure(self) -> Undelivered | None:
        if self._fatal is not None:
            return Undelivered(client_error(self._fatal), 0, None)
        return self._failed[0] if self._failed else None

    def flush(self, seconds: float) -> None:
        self._serve(self._producer.flush, seconds)

    def _serve(self, serve: Callable[[float], object], seconds: float) -> None:
        """Call what runs callbacks, and raises the error that ends a producer, once."""
        try:
            serve(seconds)
        except (KafkaException, SystemError) as raised:
            # Callbacks that it runs after that error fail with a SystemError of Python, whose cause it is.
            error: BaseException | None = raised
            while error is not None and not isinstance(error, KafkaException):
                error = error.__cause__
            if error is None:
                raise
            self._fatal = self._fatal or error

    # --- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        self._call(self._producer.init_transactions, _TRANSACTION_TIMEOUT_SECONDS)

    def begin_transaction(self) -> None:
        self._call(self._producer.begin_transaction)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str, group: str) -> None:
        if group not in self._groups:
            # It is only returned by a consumer, which need not be connected.
            consumer = Consumer({**self._options, "group.id": group, "logger": LOGGER})
            self._groups[group] = consumer.consumer_group_metadata()
            consumer.close()
        commits = [ClientPartition(*partition, offset, metadata) for partition, offset in offsets.items()]
        self._call(
            self._producer.send_offsets_to_transaction, commits, self._groups[group], _TRANSACTION_TIMEOUT_SECONDS
        )

    def commit_transaction(self) -> None:
        self._call(self._producer.commit_transaction, _TRANSACTION_TIMEOUT_SECONDS)

    def abort_transaction(self) -> None:
        self._call(self._producer.abort_transaction, _TRANSACTION_TIMEOUT_SECONDS)

    def _call(self, method: Callable[..., Result], *arguments: object) -> Result:
        try:
            return method(*arguments)
        except KafkaException as error:
            raise self._client_error(error) from error

    def _client_error(self, error: KafkaException) -> ClientError:
        """Return the error, or the one that has ended the producer before."""
        self._serve(self._producer.poll, 0)
        return client_error(self._fatal or error)

    def close(self, seconds: float) -> None:
        if seconds:
            self.flush(seconds)
        self._producer.purge()
        # Its own `close` would abort a transaction that may be that of another producer by now. Without the last
        # reference it ends as well, which waits for threads, and nothing depends on it.
        references, self._producer = [self._producer], None
        wait([in_background(references.clear)], seconds)


def committed_metadata(
    options: Mapping[str, Any], group: str, partitions: Sequence[TopicPartition]
) -> list[str | None]:
    """See `Client.committed_metadata`."""
    consumer = Consumer(
        {
            **own_options(options),
            "group.id": group,
            "enable.auto.commit": False,
            # The coordinator then responds only once earlier transactions have ended.
            "isolation.level": "read_committed",
            "logger": LOGGER,
        }
    )
    try:
        committed = consumer.committed([ClientPartition(*partition) for partition in partitions], timeout=10.0)
        failed = next((each.error for each in committed if each.error is not None), None)
        if failed is not None:
            raise KafkaException(failed)
    except KafkaException as error:
        raise client_error(error) from error
    finally:
        consumer.close()
    found = {TopicPartition(each.topic, each.partition): each for each in committed}
    return [metadata_of(found[partition]) if found[partition].offset >= 0 else None for partition in partitions]


def _may_be_created(error: KafkaError | None) -> bool:
    """Whether a topic may be in the course of being created, as some brokers do when they are asked for it."""
    return error is None or error.code() in {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.LEADER_NOT_AVAILABLE}


_CAUSES = {
    **dict.fromkeys(
        (
            KafkaError._ALL_BROKERS_DOWN,  # noqa: SLF001 # its own codes begin so
            KafkaError._MSG_TIMED_OUT,  # noqa: SLF001
            KafkaError._TIMED_OUT,  # noqa: SLF001
            KafkaError._TIMED_OUT_QUEUE,  # noqa: SLF001
            KafkaError._TRANSPORT,  # noqa: SLF001
            KafkaError._WAIT_COORD,  # noqa: SLF001
            # Answers of brokers while others take over.
            KafkaError.BROKER_NOT_AVAILABLE,
            KafkaError.CONCURRENT_TRANSACTIONS,
            KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
            KafkaError.COORDINATOR_NOT_AVAILABLE,
            KafkaError.LEADER_NOT_AVAILABLE,
            KafkaError.NETWORK_EXCEPTION,
            KafkaError.NOT_COORDINATOR,
            KafkaError.NOT_ENOUGH_REPLICAS,
            KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
            KafkaError.NOT_LEADER_FOR_PARTITION,
            KafkaError.REQUEST_TIMED_OUT,
            KafkaError.UNSTABLE_OFFSET_COMMIT,
        ),
        Cause.NO_ANSWER,
    ),
    **dict.fromkeys(
        (
            KafkaError._UNKNOWN_PARTITION,  # noqa: SLF001
            KafkaError._UNKNOWN_TOPIC,  # noqa: SLF001
            KafkaError.UNKNOWN_TOPIC_OR_PART,
        ),
        Cause.UNKNOWN_TOPIC,
    ),
    KafkaError.TOPIC_EXCEPTION: Cause.INVALID_TOPIC,
    **dict.fromkeys((KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE), Cause.TOO_LARGE),
    **dict.fromkeys(
        (
            KafkaError.CLUSTER_AUTHORIZATION_FAILED,
            KafkaError.GROUP_AUTHORIZATION_FAILED,
            KafkaError.TOPIC_AUTHORIZATION_FAILED,
        ),
        Cause.NOT_AUTHORIZED,
    ),
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED,
    KafkaError.INVALID_TRANSACTION_TIMEOUT: Cause.TRANSACTION_TIMEOUT_TOO_LONG,
    **dict.fromkeys(
        (
            KafkaError._FENCED,  # noqa: SLF001
            KafkaError._STATE,  # noqa: SLF001
            KafkaError.INVALID_PRODUCER_EPOCH,
            KafkaError.INVALID_PRODUCER_ID_MAPPING,
            KafkaError.INVALID_TXN_STATE,
            KafkaError.PRODUCER_FENCED,
        ),
        Cause.TRANSACTION_ENDED,
    ),
}


def client_error(error: KafkaException) -> ClientError:
    """Return an error of librdkafka's as one of `Client`."""
    about = error_of(error)
    if about is None:
        return ClientError(Cause.OTHER, str(error))
    cause = _CAUSES.get(about.code(), Cause.OTHER)
    text = about.name() if cause is Cause.TRANSACTION_ENDED else error_text(about)
    is_ended = cause is Cause.TRANSACTION_ENDED
    return ClientError(cause, text, retriable=not is_ended and (about.retriable() or about.txn_requires_abort()))
