"""A Kafka topic as sink for predictions."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, ValidationInfo

from streammoe.errors import ConfigError
from streammoe.ports import Predictions, PredictionSink
from streammoe.rows import json_lines
from streammoe_connectors.conditions import Text
from streammoe_connectors.kafka.contract import Outgoing, Transactional
from streammoe_connectors.kafka.settings import KafkaSettings, TopicSettings
from streammoe_connectors.kafka.topic_sink import TopicSink


def _check_transactional_id(name: str | None, info: ValidationInfo) -> str | None:
    if name is not None and info.data.get("transactional") is False:
        raise ValueError("must not be set unless predictions.transactional = true")
    return name


class KafkaPredictionSettings(TopicSettings):
    """The ``[predictions]`` section for Kafka, with the settings that all kinds share; see docs/kafka.md.

    A transaction is open from the first prediction after a checkpoint to the next checkpoint, so its time-out must
    exceed ``checkpoint.every_seconds`` by more than a batch and a checkpoint take.
    """

    transactional: bool = False
    transactional_id: Annotated[Text | None, AfterValidator(_check_transactional_id)] = None
    transaction_timeout_seconds: float = Field(default=600.0, ge=10.0)


class KafkaPredictions(TopicSink, PredictionSink):
    """A sink that sends each prediction as a JSON object, see `json_lines`; non-finite numbers are null.

    The key is that of the predicted record, so that predictions for a key are in order; or its location as JSON if it
    has none. At least once: a restart may send rows again, with the same key, location and model version. Exactly once
    with transactions.
    """

    Settings = KafkaPredictionSettings
    section = "predictions"
    if_too_large = "make rows shorter by predictions.gate = false or predictions.interval = 0"

    @classmethod
    def check(cls, settings: KafkaPredictionSettings, source: BaseModel, checkpoint: Any) -> None:
        """Raise `ConfigError` if the section conflicts with others."""
        super().check(settings, source, checkpoint)
        if not settings.transactional:
            return
        _of_kafka(source)
        if checkpoint.keep < 2:
            raise ConfigError(
                f"checkpoint.keep: must be at least 2 if predictions are transactional, got {checkpoint.keep}; after a "
                "crash between a checkpoint and its transaction the one before is needed"
            )
        if settings.transaction_timeout_seconds < 2 * checkpoint.every_seconds:
            raise ConfigError(
                "predictions.transaction_timeout_seconds: must be at least twice checkpoint.every_seconds = "
                f"{checkpoint.every_seconds:g}, while a transaction is open, got "
                f"{settings.transaction_timeout_seconds:g}; raise it, or lower the latter"
            )

    def __init__(self, settings: KafkaPredictionSettings, source: BaseModel) -> None:
        transactional = None
        if settings.transactional:
            group, shard = _of_kafka(source).group, _of_kafka(source).shard
            name = settings.transactional_id or f"streammoe-{group}-{shard}"
            transactional = Transactional(name, settings.transaction_timeout_seconds, group)
        super().__init__(settings, source, transactional)

    def write(self, rows: Predictions) -> None:
        keys = [None] * len(rows) if rows.keys is None else rows.keys
        for line, key, location in zip(json_lines(rows).splitlines(), keys, rows.locations, strict=True):
            self.send(self.keyless(line, location) if key is None else Outgoing(line, key, location))
        self.check_delivered()


def _of_kafka(source: BaseModel) -> KafkaSettings:
    """Return the settings of a source of Kafka; raise `ConfigError` for those of another."""
    if not isinstance(source, KafkaSettings):
        raise ConfigError(
            "predictions.transactional: must be false without a source of kind kafka, since the position is committed "
            "to its group together with the predictions"
        )
    return source
