"""A Kafka topic as sink for rejected records."""

from __future__ import annotations

import json

from streammoe.ports import DeadLetter, DeadLetterSink
from streammoe_connectors.kafka.contract import Outgoing
from streammoe_connectors.kafka.settings import TopicSettings
from streammoe_connectors.kafka.topic_sink import DEFAULT_MAX_BYTES, TopicSink, size_of

HEADER_PREFIX = "header."
"""Prefix of the names of a record's own headers in its letter, so that they cannot be mistaken for ours."""
NULL_PREFIX = "null-header."
"""Prefix of those of headers without a value, which kafka-python cannot write; they are empty in letters."""
CUT = "cut_bytes"
"""The header with the number of bytes that a record has beyond those in the value."""


class KafkaDeadLetters(TopicSink, DeadLetterSink):
    """A sink that sends the bytes of each rejected record as value, with the reason in headers.

    The headers are UTF-8 text: ``place`` (JSON), ``stage``, ``reason``, ``detail``, and where known ``format``,
    ``columns`` (JSON), ``delimiter``, ``decimal`` and ``omitted_bytes``, see `DeadLetter`. The record's own key is the
    header ``key``, and its headers are those with `HEADER_PREFIX` in front of their names. The key is the
    location. Of a record that exceeds the topic's ``max.message.bytes`` the beginning is the value, and ``cut_bytes``
    counts the rest; the topic must have room for its key and headers (up to 32 KiB), and a thousand bytes. At least
    once: a restart may send a letter again, with the same key.
    """

    Settings = TopicSettings
    section = "dead_letters"
    if_too_large = 'keep rejected records in a file, by dead_letters.kind = "file"'

    def write(self, letters: list[DeadLetter]) -> None:
        for letter in letters:
            self.send(self._record_of(letter))
        self.check_delivered()

    def _record_of(self, letter: DeadLetter) -> Outgoing:
        record = self.keyless(letter.record, letter.location, headers_of(letter))
        excess = size_of(record) - (self.topic.max_bytes or DEFAULT_MAX_BYTES)
        if excess <= 0:
            return record
        kept = letter.record[: max(0, len(letter.record) - excess - 40)]  # and for the header
        headers = headers_of(letter._replace(format=None))
        headers.append((CUT, str(len(letter.record) - len(kept)).encode()))
        return record._replace(value=kept, headers=headers)


def headers_of(letter: DeadLetter) -> list[tuple[str, bytes]]:
    """Return the headers of a letter in a topic."""
    texts = {
        "place": json.dumps(letter.location, ensure_ascii=False),
        "stage": letter.stage,
        "reason": letter.reason,
        "detail": letter.detail,
        "format": letter.format,
        "columns": None if letter.columns is None else json.dumps(letter.columns, ensure_ascii=False),
        "delimiter": letter.delimiter,
        "decimal": letter.decimal,
        "omitted_bytes": None if letter.omitted_bytes is None else str(letter.omitted_bytes),
    }
    # The detail of a record that is not UTF-8 may contain lone surrogates.
    own = [(name, text.encode(errors="backslashreplace")) for name, text in texts.items() if text is not None]
    key = [] if letter.key is None else [("key", letter.key)]
    given = [
        (NULL_PREFIX + name, b"") if value is None else (HEADER_PREFIX + name, value)
        for name, value in letter.headers or ()
    ]
    return [*own, *key, *given]
