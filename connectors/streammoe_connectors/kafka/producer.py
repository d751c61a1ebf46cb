"""A Kafka producer that confirms delivery, or explains why it failed and what to do about it."""

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
from kafka.net.compat import KafkaNetClient

from streammoe.errors import ConfigError, SinkError, StreammoeError
from streammoe.ports import Location
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.oauth import TokenUnavailable
from streammoe_connectors.kafka.settings import Connection, client_options
from streammoe_connectors.kafka.token_provider import kafka_python_options, token_source

_LOGGER = logging.getLogger("streammoe.kafka")

MAX_UNACKNOWLEDGED_BYTES = 32 << 20
"""Size of unacknowledged records from which on `send` waits."""
LOG_INTERVAL_SECONDS = 30.0
"""Interval of warnings while waiting for a broker."""
FIRST_WAIT_SECONDS = 5.0
"""How long a start waits for a broker, and how long any wait lasts before its first warning."""
CLOSE_TIMEOUT_SECONDS = 5.0
NOTHING_LOST = "nothing was lost: the next start writes everything after the last checkpoint again"

_BOOTSTRAP_TIMEOUT_MS = 10_000
_METADATA_TIMEOUT_MS = 2_000
_NOT_READY_PAUSE_SECONDS = 0.1
_TOKEN_PAUSE_SECONDS = 1.0
_GRACE_SECONDS = 5.0  # for kafka-python to report itself why a record was not delivered
_MAX_REQUEST_BYTES = 64 << 20  # large enough for the topic's max.message.bytes to be the only limit

_ENCODE = msgspec.json.Encoder().encode

Result = TypeVar("Result")


class _SentRecord(NamedTuple):
    future: Any
    size: int
    location: Location


def location_key(location: Location) -> bytes:
    """Return the location of a record without key as JSON, to be used as key.

    So a record that is written again after a restart has the same key, and goes to the same partition.
    """
    return _ENCODE(location)


def supported_options(connection: Connection, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a connection that a kind of client supports; some are for consumers only."""
    options = kafka_python_options(client_options(connection))
    return {name: value for name, value in options.items() if name in known}


class TopicProducer:
    """A producer of records for one topic, each sent once within a run.

    A broker that does not respond is retried, for up to `Delivery.delivery_timeout_seconds` while a record waits. After
    a `SinkError` all further calls raise it again, since later records may not have been delivered.

    Args:
        target: the topic.
        connection: to the cluster.
        delivery: settings for sending.
        transactional: further arguments of kafka-python's producer, for transactions.
        give_up_seconds: longest wait for an answer; by default for as long as a record may take.
    """

    def __init__(
        self,
        target: Target,
        connection: Connection,
        delivery: Delivery,
        transactional: Mapping[str, Any] | None = None,
        *,
        give_up_seconds: float | None = None,
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
            "max_request_size": _MAX_REQUEST_BYTES,
            "metrics_enabled": False,
            **supported_options(connection, KafkaProducer.DEFAULT_CONFIG),
            **(transactional or {}),
            # Blocking calls run in the background and are retried.
            "bootstrap_timeout_ms": _BOOTSTRAP_TIMEOUT_MS,
            "max_block_ms": _METADATA_TIMEOUT_MS,
        }
        longest = self._options["delivery_timeout_ms"] / 1000.0 + _GRACE_SECONDS
        self._give_up_seconds = longest if give_up_seconds is None else min(give_up_seconds, longest)
        self._servers = ", ".join(self._options["bootstrap_servers"])
        self._producer: KafkaProducer | None = None
        self._connecting: Future[KafkaProducer] | None = None
        self._unacknowledged: deque[_SentRecord] = deque()
        self._bytes = 0
        self._failure: SinkError | None = None
        self._closed = threading.Event()

    # --- connecting -------------------------------------------------------------------------------------------------

    def connect(self, timeout: float) -> KafkaProducer | None:
        """Connect; return the producer once the topic's metadata are known, or ``None`` after `timeout` seconds.

        Raises:
            SinkError: the topic does not exist or may not be written.
            ConfigError: an option is invalid for a producer.
        """
        if self._producer is None:
            if self._connecting is None:
                self._connecting = in_background(self._create_connected)
            try:
                self._producer = self._connecting.result(timeout)
            except TimeoutError:
                return None
            except StreammoeError:
                self._connecting = None
                raise
        return self._producer

    def _create_connected(self) -> KafkaProducer:
        producer: KafkaProducer | None = None
        while producer is None:
            self._check_open()
            try:
                if (tokens := token_source(self._options)) is not None:
                    tokens.token()  # kafka-python's thread would not say why there is none
                producer = _create_producer(self._options)
            except KafkaTimeoutError:
                _LOGGER.debug("%s: no broker responded, retrying", self._servers)
            except TokenUnavailable as error:
                _LOGGER.debug("%s, retrying", error)
                self._closed.wait(_TOKEN_PAUSE_SECONDS)
            except ConfigError:
                raise
            except (KafkaConfigurationError, ValueError, TypeError, AssertionError, RuntimeError) as error:
                raise ConfigError(f"{self.target.section}: kafka-python rejects its settings: {error}") from error
            except (KafkaError, OSError) as error:
                raise self.as_sink_error(error) from error
        try:
            while True:
                self._check_open()
                try:
                    producer.partitions_for(self.target.topic)
                except KafkaTimeoutError:
                    self._check_topic()
                except (KafkaError, ValueError) as error:
                    raise self.as_sink_error(error) from error
                else:
                    return producer
        except StreammoeError:
            producer.close(timeout=0)
            raise

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise SinkError(f"{self.target.section}: closed before a broker responded")

    def _check_topic(self) -> None:
        """Raise `SinkError` if the topic does not exist, in contrast to brokers that do not respond."""
        options = {name: value for name, value in self._options.items() if name in KafkaAdminClient.DEFAULT_CONFIG}
        try:
            admin = KafkaAdminClient(**options)
            try:
                topics = admin.describe_topics([self.target.topic])
            finally:
                admin.close()
        except (KafkaError, OSError) as error:
            _LOGGER.debug("%s: topics cannot be listed: %s", self._servers, error)
            return
        if any(topic["error_code"] == UnknownTopicOrPartitionError.errno for topic in topics):
            raise self.as_sink_error(UnknownTopicOrPartitionError())

    def try_connect(self) -> None:
        """Detect a missing topic at the start, for up to `FIRST_WAIT_SECONDS`; raises what `connect` does."""
        if self.connect(FIRST_WAIT_SECONDS) is None:
            _LOGGER.warning("%s: no broker of %s responds; retrying", self.target.section, self._servers)

    def wait_connected(self) -> KafkaProducer:
        """Return the producer, after waiting for a broker for as long as a record may take.

        Raises:
            SinkError: none responded, or see `connect`.
        """
        if self._producer is not None:
            return self._producer
        waiting = _Wait(self._give_up_seconds, f"{self.target.section}: no broker of {self._servers} responds")
        while (producer := self.connect(waiting.pause)) is None:
            if not waiting.check():
                raise self.fail(KafkaTimeoutError(f"no broker responded for {self._give_up_seconds:.0f} s"))
        return producer

    # --- sending ----------------------------------------------------------------------------------------------------

    def partitions(self) -> int:
        """Return the number of partitions of the topic."""
        producer = self.wait_connected()
        return len(self._retry(lambda: producer.partitions_for(self.target.topic)))

    def send(
        self,
        value: bytes,
        key: bytes | None,
        location: Location,
        partitions: int,
        headers: Sequence[tuple[str, bytes]] = (),
    ) -> None:
        """Send a record; waits while too many are unacknowledged.

        Args:
            value: of the record.
            key: chooses the partition as in Java's clients; without one the location does, and is the key.
            location: of the source's record, for messages.
            partitions: see `partitions`.
            headers: of the record.

        Raises:
            SinkError: this record or an earlier one cannot be delivered.
        """
        if self._failure is not None:
            raise self._failure
        producer = self.wait_connected()
        partition = None
        if key is None:
            key = location_key(location)
            partition = zlib.crc32(key) % partitions
        size = len(value) + len(key) + sum(len(name) + len(content) for name, content in headers)
        record = {"value": value, "key": key, "partition": partition, "headers": list(headers)}
        try:
            try:
                future = producer.send(self.target.topic, **record)
            except KafkaTimeoutError:  # before it was accepted
                future = self._retry(lambda: producer.send(self.target.topic, **record))
        except KafkaError as error:
            raise self.fail(error, size, location) from error
        self._unacknowledged.append(_SentRecord(future, size, location))
        self._bytes += size
        if self._bytes > MAX_UNACKNOWLEDGED_BYTES:
            self._wait_acknowledged(MAX_UNACKNOWLEDGED_BYTES // 2)

    def flush(self) -> None:
        """Return only when every record is acknowledged; raise `SinkError` if one cannot be delivered."""
        if self._failure is not None:
            raise self._failure
        if self._unacknowledged:
            self._wait_acknowledged(0)

    def discard_acknowledged(self) -> None:
        """Discard acknowledged records; raise `SinkError` if one cannot be delivered."""
        while self._unacknowledged and self._unacknowledged[0].future.is_done:
            sent = self._unacknowledged.popleft()
            self._bytes -= sent.size
            if sent.future.exception is not None:
                raise self.fail(sent.future.exception, sent.size, sent.location) from sent.future.exception

    def _wait_acknowledged(self, max_bytes: int) -> None:
        """Wait until at most so many bytes are unacknowledged."""
        producer = self.wait_connected()
        self.discard_acknowledged()
        waiting = _Wait(
            self._give_up_seconds, f"{self.target.section}: {self._servers} acknowledges nothing of {self.target.topic}"
        )
        while self._bytes > max_bytes:
            n_before = len(self._unacknowledged)
            try:
                # Also sends what lingers.
                producer.flush(waiting.pause)
            except (KafkaTimeoutError, UnknownError):  # the latter for a batch that was split meanwhile
                _LOGGER.debug("%s: not all acknowledged yet", self.target.topic)
            self.discard_acknowledged()
            if len(self._unacknowledged) < n_before:
                waiting.begin()
            elif not waiting.check():
                oldest = self._unacknowledged[0]
                error = KafkaTimeoutError(f"no acknowledgement for {self._give_up_seconds:.0f} s")
                raise self.fail(error, oldest.size, oldest.location)

    def _retry(self, call: Callable[[], Result]) -> Result:
        """Retry a call that only waits for the topic's metadata."""
        waiting = _Wait(
            self._give_up_seconds, f"{self.target.section}: {self._servers} returns no metadata of the topic"
        )
        while True:
            try:
                return call()
            except KafkaTimeoutError as error:
                if not waiting.check():
                    raise self.fail(error) from error

    # --- failing ----------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException, size: int = 0, location: Location | None = None) -> SinkError:
        """Return the error to raise from now on; that of an earlier record has precedence, since it is the cause."""
        if self._failure is None:
            for sent in self._unacknowledged:
                if sent.future.exception is not None:
                    error, size, location = sent.future.exception, sent.size, sent.location
                    break
            self._failure = self.as_sink_error(error, size, location)
        return self._failure

    def as_sink_error(self, error: BaseException, size: int = 0, location: Location | None = None) -> SinkError:
        """Return an error that says what went wrong and what to do about it."""
        section, topic, if_too_large = self.target
        what = f"{section}: topic {topic!r}"
        of = "" if location is None else f" (from {json.dumps(location, ensure_ascii=False)})"
        match error:
            case UnknownTopicOrPartitionError():
                advice = f"does not exist on {self._servers}; create it, or correct {section}.topic"
            case InvalidTopicError() | ValueError():
                advice = f"cannot be written ({error}); correct {section}.topic"
            case MessageSizeTooLargeError() | RecordListTooLargeError():
                advice = (
                    f"accepts no record of {size} bytes{of}; raise its setting max.message.bytes well above that "
                    f"(kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config "
                    f"max.message.bytes={2 * size + 1024}), or {if_too_large}"
                )
            case AuthorizationError():
                advice = f"may not be written ({_error_text(error)}); allow this user WRITE and DESCRIBE on it"
            case KafkaTimeoutError():
                advice = (
                    f"has not acknowledged a record{of} ({_error_text(error)}); check whether {self._servers} and all "
                    f"its in-sync replicas are up, and whether the login is correct, or raise "
                    f"{section}.delivery_timeout_seconds"
                )
            case _:
                advice = f"cannot be written{of} ({_error_text(error)}); see the brokers' log"
        return SinkError(f"{what} {advice}; {NOTHING_LOST}")

    def call_with_timeout(self, call: Callable[[], Result], what: str) -> Result:
        """Return the result of a call that may block for ever, within the time that a record may take.

        Raises:
            KafkaTimeoutError: it took longer.
            KafkaError: raised by the call.
        """
        waiting = _Wait(self._give_up_seconds, f"{self.target.section}: {self._servers} does not respond ({what})")
        pending = in_background(call)
        while True:
            try:
                return pending.result(waiting.pause)
            except TimeoutError:
                if not waiting.check():
                    raise KafkaTimeoutError(f"{what} took more than {self._give_up_seconds:.0f} s") from None

    def close(self) -> None:
        """Close the connection; unacknowledged records may be lost."""
        self._closed.set()
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            # One that does not answer any more would take all the time that it is given.
            is_given_up = self._failure is not None and self._failure.retriable
            producer.close(timeout=0 if is_given_up else CLOSE_TIMEOUT_SECONDS)
        except KafkaError as error:
            _LOGGER.warning(
                "%s: topic %r may have received only a part of what was not flushed (%s)",
                self.target.section,
                self.target.topic,
                _error_text(error),
            )


class _Wait:
    """A wait with a time limit that is logged now and then."""

    def __init__(self, give_up_seconds: float, what: str) -> None:
        self._give_up_seconds = give_up_seconds
        self._what = what
        self.begin()

    def begin(self) -> None:
        self._since = time.monotonic()
        self._reported = 0.0

    @property
    def pause(self) -> float:
        """Seconds until `check` has something to do."""
        left = self._since + self._give_up_seconds - time.monotonic()
        return max(min(LOG_INTERVAL_SECONDS if self._reported else FIRST_WAIT_SECONDS, left), 0.0)

    def check(self) -> bool:
        """Log the wait if that is due, and return whether to wait longer."""
        waited = time.monotonic() - self._since
        if waited >= self._give_up_seconds:
            return False
        if not self._reported or waited - self._reported >= LOG_INTERVAL_SECONDS:
            self._reported = max(waited, 1e-9)
            _LOGGER.warning("%s; waiting for %.0f s, up to %.0f s", self._what, waited, self._give_up_seconds)
        return True


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


def _create_producer(options: Mapping[str, Any]) -> KafkaProducer:
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


def in_background(call: Callable[[], Result]) -> Future[Result]:
    """Run a call that may never return, in a thread that ends with the process."""
    pending: Future[Result] = Future()

    def run() -> None:
        try:
            pending.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised where the result is asked for
            pending.set_exception(error)

    threading.Thread(target=run, name="streammoe-kafka", daemon=True).start()
    return pending


def _error_text(error: BaseException) -> str:
    return str(error) or type(error).__name__
