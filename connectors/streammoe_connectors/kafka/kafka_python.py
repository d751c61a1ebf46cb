"""kafka-python as `streammoe_connectors.kafka.contract.Client`.

It has no public API for the position as of the last poll, nor for the id of the topic that it fetches from; these are
read from its consumer's ``_subscription`` and ``_cluster``.
"""

from __future__ import annotations

import logging
import ssl
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from uuid import UUID

import numpy as np
from kafka import IsolationLevel, KafkaAdminClient, KafkaConsumer, KafkaProducer, OffsetAndMetadata, errors
from kafka import TopicPartition as ClientPartition
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.net.compat import KafkaNetClient
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from streammoe.errors import ConfigError, SourceError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.contract import (
    CAUSES,
    RECORD,
    REQUEST_SECONDS,
    Cause,
    ClientError,
    OffsetsLostError,
    Outgoing,
    Records,
    Topic,
    TopicDescription,
    Transactional,
    TransactionStep,
    Troubles,
    explained,
)
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.settings import Connection, ReadingSettings, TopicSettings, connection_options, hidden

_LOGGER = logging.getLogger("streammoe.kafka")
_KINDS = (KafkaConsumer, KafkaAdminClient, KafkaProducer)
_REQUEST_MS = int(1000 * REQUEST_SECONDS)
_MAX_REQUEST_BYTES = 64 << 20  # large enough for the topic's max.message.bytes to be the only limit


def check_options(connection: Connection) -> None:
    """See `Client.check_options`."""
    unknown = sorted(connection.options.keys() - {name for kind in _KINDS for name in kind.DEFAULT_CONFIG})
    if unknown:
        raise ConfigError(f"kafka-python has no option {', '.join(unknown)}; remove it")


class KafkaPythonConsumer:
    """A consumer, see `AssignedConsumer`."""

    def __init__(self, connection: Connection, settings: ReadingSettings) -> None:
        self._settings = settings
        self.failed_commits: deque[str] = deque()
        self.troubles: Troubles = {}
        arguments = {
            "fetch_max_bytes": max(settings.partition_fetch_bytes, settings.buffer_bytes // 2),
            "metadata_max_age_ms": max(1_000, int(settings.discover_seconds * 1000)),
            **_own_options(connection),
            "allow_auto_create_topics": False,
            "auto_offset_reset": "none",
            "enable_auto_commit": False,
            "group_id": settings.group,
            "isolation_level": settings.isolation,
            "max_partition_fetch_bytes": settings.partition_fetch_bytes,
            "max_poll_records": settings.max_poll_records,
        }
        self._consumer = _open(KafkaConsumer, arguments, self.troubles)
        try:
            self._admin = _open(KafkaAdminClient, arguments | {"request_timeout_ms": _REQUEST_MS}, self.troubles)
        except Exception:
            self._consumer.close(autocommit=False, timeout_ms=1_000)
            raise

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicDescription]:
        described = {}
        with _answers():
            answer = self._admin.describe_topics(None if topics is None else list(topics))
        for found in answer:
            name, error, topic_id = found["name"], found["error_code"], found.get("topic_id")
            if error == errors.TopicAuthorizationFailedError.errno and topics is not None:
                raise ClientError(Cause.NOT_AUTHORIZED, name)
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
        # kafka-python has the same numbers for the first and the last offset as `FIRST` and `END`.
        times = {ClientPartition(*partition): time for partition in partitions}
        with _answers():
            found = self._admin.list_partition_offsets(times, isolation, _REQUEST_MS)
        return {TopicPartition(*partition): at.offset for partition, at in found.items()}

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata | None]]:
        marks = {}
        for partition in partitions:
            with _answers():  # of the consumer: the admin client does not wait for transactions that hold offsets
                at = ClientPartition(*partition)
                found = self._consumer.committed(at, metadata=True, timeout_ms=_REQUEST_MS)
            if found is not None and found.offset >= 0:
                marks[partition] = (found.offset, OffsetMetadata.parse(found.metadata))
        return marks

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait: bool = False) -> None:
        commits = _with_metadata(offsets, metadata)
        try:
            if wait:
                self._consumer.commit(commits, timeout_ms=_REQUEST_MS)
            else:
                self._consumer.commit_async(commits, callback=self._record_commit_failure)
        except errors.KafkaError as error:
            self.failed_commits.append(_text(error))

    def _record_commit_failure(self, _: object, response: object) -> None:
        """Record a failed commit; called by kafka-python's own thread."""
        if isinstance(response, Exception):
            self.failed_commits.append(_text(response))

    def assign(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._consumer.assign([ClientPartition(*partition) for partition in offsets])
        for partition, offset in offsets.items():
            self._consumer.seek(ClientPartition(*partition), offset)

    def pause(self, partition: TopicPartition) -> None:
        self._consumer.pause(ClientPartition(*partition))

    def resume(self, partition: TopicPartition) -> None:
        self._consumer.resume(ClientPartition(*partition))

    def poll(self, seconds: float) -> dict[TopicPartition, Records]:
        # It returns records of resumed partitions that it fetched before they were paused only when no other records
        # are pending, and (3.0.12) does not notice that these are used up. Without records from other partitions it
        # would then return nothing at all. The only alternative is to reconnect.
        fetcher = self._consumer._fetcher  # noqa: SLF001 - as said above
        if not getattr(fetcher, "_next_partition_records", None):
            fetcher._next_partition_records = None  # noqa: SLF001 - same
        try:
            with _answers():
                fetched = self._consumer.poll(int(seconds * 1000))
        except errors.OffsetOutOfRangeError as error:
            raise OffsetsLostError([TopicPartition(*partition) for partition in error.args[0]]) from None
        except errors.LogTruncationError as error:
            raise OffsetsLostError([TopicPartition(*partition) for partition in error.divergent_offsets]) from None
        return {TopicPartition(*partition): _as_records(records) for partition, records in fetched.items()}

    def topic_id(self, topic: str) -> str | None:
        topic_id = self._consumer._cluster.topic_id(topic)  # noqa: SLF001 - see the module's docstring
        return None if topic_id is None else str(topic_id)

    def place(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        at = ClientPartition(*partition)
        # `position` is slow, and may send a request to the cluster.
        state = self._consumer._subscription.assignment.get(at)  # noqa: SLF001 - see the module's docstring
        position = None if state is None or state.position is None else int(state.position.offset)
        return position, self._consumer.highwater(at)

    def close(self) -> None:
        self._admin.close()
        self._consumer.close(autocommit=False, timeout_ms=1_000)


class KafkaPythonProducer:
    """A producer, see `Producer`."""

    def __init__(self, connection: Connection, settings: TopicSettings, transactional: Transactional | None) -> None:
        arguments = {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if settings.compression == "none" else settings.compression,
            "linger_ms": settings.linger_ms,
            "batch_size": settings.batch_bytes,
            "delivery_timeout_ms": int(1000 * settings.delivery_timeout_seconds),
            "request_timeout_ms": min(30_000, int(500 * settings.delivery_timeout_seconds)),
            "max_request_size": _MAX_REQUEST_BYTES,
            "metrics_enabled": False,
            **_own_options(connection),
            "max_block_ms": 2_000,  # blocking calls are retried
        }
        if transactional is not None:
            arguments["transactional_id"] = transactional.name
            arguments["transaction_timeout_ms"] = int(1000 * transactional.timeout)
        self._group = "" if transactional is None else transactional.group
        self.failed: list[tuple[ClientError, Outgoing | None]] = []
        self.troubles: Troubles = {}
        self._sent: deque[tuple[Any, Outgoing]] = deque()
        self._producer = _open(KafkaProducer, arguments, self.troubles)

    def send(self, topic: str, record: Outgoing) -> None:
        with _answers():
            future = self._producer.send(topic, record.value, record.key, list(record.headers), record.partition)
        self._sent.append((future, record))

    def pending(self) -> int:
        while self._sent and self._sent[0][0].is_done:
            if self._sent[0][0].exception is not None and not self.failed:
                # One that fails for a reason of its own ends an idempotent producer, which fails all others likewise.
                failed = [(client_error(one.exception), of) for one, of in self._sent if one.exception is not None]
                self.failed = sorted(failed, key=lambda each: each[0].cause is Cause.OTHER)
            self._sent.popleft()
        return len(self._sent)

    def flush(self, seconds: float) -> None:
        with suppress(errors.KafkaTimeoutError, errors.UnknownError):  # the latter for a batch that was split meanwhile
            self._producer.flush(seconds)

    def send_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str) -> None:
        with _answers():
            self._producer.send_offsets_to_transaction(_with_metadata(offsets, metadata), self._group)

    def transact(self, step: TransactionStep) -> None:
        with _answers():
            getattr(self._producer, step)()

    def close(self, seconds: float) -> None:
        if not seconds:  # `close` alone would wait for what cannot be delivered, and fail
            self._producer._sender.force_close()  # noqa: SLF001 - no public call gives up at once
        with _answers():
            self._producer.close(seconds or 1.0)


create_consumer = KafkaPythonConsumer
create_producer = KafkaPythonProducer


def topic(connection: Connection, name: str) -> Topic:
    """See `Client.topic`."""
    limit_name = "max.message.bytes"
    admin = _open(KafkaAdminClient, _own_options(connection), {})
    try:
        with _answers():
            found = admin.describe_topics([name])[0]
            if (failure := errors.for_code(found["error_code"])) is not errors.NoError:
                raise failure
        limit = None
        with suppress(errors.KafkaError, LookupError):  # a user allowed to write need not see settings
            resource = ConfigResource(ConfigResourceType.TOPIC, name, {limit_name: None})
            configs = admin.describe_configs([resource], config_filter="all")
            limit = int(configs["topic"][name][limit_name]["value"])
        return Topic(len(found["partitions"]), limit)
    finally:
        admin.close()


def _own_options(connection: Connection) -> dict[str, Any]:
    """Return a connection's settings by kafka-python's names, with passwords as their files hold them now."""
    # By default it would wait up to 30 s before it retries a broker.
    found = {"reconnect_backoff_max_ms": 1_000, **connection_options(connection), **connection.options}
    found["bootstrap_servers"] = list(connection.bootstrap_servers)
    if "api_version" in found:
        found["api_version"] = tuple(found["api_version"])  # which a file has as a list
    return found


class _Connections(KafkaConnectionManager):  # type: ignore[misc]  # kafka-python has no types
    """Connections that record why one has failed, which kafka-python only logs."""

    def __init__(self, net: NetworkSelector, troubles: Troubles, **options: Any) -> None:
        self._troubles = troubles
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
        said = _text(reason)
        rejects = isinstance(reason, errors.SaslAuthenticationFailedError | errors.AuthorizationError | ssl.SSLError)
        if "SASL" in self.config["security_protocol"] and "socket disconnected" in said:
            # It mostly closes a connection before it has read why the login is rejected.
            rejects, said = True, f"{said}, as by brokers that reject a login (SASL)"
        self._troubles[Cause.REJECTED if rejects else Cause.NO_ANSWER] = said


class _Client(KafkaNetClient):  # type: ignore[misc]
    """A client that says of a node that cannot be reached that it is not ready.

    kafka-python's raises an error instead, and its producer (3.0.12) then forgets the request of a transaction that it
    was about to send to a coordinator that has died: neither is it sent to the next one, nor does it ever fail.
    """

    def __init__(self, troubles: Troubles, **options: Any) -> None:
        net = NetworkSelector(**options)
        super().__init__(net=net, manager=_Connections(net, troubles, **options), **options)

    def await_ready(self, node_id: Any, timeout_ms: float = 30_000) -> bool:
        try:
            return bool(super().await_ready(node_id, timeout_ms=timeout_ms))
        except errors.KafkaError as error:
            if not getattr(error, "retriable", False):
                raise
            _LOGGER.debug("node %s is not ready: %s", node_id, error)
            time.sleep(0.1)  # the producer asks again at once
            return False


def _open(kind: Any, options: Mapping[str, Any], troubles: Troubles) -> Any:
    """Return a client of kafka-python, with those of the options that its kind has, which records its troubles.

    If that fails, what it has opened is closed, which it does not always do.
    """
    opened: list[_Client] = []

    def create(**arguments: Any) -> _Client:
        opened.append(_Client(troubles, **arguments))
        return opened[0]

    given = {"bootstrap_timeout_ms": _REQUEST_MS, **options}
    arguments = {name: value for name, value in given.items() if name in kind.DEFAULT_CONFIG}
    try:
        return kind(**arguments, kafka_client=create)
    except (errors.KafkaError, OSError, ValueError, TypeError, AssertionError, RuntimeError) as error:
        for client in opened:
            client.close()
        if Cause.REJECTED not in troubles and (
            isinstance(error, errors.KafkaConfigurationError) or not isinstance(error, errors.KafkaError | OSError)
        ):
            raise ConfigError(f"kafka-python rejects its settings: {error}") from error
        raise explained(client_error(error), troubles) from error


def _with_metadata(offsets: Mapping[TopicPartition, int], metadata: str) -> dict[Any, Any]:
    return {ClientPartition(*tp): OffsetAndMetadata(offset, metadata, -1) for tp, offset in offsets.items()}


def _as_records(found: Sequence[Any]) -> Records:
    rows = (  # the oldest format has no time
        (r.offset, -1 if r.timestamp is None else r.timestamp, r.value, r.key, r.headers, None, 0, 0.0) for r in found
    )
    return np.fromiter(rows, RECORD, len(found))


@contextmanager
def _answers() -> Iterator[None]:
    """Raise `ClientError` if a request fails, but for records that are lost."""
    try:
        yield
    except (errors.OffsetOutOfRangeError, errors.LogTruncationError):
        raise
    except errors.UnsupportedCodecError as error:
        said = f"records are compressed in a way that kafka-python cannot read ({_text(error)})"
        raise SourceError(f"Kafka: {said}; install streammoe[kafka] with what it needs, or use another codec") from None
    except (errors.KafkaError, LookupError) as error:  # the latter for what is not known yet
        raise client_error(error) from error


def client_error(error: BaseException) -> ClientError:
    """Return an error of kafka-python's as one of `Client`; what has ended a producer may be inside a general one."""
    error = next((inner for inner in error.args if isinstance(inner, errors.KafkaError)), error)
    text = _text(error)
    cause = CAUSES.get(getattr(error, "errno", None) or 0, Cause.OTHER)
    if cause is Cause.OTHER and getattr(error, "retriable", False):
        cause = Cause.NO_ANSWER
    elif isinstance(error, errors.IllegalStateError) or cause is Cause.TRANSACTION_ENDED:
        cause, text = Cause.TRANSACTION_ENDED, type(error).__name__
    elif "InvalidTransactionTimeout" in text:  # wrapped in a general error
        cause = Cause.TRANSACTION_TIMEOUT_TOO_LONG
    return ClientError(cause, text)


def _text(error: BaseException) -> str:
    return hidden(str(error)) or type(error).__name__
