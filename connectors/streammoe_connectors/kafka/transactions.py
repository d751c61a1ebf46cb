"""Transactions that commit records together with the source offsets that they were computed at."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from streammoe.errors import RetriableSinkError, SinkError
from streammoe.ports import Location, Position, Recovered, parts_of
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.clients import Cause, ClientError, Producer, Transactional
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.offsets import OffsetMetadata, offsets_of
from streammoe_connectors.kafka.producer import (
    CLOSE_TIMEOUT_SECONDS,
    FIRST_WAIT_SECONDS,
    LOG_INTERVAL_SECONDS,
    NOTHING_LOST,
    TopicProducer,
)
from streammoe_connectors.kafka.settings import Connection

Result = TypeVar("Result")
_LOGGER = logging.getLogger("streammoe.kafka")

ANSWER_SECONDS = 10.0
"""Time without an answer after which a producer is given up, for a new one to take over its transactions."""


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
        self._group = group
        self._name = name
        self._timeout = timeout
        self._recovering: Future[Recovered] | None = None
        self._recovering_since = 0.0
        self._next_report_at = 0.0
        self._open_since: float | None = None
        self._warned_of_slow_commit = False
        self._last_commit: tuple[Position, int] | None = None
        super().__init__(
            target,
            connection,
            delivery,
            Transactional(name, timeout),
            give_up_seconds=ANSWER_SECONDS,
        )

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        """See `PredictionSink.recover`."""
        if self._recovering is None:
            self._recovering = in_background(lambda: self._recover(position))
            self._recovering_since = time.monotonic()
            self._next_report_at = self._recovering_since + FIRST_WAIT_SECONDS
        try:
            return self._recovering.result(timeout)
        except TimeoutError:
            now = time.monotonic()
            if now >= self._next_report_at:
                self._next_report_at = now + LOG_INTERVAL_SECONDS
                _LOGGER.warning(
                    "%s: no broker of %s has returned the committed offsets for %.0f s; still waiting",
                    self.target.section,
                    self._servers,
                    now - self._recovering_since,
                )
            return None

    def _recover(self, position: Position | None) -> Recovered:
        producer = None
        while producer is None:
            producer = self.connect(FIRST_WAIT_SECONDS)
        self._take_over(producer)
        # Only now open transactions of an earlier run have ended, and commits in progress are complete.
        own = kafka_part(position)
        return Recovered(None if own is None else self._committed_generation(own))

    def _take_over(self, producer: Producer) -> None:
        self._until_answered(producer.init_transactions, f"transactional id {self._name!r}")

    def _until_answered(self, call: Callable[[], Result], what: str) -> Result:
        """Return the result of a call that its coordinator may have to be asked for several times."""
        while True:
            try:
                return call()
            except ClientError as error:
                if error.cause is not Cause.NO_ANSWER:
                    raise self.fail(error) from error
                if self._closed.is_set():
                    raise self.as_sink_error(error) from error
                _LOGGER.debug("%s: its coordinator has not responded yet", what)

    def _committed_generation(self, position: Position) -> int | None:
        """Return the last generation that the owner of this position committed to the group."""
        partitions = list(offsets_of(position))
        texts = self._until_answered(
            lambda: self._client.committed_metadata(self._options, self._group, partitions), f"group {self._group!r}"
        )
        metadata = [OffsetMetadata.parse(text) for text in texts]
        # An empty owner marks a daemon that has stopped. It was ours: our later commits have replaced any other.
        owners = {"", position["owner"]}
        ours = [each.checkpoint_generation for each in metadata if each is not None and each.owner in owners]
        return max(ours, default=None)

    def begin(self) -> None:
        """Open a transaction unless one is open; raise `SinkError` if that is no longer possible."""
        if self._open_since is None:
            producer = self.wait_connected()
            try:
                producer.begin_transaction()
            except ClientError as error:
                raise self.fail(error) from error
            self._open_since = time.monotonic()

    def commit(self, position: Position, generation: int) -> None:
        """See `PredictionSink.commit`."""
        own = kafka_part(position)
        if own is None or own["group"] != self._group:
            section = self.target.section
            raise SinkError(
                f"{section}.transactional: the checkpoint holds no position of group {self._group!r} to commit with "
                f"the {section}; configure the Kafka source as it was, or set {section}.transactional = false"
            )
        self.begin()
        producer = self.wait_connected()
        try:
            self.call_with_timeout(
                lambda: self._send_offsets(producer, own, own["owner"], generation), "sending offsets"
            )
            self.call_with_timeout(producer.commit_transaction, "committing a transaction")
        except ClientError as error:
            raise self.fail(error) from error
        self._log_if_slow()
        self._open_since = None
        self._last_commit = (own, generation)

    def _send_offsets(self, producer: Producer, position: Position, owner: str, generation: int) -> None:
        metadata = OffsetMetadata(owner, time.time(), generation).encode()
        producer.send_offsets(offsets_of(position), metadata, self._group)

    def close(self) -> None:
        """Abort an open transaction, so that consumers need not wait; else release the partitions."""
        producer = self._producer
        if self._failure is not None and self._failure.retriable:
            pass  # it would not answer now either; the next one aborts its transaction
        elif producer is not None and self._open_since is not None:
            self._run_before_close(
                producer.abort_transaction, "a transaction stays open until its timeout or the next start"
            )
        elif producer is not None and self._last_commit is not None and self._failure is None:
            position, generation = self._last_commit

            def release() -> None:
                producer.begin_transaction()
                self._send_offsets(producer, position, "", generation)
                producer.commit_transaction()

            self._run_before_close(release, "for a while no other daemon can take over")
        super().close()

    @staticmethod
    def _run_before_close(call: Callable[[], object], otherwise: str) -> None:
        try:
            in_background(call).result(CLOSE_TIMEOUT_SECONDS)
        except (ClientError, TimeoutError) as error:
            _LOGGER.info("%s (%r)", otherwise, error)

    def as_sink_error(self, error: ClientError, size: int = 0, location: Location | None = None) -> SinkError:
        section = self.target.section
        if error.cause is Cause.TRANSACTIONAL_ID_NOT_AUTHORIZED:
            return SinkError(
                f"{section}.transactional_id: {self._name!r} may not be used by this user; allow it WRITE and DESCRIBE "
                "on this transactional id, or set another one"
            )
        if error.cause is Cause.TRANSACTION_TIMEOUT_TOO_LONG:
            return SinkError(
                f"{section}.transaction_timeout_seconds: {self._timeout:g} is more than the brokers allow; lower it, "
                "or raise their transaction.max.timeout.ms"
            )
        if error.retriable:
            return RetriableSinkError(
                f"{section}: {self._servers} has not answered the producer of transactional id {self._name!r} ({error})"
            )
        if error.cause is not Cause.TRANSACTION_ENDED:
            return super().as_sink_error(error, size, location)
        age = self._transaction_age()
        if age >= self._timeout:
            return SinkError(
                f"{section}: a transaction was open for {age:.0f} s, and brokers abort it after {self._timeout:g} s; "
                f"raise {section}.transaction_timeout_seconds well above checkpoint.every_seconds, or lower the "
                f"latter; {NOTHING_LOST}"
            )
        return SinkError(
            f"{section}: another daemon with transactional id {self._name!r} has taken over ({error}); "
            f"stop one of them, or give each its own {section}.transactional_id and group; {NOTHING_LOST}"
        )

    def _transaction_age(self) -> float:
        return 0.0 if self._open_since is None else time.monotonic() - self._open_since

    def _log_if_slow(self) -> None:
        age = self._transaction_age()
        if age > 0.5 * self._timeout and not self._warned_of_slow_commit:
            self._warned_of_slow_commit = True
            _LOGGER.warning(
                "a transaction was open for %.0f s, and brokers abort it after %g s; raise "
                "%s.transaction_timeout_seconds, or lower checkpoint.every_seconds",
                age,
                self._timeout,
                self.target.section,
            )


def kafka_part(position: Position | None) -> Position | None:
    """Return the part of a position that belongs to a Kafka source."""
    return next((part for part in parts_of(position) if part.get("kind") == "kafka"), None)
