"""A producer on top of librdkafka's, see `contract.Producer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka import Producer as ClientProducer
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from streammoe.errors import ConfigError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.contract import (
    CAUSES,
    Cause,
    ClientError,
    Outgoing,
    Topic,
    Transactional,
    TransactionStep,
)
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.librdkafka.options import LOGGER, error_of, error_text, own_options

_MAX_MESSAGE_BYTES = 64 << 20  # large enough for the topic's max.message.bytes to be the only limit
_ANSWER_SECONDS = 5.0
_TRANSACTION_TIMEOUT_SECONDS = 10.0

Result = TypeVar("Result")


class LibrdkafkaProducer:
    """A producer; arguments and errors are those of `Client.create_producer`."""

    def __init__(
        self, options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None = None
    ) -> None:
        timeout_ms = int(1000 * delivery.delivery_timeout_seconds)
        self.rejections: list[str] = []
        own = {**own_options(options), "logger": LOGGER}
        arguments: dict[str, Any] = {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": delivery.compression,
            "linger.ms": delivery.linger_ms,
            "batch.size": max(1, delivery.batch_bytes),
            "message.max.bytes": _MAX_MESSAGE_BYTES,
            "queue.buffering.max.messages": 1_000_000,
            # As in Java's clients.
            "partitioner": "murmur2_random",
            "request.timeout.ms": min(30_000, timeout_ms // 2),
            **own,
            "delivery.report.only.error": True,
            "error_cb": partial(_record_rejection, self.rejections),
        }
        if transactional is not None:
            transaction_ms = int(1000 * transactional.timeout)
            timeout_ms = min(timeout_ms, transaction_ms)
            arguments["transactional.id"] = transactional.name
            arguments["transaction.timeout.ms"] = transaction_ms
            arguments["socket.timeout.ms"] = min(60_000, max(100, transaction_ms - 100))
            # It is only returned by a consumer, which need not be connected.
            consumer = _created(Consumer, {**own, "group.id": transactional.group})
            self._group = consumer.consumer_group_metadata()
            consumer.close()
        arguments["delivery.timeout.ms"] = timeout_ms
        self.failed: list[tuple[ClientError, Outgoing | None]] = []
        self._fatal: KafkaException | None = None
        self._producer: Any = _created(ClientProducer, arguments)

    def send(self, topic: str, record: Outgoing) -> None:
        failed = partial(self._record_failure, record)
        try:
            partition = -1 if record.partition is None else record.partition
            self._producer.produce(topic, record.value, record.key, partition, failed, None, 0, list(record.headers))
        except BufferError as error:
            raise ClientError(Cause.NO_ANSWER, str(error)) from error
        except KafkaException as error:
            raise self._client_error(error) from error

    def _record_failure(self, record: Outgoing, error: KafkaError, _: Message) -> None:
        self.failed.append((client_error(KafkaException(error)), record))

    def pending(self) -> int:
        self._serve(self._producer.poll, 0)
        return len(self._producer)

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
            self.failed.insert(0, (client_error(self._fatal), None))

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        commits = [ClientPartition(*partition, offset, metadata) for partition, offset in offsets.items()]
        self._call(self._producer.send_offsets_to_transaction, commits, self._group, _TRANSACTION_TIMEOUT_SECONDS)

    def transact(self, step: TransactionStep) -> None:
        waits = () if step == "begin_transaction" else (_TRANSACTION_TIMEOUT_SECONDS,)
        self._call(getattr(self._producer, step), *waits)

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


def topic(options: Mapping[str, Any], name: str) -> Topic:
    """See `Client.topic`."""
    rejections: list[str] = []
    callback = partial(_record_rejection, rejections)
    admin = _created(AdminClient, {**own_options(options), "logger": LOGGER, "error_cb": callback})
    try:
        found = admin.list_topics(name, timeout=_ANSWER_SECONDS).topics[name]
        if found.error is not None or not found.partitions:
            raise KafkaException(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
        limit = None
        with suppress(KafkaException, LookupError):  # a user allowed to write need not see settings
            resource = ConfigResource(ResourceType.TOPIC, name)
            (configs,) = admin.describe_configs([resource], request_timeout=_ANSWER_SECONDS).values()
            limit = int(configs.result()["max.message.bytes"].value)
        return Topic(len(found.partitions), limit)
    except KafkaException as error:
        admin.poll(0)
        if rejections:
            raise ClientError(Cause.REJECTED, rejections[-1]) from error
        raise client_error(error) from error


def _record_rejection(rejections: list[str], error: KafkaError) -> None:
    """Record what librdkafka tells a callback only."""
    if error.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL}:  # noqa: SLF001 # its own codes begin so
        rejections.append(error_text(error))


def _created(kind: Callable[[dict[str, Any]], Result], options: dict[str, Any]) -> Result:
    try:
        return kind(options)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"librdkafka rejects its settings: {error_text(error)}") from error


_NO_ANSWERS = ("_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_WAIT_COORD")
_OWN_CAUSES = {
    **dict.fromkeys(_NO_ANSWERS, Cause.NO_ANSWER),
    "_AUTHENTICATION": Cause.REJECTED,
    **dict.fromkeys(("_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"), Cause.UNKNOWN_TOPIC),
    **dict.fromkeys(("_FENCED", "_STATE"), Cause.TRANSACTION_ENDED),
}
"""Those of errors that are not of Kafka's protocol."""


def client_error(error: KafkaException) -> ClientError:
    """Return an error of librdkafka's as one of `Client`."""
    about = error_of(error)
    if about is None:
        return ClientError(Cause.OTHER, str(error))
    cause = CAUSES.get(about.code()) or _OWN_CAUSES.get(about.name(), Cause.OTHER)
    is_ended = cause is Cause.TRANSACTION_ENDED
    text = about.name() if is_ended else error_text(about)
    return ClientError(cause, text, retriable=not is_ended and (about.retriable() or about.txn_requires_abort()))
