"""A producer on top of kafka-python's, see `contract.Producer`."""

from __future__ import annotations

import logging
import ssl
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from kafka import KafkaAdminClient, KafkaProducer, OffsetAndMetadata, errors
from kafka import TopicPartition as ClientPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from streammoe.errors import ConfigError
from streammoe.ports import TopicPartition
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
from streammoe_connectors.kafka.kafka_python.options import own_options, supported_options

_LOGGER = logging.getLogger("streammoe.kafka")

_ANSWER_MS = 5_000
_METADATA_TIMEOUT_MS = 2_000
_NOT_READY_PAUSE_SECONDS = 0.1
_MAX_REQUEST_BYTES = 64 << 20  # large enough for the topic's max.message.bytes to be the only limit
_LIMIT = "max.message.bytes"


class KafkaPythonProducer:
    """A producer; arguments and errors are those of `Client.create_producer`."""

    def __init__(
        self, options: Mapping[str, Any], delivery: Delivery, transactional: Transactional | None = None
    ) -> None:
        arguments = {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if delivery.compression == "none" else delivery.compression,
            "linger_ms": delivery.linger_ms,
            "batch_size": delivery.batch_bytes,
            "delivery_timeout_ms": int(1000 * delivery.delivery_timeout_seconds),
            "request_timeout_ms": min(30_000, int(500 * delivery.delivery_timeout_seconds)),
            "max_request_size": _MAX_REQUEST_BYTES,
            "metrics_enabled": False,
            **own_options(options),
            # Blocking calls are retried.
            "max_block_ms": _METADATA_TIMEOUT_MS,
        }
        if transactional is not None:
            arguments["transactional_id"] = transactional.name
            arguments["transaction_timeout_ms"] = int(1000 * transactional.timeout)
        self._group = "" if transactional is None else transactional.group
        self.failed: list[tuple[ClientError, Outgoing | None]] = []
        self._sent: deque[tuple[Any, Outgoing]] = deque()
        self._producer, self.rejections = _open(KafkaProducer, arguments)

    def send(self, topic: str, record: Outgoing) -> None:
        try:
            future = self._producer.send(topic, record.value, record.key, list(record.headers), record.partition)
        except errors.KafkaError as error:
            raise client_error(error) from error
        self._sent.append((future, record))

    def pending(self) -> int:
        while self._sent and self._sent[0][0].is_done:
            if self._sent[0][0].exception is not None:
                # One that fails for a reason of its own ends an idempotent producer, which fails all others likewise.
                failed = [(client_error(one.exception), of) for one, of in self._sent if one.exception is not None]
                self.failed += sorted(failed, key=lambda each: each[0].cause is Cause.OTHER)
            self._sent.popleft()
        return len(self._sent)

    def flush(self, seconds: float) -> None:
        with suppress(errors.KafkaTimeoutError, errors.UnknownError):  # the latter for a batch that was split meanwhile
            self._producer.flush(seconds)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        commits = {ClientPartition(*tp): OffsetAndMetadata(offset, metadata, -1) for tp, offset in offsets.items()}
        self._call(self._producer.send_offsets_to_transaction, commits, self._group)

    def transact(self, step: TransactionStep) -> None:
        self._call(getattr(self._producer, step))

    @staticmethod
    def _call(method: Any, *arguments: object) -> None:
        try:
            method(*arguments)
        except errors.KafkaError as error:
            raise client_error(error) from error

    def close(self, seconds: float) -> None:
        if not seconds:  # `close` alone would wait for what cannot be delivered, and fail
            self._producer._sender.force_close()  # noqa: SLF001
        self._call(self._producer.close, seconds or 1.0)


def topic(options: Mapping[str, Any], name: str) -> Topic:
    """See `Client.topic`."""
    admin, _ = _open(KafkaAdminClient, own_options(options))
    try:
        (found,) = admin.describe_topics([name])
        if (failure := errors.for_code(found["error_code"])) is not errors.NoError:
            raise failure
        limit = None
        with suppress(errors.KafkaError, LookupError):  # a user allowed to write need not see settings
            resource = ConfigResource(ConfigResourceType.TOPIC, name, {_LIMIT: None})
            configs = admin.describe_configs([resource], config_filter="all")
            limit = int(configs["topic"][name][_LIMIT]["value"])
        return Topic(len(found["partitions"]), limit)
    except (errors.KafkaError, ValueError) as error:
        raise client_error(error) from error
    finally:
        admin.close()


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections that record why one was rejected, which kafka-python only logs."""

    def __init__(self, net: NetworkSelector, **options: Any) -> None:
        self.rejections: list[str] = []
        super().__init__(net, **options)

    def get_connection(self, *arguments: Any, **options: Any) -> Any:
        try:
            connection = super().get_connection(*arguments, **options)
        except errors.SaslAuthenticationFailedError as error:  # of an earlier attempt: it makes no further one
            self._record(error)
            raise
        connection.init_future.add_errback(self._record)
        return connection

    def _record(self, error: BaseException) -> None:
        reason = error.__context__ or error  # it wraps what fails in a handshake
        if isinstance(reason, errors.SaslAuthenticationFailedError | errors.AuthorizationError | ssl.SSLError):
            self.rejections.append(str(reason))


class _Client(KafkaNetClient):  # type: ignore[misc]
    """A client that says of a node that cannot be reached that it is not ready.

    kafka-python's raises an error instead, and its producer (3.0.12) then forgets the request of a transaction that it
    was about to send to a coordinator that has died: neither is it sent to the next one, nor does it ever fail.
    """

    def __init__(self, **options: Any) -> None:
        net = NetworkSelector(**options)
        self.connections = _Connections(net, **options)
        super().__init__(net=net, manager=self.connections, **options)

    def await_ready(self, node_id: Any, timeout_ms: float = 30_000) -> bool:
        try:
            return bool(super().await_ready(node_id, timeout_ms=timeout_ms))
        except errors.KafkaError as error:
            if not getattr(error, "retriable", False):
                raise
            _LOGGER.debug("node %s is not ready: %s", node_id, error)
            time.sleep(_NOT_READY_PAUSE_SECONDS)  # the producer asks again at once
            return False


def _open(kind: Any, options: Mapping[str, Any]) -> tuple[Any, list[str]]:
    """Return a client of kafka-python, and where its rejections are recorded.

    If that fails, what it has opened is closed, which it does not always do.
    """
    opened: list[_Client] = []

    def create(**arguments: Any) -> _Client:
        opened.append(_Client(**arguments))
        return opened[0]

    arguments = supported_options({"bootstrap_timeout_ms": _ANSWER_MS, **options}, kind.DEFAULT_CONFIG)
    try:
        return kind(**arguments, kafka_client=create), opened[0].connections.rejections
    except (errors.KafkaError, OSError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        for client in opened:
            client.close()
        if opened and (rejections := opened[0].connections.rejections):
            raise ClientError(Cause.REJECTED, rejections[-1]) from error
        if isinstance(error, errors.KafkaConfigurationError) or not isinstance(error, errors.KafkaError | OSError):
            raise ConfigError(f"kafka-python rejects its settings: {error}") from error
        raise client_error(error) from error


def client_error(error: BaseException) -> ClientError:
    """Return an error of kafka-python's as one of `Client`; what has ended a producer may be inside a general one."""
    error = next((inner for inner in error.args if isinstance(inner, errors.KafkaError)), error)
    text = str(error) or type(error).__name__
    cause = CAUSES.get(getattr(error, "errno", None) or 0, Cause.OTHER)
    if cause is Cause.OTHER and getattr(error, "retriable", False):
        cause = Cause.NO_ANSWER
    elif isinstance(error, errors.IllegalStateError) or cause is Cause.TRANSACTION_ENDED:
        cause, text = Cause.TRANSACTION_ENDED, type(error).__name__
    elif "InvalidTransactionTimeout" in text:  # wrapped in a general error
        cause = Cause.TRANSACTION_TIMEOUT_TOO_LONG
    return ClientError(cause, text)
