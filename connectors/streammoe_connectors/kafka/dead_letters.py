"""Refused records as records of a Kafka topic."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from streammoe.ports import DeadLetter, DeadLetterSink
from streammoe_connectors.kafka.delivery import TOPIC_NAME, Delivery, Target, borrowed, check_topic
from streammoe_connectors.kafka.settings import Connection, servers

SECTION = "dead_letters"


class KafkaDeadLetterSettings(Delivery, Connection):
    """The ``[dead_letters]`` section for Kafka.

    Attributes:
        topic: where to; it must be there, unless brokers make topics by themselves. Its ``max.message.bytes`` must
            leave room for the longest record and a thousand bytes of headers.
        bootstrap_servers: as in `Connection`; left out, the whole connection is that of the first Kafka source.
    """

    kind: Literal["kafka"]
    topic: str = Field(pattern=TOPIC_NAME)
    bootstrap_servers: Annotated[tuple[str, ...] | None, BeforeValidator(servers)] = None  # type: ignore[assignment]


class KafkaDeadLetters(DeadLetterSink):
    """Sends each refused record with its own bytes as value, and why it was refused in headers.

    The headers are UTF-8 text: ``place`` (JSON), ``stage``, ``reason``, ``detail``, and where known ``format``,
    ``columns`` (JSON), ``run`` and ``events``, as told by `DeadLetter`. The key is the place. At least once: a restart
    may send a letter again, with the same key.

    Args:
        settings: of the section.
        sources: of which the first one of Kafka lends its connection.

    Raises:
        ConfigError: there is no connection.
        SinkError: a broker answers, and the topic is not there or may not be written.
    """

    Settings = KafkaDeadLetterSettings

    @staticmethod
    def check(settings: KafkaDeadLetterSettings, sources: Sequence[BaseModel], checkpoint: Any) -> None:  # noqa: ARG004
        """See that the section goes together with the sources; the settings of checkpoints do not matter.

        Raises:
            ConfigError: it does not.
        """
        check_topic(settings, settings.topic, SECTION, sources)

    def __init__(self, settings: KafkaDeadLetterSettings, sources: Sequence[BaseModel]) -> None:
        target = Target(SECTION, settings.topic, 'keep refused records in a file, by dead_letters.kind = "file"')
        connection = borrowed(settings, SECTION, sources)
        from streammoe_connectors.kafka.producer import TopicProducer  # with it comes kafka-python, which is optional

        self._producer = TopicProducer(target, connection, settings)
        self._producer.look()

    def write(self, letters: list[DeadLetter]) -> None:
        if not letters:
            return
        partitions = self._producer.partitions()
        for letter in letters:
            self._producer.send(letter.record, None, letter.place, partitions, _headers(letter))
        self._producer.settle_what_has_arrived()

    def flush(self) -> None:
        self._producer.flush()

    def close(self) -> None:
        self._producer.close()


def _headers(letter: DeadLetter) -> list[tuple[str, bytes]]:
    texts = {
        "place": json.dumps(letter.place, ensure_ascii=False),
        "stage": letter.stage,
        "reason": letter.reason,
        "detail": letter.detail,
        "format": letter.format,
        "columns": None if letter.columns is None else json.dumps(letter.columns, ensure_ascii=False),
        "run": letter.run,
        "events": None if letter.events is None else str(letter.events),
        "delimiter": letter.delimiter,
        "decimal": letter.decimal,
    }
    # Records that are no UTF-8 may have left halves of characters in what is said of them.
    return [(name, text.encode(errors="backslashreplace")) for name, text in texts.items() if text is not None]
