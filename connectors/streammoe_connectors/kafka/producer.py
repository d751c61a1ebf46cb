"""A Kafka producer that confirms delivery, or explains why it failed and what to do about it."""

from __future__ import annotations

import json
import logging
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TypeVar

import msgspec

from streammoe.errors import ConfigError, SinkError, StreammoeError
from streammoe.ports import Location
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.clients import Cause, ClientError, Producer, Transactional, load_client
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.settings import Connection

_LOGGER = logging.getLogger("streammoe.kafka")

LOG_INTERVAL_SECONDS = 30.0
"""Interval of warnings while waiting for a broker."""
FIRST_WAIT_SECONDS = 5.0
"""How long a start waits for a broker, and how long any wait lasts before its first warning."""
CLOSE_TIMEOUT_SECONDS = 5.0
NOTHING_LOST = "nothing was lost: the next start writes everything after the last checkpoint again"

_RETRY_SECONDS = 0.5
_GRACE_SECONDS = 5.0  # for a client to report itself why a record was not delivered

_ENCODE = msgspec.json.Encoder().encode

Result = TypeVar("Result")


def location_key(location: Location) -> bytes:
    """Return the location of a record without key as JSON, to be used as key.

    So a record that is written again after a restart has the same key, and goes to the same partition.
    """
    return _ENCODE(location)


class TopicProducer:
    """A producer of records for one topic, each sent once within a run.

    A broker that does not respond is retried, for up to `Delivery.delivery_timeout_seconds` while a record waits. After
    a `SinkError` all further calls raise it again, since later records may not have been delivered.

    Args:
        target: the topic.
        connection: to the cluster.
        delivery: settings for sending.
        transactional: what makes the producer transactional, if it is to be.
        give_up_seconds: longest wait for an answer; by default for as long as a record may take.
    """

    def __init__(
        self,
        target: Target,
        connection: Connection,
        delivery: Delivery,
        transactional: Transactional | None = None,
        *,
        give_up_seconds: float | None = None,
    ) -> None:
        self.target = target
        self._client = load_client(connection.client)
        self._options = self._client.client_options(connection)
        self._delivery = delivery
        self._transactional = transactional
        longest = delivery.delivery_timeout_seconds + _GRACE_SECONDS
        self._give_up_seconds = longest if give_up_seconds is None else min(give_up_seconds, longest)
        self._servers = ", ".join(connection.bootstrap_servers)
        self._producer: Producer | None = None
        self._connecting: Future[Producer] | None = None
        self._failure: SinkError | None = None
        self._closed = threading.Event()

    # --- connecting -------------------------------------------------------------------------------------------------

    def connect(self, timeout: float) -> Producer | None:
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

    def _create_connected(self) -> Producer:
        producer: Producer | None = None
        while producer is None:
            self._check_open()
            try:
                producer = self._client.create_producer(self._options, self._delivery, self._transactional)
            except ConfigError as error:
                raise ConfigError(f"{self.target.section}: {error}") from error
            except ClientError as error:
                if error.cause is not Cause.NO_ANSWER:
                    raise self.as_sink_error(error) from error
                _LOGGER.debug("%s: %s; retrying", self._servers, error)
                self._closed.wait(_RETRY_SECONDS)
        try:
            while True:
                self._check_open()
                try:
                    producer.partitions(self.target.topic)
                except ClientError as error:
                    if error.cause is not Cause.NO_ANSWER:
                        raise self.as_sink_error(error) from error
                else:
                    return producer
        except StreammoeError:
            producer.close(0)
            raise

    def _check_open(self) -> None:
        if self._closed.is_set():
            raise SinkError(f"{self.target.section}: closed before a broker responded")

    def try_connect(self) -> None:
        """Detect a missing topic at the start, for up to `FIRST_WAIT_SECONDS`; raises what `connect` does."""
        if self.connect(FIRST_WAIT_SECONDS) is None:
            _LOGGER.warning("%s: no broker of %s responds; retrying", self.target.section, self._servers)

    def wait_connected(self) -> Producer:
        """Return the producer, after waiting for a broker for as long as a record may take.

        Raises:
            SinkError: none responded, or see `connect`.
        """
        if self._producer is not None:
            return self._producer
        waiting = _Wait(self._give_up_seconds, f"{self.target.section}: no broker of {self._servers} responds")
        while (producer := self.connect(waiting.pause)) is None:
            if not waiting.check():
                raise self.fail(self._no_answer(f"no broker responded for {self._give_up_seconds:.0f} s"))
        return producer

    # --- sending ----------------------------------------------------------------------------------------------------

    def partitions(self) -> int:
        """Return the number of partitions of the topic."""
        producer = self.wait_connected()
        return self._retry(lambda: producer.partitions(self.target.topic))

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
        topic = self.target.topic
        try:
            accepted = producer.send(topic, value, key, partition, headers, location)
            while not accepted:
                self._wait_acknowledged(producer.n_pending // 2)
                accepted = producer.send(topic, value, key, partition, headers, location)
        except ClientError as error:
            if error.cause is not Cause.NO_ANSWER:
                size = len(value) + len(key) + sum(len(name) + len(content) for name, content in headers)
                raise self.fail(error, size, location) from error
            # Not accepted, for want of the topic's metadata.
            self._retry(lambda: producer.send(topic, value, key, partition, headers, location))

    def flush(self) -> None:
        """Return only when every record is acknowledged; raise `SinkError` if one cannot be delivered."""
        if self._failure is not None:
            raise self._failure
        self.check_delivered()
        if self._producer is not None and self._producer.n_pending:
            self._wait_acknowledged(0)

    def check_delivered(self) -> None:
        """Raise `SinkError` if a record cannot be delivered."""
        if self._producer is not None and (failed := self._producer.collect()) is not None:
            raise self.fail(*failed) from failed.error

    def _wait_acknowledged(self, max_pending: int) -> None:
        """Wait until at most so many records are unacknowledged."""
        producer = self.wait_connected()
        self.check_delivered()
        waiting = _Wait(
            self._give_up_seconds, f"{self.target.section}: {self._servers} acknowledges nothing of {self.target.topic}"
        )
        while producer.n_pending > max_pending:
            n_before = producer.n_pending
            producer.flush(waiting.pause)
            self.check_delivered()
            if producer.n_pending < n_before:
                waiting.begin()
            elif not waiting.check():
                raise self.fail(self._no_answer(f"no acknowledgement for {self._give_up_seconds:.0f} s"))

    def _retry(self, call: Callable[[], Result]) -> Result:
        """Retry a call that only waits for the topic's metadata."""
        waiting = _Wait(
            self._give_up_seconds, f"{self.target.section}: {self._servers} returns no metadata of the topic"
        )
        while True:
            try:
                return call()
            except ClientError as error:
                if error.cause is not Cause.NO_ANSWER or not waiting.check():
                    raise self.fail(error) from error

    # --- failing ----------------------------------------------------------------------------------------------------

    def fail(self, error: ClientError, size: int = 0, location: Location | None = None) -> SinkError:
        """Return the error to raise from now on; that of an earlier record has precedence, since it is the cause."""
        if self._failure is None:
            if self._producer is not None and (failed := self._producer.find_failure()) is not None:
                error, size, location = failed
            self._failure = self.as_sink_error(error, size, location)
        return self._failure

    @staticmethod
    def _no_answer(text: str) -> ClientError:
        return ClientError(Cause.NO_ANSWER, text)

    def as_sink_error(self, error: ClientError, size: int = 0, location: Location | None = None) -> SinkError:
        """Return an error that says what went wrong and what to do about it."""
        section, topic, if_too_large = self.target
        what = f"{section}: topic {topic!r}"
        of = "" if location is None else f" (from {json.dumps(location, ensure_ascii=False)})"
        match error.cause:
            case Cause.UNKNOWN_TOPIC:
                advice = f"does not exist on {self._servers}; create it, or correct {section}.topic"
            case Cause.INVALID_TOPIC:
                advice = f"cannot be written ({error}); correct {section}.topic"
            case Cause.TOO_LARGE:
                advice = (
                    f"accepts no record of {size} bytes{of}; raise its setting max.message.bytes well above that "
                    f"(kafka-configs.sh --alter --entity-type topics --entity-name {topic} --add-config "
                    f"max.message.bytes={2 * size + 1024}), or {if_too_large}"
                )
            case Cause.NOT_AUTHORIZED:
                advice = f"may not be written ({error}); allow this user WRITE and DESCRIBE on it"
            case Cause.NO_ANSWER:
                advice = (
                    f"has not acknowledged a record{of} ({error}); check whether {self._servers} and all "
                    f"its in-sync replicas are up, and whether the login is correct, or raise "
                    f"{section}.delivery_timeout_seconds"
                )
            case _:
                advice = f"cannot be written{of} ({error}); see the brokers' log"
        return SinkError(f"{what} {advice}; {NOTHING_LOST}")

    def call_with_timeout(self, call: Callable[[], Result], what: str) -> Result:
        """Return the result of a call that may block for ever, within the time that a record may take.

        Raises:
            ClientError: raised by the call, or it took longer.
        """
        waiting = _Wait(self._give_up_seconds, f"{self.target.section}: {self._servers} does not respond ({what})")
        pending = in_background(call)
        while True:
            try:
                return pending.result(waiting.pause)
            except TimeoutError:
                if not waiting.check():
                    raise self._no_answer(f"{what} took more than {self._give_up_seconds:.0f} s") from None

    def close(self) -> None:
        """Close the connection; unacknowledged records may be lost."""
        self._closed.set()
        producer, self._producer = self._producer, None
        if producer is None:
            return
        try:
            # One that does not answer any more would take all the time that it is given.
            is_given_up = self._failure is not None and self._failure.retriable
            producer.close(0 if is_given_up else CLOSE_TIMEOUT_SECONDS)
        except ClientError as error:
            _LOGGER.warning(
                "%s: topic %r may have received only a part of what was not flushed (%s)",
                self.target.section,
                self.target.topic,
                error,
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
