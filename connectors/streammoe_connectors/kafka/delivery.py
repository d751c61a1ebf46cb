"""Settings for writing to a topic."""

from __future__ import annotations

from typing import Literal, NamedTuple

from pydantic import BaseModel, Field

from streammoe_connectors.kafka.settings import Connection, Servers


class Delivery(BaseModel):
    """Settings for sending records, which docs/kafka.md explains."""

    compression: Literal["none", "gzip", "lz4", "zstd", "snappy"] = "none"
    linger_ms: int = Field(default=20, ge=0, le=10_000)
    batch_bytes: int = Field(default=1 << 17, ge=0, le=1 << 24)
    delivery_timeout_seconds: float = Field(default=120.0, ge=10.0, le=3600.0)


class TopicSettings(Delivery, Connection):
    """Settings of a sink that writes to a topic; without servers the whole connection is that of a Kafka source."""

    kind: Literal["kafka"]
    topic: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    bootstrap_servers: Servers | None = None  # type: ignore[assignment]


class Target(NamedTuple):
    """A topic to write to, and what messages say about it."""

    section: str
    """Section of the settings: ``predictions`` or ``dead_letters``."""
    topic: str
    if_too_large: str
    """Alternative advice for records that are too large for the topic."""
