"""Write records to a Kafka topic, creating it if missing, and wait until all are acknowledged."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from streammoe.errors import ConfigError
from streammoe.ports import Message, RecordWriter
from streammoe.text import counted
from streammoe_connectors.kafka.clients import require_client
from streammoe_connectors.kafka.contract import Outgoing
from streammoe_connectors.kafka.delivery import Delivery, Target
from streammoe_connectors.kafka.producer import TopicProducer, size_of
from streammoe_connectors.kafka.settings import Connection

PATIENCE_SECONDS = 30.0
"""How long a broker may be unreachable once the first records are written."""
_CONNECT_SECONDS = 10.0


class WriterSettings(Delivery, Connection):
    """The settings of ``streammoe produce --config``: of a connection and of sending, as in ``[predictions]``."""


class TopicWriter(RecordWriter):
    """A writer to a topic, connected from construction to `close`.

    Args:
        servers: addresses of brokers, separated by commas.
        name: of the topic.
        partitions: of a new topic (1 by default); an existing topic must have as many. The replication factor of a new
            topic is the default of the brokers.
        low_latency: whether records come slowly, and should not wait for each other.
        settings: see `settings`; they override those chosen here.

    Raises:
        ConfigError: a setting is invalid, or the topic exists with another number of partitions.
        SinkError: no broker responds, or it rejects the topic.
    """

    def __init__(
        self, servers: str, name: str, *, partitions: int | None, low_latency: bool, settings: dict[str, Any]
    ) -> None:
        chosen = {"linger_ms": 5 if low_latency else 50, "batch_bytes": 1 << 18, **settings}
        given = _checked("--bootstrap-servers or --config", {"bootstrap_servers": servers, **chosen})
        if "delivery_timeout_seconds" not in settings:
            given = given.model_copy(update={"delivery_timeout_seconds": PATIENCE_SECONDS})
        require_client(given, "streammoe produce")
        self.acknowledged = 0
        """Records that the broker has acknowledged."""
        self._sent = 0
        self._oversized: list[tuple[int, int]] = []
        self._is_compressed = given.compression != "none"
        target = Target("produce", name, "remove such records from the file", "see how many records were written")
        self._producer = TopicProducer(target, given, given, create=partitions or 1)
        self._producer.connected(_CONNECT_SECONDS)
        n_existing = self._producer.topic.partitions
        if partitions is not None and partitions != n_existing:
            self.close()
            raise ConfigError(
                f"--partitions {partitions}: topic {name!r} exists already, with {n_existing}; omit the option, "
                "or choose another topic"
            )

    @staticmethod
    def settings(path: Path | None) -> dict[str, Any]:
        """Read settings of `WriterSettings`, such as those of TLS and SASL, from a TOML file; no message shows a value.

        Raises:
            ConfigError: the file cannot be read, or has an unknown or invalid setting.
        """
        if path is None:
            return {}
        try:
            settings = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(f"--config {path}: cannot be read ({error.strerror})") from error
        except ValueError:  # the parser's own message may quote a secret
            raise ConfigError(f"--config {path}: is not TOML; write a line such as security_protocol = 'SSL'") from None
        _checked(f"--config {path}", {"bootstrap_servers": "there:1", **settings})
        return settings

    def send(self, message: Message, number: int) -> None:
        record = Outgoing(message.value, message.key, {"record": number}, timestamp=message.timestamp)
        limit = self._producer.topic.max_bytes
        if limit is not None and not self._is_compressed and size_of(record) > limit:
            self._oversized.append((number, len(message.value) + len(message.key or b"")))
            return
        self._sent += 1
        self._producer.send(record)

    def flush(self) -> None:
        self._producer.flush()
        self.acknowledged = self._sent

    def oversized_report(self) -> str | None:
        if not self._oversized:
            return None
        number, size = self._oversized[0]
        which = "record" if len(self._oversized) == 1 else "first record"
        largest = max(size for _, size in self._oversized)
        return (
            f"topic {self._producer.target.topic!r}: {counted(len(self._oversized), 'record')} not written ({which} "
            f"{number}, {size:,} bytes): larger than its max.message.bytes, {self._producer.topic.max_bytes}, allows; "
            f"{self._producer.if_too_large(largest)}"
        )

    def close(self) -> None:
        """Close the connection; what was not flushed may be lost."""
        self._producer.close()


def _checked(where: str, settings: dict[str, Any]) -> WriterSettings:
    unknown = sorted(settings.keys() - WriterSettings.model_fields.keys())
    if unknown:
        raise ConfigError(
            *(f"{where}: {name} is not a setting of a Kafka connection, nor of sending" for name in unknown)
        )
    try:
        return WriterSettings.model_validate(settings)
    except ValidationError as error:
        # Without its input, which may be the secret.
        problems = [(part["loc"][0], part["msg"].removeprefix("Value error, ")) for part in error.errors()]
        raise ConfigError(*(f"{where}: {name}: {problem}" for name, problem in problems)) from None
