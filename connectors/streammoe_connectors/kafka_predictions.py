"""Predictions as records of a Kafka topic, if wanted in one transaction with the position that they were made at."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from kafka import KafkaConsumer, OffsetAndMetadata, TopicPartition
from kafka.errors import (
    InvalidProducerEpochError,
    InvalidProducerIdMappingError,
    InvalidTxnStateError,
    KafkaError,
    KafkaTimeoutError,
    OutOfOrderSequenceNumberError,
    ProducerFencedError,
    TransactionalIdAuthorizationFailedError,
    UnknownProducerIdError,
)
from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator

from streammoe.errors import ConfigError, SinkError
from streammoe.ports import Position, Predictions, PredictionSink, Recovered
from streammoe.rows import json_rows
from streammoe_connectors.kafka_mirror import mirror_metadata, parse_mirror
from streammoe_connectors.kafka_producer import (
    CLOSE_SECONDS,
    FIRST_SECONDS,
    SETTLED,
    Delivery,
    Target,
    TopicProducer,
    borrowed,
    in_background,
    known_options,
)
from streammoe_connectors.kafka_settings import Connection, optional_servers

LOGGER = logging.getLogger("streammoe.kafka")
SECTION = "predictions"
IF_TOO_LARGE = "leave out what makes rows long: predictions.gate = false, predictions.interval = 0"


class KafkaPredictionSettings(Delivery, Connection):
    """The ``[predictions]`` section for Kafka.

    Attributes:
        topic: where to.
        bootstrap_servers: as in `Connection`; left out, the whole connection is that of the first Kafka source.
        transactional: whether predictions are seen (by consumers that read committed records only) exactly once, over
            crashes too: they become visible with the checkpoint that holds them, and not before.
        transactional_id: of the transactions; the same one for each run of a daemon, and for no other daemon.
            ``streammoe-<group>-<shard>`` of the source, unless set.
        transaction_timeout_seconds: after which the brokers end a transaction by themselves, and the daemon stops. A
            transaction is open from the first prediction after a checkpoint to the next checkpoint, so this must be
            well above ``checkpoint.every_seconds``, plus what a batch and the checkpoint take. Brokers allow up to
            their ``transaction.max.timeout.ms``, 900 s by default. After a crash consumers of committed records wait
            at most this long, or until the next start.
    """

    kind: Literal["kafka"]
    topic: str = Field(min_length=1, max_length=249, pattern=r"^[a-zA-Z0-9._-]+$")
    bootstrap_servers: Annotated[tuple[str, ...] | None, BeforeValidator(optional_servers)] = None  # type: ignore[assignment]
    transactional: bool = False
    transactional_id: str | None = Field(default=None, min_length=1)
    transaction_timeout_seconds: float = Field(default=600.0, ge=10.0)

    @field_validator("transactional_id")
    @classmethod
    def _needed(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None and info.data.get("transactional") is False:
            raise ValueError("must not be set unless predictions.transactional = true")
        return value


class KafkaPredictions(PredictionSink):
    """Sends each prediction as one JSON object, as `json_rows` has them.

    The key is that of the record that was predicted, so that a key's predictions are in order; of a record without one
    it is its place, as JSON. At least once: a restart may send rows again, with the same key, place and model version.
    With transactions exactly once, for consumers with ``isolation.level=read_committed``.

    Args:
        settings: of the section.
        sources: settings of the sources, the first Kafka one of which lends its connection, and for transactions its
            group.

    Raises:
        ConfigError: there is no connection, or no group to keep positions in.
        SinkError: the brokers answer, and the topic cannot be written.
    """

    Settings = KafkaPredictionSettings

    def __init__(self, settings: KafkaPredictionSettings, sources: Sequence[BaseModel]) -> None:
        self._settings = settings
        self._connection = borrowed(settings, SECTION, sources)
        self._encode = msgspec.json.Encoder().encode
        self._group = ""
        transactional: dict[str, Any] = {}
        if settings.transactional:
            self._group, self._id = _group_and_id(settings, sources)
            transactional = {
                "transactional_id": self._id,
                "transaction_timeout_ms": int(1000 * settings.transaction_timeout_seconds),
            }
        self._producer = TopicProducer(
            Target(SECTION, settings.topic, IF_TOO_LARGE), self._connection, settings, transactional
        )
        self._recovering: Any = None
        self._open_since: float | None = None
        self._warned = False
        if not settings.transactional and self._producer.connected(FIRST_SECONDS) is None:
            LOGGER.warning("%s: no broker answers yet; it will be waited for", SECTION)

    @property
    def transactional(self) -> bool:
        return self._settings.transactional

    # --- rows -------------------------------------------------------------------------------------------------------

    def write(self, rows: Predictions) -> None:
        if not len(rows):
            return
        producer = self._producer
        partitions = producer.partitions()
        if self.transactional:
            self._begin()
        keys = rows.keys if rows.keys is not None else [None] * len(rows)
        with_cure = self._fenced
        try:
            for row, key, place in zip(json_rows(rows), keys, rows.places, strict=True):
                producer.send(self._encode(row), key, place, partitions, [])
            producer.settle_what_has_arrived()
        except SinkError as error:
            raise with_cure(error) from error

    def flush(self) -> None:
        try:
            self._producer.flush()
        except SinkError as error:
            raise self._fenced(error) from error

    def close(self) -> None:
        producer = self._producer.connected(0.0) if self._open_since is not None else None
        if producer is not None:
            # Else consumers of committed records would wait for the transaction's time-out.
            aborting = in_background(producer.abort_transaction)
            try:
                aborting.result(CLOSE_SECONDS)
            except (KafkaError, TimeoutError) as error:
                LOGGER.info("%s: the open transaction ends by its time-out or the next start (%s)", SECTION, error)
        self._producer.close()

    # --- transactions -----------------------------------------------------------------------------------------------

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        if not self.transactional:
            return Recovered(None)
        if self._recovering is None:
            self._recovering = in_background(lambda: self._recover(position))
        try:
            found: Recovered = self._recovering.result(timeout)
        except TimeoutError:
            return None
        return found

    def _recover(self, position: Position | None) -> Recovered:
        """End what an earlier run has left open, and only then look at what it has committed."""
        producer = None
        while producer is None:
            producer = self._producer.connected(FIRST_SECONDS)
        while True:
            try:
                producer.init_transactions()
                break
            except KafkaTimeoutError:
                LOGGER.debug("%s: waiting for the coordinator of transactions", SECTION)
            except KafkaError as error:
                raise self._fenced(self._producer.fail(error)) from error
        return Recovered(self._committed(position))

    def _committed(self, position: Position | None) -> int | None:
        """The generation that the group was last told of by the owner of this position."""
        found = _kafka_position(position)
        if found is None:
            return None
        # "read_committed" lets the coordinator answer only once earlier transactions have left their mark.
        options = {
            **known_options(self._connection, KafkaConsumer.DEFAULT_CONFIG),
            "group_id": self._group,
            "enable_auto_commit": False,
            "isolation_level": "read_committed",
        }
        while True:
            try:
                consumer = KafkaConsumer(**options)
                try:
                    told = [
                        consumer.committed(TopicPartition(topic, int(number)), metadata=True, timeout_ms=30_000)
                        for topic, part in found["topics"].items()
                        for number in part["partitions"]
                    ]
                finally:
                    consumer.close(autocommit=False, timeout_ms=1_000)
                break
            except KafkaTimeoutError:
                LOGGER.debug("%s: waiting for the coordinator of group %s", SECTION, self._group)
            except KafkaError as error:
                raise self._producer.fail(error) from error
        mirrors = [parse_mirror(one.metadata) for one in told if one is not None]
        ours = [mirror.generation for mirror in mirrors if mirror is not None and mirror.owner == found["owner"]]
        return max(ours, default=None)

    def _begin(self) -> None:
        if self._open_since is None:
            try:
                self._producer.wait_connected().begin_transaction()
            except KafkaError as error:
                raise self._fenced(self._producer.fail(error)) from error
            self._open_since = time.monotonic()

    def commit(self, position: Position, generation: int) -> None:
        found = _kafka_position(position)
        if found is None or found["group"] != self._group:
            raise SinkError(
                f"{SECTION}.transactional: the checkpoint holds no position of group {self._group!r} to commit beside "
                f"the predictions; name the Kafka source as it was, or set {SECTION}.transactional = false"
            )
        mirror = mirror_metadata(found["owner"], generation, time.time())
        offsets = {
            TopicPartition(topic, int(number)): OffsetAndMetadata(offset, mirror, -1)
            for topic, part in found["topics"].items()
            for number, offset in part["partitions"].items()
        }
        self._begin()
        producer = self._producer.wait_connected()
        try:
            # The bare name: this group has no members, whose generation could be checked.
            self._producer.bounded(lambda: producer.send_offsets_to_transaction(offsets, self._group), "offsets")
            self._producer.bounded(producer.commit_transaction, "committing")
        except KafkaError as error:
            raise self._fenced(self._producer.fail(error)) from error
        self._tell_age()
        self._open_since = None

    def _tell_age(self) -> None:
        age = time.monotonic() - self._open_since if self._open_since is not None else 0.0
        if age > 0.5 * self._settings.transaction_timeout_seconds and not self._warned:
            self._warned = True
            LOGGER.warning(
                "%s: a transaction was open for %.0f s, and brokers end it after %g s; raise "
                "predictions.transaction_timeout_seconds or lower checkpoint.every_seconds",
                SECTION,
                age,
                self._settings.transaction_timeout_seconds,
            )

    def _fenced(self, error: SinkError) -> SinkError:
        """The same error, or what it means for a transaction."""
        cause = error.__cause__
        if not self.transactional or not isinstance(cause, KafkaError):
            return error
        return error


def _group_and_id(settings: KafkaPredictionSettings, sources: Sequence[BaseModel]) -> tuple[str, str]:
    source = next((source for source in sources if isinstance(source, Connection)), None)
    if source is None:
        raise ConfigError(
            "predictions.transactional: must be false without a source of kind kafka, in whose group the positions are "
            "committed beside the predictions"
        )
    group = str(source.group)  # type: ignore[attr-defined]
    return group, settings.transactional_id or f"streammoe-{group}"


def _kafka_position(position: Position | None) -> dict[str, Any] | None:
    """The part of a position that is of a Kafka source."""
    if position is None:
        return None
    if position.get("kind") == "chain":
        parts = (_kafka_position(part) for part in position["positions"])
        return next((part for part in parts if part is not None), None)
    return position if position.get("kind") == "kafka" else None
