"""A Kafka producer that knows that its records have arrived, or says why not and what to do about it."""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import msgspec
from kafka import KafkaAdminClient, KafkaProducer
from kafka.errors import (
    AuthorizationError,
    InvalidTopicError,
    KafkaConfigurationError,
    KafkaError,
    KafkaTimeoutError,
    MessageSizeTooLargeError,
    RecordListTooLargeError,
    UnknownError,
    UnknownTopicOrPartitionError,
)

from streammoe.errors import ConfigError, SinkError, StreammoeError
from streammoe.ports import Place
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.settings import Connection, client_options

LOGGER = logging.getLogger("streammoe.kafka")

MOST_UNACKNOWLEDGED = 32 << 20
"""Bytes of records that wait for their acknowledgement; more wait before they are sent."""
SAY_SECONDS = 30.0
"""How often the log tells of a broker that is waited for."""
FIRST_SECONDS = 5.0
"""How long a start waits for a broker; it is there, or will be waited for once there is something to write."""
CLOSE_SECONDS = 5.0
SETTLED = "nothing was lost: the next start writes again all that came after the last checkpoint"

_BOOTSTRAP_MS = 10_000
_METADATA_MS = 2_000
_GRACE_SECONDS = 5.0  # for kafka-python to say itself why a record has not arrived
_LARGEST_REQUEST = 64 << 20  # so that the topic's max.message.bytes is the one limit

_ENCODE = msgspec.json.Encoder().encode

Result = TypeVar("Result")


class _Sent(NamedTuple):
    future: Any
    size: int
    place: Place


def place_key(place: Place) -> bytes:
    """The key of what came from a record without one: where that was, as JSON.

    A record that is written again after a restart comes with the same key, so to the same partition.
    """
    return _ENCODE(place)


def known_options(connection: Connection, known: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a connection that a kind of client knows; those of a source may be for consumers only."""
    return {name: value for name, value in client_options(connection).items() if name in known}


class TopicProducer:
    """Sends records to one topic, each once within a run, and waits for as long as it must.

    A broker that does not answer is tried again and again, for up to `Delivery.delivery_timeout_seconds` while a record
    waits. Whatever ends in a `SinkError` goes on doing so: what was written since is not known to have arrived.

    Args:
        target: where to.
        connection: of which cluster.
        delivery: how.
        transactional: further arguments of the producer, for transactions.
    """

    def __init__(
        self,
        target: Target,
        connection: Connection,
        delivery: Delivery,
        transactional: Mapping[str, Any] | None = None,
    ) -> None:
        self.target = target
        self._options: dict[str, Any] = {
            "acks": "all",
            "enable_idempotence": True,
            "compression_type": None if delivery.compression == "none" else delivery.compression,
            "linger_ms": delivery.linger_ms,
            "batch_size": delivery.batch_bytes,
            "delivery_timeout_ms": int(1000 * delivery.delivery_timeout_seconds),
            "request_timeout_ms": min(30_000, int(500 * delivery.delivery_timeout_seconds)),
            "max_request_size": _LARGEST_REQUEST,
            "metrics_enabled": False,
            **known_options(connection, KafkaProducer.DEFAULT_CONFIG),
            **(transactional or {}),
            # Whatever blocks does so in the background, and is tried again.
            "bootstrap_timeout_ms": _BOOTSTRAP_MS,
            "max_block_ms": _METADATA_MS,
        }
        self._patience = self._options["delivery_timeout_ms"] / 1000.0 + _GRACE_SECONDS
        self._servers = ", ".join(self._options["bootstrap_servers"])
        self._producer: KafkaProducer | None = None
        self._connecting: Future[KafkaProducer] | None = None
        self._unsettled: deque[_Sent] = deque()
        self._bytes = 0
        self._failure: SinkError | None = None
        self._closed = threading.Event()

    # --- connecting -------------------------------------------------------------------------------------------------

    def connected(self, timeout: float) -> KafkaProducer | None:
        """The producer, once a broker answers and the topic is known; ``None`` if not within `timeout` seconds.

        Raises:
            SinkError: there is no such topic, or it may not be written.
            ConfigError: an option is none of a producer.
        """
        if self._producer is None:
            if self._connecting is None:
                self._connecting = in_background(self._connect)
            try:
                self._producer = self._connecting.result(timeout)
            except TimeoutError:
                return None
            except StreammoeError:
                self._connecting = None
                raise
        return self._producer

    def _connect(self) -> KafkaProducer:
        producer: KafkaProducer | None = None
        while producer is None:
            self._check_open()
            try:
                producer = _made(self._options)
            except KafkaTimeoutError:
                LOGGER.debug("%s: no broker answered, trying again", self._servers)
            except (KafkaConfigurationError, ValueError, TypeError, AssertionError, RuntimeError) as error:
                raise ConfigError(f"{self.target.section}: kafka-python refuses its settings: {error}") from error
            except (KafkaError, OSError) as error:
                raise self.explained(error) from error
        try:
            while True:
                self._check_open()
                try:
                    producer.partitions_for(self.target.topic)
                except KafkaTimeoutError:
                    self._look_for_topic()
                except (KafkaError, ValueError) as error:
                    raise self.explained(error) from error
                else:
                    return producer
        except StreammoeError:
            producer.close(timeout=0)
            raise

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise SinkError(f"{self.target.section}: closed before a broker answered")

    def _look_for_topic(self) -> None:
        """Tell a topic that is not there from brokers that do not answer.

        Raises:
            SinkError: it is not there.
        """
        options = {name: value for name, value in self._options.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
        try:
            admin = KafkaAdminClient(**options)
            try:
                found = admin.describe_topics([self.target.topic])
            finally:
                admin.close()
        except (KafkaError, OSError) as error:
            LOGGER.debug("%s: cannot be asked for topics: %s", self._servers, error)
            return
        if any(topic["error_code"] == UnknownTopicOrPartitionError.errno for topic in found):
            raise self.explained(UnknownTopicOrPartitionError())

    def look(self) -> None:
        """Connect for up to `FIRST_SECONDS`, so that a topic that is not there is noticed at the start.

        Raises:
            SinkError: see `connected`.
            ConfigError: same.
        """
        if self.connected(FIRST_SECONDS) is None:
            LOGGER.warning("%s: no broker of %s answers; it is tried on", self.target.section, self._servers)

    def wait_connected(self) -> KafkaProducer:
        """The producer; waits for a broker for as long as a record may take.

        Raises:
            SinkError: none answered, or see `connected`.
        """
        if self._producer is not None:
            return self._producer
        waiting = _Waiting(self._patience, f"{self.target.section}: no broker of {self._servers} answers")
        while (producer := self.connected(SAY_SECONDS if waiting.is_reported else FIRST_SECONDS)) is None:
            if not waiting.goes_on():
                raise self.fail(KafkaTimeoutError(f"no broker answered for {self._patience:.0f} s"))
        return producer

    # --- sending ----------------------------------------------------------------------------------------------------

    def partitions(self) -> int:
        """How many the topic has."""
        producer = self.wait_connected()
        return len(self._retried(lambda: producer.partitions_for(self.target.topic)))

    def send(
        self,
        value: bytes,
        key: bytes | None,
        place: Place,
        partitions: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send one record; waits while too many are on their way.

        Args:
            value: its content.
            key: chooses the partition as in Java's clients; without one the place does, and is the key.
            place: of what it tells of, for messages.
            partitions: see `partitions`.
            headers: of the record.

        Raises:
            SinkError: this record, or one before, cannot be delivered.
        """
        if self._failure is not None:
            raise self._failure
        producer = self.wait_connected()
        partition = None
        if key is None:
            key = place_key(place)
            partition = zlib.crc32(key) % partitions
        size = len(value) + len(key) + sum(len(name) + len(content) for name, content in headers)
        record = {"value": value, "key": key, "partition": partition, "headers": list(headers)}
        try:
            try:
                future = producer.send(self.target.topic, **record)
            except KafkaTimeoutError:  # before it was taken
                future = self._retried(lambda: producer.send(self.target.topic, **record))
        except KafkaError as error:
            raise self.fail(error, size, place) from error
        self._unsettled.append(_Sent(future, size, place))
        self._bytes += size
        if self._bytes > MOST_UNACKNOWLEDGED:
            self._settle(MOST_UNACKNOWLEDGED // 2)

    def flush(self) -> None:
        """Return only when every record is acknowledged.

        Raises:
            SinkError: one cannot be delivered.
        """
        if self._failure is not None:
            raise self._failure
        if not self._unsettled:
            return
        self._settle(0)

    def settle_what_has_arrived(self) -> None:
        """Forget records that are acknowledged.

        Raises:
            SinkError: one cannot be delivered.
        """
        while self._unsettled and self._unsettled[0].future.is_done:
            self._take()

    def _settle(self, most: int) -> None:
        """Wait until no more than so many bytes wait for their acknowledgement."""
        producer = self.wait_connected()
        self.settle_what_has_arrived()
        waiting = _Waiting(
            self._patience, f"{self.target.section}: {self._servers} acknowledges nothing of {self.target.topic}"
        )
        while self._bytes > most:
            left = len(self._unsettled)
            try:
                # Also sends what lingers.
                producer.flush(SAY_SECONDS)
            except (KafkaTimeoutError, UnknownError):  # the latter of a batch that was split meanwhile
                LOGGER.debug("%s: not all acknowledged yet", self.target.topic)
            self.settle_what_has_arrived()
            if len(self._unsettled) < left:
                waiting.begin()
            elif not waiting.goes_on():
                oldest = self._unsettled[0]
                error = KafkaTimeoutError(f"no acknowledgement for {self._patience:.0f} s")
                raise self.fail(error, oldest.size, oldest.place)

    def _take(self) -> None:
        sent = self._unsettled.popleft()
        self._bytes -= sent.size
        if sent.future.exception is not None:
            raise self.fail(sent.future.exception, sent.size, sent.place) from sent.future.exception

    def _retried(self, call: Callable[[], Result]) -> Result:
        """Repeat a call that only waits for news of the topic's partitions."""
        waiting = _Waiting(self._patience, f"{self.target.section}: {self._servers} tells nothing of the topic")
        while True:
            try:
                return call()
            except KafkaTimeoutError as error:
                if not waiting.goes_on():
                    raise self.fail(error) from error

    # --- failing ----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException, size: int = 0, place: Place | None = None) -> SinkError:
        """The error to raise now and from now on; that of an earlier record says more than what came of it."""
        if self._failure is None:
            for sent in self._unsettled:
                if sent.future.exception is not None:
                    error, size, place = sent.future.exception, sent.size, sent.place
                    break
            self._failure = self.explained(error, size, place)
        return self._failure

    def explained(self, error: BaseException, size: int = 0, place: Place | None = None) -> SinkError:
        """What went wrong, and what to do about it."""
        section, topic, if_too_large = self.target
        what = f"{section}: topic {topic!r}"
        of = "" if place is None else f" (from {json.dumps(place, ensure_ascii=False)})"
        match error:
            case UnknownTopicOrPartitionError():
                cure = f"is not on {self._servers}; create it, or mend {section}.topic"
            case InvalidTopicError() | ValueError():
                cure = f"cannot be written ({error}); mend {section}.topic"
            case MessageSizeTooLargeError() | RecordListTooLargeError():
                cure = (
                    f"takes no record of {size} bytes{of}; raise its setting max.message.bytes well above that "
                    f"(kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config "
                    f"max.message.bytes={2 * size + 1024}), or {if_too_large}"
                )
            case AuthorizationError():
                cure = f"may not be written ({_said(error)}); allow this user WRITE and DESCRIBE on it"
            case KafkaTimeoutError():
                cure = (
                    f"has not acknowledged a record{of} ({_said(error)}); see whether {self._servers} and all its "
                    f"in-sync replicas are up, and whether the login is right, or raise "
                    f"{section}.delivery_timeout_seconds"
                )
            case _:
                cure = f"cannot be written{of} ({_said(error)}); see the brokers' log"
        return SinkError(f"{what} {cure}; {SETTLED}")

    def bounded(self, call: Callable[[], Result], what: str) -> Result:
        """The result of a call that waits for brokers without end, if it comes within the time of a record.

        Raises:
            KafkaTimeoutError: it did not.
            KafkaError: what it raised.
        """
        waiting = _Waiting(self._patience, f"{self.target.section}: {self._servers} does not answer ({what})")
        pending = in_background(call)
        while True:
            try:
                return pending.result(SAY_SECONDS if waiting.is_reported else FIRST_SECONDS)
            except TimeoutError:
                if not waiting.goes_on():
                    raise KafkaTimeoutError(f"{what} took more than {self._patience:.0f} s") from None

    def close(self) -> None:
        """Let go of the connection; records that have not been acknowledged may be lost."""
        self._closed.set()
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            producer.close(timeout=CLOSE_SECONDS)
        except KafkaError as error:
            LOGGER.warning(
                "%s: topic %r may have got only a part of what was not flushed (%s)",
                self.target.section,
                self.target.topic,
                _said(error),
            )


class _Waiting:
    """Waits with a word in the log now and then, and says when it has been long enough."""

    def __init__(self, patience: float, what: str) -> None:
        self._patience = patience
        self._what = what
        self.begin()

    def begin(self) -> None:
        self._since = time.monotonic()
        self._reported = 0.0

    @property
    def is_reported(self) -> bool:
        """Whether the log has been told."""
        return self._reported > 0.0

    def goes_on(self) -> bool:
        waited = time.monotonic() - self._since
        if waited >= self._patience:
            return False
        if not self.is_reported or waited - self._reported >= SAY_SECONDS:
            self._reported = max(waited, 1e-9)
            LOGGER.warning("%s; waiting since %.0f s, up to %.0f s", self._what, waited, self._patience)
        return True


def _made(options: Mapping[str, Any]) -> KafkaProducer:
    """A producer; what one that could not be made has opened is closed, which kafka-python leaves to chance."""
    opened: list[Any] = []

    def client(**arguments: Any) -> Any:
        opened.append(KafkaProducer.DEFAULT_CONFIG["kafka_client"](**arguments))
        return opened[0]

    try:
        return KafkaProducer(**options, kafka_client=client)
    except BaseException:
        for one in opened:
            one.close()
        raise


def in_background(call: Callable[[], Result]) -> Future[Result]:
    """Run a call that may never return in a thread that ends with the process."""
    pending: Future[Result] = Future()

    def run() -> None:
        try:
            pending.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            pending.set_exception(error)

    threading.Thread(target=run, name="streammoe-kafka", daemon=True).start()
    return pending


def _said(error: BaseException) -> str:
    return str(error) or type(error).__name__
