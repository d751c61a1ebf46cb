"""librdkafka, through confluent-kafka, as `streammoe_connectors.kafka.contract.Client`."""

from __future__ import annotations

import logging
import time
import uuid
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import wait
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, TypeVar

import numpy as np
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, Producer, TopicCollection
from confluent_kafka import TopicPartition as ClientPartition
from confluent_kafka.admin import AdminClient, ConfigResource, OffsetSpec, ResourceType

from streammoe.errors import ConfigError
from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.contract import (
    CAUSES,
    END,
    FIRST,
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
    in_background,
)
from streammoe_connectors.kafka.position import OffsetMetadata
from streammoe_connectors.kafka.settings import (
    LIBRDKAFKA_NAMES,
    Connection,
    ReadingSettings,
    TopicSettings,
    connection_options,
    hidden,
)


def _hide(record: logging.LogRecord) -> bool:
    record.msg, record.args = hidden(record.getMessage()), None
    return True


# Takes its log, which would else go to the standard error output.
_LOGGER = logging.getLogger("librdkafka")
_LOGGER.addFilter(_hide)
_ROOM_BYTES = 64 << 20
"""Size of a response beyond what was asked for: its head, or a larger record. Also of the largest record to be sent, so
that the topic's max.message.bytes is the only limit."""
_SILENCE_SECONDS = 0.1
"""Time without records of a topic within which it might have been deleted, created again, and filled beyond the
position: librdkafka then reads on in the new one, without a word."""
_TRANSACTION_SECONDS = 10.0
"""How long a step of a transaction is waited for."""
# Codes that begin with an underscore are librdkafka's own.
_LOST = {KafkaError._AUTO_OFFSET_RESET, KafkaError._LOG_TRUNCATION, KafkaError.OFFSET_OUT_OF_RANGE}  # noqa: SLF001
_NO_ANSWERS = ("_ALL_BROKERS_DOWN", "_MSG_TIMED_OUT", "_TIMED_OUT", "_TIMED_OUT_QUEUE", "_TRANSPORT", "_WAIT_COORD")
_OWN_CAUSES = {
    **dict.fromkeys(_NO_ANSWERS, Cause.NO_ANSWER),
    "_AUTHENTICATION": Cause.REJECTED,
    **dict.fromkeys(("_UNKNOWN_PARTITION", "_UNKNOWN_TOPIC"), Cause.UNKNOWN_TOPIC),
    **dict.fromkeys(("_FENCED", "_STATE"), Cause.TRANSACTION_ENDED),
}
Result = TypeVar("Result")


def check_options(connection: Connection) -> None:
    """See `Client.check_options`."""
    _created(Producer, {"enable.idempotence": True, **connection.options, "logger": _LOGGER})  # which asks nobody


class LibrdkafkaConsumer:
    """A consumer, see `AssignedConsumer`."""

    def __init__(self, connection: Connection, settings: ReadingSettings) -> None:
        self._settings = settings
        self.failed_commits: deque[str] = deque()
        self.troubles: Troubles = {}
        self._positions: dict[TopicPartition, int] = {}
        self._received_at: dict[str, float] = {}  # when records of a topic were last received
        self._postponed: deque[Exception] = deque()
        self._ids: dict[str, str | None] = {}
        # The largest values that librdkafka accepts of what follows from our settings are those of `min`.
        fetch_bytes = min(max(settings.partition_fetch_bytes, settings.buffer_bytes // 2), 1_000_000_000)
        own = _own_options(connection, self.troubles)
        arguments = {
            # Checksums of records are checked, as by other clients.
            "check.crcs": True,
            # How long it waits after its own buffer was full; by default a second.
            "fetch.queue.backoff.ms": 20,
            "queued.max.messages.kbytes": min(max(1_024, settings.buffer_bytes // 2_048), 2_097_151),
            "receive.message.max.bytes": fetch_bytes + _ROOM_BYTES,
            "topic.metadata.refresh.interval.ms": min(max(1_000, int(settings.discover_seconds * 1000)), 3_600_000),
            **own,
            "auto.offset.reset": "error",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "group.id": settings.group,
            "isolation.level": settings.isolation,
            "max.partition.fetch.bytes": min(settings.partition_fetch_bytes, 1_000_000_000),
            "fetch.max.bytes": fetch_bytes,
            "on_commit": self._record_commit,
        }
        self._consumer = _created(Consumer, arguments)
        self._admin = _created(AdminClient, own)
        try:
            with _answers():
                self._consumer.list_topics(settings.topics[0] if settings.topics else None, timeout=REQUEST_SECONDS)
        except ClientError as error:
            self._consumer.poll(0)  # which learns of troubles
            self.close()
            if connection.sasl_oauth_token_url is not None:  # it says only after 20 s that this does not answer
                where = f"; there may be no token from {connection.sasl_oauth_token_url}"
                error = ClientError(error.cause, f"{error}{where}")
            raise explained(error, self.troubles) from None

    def describe(self, topics: Sequence[str] | None) -> dict[str, TopicDescription]:
        try:
            with _answers():
                if topics is None:
                    listed = self._admin.list_topics(timeout=REQUEST_SECONDS).topics
                    topics = [topic for topic in listed if self._settings.reads(topic)]
                if not topics:
                    return {}
                asked = self._admin.describe_topics(TopicCollection(list(topics)), request_timeout=REQUEST_SECONDS)
                answers = {topic: _described(topic, future) for topic, future in asked.items()}
        except ClientError as error:
            # What has not answered is the node that the client takes for the controller. If that is dead, it learns of
            # another one from a list of topics, for which it asks any node.
            if error.retriable:
                with suppress(KafkaException):
                    self._admin.list_topics(timeout=REQUEST_SECONDS)
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
                request_timeout=REQUEST_SECONDS,
            )
            return {
                TopicPartition(each.topic, each.partition): future.result(REQUEST_SECONDS + 1).offset
                for each, future in found.items()
            }

    def committed(
        self, partitions: Sequence[TopicPartition]
    ) -> dict[TopicPartition, tuple[int, OffsetMetadata | None]]:
        asked = [ClientPartition(*partition) for partition in partitions]
        with _answers():
            answers = self._consumer.committed(asked, timeout=REQUEST_SECONDS)
            for failed in filter(None, (found.error for found in answers)):
                raise KafkaException(failed)
        return {
            TopicPartition(found.topic, found.partition): (found.offset, OffsetMetadata.parse(metadata_of(found)))
            for found in answers
            if found.offset >= 0
        }

    def commit(self, offsets: Mapping[TopicPartition, int], metadata: str, *, wait: bool = False) -> None:
        commit = partial(self._consumer.commit, offsets=_with_metadata(offsets, metadata), asynchronous=not wait)
        try:
            if wait:
                self._record_commit(None, in_background(commit).result(REQUEST_SECONDS))
            else:
                commit()
        except KafkaException as error:
            self.failed_commits.append(_text(error))
        except TimeoutError:
            self.failed_commits.append(f"no answer for {REQUEST_SECONDS:g} s")

    def _record_commit(self, error: KafkaError | None, partitions: Sequence[ClientPartition]) -> None:
        failed = next(filter(None, [error, *(partition.error for partition in partitions)]), None)
        if failed is not None:
            self.failed_commits.append(_text(failed))

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
        groups: dict[tuple[str, int], list[Message]] = defaultdict(list)
        for message in records:
            groups[message.topic(), message.partition()].append(message)
        found = {TopicPartition(*tp): _as_records(group) for tp, group in groups.items() if tp in self._positions}
        self._positions |= {tp: int(rows["offset"][-1]) + 1 for tp, rows in found.items()}
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
            except ClientError:
                self.assign(self._positions)  # they are fetched again
                raise
        self._received_at |= dict.fromkeys(topics, time.monotonic())

    def topic_id(self, topic: str) -> str | None:
        return self._ids.get(topic)

    def _failure(self, message: Message, error: KafkaError) -> Exception | None:
        """Return the error to raise for what librdkafka returns in place of a record, if it is one."""
        code, partition = error.code(), TopicPartition(message.topic(), message.partition())
        if code == KafkaError._PARTITION_EOF:  # noqa: SLF001
            offset = message.offset()
            if partition in self._positions and offset is not None and offset >= 0:
                self._positions[partition] = max(self._positions[partition], offset)
            return None
        if code in _LOST:
            return OffsetsLostError([partition])
        if code == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            return ClientError(Cause.NOT_AUTHORIZED, partition.topic)
        found = client_error(KafkaException(error))
        return None if found.cause is Cause.UNKNOWN_TOPIC else found  # the next metadata tell whether it is gone

    def place(self, partition: TopicPartition) -> tuple[int | None, int | None]:
        known = self._consumer.get_watermark_offsets(ClientPartition(*partition), cached=True)
        return self._positions.get(partition), None if known is None or known[1] < 0 else int(known[1])

    def close(self) -> None:
        # It waits for brokers, and nothing depends on it.
        wait([in_background(self._consumer.close)], 1.0)


def _as_records(messages: Sequence[Message]) -> Records:
    rows = (
        (each.offset(), each.timestamp()[1], each.value(), each.key(), each.headers() or (), None, 0, 0.0)
        for each in messages
    )
    return np.fromiter(rows, RECORD, len(messages))


def _described(name: str, future: Any) -> TopicDescription | None:
    """Return what the cluster says of a topic; raise the error of a request that it does not answer."""
    try:
        found = future.result(REQUEST_SECONDS + 1)
    except KafkaException as error:
        about = _error_of(error)
        if about is None or about.code() < 0:  # its own codes, such as those of time-outs
            raise
        if about.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
            raise ClientError(Cause.NOT_AUTHORIZED, name) from None
        return None
    raw = found.topic_id
    number = (raw.get_most_significant_bits() % 2**64) << 64 | raw.get_least_significant_bits() % 2**64
    leaders = {
        each.id: None if each.leader is None or each.leader.id < 0 else each.leader.id for each in found.partitions
    }
    # As kafka-python writes it, so that positions of either client suit the other.
    return TopicDescription(str(uuid.UUID(int=number)) if number else None, dict(sorted(leaders.items())))


def metadata_of(committed: ClientPartition) -> str | None:
    """Return the metadata of a committed offset, followed by anything: confluent-kafka reads beyond their end."""
    try:
        metadata: str | None = committed.metadata
    except UnicodeDecodeError as error:
        return bytes(error.object).decode(errors="replace")
    return metadata


class LibrdkafkaProducer:
    """A producer, see `Producer`."""

    def __init__(self, connection: Connection, settings: TopicSettings, transactional: Transactional | None) -> None:
        self.troubles: Troubles = {}
        timeout_ms = int(1000 * settings.delivery_timeout_seconds)
        own = _own_options(connection, self.troubles)
        arguments = {
            "acks": "all",
            "enable.idempotence": True,
            "compression.type": settings.compression,
            "linger.ms": settings.linger_ms,
            "batch.size": max(1, settings.batch_bytes),
            "message.max.bytes": _ROOM_BYTES,
            "queue.buffering.max.messages": 1_000_000,
            # As in Java's clients.
            "partitioner": "murmur2_random",
            "request.timeout.ms": min(30_000, timeout_ms // 2),
            **own,
            "delivery.report.only.error": True,
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
        self._producer = _created(Producer, arguments)

    def send(self, topic: str, record: Outgoing) -> None:
        failed = partial(self._record_failure, record)
        partition = -1 if record.partition is None else record.partition
        with self._answers():
            self._producer.produce(topic, record.value, record.key, partition, failed, None, 0, list(record.headers))

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
        with self._answers():
            commits = _with_metadata(offsets, metadata)
            self._producer.send_offsets_to_transaction(commits, self._group, _TRANSACTION_SECONDS)

    def transact(self, step: TransactionStep) -> None:
        waits = () if step == "begin_transaction" else (_TRANSACTION_SECONDS,)
        with self._answers():
            getattr(self._producer, step)(*waits)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """Raise `ClientError` if a request fails, or the one that has ended the producer before."""
        try:
            yield
        except BufferError as error:
            raise ClientError(Cause.NO_ANSWER, str(error)) from error
        except KafkaException as error:
            self._serve(self._producer.poll, 0)
            raise client_error(self._fatal or error) from error

    def close(self, seconds: float) -> None:
        if seconds:
            self.flush(seconds)
        self._producer.purge()
        # Its own `close` would abort a transaction that may be that of another producer by now. Without the last
        # reference it ends as well, which waits for threads, and nothing depends on it.
        references, self._producer = [self._producer], None
        wait([in_background(references.clear)], seconds)


create_consumer = LibrdkafkaConsumer
create_producer = LibrdkafkaProducer


def topic(connection: Connection, name: str) -> Topic:
    """See `Client.topic`."""
    troubles: Troubles = {}
    admin = _created(AdminClient, _own_options(connection, troubles))
    try:
        with _answers():
            found = admin.list_topics(name, timeout=REQUEST_SECONDS).topics[name]
            if found.error is not None or not found.partitions:
                raise KafkaException(found.error or KafkaError(KafkaError.LEADER_NOT_AVAILABLE))
    except ClientError as error:
        admin.poll(0)  # which learns of troubles
        raise explained(error, troubles) from error
    limit = None
    with suppress(KafkaException, LookupError):  # a user allowed to write need not see settings
        resource = ConfigResource(ResourceType.TOPIC, name)
        (configs,) = admin.describe_configs([resource], request_timeout=REQUEST_SECONDS).values()
        limit = int(configs.result()["max.message.bytes"].value)
    return Topic(len(found.partitions), limit)


def _own_options(connection: Connection, troubles: Troubles) -> dict[str, Any]:
    """Return a connection's settings by librdkafka's names, with passwords as their files hold them now."""
    found = {LIBRDKAFKA_NAMES[name]: value for name, value in connection_options(connection).items()}
    found["bootstrap.servers"] = ",".join(connection.bootstrap_servers)
    if connection.sasl_mechanism == "OAUTHBEARER":
        found["sasl.oauthbearer.method"] = "oidc"
    # By default it would wait up to 10 s before it retries a broker.
    defaults = {"reconnect.backoff.max.ms": 1_000, "socket.keepalive.enable": True}
    return {**defaults, **found, **connection.options, "logger": _LOGGER, "error_cb": partial(_record, troubles)}


def _record(troubles: Troubles, error: KafkaError) -> None:
    """Record what librdkafka tells a callback only."""
    if error.code() != KafkaError._ALL_BROKERS_DOWN:  # noqa: SLF001 - which follows from another one
        rejects = error.code() in {KafkaError._AUTHENTICATION, KafkaError._SSL}  # noqa: SLF001
        rejects |= "certificate verify failed" in error.str()  # a transport failure where the peer has closed by then
        troubles[Cause.REJECTED if rejects else Cause.NO_ANSWER] = _text(error)


def _created(kind: Callable[[dict[str, Any]], Any], options: dict[str, Any]) -> Any:
    try:
        return kind(options)
    except (KafkaException, TypeError, ValueError) as error:
        raise ConfigError(f"librdkafka rejects them: {_text(error)}") from error


def _with_metadata(offsets: Mapping[TopicPartition, int], metadata: str) -> list[ClientPartition]:
    return [ClientPartition(*partition, offset, metadata) for partition, offset in offsets.items()]


@contextmanager
def _answers() -> Iterator[None]:
    """Raise `ClientError` if a request fails."""
    try:
        yield
    except KafkaException as error:
        raise client_error(error) from error
    except TimeoutError as error:
        raise ClientError(Cause.NO_ANSWER, str(error)) from error


def client_error(error: KafkaException) -> ClientError:
    """Return an error of librdkafka's as one of `Client`."""
    about = _error_of(error)
    if about is None:
        return ClientError(Cause.OTHER, str(error))
    cause = CAUSES.get(about.code()) or _OWN_CAUSES.get(about.name(), Cause.OTHER)
    is_ended = cause is Cause.TRANSACTION_ENDED
    text = about.name() if is_ended else _text(about)
    return ClientError(cause, text, retriable=not is_ended and (about.retriable() or about.txn_requires_abort()))


def _error_of(error: BaseException) -> KafkaError | None:
    """Return what an exception of confluent-kafka is about."""
    found = error.args[0] if isinstance(error, KafkaException) and error.args else None
    return found if isinstance(found, KafkaError) else None


def _text(error: BaseException | KafkaError) -> str:
    """Return librdkafka's own words for an error."""
    about = error if isinstance(error, KafkaError) else _error_of(error)
    return hidden(str(error) if about is None else f"{about.str().strip()} ({about.name()})")
