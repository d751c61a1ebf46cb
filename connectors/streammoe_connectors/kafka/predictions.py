"""Predictions as records of a Kafka topic."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, Field, ValidationInfo, field_validator

from streammoe.errors import ConfigError
from streammoe.ports import Position, Predictions, PredictionSink, Recovered
from streammoe.rows import json_rows
from streammoe_connectors.kafka.delivery import TOPIC_NAME, Delivery, Target, borrowed, check_topic
from streammoe_connectors.kafka.settings import Connection, servers

if TYPE_CHECKING:  # with them comes kafka-python, which is optional
    from streammoe_connectors.kafka.producer import TopicProducer
    from streammoe_connectors.kafka.transactions import TransactionalProducer

LOGGER = logging.getLogger("streammoe.kafka")
SECTION = "predictions"


class KafkaPredictionSettings(Delivery, Connection):
    """The ``[predictions]`` section for Kafka; what predictions hold is told by the settings that all kinds share.

    Attributes:
        topic: where to; it must be there, unless brokers make topics by themselves.
        bootstrap_servers: as in `Connection`; left out, the whole connection is that of the first Kafka source.
        transactional: whether predictions are seen exactly once, over crashes too, by consumers that read only what is
            committed: they are seen with the checkpoint that follows them, and not before. Needs a Kafka source on the
            same cluster.
        transactional_id: of the transactions: the same in each run of a daemon, and no other daemon's. By default
            ``streammoe-<group>-<shard>``, of the source.
        transaction_timeout_seconds: after which brokers end a transaction by themselves, and the daemon stops. One is
            open from the first prediction after a checkpoint to the next checkpoint, so this must be well above
            ``checkpoint.every_seconds``, by what a batch and a checkpoint take. Brokers allow up to their
            ``transaction.max.timeout.ms``, 900 s unless set. After a crash, consumers that read only what is committed
            wait until the next start, or at most this long.
    """

    kind: Literal["kafka"]
    topic: str = Field(pattern=TOPIC_NAME)
    bootstrap_servers: Annotated[tuple[str, ...] | None, BeforeValidator(servers)] = None  # type: ignore[assignment]
    transactional: bool = False
    transactional_id: str | None = Field(default=None, min_length=1)
    transaction_timeout_seconds: float = Field(default=600.0, ge=10.0)

    @field_validator("transactional_id")
    @classmethod
    def _needed(cls, name: str | None, info: ValidationInfo) -> str | None:
        if name is not None and info.data.get("transactional") is False:
            raise ValueError("must not be set unless predictions.transactional = true")
        return name


class KafkaPredictions(PredictionSink):
    """Sends each prediction as a JSON object, see `json_rows`; numbers that are not finite are null.

    The key is that of the record that was predicted, so that what belongs to a key is in order; of a record without one
    it is its place, as JSON. At least once: a restart may send rows again, with the same key, place and model version;
    with transactions exactly once.

    Args:
        settings: of the section.
        sources: of which the first one of Kafka lends its connection, and for transactions its group.

    Raises:
        ConfigError: there is no connection, or no group to keep positions in.
        SinkError: a broker answers, and the topic is not there or may not be written.
    """

    Settings = KafkaPredictionSettings

    @staticmethod
    def check(settings: KafkaPredictionSettings, sources: Sequence[BaseModel], checkpoint: Any) -> None:
        """See that the section goes together with others.

        Raises:
            ConfigError: it does not.
        """
        check_topic(settings, settings.topic, SECTION, sources)
        if not settings.transactional:
            return
        _group(sources)
        if checkpoint.keep < 2:
            raise ConfigError(
                f"checkpoint.keep: must be at least 2 where predictions are transactional, got {checkpoint.keep}; a "
                "crash between a checkpoint and its transaction goes back to the one before"
            )
        if settings.transaction_timeout_seconds < 2 * checkpoint.every_seconds:
            raise ConfigError(
                "predictions.transaction_timeout_seconds: must be at least twice checkpoint.every_seconds = "
                f"{checkpoint.every_seconds:g}, for which a transaction is open, got "
                f"{settings.transaction_timeout_seconds:g}; raise it, or lower the other"
            )

    def __init__(self, settings: KafkaPredictionSettings, sources: Sequence[BaseModel]) -> None:
        connection = borrowed(settings, SECTION, sources)
        from streammoe_connectors.kafka.producer import TopicProducer
        from streammoe_connectors.kafka.transactions import TransactionalProducer

        target = Target(
            SECTION, settings.topic, "make rows shorter by predictions.gate = false or predictions.interval = 0"
        )
        self._encode = msgspec.json.Encoder().encode
        self._transactions: TransactionalProducer | None = None
        if settings.transactional:
            group, name = _group(sources)
            self._transactions = TransactionalProducer(
                target,
                connection,
                settings,
                group=group,
                name=settings.transactional_id or name,
                timeout=settings.transaction_timeout_seconds,
            )
            self._producer: TopicProducer = self._transactions
        else:
            self._producer = TopicProducer(target, connection, settings)
            self._producer.look()

    def write(self, rows: Predictions) -> None:
        if not len(rows):
            return
        partitions = self._producer.partitions()
        if self._transactions is not None:
            self._transactions.begin()
        keys = [None] * len(rows) if rows.keys is None else rows.keys
        for row, key, place in zip(json_rows(rows), keys, rows.places, strict=True):
            self._producer.send(self._encode(row), key, place, partitions)
        self._producer.settle_what_has_arrived()

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()

    @property
    def transactional(self) -> bool:
        return self._transactions is not None

    def recover(self, timeout: float, position: Position | None) -> Recovered | None:
        return Recovered(None) if self._transactions is None else self._transactions.recover(timeout, position)

    def commit(self, position: Position, generation: int) -> None:
        if self._transactions is not None:
            self._transactions.commit(position, generation)


def _group(sources: Sequence[BaseModel]) -> tuple[str, str]:
    """The group of the first Kafka source, and what to call its transactions."""
    source = next((source for source in sources if isinstance(source, Connection)), None)
    if source is None:
        raise ConfigError(
            "predictions.transactional: must be false without a source of kind kafka, in whose group the position is "
            "committed together with the predictions"
        )
    group, shard = (getattr(source, name) for name in ("group", "shard"))
    return group, f"streammoe-{group}-{shard}"
