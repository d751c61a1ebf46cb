"""Transactions that commit records together with the source offsets that they were computed at."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    ProducerFencedError,
    TransactionalIdAuthorizationFailedError,
)

from streammoe.errors import SinkError
from streammoe.ports import Location, Position, Recovered, parts_of
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.offsets import offset_metadata, parse_offset_metadata
from streammoe_connectors.kafka.producer import (
    CLOSE_SECONDS,
    FIRST_SECONDS,
    REPORT_SECONDS,
    SETTLED,
    TopicProducer,
    in_background,
    known_options,
)
from streammoe_connectors.kafka.settings import Connection

LOGGER = logging.getLogger("streammoe.kafka")

_ENDED = (
    IllegalStateError,
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    ProducerFencedError,
)
"""Errors of brokers and kafka-python for a transaction that has ended or been taken over."""


class TransactionalProducer(TopicProducer):
    """A producer whose records become visible with the next checkpoint.

    A transaction is only open while there are records: from the first one after a checkpoint to the next commit.

    Args:
        target: the topic.
        connection: to the cluster, which must also have the group.
        delivery: settings for sending.
        group: whose offsets are committed.
        name: the transactional id; the older one of two producers with the same id is fenced.
        timeout: seconds after which brokers abort an open transaction.
    """

    def __init__(
        self, target: Target, connection: Connection, delivery: Delivery, *, group: str, name: str, timeout: float
    ) -> None:
        self._connection = connection
        self._group = group
        self._name = name
        self._timeout = timeout
        self._recovering: Future[Recovered] | None = None
        self._recovering_since = 0.0
        self._report_at = 0.0
        self._open_since: float | None = None
        self._slow = False
        self._last: tuple[Position, int] | None = None
        super().__init__(
            target,
            connection,
            delivery,
            {"transactional_id": name, "transaction_timeout_ms": int(1000 * timeout)},
        )

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        """See `PredictionSink.recover`."""
        if self._recovering is None:
            self._recovering = in_background(lambda: self._recover(position))
            self._recovering_since = time.monotonic()
            self._report_at = self._recovering_since + FIRST_SECONDS
        try:
            return self._recovering.result(timeout)
        except TimeoutError:
            now = time.monotonic()
            if now >= self._report_at:
                self._report_at = now + REPORT_SECONDS
                LOGGER.warning(
                    "%s: no broker of %s has returned the committed offsets for %.0f s; still waiting",
                    self.target.section,
                    self._servers,
                    now - self._recovering_since,
                )
            return None

    def _recover(self, position: Position | None) -> Recovered:
        producer = None
        while producer is None:
            producer = self.connected(FIRST_SECONDS)
        self._take_over(producer)
        # Only now open transactions of an earlier run have ended, and commits in progress are complete.
        part = kafka_part(position)
        return Recovered(None if part is None else self._committed(part))

    def _take_over(self, producer: KafkaProducer) -> None:
        while True:
            try:
                producer.init_transactions()
            except KafkaTimeoutError as error:
                if self._closed.is_set():
                    raise self.explained(error) from error
                LOGGER.debug("transactional id %r: its coordinator has not responded yet", self._name)
            except KafkaError as error:
                raise self.fail(error) from error
            else:
                return

    def _committed(self, part: Position) -> int | None:
        """Return the last generation that the owner of this position committed to the group."""
        partitions = [
            TopicPartition(topic, int(number))
            for topic, found in part["topics"].items()
            for number in found["partitions"]
        ]
        options = {
            **known_options(self._connection, KafkaConsumer.DEFAULT_CONFIG),
            "group_id": self._group,
            "enable_auto_commit": False,
            # The coordinator then responds only once earlier transactions have ended.
            "isolation_level": "read_committed",
        }
        while True:
            try:
                consumer = KafkaConsumer(**options)
                try:
                    answers = [consumer.committed(one, metadata=True, timeout_ms=10_000) for one in partitions]
                finally:
                    consumer.close(autocommit=False, timeout_ms=1_000)
            except KafkaTimeoutError as error:
                if self._closed.is_set():
                    raise self.explained(error) from error
                LOGGER.debug("group %r: its coordinator has not responded yet", self._group)
            except KafkaError as error:
                raise self.fail(error) from error
            else:
                break
        mirrors = [parse_offset_metadata(one.metadata) for one in answers if one is not None]
        # An empty owner marks a daemon that has stopped. It was ours: our later commits have replaced any other.
        owners = {"", part["owner"]}
        ours = [mirror.generation for mirror in mirrors if mirror is not None and mirror.owner in owners]
        return max(ours, default=None)

    def begin(self) -> None:
        """Open a transaction unless one is open; raise `SinkError` if that is no longer possible."""
        if self._open_since is None:
            producer = self.wait_connected()
            try:
                producer.begin_transaction()
            except KafkaError as error:
                raise self.fail(error) from error
            self._open_since = time.monotonic()

    def commit(self, position: Position, generation: int) -> None:
        """See `PredictionSink.commit`."""
        part = kafka_part(position)
        if part is None or part["group"] != self._group:
            section = self.target.section
            raise SinkError(
                f"{section}.transactional: the checkpoint holds no position of group {self._group!r} to commit with "
                f"the {section}; configure the Kafka source as it was, or set {section}.transactional = false"
            )
        offsets = _mirrored(part, part["owner"], generation)
        self.begin()
        producer = self.wait_connected()
        try:
            # The group has no members, since partitions are assigned, so its name suffices.
            self.bounded(lambda: producer.send_offsets_to_transaction(offsets, self._group), "sending offsets")
            self.bounded(producer.commit_transaction, "committing a transaction")
        except KafkaError as error:
            raise self.fail(error) from error
        self._log_if_slow()
        self._open_since = None
        self._last = (part, generation)

    def close(self) -> None:
        """Abort an open transaction, so that consumers need not wait; else release the partitions."""
        producer = self._producer
        if producer is not None and self._open_since is not None:
            self._at_last(producer.abort_transaction, "a transaction stays open until its timeout or the next start")
        elif producer is not None and self._last is not None and self._failure is None:
            part, generation = self._last

            def release() -> None:
                producer.begin_transaction()
                producer.send_offsets_to_transaction(_mirrored(part, "", generation), self._group)
                producer.commit_transaction()

            self._at_last(release, "for a while no other daemon can take over")
        super().close()

    @staticmethod
    def _at_last(call: Callable[[], object], otherwise: str) -> None:
        try:
            in_background(call).result(CLOSE_SECONDS)
        except (KafkaError, TimeoutError) as error:
            LOGGER.info("%s (%r)", otherwise, error)

    def explained(self, error: BaseException, size: int = 0, location: Location | None = None) -> SinkError:
        section = self.target.section
        if isinstance(error, TransactionalIdAuthorizationFailedError):
            return SinkError(
                f"{section}.transactional_id: {self._name!r} may not be used by this user; allow it WRITE and DESCRIBE "
                "on this transactional id, or set another one"
            )
        if "InvalidTransactionTimeout" in str(error):  # wrapped in a general error
            return SinkError(
                f"{section}.transaction_timeout_seconds: {self._timeout:g} is more than the brokers allow; lower it, "
                "or raise their transaction.max.timeout.ms"
            )
        if not isinstance(error, _ENDED):
            return super().explained(error, size, location)
        age = self._age()
        if age >= self._timeout:
            return SinkError(
                f"{section}: a transaction was open for {age:.0f} s, and brokers abort it after {self._timeout:g} s; "
                f"raise {section}.transaction_timeout_seconds well above checkpoint.every_seconds, or lower the "
                f"latter; {SETTLED}"
            )
        return SinkError(
            f"{section}: another daemon with transactional id {self._name!r} has taken over ({type(error).__name__}); "
            f"stop one of them, or give each its own {section}.transactional_id and group; {SETTLED}"
        )

    def _age(self) -> float:
        return 0.0 if self._open_since is None else time.monotonic() - self._open_since

    def _log_if_slow(self) -> None:
        age = self._age()
        if age > 0.5 * self._timeout and not self._slow:
            self._slow = True
            LOGGER.warning(
                "a transaction was open for %.0f s, and brokers abort it after %g s; raise "
                "%s.transaction_timeout_seconds, or lower checkpoint.every_seconds",
                age,
                self._timeout,
                self.target.section,
            )


def _mirrored(part: Position, owner: str, generation: int) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return the offsets of a Kafka source's position, with metadata that name their owner."""
    mirror = offset_metadata(owner, generation, time.time())
    return {
        TopicPartition(topic, int(number)): OffsetAndMetadata(offset, mirror, -1)
        for topic, found in part["topics"].items()
        for number, offset in found["partitions"].items()
    }


def kafka_part(position: Position | None) -> Position | None:
    """Return the part of a position that belongs to a Kafka source."""
    return next((part for part in parts_of(position) if part.get("kind") == "kafka"), None)
