"""Transactions that commit records together with the source offsets that they were computed at."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from streammoe.errors import SinkError, SourceError
from streammoe.ports import Position, Recovered, parts_of
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.consumer import ClusterUnavailableError
from streammoe_connectors.kafka.contract import Cause, ClientError, Outgoing, Producer, Transactional
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.offsets import OffsetMetadata, offsets_of
from streammoe_connectors.kafka.producer import CLOSE_TIMEOUT_SECONDS, TopicProducer
from streammoe_connectors.kafka.settings import Connection, client_options
from streammoe_connectors.kafka.source_settings import ReadingSettings

Result = TypeVar("Result")
_LOGGER = logging.getLogger("streammoe.kafka")


class TransactionalProducer(TopicProducer):
    """A producer whose records become visible with the next checkpoint.

    A transaction is only open while there are records: from the first one after a checkpoint to the next commit.

    Args:
        target: the topic.
        connection: to the cluster, which must also have the group.
        delivery: settings for sending.
        transactional: the transactional id, of whose producers the older one is fenced, the time-out, and the group.
    """

    def __init__(
        self, target: Target, connection: Connection, delivery: Delivery, transactional: Transactional
    ) -> None:
        self._group = transactional.group
        self._recovering: Future[Recovered] | None = None
        self._last_commit: tuple[Position, int] | None = None
        super().__init__(target, connection, delivery, transactional)

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        """See `PredictionSink.recover`."""
        if self._recovering is None:
            self._recovering = in_background(lambda: self._recover(position))
        try:
            return self._recovering.result(timeout)
        except TimeoutError:
            return None

    def _recover(self, position: Position | None) -> Recovered:
        own = kafka_part(position)
        while True:
            try:
                producer = self._connect(math.inf)
                self._until_answered(producer, partial(producer.transact, "init_transactions"))
                # Only now open transactions of an earlier run have ended, and commits in progress are complete.
                if own is None:
                    return Recovered(None)
                return Recovered(self._until_answered(producer, partial(self._committed_generation, own)))
            except ClientError as error:
                if error.cause is not Cause.REJECTED or self._closed.is_set():
                    raise self.fail(error) from error
                self._note_rejection(str(error))
                self._disconnect()

    def _until_answered(self, producer: Producer, call: Callable[[], Result]) -> Result:
        """Return the result of a call that its coordinator may have to be asked for several times."""
        while True:
            try:
                return call()
            except ClientError as error:
                if producer.rejections:
                    raise ClientError(Cause.REJECTED, producer.rejections[-1]) from error
                if error.cause is not Cause.NO_ANSWER or self._closed.is_set():
                    raise

    def _committed_generation(self, position: Position) -> int | None:
        """Return the last generation that the owner of this position committed to the group."""
        # With isolation level read_committed, its default, the coordinator answers only once transactions have ended.
        settings = ReadingSettings(topics=(self.target.topic,), group=self._group)
        try:
            consumer = self._client.create_consumer(client_options(self._connection), settings)
            try:
                found = consumer.committed(list(offsets_of(position)))
            finally:
                consumer.close()
        except ClusterUnavailableError as error:
            raise ClientError(Cause.NO_ANSWER, str(error)) from error
        except SourceError as error:
            raise ClientError(Cause.NOT_AUTHORIZED, str(error)) from error
        # An empty owner marks a daemon that has stopped. It was ours: our later commits have replaced any other.
        owners = {"", position["owner"]}
        marks = [mark for _, mark in found.values() if mark is not None and mark.owner in owners]
        return max((mark.checkpoint_generation for mark in marks), default=None)

    def send(self, record: Outgoing) -> None:
        self._begin()
        super().send(record)

    def _begin(self) -> None:
        """Open a transaction unless one is open; raise `SinkError` if that is no longer possible."""
        if self._open_since is None:
            try:
                self.connected().transact("begin_transaction")
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
        self._begin()
        producer = self.connected()
        try:
            self.answered(lambda: self._send_offsets(producer, own, own["owner"], generation), "sending offsets")
            self.answered(lambda: producer.transact("commit_transaction"), "committing a transaction")
        except ClientError as error:
            raise self.fail(error) from error
        self._open_since = None
        self._last_commit = (own, generation)

    def _send_offsets(self, producer: Producer, position: Position, owner: str, generation: int) -> None:
        metadata = OffsetMetadata(owner, time.time(), generation).encode()  # noqa: TID251 - as other machines see it
        producer.send_offsets(offsets_of(position), metadata)

    def close(self) -> None:
        """Abort an open transaction, so that consumers need not wait; else release the partitions."""
        producer, last = self._producer, self._last_commit
        end: Callable[[], object] | None = None
        if producer is None or (self._failure is not None and self._failure.retriable):
            pass  # it would not answer now either; the next one aborts its transaction
        elif self._open_since is not None:
            end = partial(producer.transact, "abort_transaction")
        elif last is not None and self._failure is None:
            end = partial(self._release, producer, *last)
        if end is not None:
            try:
                in_background(end).result(CLOSE_TIMEOUT_SECONDS)
            except (ClientError, TimeoutError) as error:
                _LOGGER.info("readers and other daemons wait for the time-outs of what was not released (%r)", error)
        super().close()

    def _release(self, producer: Producer, position: Position, generation: int) -> None:
        producer.transact("begin_transaction")
        self._send_offsets(producer, position, "", generation)
        producer.transact("commit_transaction")


def kafka_part(position: Position | None) -> Position | None:
    """Return the part of a position that belongs to a Kafka source."""
    return next((part for part in parts_of(position) if part.get("kind") == "kafka"), None)
