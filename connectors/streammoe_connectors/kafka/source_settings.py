"""The ``[source]`` section for Kafka."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from streammoe_connectors.kafka.settings import Connection
from streammoe_connectors.kafka.values import ValueSettings

STARTS = ("earliest", "latest", "committed")
MAX_PATTERN_LENGTH = 500
INTERNAL_PREFIX = "__"
"""What the names of Kafka's own topics begin with."""


def _check_topics(value: object) -> object:
    topics = [value] if isinstance(value, str) else value
    if not isinstance(topics, (list, tuple)) or not topics:
        raise ValueError("must be the name of a topic, or a list of names")
    for number, topic in enumerate(topics, 1):
        if not isinstance(topic, str) or not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", topic) or topic in {".", ".."}:
            raise ValueError(
                "must be names of topics (up to 249 letters, digits, '.', '_', '-'; for patterns use topics_pattern), "
                f"but entry {number} is {topic!r}"
            )
    if repeated := sorted({topic for topic in topics if topics.count(topic) > 1}):
        raise ValueError(f"must name each topic once, but repeats {', '.join(repeated)}")
    return tuple(topics)


def _check_pattern(value: object) -> object:
    if not isinstance(value, str) or not 0 < len(value) <= MAX_PATTERN_LENGTH:
        raise ValueError(f"must be a regular expression of at most {MAX_PATTERN_LENGTH} characters")
    try:
        re.compile(value)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"must be a regular expression, as Python reads them, and is not: {error}") from None
    return value


def _check_shard(value: object) -> object:
    parts = re.fullmatch(r"(\d{1,6})/(\d{1,6})", value) if isinstance(value, str) else None
    if parts is None or int(parts[1]) >= int(parts[2]):
        raise ValueError('must be like "0/4", the first of four shards')
    return f"{int(parts[1])}/{int(parts[2])}"


def _check_start(value: object) -> object:
    if isinstance(value, datetime):
        value = value.isoformat()
    if not isinstance(value, str) or (value not in STARTS and _timestamp_ms(value) is None):
        raise ValueError(f"must be one of {', '.join(STARTS)}, or a time like 2026-01-31T12:00:00Z")
    return value


def _timestamp_ms(text: str) -> int | None:
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    timestamp_ms = round((time if time.tzinfo is not None else time.replace(tzinfo=UTC)).timestamp() * 1000)
    return timestamp_ms if timestamp_ms >= 0 else None


class ReadingSettings(ValueSettings):
    """Settings for reading from a cluster, which docs/kafka.md#settings explains."""

    topics: Annotated[tuple[str, ...], BeforeValidator(_check_topics)] | None = None
    topics_pattern: Annotated[str, BeforeValidator(_check_pattern)] | None = None
    group: str = Field(min_length=1, max_length=249)
    start: Annotated[str, BeforeValidator(_check_start)] = "earliest"
    on_lost: Literal["fail", "earliest", "latest"] = "fail"
    until: Literal["never", "end"] = "never"
    shard: Annotated[str, BeforeValidator(_check_shard)] = "0/1"
    isolation: Literal["read_committed", "read_uncommitted"] = "read_committed"
    idle_ms: int = Field(default=100, ge=0, le=600_000)
    order_wait_ms: int = Field(default=10_000, ge=0, le=3_600_000)
    max_poll_records: int = Field(default=4_000, ge=1, le=1_000_000)
    partition_fetch_bytes: int = Field(default=1 << 20, ge=1_024, le=1 << 30)
    buffer_bytes: int = Field(default=64 << 20, ge=1 << 20)
    discover_seconds: float = Field(default=30.0, gt=0)
    stall_seconds: float = Field(default=60.0, gt=0)
    owner_seconds: float = Field(default=30.0, ge=1)

    @field_validator("topics_pattern")
    @classmethod
    def _check_either(cls, pattern: str | None, info: ValidationInfo) -> str | None:
        if "topics" in info.data and (pattern is None) == (info.data["topics"] is None):
            raise ValueError("must be set if source.topics is not, and must not be set if that is")
        return pattern

    def reads(self, topic: str) -> bool:
        """Whether this topic is named, or matches the pattern."""
        if self.topics_pattern is None:
            return topic in (self.topics or ())
        return not topic.startswith(INTERNAL_PREFIX) and re.fullmatch(self.topics_pattern, topic) is not None

    @property
    def start_timestamp_ms(self) -> int | None:
        """The time to start at, in milliseconds since 1970, if `start` is a time."""
        return None if self.start in STARTS else _timestamp_ms(self.start)

    def is_in_shard(self, partition: int) -> bool:
        """Whether this partition belongs to the shard."""
        index, count = map(int, self.shard.split("/"))
        return partition % count == index


class KafkaSettings(Connection, ReadingSettings):
    """The ``[source]`` section for Kafka."""

    kind: Literal["kafka"]
