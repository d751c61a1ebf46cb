"""A producer on top of kafka-python's, see `Producer`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata
from kafka import TopicPartition as ClientPartition
from kafka.errors import (
    AuthorizationError,
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTopicError,
    InvalidTxnStateError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    ProducerFencedError,
    RecordListTooLargeError,
    TransactionalIdAuthorizationFailedError,
    UnknownError,
    UnknownTopicOrPartitionError,
)
from kafka.net.compat import KafkaNetClient

from streammoe.errors import ConfigError
from streammoe.ports import Location, TopicPartition
from streammoe_connectors.kafka.clients import Cause, ClientError, Transactional, Undelivered
from streammoe_connectors.kafka.delivery import Delivery
from streammoe_connectors.kafka.kafka_python.options import own_options, supported_options

_LOGGER = logging.getLogger("streammoe.kafka")

MAX_PENDING_BYTES = 32 << 20
"""Size of unacknowledged records from which on none is accepted."""
_BOOTSTRAP_TIMEOUT_MS = 10_000
_METADATA_TIMEOUT_MS = 2_000
_NOT_READY_PAUSE_SECONDS = 0.1
_MAX_REQUEST_BYTES = 64 << 20  # large enough for the topic's max.message.bytes to be the only limit


class _Sent(NamedTuple):
    future: Any
    size: int
    location: Location


class KafkaPythonProducer:
    """A producer; arguments and errors are those of `Client.create_producer`."""

    def __init__(
        self, options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None = None
    ) -> None:
        self._options = {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if delivery.compression == "none" else delivery.compression,
            "linger_ms": delivery.linger_ms,
            "batch_size": delivery.batch_bytes,
            "delivery_timeout_ms": int(1000 * delivery.delivery_timeout_seconds),
            "request_timeout_ms": min(30_000, int(500 * delivery.delivery_timeout_seconds)),
            "max_request_size": _MAX_REQUEST_BYTES,
            "metrics_enabled": False,
            **supported_options(own_options(options), KafkaProducer.DEFAULT_CONFIG),
            # Blocking calls are retried.
            "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
            "max_block_ms": _METADATA_TIMEOUT_MS,
        }
        if transactional is not None:
            self._options["transactional_id"] = transactional.name
            self._options["transaction_timeout_ms"] = int(1000 * transactional.timeout)
        self._pending: deque[_Sent] = deque()
        self._bytes = 0
        try:
            self._producer = _create(self._options)
        except KafkaTimeoutError as error:
            raise client_error(error) from error
        except (KafkaConfigurationError, ValueError, TypeError, AssertionError, RuntimeError) as error:
            raise ConfigError(f"kafka-python rejects its settings: {error}") from error
        except (KafkaError, OSError) as error:
            raise client_error(error) from error

    def partitions(self, topic: str) -> int:
        try:
            return len(self._producer.partitions_for(topic))
        except KafkaTimeoutError as error:
            self._require_topic(topic)
            raise client_error(error) from error
        except (KafkaError, ValueError) as error:
            raise client_error(error) from error

    def _require_topic(self, topic: str) -> None:
        """Raise `ClientError` if the topic does not exist, in contrast to brokers that do not respond."""
        try:
            admin = KafkaAdminClient(**supported_options(self._options, KafkaAdminClient.DEFAULT_CONFIG))
            try:
                found = admin.describe_topics([topic])
            finally:
                admin.close()
        except (KafkaError, OSError) as error:
            _LOGGER.debug("topics cannot be listed: %s", error)
            return
        if any(each["error_code"] == UnknownTopicOrPartitionError.errno for each in found):
            raise client_error(UnknownTopicOrPartitionError())

    def send(
        self,
        topic: str,
        value: bytes,
        key: bytes | None,
        partition: int | None,
        headers: Sequence[tuple[str, bytes]],
        location: Location,
    ) -> bool:
        if self._bytes > MAX_PENDING_BYTES:
            return False
        size = len(value) + len(key or b"") + sum(len(name) + len(content) for name, content in headers)
        try:
            future = self._producer.send(topic, value=value, key=key, partition=partition, headers=list(headers))
        except KafkaError as error:
            raise client_error(error) from error
        self._pending.append(_Sent(future, size, location))
        self._bytes += size
        return True

    @property
    def n_pending(self) -> int:
        return len(self._pending)

    def collect(self) -> Undelivered | None:
        while self._pending and self._pending[0].future.is_done:
            sent = self._pending.popleft()
            self._bytes -= sent.size
            if sent.future.exception is not None:
                return Undelivered(client_error(sent.future.exception), sent.size, sent.location)
        return None

    def find_failure(self) -> Undelivered | None:
        for sent in self._pending:
            if sent.future.exception is not None:
                return Undelivered(client_error(sent.future.exception), sent.size, sent.location)
        return None

    def flush(self, seconds: float) -> None:
        try:
            self._producer.flush(seconds)
        except (KafkaTimeoutError, UnknownError):  # the latter for a batch that was split meanwhile
            _LOGGER.debug("not all acknowledged yet")

    # --- transactions -----------------------------------------------------------------------------------------------

    def init_transactions(self) -> None:
        self._call(self._producer.init_transactions)

    def begin_transaction(self) -> None:
        self._call(self._producer.begin_transaction)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str, group: str) -> None:
        commits = {ClientPartition(*tp): OffsetAndMetadata(offset, metadata, -1) for tp, offset in offsets.items()}
        self._call(self._producer.send_offsets_to_transaction, commits, group)

    def commit_transaction(self) -> None:
        self._call(self._producer.commit_transaction)

    def abort_transaction(self) -> None:
        self._call(self._producer.abort_transaction)

    @staticmethod
    def _call(method: Any, *arguments: object) -> None:
        try:
            method(*arguments)
        except KafkaError as error:
            raise client_error(error) from error

    def close(self, seconds: float) -> None:
        self._call(self._producer.close, seconds)


def committed_metadata(
    options: Mapping[str, Any], group: str, partitions: Sequence[TopicPartition]
) -> list[str | None]:
    """See `Client.committed_metadata`."""
    try:
        consumer = KafkaConsumer(
            **supported_options(own_options(options), KafkaConsumer.DEFAULT_CONFIG),
            group_id=group,
            enable_auto_commit=False,
            # The coordinator then responds only once earlier transactions have ended.
            isolation_level="read_committed",
        )
        try:
            committed = [
                consumer.committed(ClientPartition(*tp), metadata=True, timeout_ms=_BOOTSTRAP_TIMEOUT_MS)
                for tp in partitions
            ]
        finally:
            consumer.close(autocommit=False, timeout_ms=1_000)
    except KafkaError as error:
        raise client_error(error) from error
    return [None if offset is None else offset.metadata for offset in committed]


class _PatientClient(KafkaNetClient):  # type: ignore[misc]  # kafka-python has no types
    """A client that says of a node that cannot be reached that it is not ready.

    kafka-python's raises an error instead, and its producer (3.0.12) then forgets the request of a transaction that it
    was about to send to a coordinator that has died: neither is it sent to the next one, nor does it ever fail.
    """

    def await_ready(self, node_id: Any, timeout_ms: float = 30_000) -> bool:
        try:
            return bool(super().await_ready(node_id, timeout_ms=timeout_ms))
        except KafkaError as error:
            if not getattr(error, "retriable", False):
                raise
            _LOGGER.debug("node %s is not ready: %s", node_id, error)
            time.sleep(_NOT_READY_PAUSE_SECONDS)  # the producer asks again at once
            return False


def _create(options: Mapping[str, Any]) -> KafkaProducer:
    """Create a producer; if that fails, close what it has opened, which kafka-python does not always do."""
    opened: list[Any] = []

    def create_client(**arguments: Any) -> Any:
        opened.append(_PatientClient(**arguments))
        return opened[0]

    try:
        return KafkaProducer(**options, kafka_client=create_client)
    except BaseException:
        for client in opened:
            client.close()
        raise


_CAUSES: dict[type[BaseException], Cause] = {
    KafkaTimeoutError: Cause.NO_ANSWER,
    UnknownTopicOrPartitionError: Cause.UNKNOWN_TOPIC,
    InvalidTopicError: Cause.INVALID_TOPIC,
    ValueError: Cause.INVALID_TOPIC,  # kafka-python's own check of a name
    MessageSizeTooLargeError: Cause.TOO_LARGE,
    RecordListTooLargeError: Cause.TOO_LARGE,
    TransactionalIdAuthorizationFailedError: Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED,
    AuthorizationError: Cause.NOT_AUTHORIZED,
    IllegalStateError: Cause.TRANSACTION_ENDED,
    InvalidProducerEpochError: Cause.TRANSACTION_ENDED,
    InvalidProducerIdMappingError: Cause.TRANSACTION_ENDED,
    InvalidTxnStateError: Cause.TRANSACTION_ENDED,
    ProducerFencedError: Cause.TRANSACTION_ENDED,
}
"""The first one whose class an error has decides."""


def client_error(error: BaseException) -> ClientError:
    """Return an error of kafka-python's as one of `Client`."""
    text = str(error) or type(error).__name__
    cause = next((cause for kind, cause in _CAUSES.items() if isinstance(error, kind)), Cause.OTHER)
    if cause is Cause.TRANSACTION_ENDED:
        text = type(error).__name__
    if "InvalidTransactionTimeout" in text:  # wrapped in a general error
        cause = Cause.TRANSACTION_TIMEOUT_TOO_LONG
    return ClientError(cause, text, retriable=bool(getattr(error, "retriable", False)))
