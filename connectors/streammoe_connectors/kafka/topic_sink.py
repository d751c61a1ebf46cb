"""The common part of sinks that write to a topic: it confirms delivery, or explains why that failed and what to do.

With transactions it commits records together with the source offsets that they were computed at.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar, TypeVar

import msgspec
from pydantic import BaseModel

from streammoe.errors import ConfigError, RetriableSinkError, SinkError
from streammoe.ports import Location, Position, Sink
from streammoe_connectors.kafka.contract import (
    REQUEST_SECONDS,
    Cause,
    ClientError,
    Outgoing,
    Producer,
    Topic,
    Transactional,
    in_background,
    load_client,
)
from streammoe_connectors.kafka.position import KIND, OffsetMetadata, offsets_of
from streammoe_connectors.kafka.settings import Connection, KafkaSettings, ReadingSettings, TopicSettings

_LOGGER = logging.getLogger("streammoe.kafka")

MAX_UNFLUSHED_BYTES = 4 << 20
"""Size of the records that are sent before a flush. The last of them waits for all others, and clients give up a record
that waits for longer than `TopicSettings.delivery_timeout_seconds`: by default on a link of less than 35 kB/s."""
TRANSACTION_ANSWER_SECONDS = 10.0
"""Time without an answer after which a transactional producer is given up, for a new one to take over."""
AFTERWARDS = "nothing was lost: the next start writes everything after the last checkpoint again"
"""End of each error: the consequence for what was written."""
DEFAULT_MAX_BYTES = 1_048_588
"""Kafka's default for max.message.bytes, taken for the limit of a topic whose settings may not be seen."""
_RETRY_SECONDS = 0.5
"""Pause after an attempt that has failed, and how long a flush waits at once; four times that for another login."""
_BATCH_OVERHEAD = 128
"""Upper bound of what a batch adds to its only record."""

_ADVICE = {
    Cause.UNKNOWN_TOPIC: "does not exist on {servers}; create it, or correct {section}.topic",
    Cause.TOO_LARGE: "accepts no record of {size} bytes{of}; raise its setting max.message.bytes well above that "
    "(kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config max.message.bytes={room}), or "
    "{if_too_large}",
    Cause.NOT_AUTHORIZED: "may not be written ({error}); allow this user WRITE and DESCRIBE on it",
    Cause.REJECTED: "cannot be written: {servers} rejects this client ({error}); correct its login",
    Cause.NO_ANSWER: "cannot be written{of}: no answer ({error}{rejected}); check whether {servers} and all in-sync "
    "replicas are up, and whether {section}.bootstrap_servers and the login are correct, or raise "
    "{section}.delivery_timeout_seconds",
    Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED: "may not be written with the transactional id {name!r} ({error}); allow "
    "this user WRITE and DESCRIBE on that, or set another {section}.transactional_id",
    Cause.TRANSACTION_TIMEOUT_TOO_LONG: "cannot be written: {section}.transaction_timeout_seconds = {timeout:g} is "
    "more than the brokers allow; lower it, or raise their transaction.max.timeout.ms",
    Cause.TRANSACTION_ENDED: "cannot be written: a transaction has ended that was open for {age:.0f} s ({error}). "
    "Brokers abort one after {timeout:g} s: then raise {section}.transaction_timeout_seconds well above "
    "checkpoint.every_seconds. Or another daemon with transactional id {name!r} has taken over: then stop one of them, "
    "or give each its own {section}.transactional_id and group",
    Cause.OTHER: "cannot be written{of} ({error}); see the brokers' log",
}
"""Errors of a topic, by cause, with the remedy."""

_ENCODE = msgspec.json.Encoder().encode
Result = TypeVar("Result")


def size_of(record: Outgoing) -> int:
    """Return the size of a batch of this record alone, at most."""
    headers = sum(len(name.encode()) + len(content) + 10 for name, content in record.headers)  # and their own lengths
    return len(record.value) + len(record.key) + headers + _BATCH_OVERHEAD


class TopicSink(Sink):
    """The common part of sinks that write to a topic, by default over the connection of the source, if that is Kafka.

    A broker that does not respond is retried, for up to `TopicSettings.delivery_timeout_seconds` while a record waits.
    One that rejects the login is, too, with passwords and certificates as they are then, and is sent again what it has
    not acknowledged. After a `SinkError` all further calls raise it again, since later records may not have been
    delivered.

    If it is transactional, records become visible with the next checkpoint, together with the position of the source. A
    transaction is only open while there are records: from the first one after a checkpoint to the next commit.

    Raises:
        ConfigError: there is no connection, or no group for positions.
        SinkError: a broker responds, but the topic does not exist or may not be written.
    """

    section: ClassVar[str]
    if_too_large: ClassVar[str]
    """What else may be done about a record that the topic has no room for."""

    @classmethod
    def check(cls, settings: Any, source: BaseModel, checkpoint: Any) -> None:  # noqa: ARG003
        """Raise `ConfigError` if the section conflicts with others: the source must not read the topic."""
        connection = connection_for(settings, cls.section, source)
        load_client(connection, cls.section)
        if not isinstance(source, KafkaSettings):
            return
        shared_servers = set(source.bootstrap_servers) & set(connection.bootstrap_servers)
        if shared_servers and source.reads(settings.topic):
            raise ConfigError(
                f"{cls.section}.topic: is {settings.topic!r}, which the source reads: the daemon would endlessly "
                "learn from its own output; choose another topic"
            )

    def __init__(self, settings: TopicSettings, source: BaseModel, transactional: Transactional | None = None) -> None:
        connection = connection_for(settings, self.section, source)
        self.topic = Topic(1, None)
        """As of the latest connection."""
        self._rejection = ""
        self._transactional = transactional
        self._client = load_client(connection, self.section)
        self._connection = connection
        self._settings = settings
        self._group = "" if transactional is None else transactional.group
        self._recovering: Future[int] | None = None
        self._open_since: float | None = None  # when the open transaction began
        longest = settings.delivery_timeout_seconds + REQUEST_SECONDS  # for a client to say itself why
        self._give_up_seconds = longest if transactional is None else min(TRANSACTION_ANSWER_SECONDS, longest)
        self._servers = ", ".join(connection.bootstrap_servers)
        self._producer: Producer | None = None
        self._failure: SinkError | None = None
        self._closed = threading.Event()
        self._unflushed: list[Outgoing] = []
        self._bytes = 0

        if transactional is None:
            try:  # to detect a missing topic at the start
                self._connect(REQUEST_SECONDS)
            except ClientError as error:
                _LOGGER.warning("%s: no broker of %s responds (%s); retrying", self.section, self._servers, error)

    @property
    def rejection(self) -> str:
        return self._rejection

    @property
    def transactional(self) -> bool:
        """Whether rows stay invisible until `commit`."""
        return self._transactional is not None

    # --- connecting -------------------------------------------------------------------------------------------------

    def _connected(self) -> Producer:
        """Return the producer, after waiting for a broker for as long as a record may take."""
        try:
            return self._producer or self._connect(self._give_up_seconds)
        except ClientError as error:
            raise self._fail(error) from error

    def _connect(self, seconds: float) -> Producer:
        """Connect, with passwords and certificates as they are now; raise `ClientError` if no broker responds."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.topic = self._client.topic(self._connection, self._settings.topic)
                batch_bytes = min(self._settings.batch_bytes, self.topic.max_bytes or DEFAULT_MAX_BYTES)
                settings = self._settings.model_copy(update={"batch_bytes": batch_bytes})
                self._producer = self._client.create_producer(self._connection, settings, self._transactional)
            except ConfigError as error:
                raise ConfigError(f"{self.section}: {error}") from error
            except ClientError as error:
                if error.cause not in {Cause.NO_ANSWER, Cause.REJECTED}:
                    raise self._fail(error) from error
                self._note_rejection(str(error) if error.cause is Cause.REJECTED else "")
                if self._closed.wait(_RETRY_SECONDS) or time.monotonic() > deadline:
                    raise
            else:
                self._note_rejection("")
                return self._producer

    def _note_rejection(self, reason: str) -> None:
        if reason and not self._rejection:
            _LOGGER.warning(
                "%s: %s rejects this client: %s; correct its login or certificate, which are read again for each "
                "attempt",
                self.section,
                self._servers,
                reason,
                extra={"event": "login_rejected"},
            )
        elif self._rejection and not reason:
            _LOGGER.warning("%s: %s no longer rejects this client", self.section, self._servers)
        self._rejection = reason

    def _disconnect(self) -> None:
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.close(0)

    # --- sending ----------------------------------------------------------------------------------------------------

    def keyless(self, value: bytes, location: Location, headers: Sequence[tuple[str, bytes]] = ()) -> Outgoing:
        """Return the record for one without key: its location is the key, and a fast hash of it chooses the partition.

        So a record that is written again after a restart has the same key, and goes to the same partition.
        """
        if self._producer is None:
            self._connected()
        key = _ENCODE(location)
        return Outgoing(value, key, location, headers, zlib.crc32(key) % self.topic.partitions)

    def send(self, record: Outgoing) -> None:
        """Send a record; waits if too many are not acknowledged."""
        if self._failure is not None:
            raise self._failure
        if self._bytes > MAX_UNFLUSHED_BYTES:
            self.flush()
        if self.transactional:
            self._begin()
        self._send(self._producer or self._connected(), record)
        self._unflushed.append(record)
        self._bytes += len(record.value) + _BATCH_OVERHEAD

    def _send(self, producer: Producer, record: Outgoing) -> None:
        deadline = time.monotonic() + self._give_up_seconds
        while True:
            try:
                return producer.send(self._settings.topic, record)
            except ClientError as error:  # for want of the topic's metadata, if it may be repeated
                if error.cause is not Cause.NO_ANSWER or time.monotonic() > deadline:
                    raise self._fail(error, record) from error
                self._closed.wait(_RETRY_SECONDS)

    def flush(self) -> None:
        """Return only when every record is acknowledged; raise `SinkError` if one cannot be delivered."""
        self.check_delivered()
        since = rejected_at = time.monotonic()
        pending = len(self._unflushed)
        while pending:
            producer = self._connected()
            producer.flush(_RETRY_SECONDS)
            self.check_delivered()
            now, before = time.monotonic(), pending
            pending = producer.pending()
            if pending < before:
                since = now
                producer.troubles.clear()
            elif now - since > self._give_up_seconds:
                raise self._fail(ClientError(Cause.NO_ANSWER, f"no acknowledgement for {now - since:.0f} s"))
            elif Cause.REJECTED in producer.troubles and now - rejected_at > 4 * _RETRY_SECONDS:
                rejected_at = now
                self._send_again(producer.troubles[Cause.REJECTED])
        self._note_rejection("")
        self._unflushed.clear()
        self._bytes = 0

    def _send_again(self, rejection: str) -> None:
        """Replace a client whose login is rejected, and send what is not acknowledged to the new one."""
        self._note_rejection(rejection)
        if self.transactional:
            raise self._fail(ClientError(Cause.REJECTED, rejection))
        self._disconnect()
        producer = self._connected()
        for record in self._unflushed:
            self._send(producer, record)

    def check_delivered(self) -> None:
        """Raise `SinkError` if a record cannot be delivered."""
        if self._failure is not None:
            raise self._failure
        if self._producer is not None:
            self._producer.pending()
            if self._producer.failed:
                raise self._fail(*self._producer.failed[0])

    # --- failing ----------------------------------------------------------------------------------------------------

    def _fail(self, error: ClientError, record: Outgoing | None = None) -> SinkError:
        """Return the error to raise from now on; the first one has precedence, since it is the cause."""
        if self._failure is None:
            if self._producer is not None and self._producer.failed:
                error, record = self._producer.failed[0]
            self._failure = self.as_sink_error(error, record)
            self._failure.__cause__ = error
        return self._failure

    def as_sink_error(self, error: ClientError, record: Outgoing | None = None) -> SinkError:
        """Return an error that says what went wrong and what to do about it."""
        section, topic = self.section, self._settings.topic
        name, timeout, _ = self._transactional or Transactional("", 0.0, "")
        if name and error.retriable:
            return RetriableSinkError(
                f"{section}: {self._servers} has not answered the producer of transactional id {name!r} ({error})"
            )
        of = "" if record is None else f" (from {json.dumps(record.location, ensure_ascii=False)})"
        size = 0 if record is None else size_of(record)
        advice = _ADVICE[error.cause].format(
            section=section,
            topic=topic,
            if_too_large=self.if_too_large,
            servers=self._servers,
            error=error,
            of=of,
            rejected=f"; it is rejected: {self._rejection}" if self._rejection else "",
            size=size,
            room=2 * size + 1024,
            name=name,
            timeout=timeout,
            age=0.0 if self._open_since is None else time.monotonic() - self._open_since,
        )
        return SinkError(f"{section}: topic {topic!r} {advice}; {AFTERWARDS}")

    def close(self) -> None:
        """Close the connection; unacknowledged records may be lost.

        An open transaction is aborted, so that consumers need not wait.
        """
        producer = self._producer
        is_deaf = self._failure is not None and self._failure.retriable  # the next one aborts its transaction
        if producer is not None and self._open_since is not None and not is_deaf:
            try:
                self._answered(lambda: producer.transact("abort_transaction"), "aborting a transaction")
            except ClientError as error:
                _LOGGER.info("readers wait for the time-out of a transaction that could not be aborted (%s)", error)
        self._closed.set()
        self._producer = None
        if producer is None:
            return
        try:
            # One that has failed would take all the time that it is given.
            producer.close(REQUEST_SECONDS if self._failure is None else 0)
        except ClientError as error:
            _LOGGER.warning(
                "%s: topic %r may have received only a part of what was not flushed (%s)",
                self.section,
                self._settings.topic,
                error,
            )

    # --- transactions -----------------------------------------------------------------------------------------------

    def recover(self, timeout: float, position: Position | None) -> int | None:
        """See `PredictionSink.recover`."""
        if self._recovering is None:
            self._recovering = in_background(lambda: self._recover(position))
        try:
            return self._recovering.result(timeout)
        except TimeoutError:
            return None

    def _recover(self, position: Position | None) -> int:
        while True:
            try:
                producer = self._connect(math.inf)
                self._until_answered(producer, partial(producer.transact, "init_transactions"))
                # Only now open transactions of an earlier run have ended, and commits in progress are complete.
                if position is None or position.get("kind") != KIND:
                    return 0
                return self._until_answered(producer, partial(self._committed_generation, position))
            except ClientError as error:
                if error.cause is not Cause.REJECTED or self._closed.is_set():
                    raise self._fail(error) from error
                self._note_rejection(str(error))
                self._disconnect()

    def _until_answered(self, producer: Producer, call: Callable[[], Result]) -> Result:
        """Return the result of a call that its coordinator may have to be asked for several times."""
        while True:
            try:
                return call()
            except ClientError as error:
                if Cause.REJECTED in producer.troubles:
                    raise ClientError(Cause.REJECTED, producer.troubles[Cause.REJECTED]) from error
                if error.cause is Cause.REJECTED or not error.retriable or self._closed.is_set():
                    raise

    def _committed_generation(self, position: Position) -> int:
        """Return the last generation that the owner of this position committed to the group, or 0."""
        # With isolation level read_committed, its default, the coordinator answers only once transactions have ended.
        settings = ReadingSettings(topics=(self._settings.topic,), group=self._group)
        consumer = self._client.create_consumer(self._connection, settings)
        try:
            found = consumer.committed(list(offsets_of(position)))
        finally:
            consumer.close()
        # An empty owner marks a daemon that has stopped. It was ours: our later commits have replaced any other.
        # One that is restored from a backup goes on from those of the original, with whose name its own begins.
        owner = str(position["owner"])
        marks = [mark for _, mark in found.values() if mark is not None and owner.startswith(mark.owner)]
        return max((mark.checkpoint_generation for mark in marks), default=0)

    def _begin(self) -> None:
        """Open a transaction unless one is open; raise `SinkError` if that is no longer possible."""
        if self._open_since is None:
            try:
                self._connected().transact("begin_transaction")
            except ClientError as error:
                raise self._fail(error) from error
            self._open_since = time.monotonic()

    def commit(self, position: Position, generation: int) -> None:
        """See `PredictionSink.commit`."""
        if position.get("group") != self._group:
            section = self.section
            raise SinkError(
                f"{section}.transactional: the checkpoint holds no position of group {self._group!r} to commit with "
                f"the {section}; configure the Kafka source as it was, or set {section}.transactional = false"
            )
        self._begin()
        producer = self._connected()
        try:
            metadata = OffsetMetadata(position["owner"], time.time(), generation).encode()  # noqa: TID251 - for others
            self._answered(lambda: producer.send_offsets(offsets_of(position), metadata), "sending offsets")
            self._answered(lambda: producer.transact("commit_transaction"), "committing a transaction")
        except ClientError as error:
            raise self._fail(error) from error
        self._open_since = None

    def _answered(self, call: Callable[[], Result], what: str) -> Result:
        """Return the result of a call that may block for ever; raise `ClientError` if it has none in time."""
        try:
            return in_background(call).result(self._give_up_seconds)
        except TimeoutError:
            raise ClientError(Cause.NO_ANSWER, f"{what} took more than {self._give_up_seconds:.0f} s") from None


def connection_for(settings: Connection, section: str, source: BaseModel) -> Connection:
    """Return the connection of a section, or that of the source if the section names no servers.

    Raises:
        ConfigError: there is none, or the section's is incomplete.
    """
    if settings.bootstrap_servers is not None:
        return settings
    extra = sorted(settings.model_fields_set & Connection.model_fields.keys() - {"bootstrap_servers"})
    if extra:
        raise ConfigError(
            f"{section}.bootstrap_servers: must be set together with {', '.join(extra)}; without any of them the "
            "connection is that of the source"
        )
    if not isinstance(source, Connection):
        raise ConfigError(
            f"{section}.bootstrap_servers: required, but not set; without a source of kind kafka there is no "
            "connection to share"
        )
    return source
