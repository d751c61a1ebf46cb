"""Write records to a Kafka topic, creating it if missing, and wait until all are acknowledged."""

from __future__ import annotations

import logging
import re
import tomllib
from collections import deque
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from streammoe.errors import ConfigError, SinkError, not_installed
from streammoe.ports import Message, RecordWriter
from streammoe.text import counted

try:
    from kafka import KafkaAdminClient, KafkaProducer
    from kafka import errors as kafka_errors
    from kafka.admin import ConfigResource, ConfigResourceType
except ModuleNotFoundError as error:  # the extra is optional
    raise not_installed("streammoe produce", "kafka-python", "kafka") from error

_KAFKA_PYTHON_LOGGER = logging.getLogger("kafka")
CONNECT_TIMEOUT_MS = 10_000
"""Time within which a broker must respond at the start."""
DELIVERY_TIMEOUT_MS = 30_000
"""How long a broker may be unreachable."""
ACK_TIMEOUT_SECONDS = 2 * DELIVERY_TIMEOUT_MS / 1000
"""Time within which a record is either acknowledged or has failed."""
BATCH_BYTES = 1 << 18
MAX_REQUEST_BYTES = 64 << 20
"""Large enough for the topic's own limit to apply."""
TOO_LARGE_ERRORS = (kafka_errors.MessageSizeTooLargeError, kafka_errors.RecordListTooLargeError)
MAX_MESSAGE_BYTES = "max.message.bytes"
"""The topic setting that limits a batch."""
RECORDS_PER_WINDOW = 2_000
MAX_WINDOWS = 20
"""Limit of unacknowledged records, in windows; the client itself has none."""
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
RESERVED_SETTINGS = {
    "acks",
    "bootstrap_servers",
    "enable_idempotence",
    "key_serializer",
    "sasl_oauth_token_provider",
    "transactional_id",
    "value_serializer",
}
"""Settings of the client that users may not choose here."""


class _ClientLog(logging.Handler):
    """A handler that absorbs kafka-python's log, a flood while it cannot connect, and keeps the first reason."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.first: str | None = None

    def emit(self, record: logging.LogRecord) -> None:
        self.first = self.first or re.sub(r"^<.*?>: ", "", record.getMessage())


class _SentRecord(NamedTuple):
    """A record that may not be acknowledged yet."""

    number: int
    size: int
    """In bytes, of key and value."""


class TopicWriter(RecordWriter):
    """A writer to a topic, connected from construction to `close`.

    Args:
        servers: addresses of brokers, separated by commas.
        name: of the topic.
        partitions: of a new topic (1 by default); an existing topic must have as many. The replication factor of a new
            topic is the default of the brokers.
        low_latency: whether records come slowly, and should not wait for each other.
        settings: of kafka-python; they override those chosen here.

    Raises:
        ConfigError: a setting is invalid, or the topic exists with another number of partitions.
        SinkError: no broker responds, or it rejects the topic.
    """

    def __init__(
        self, servers: str, name: str, *, partitions: int | None, low_latency: bool, settings: dict[str, Any]
    ) -> None:
        self._servers = servers
        self._name = name
        self._unacknowledged: deque[list[tuple[Any, _SentRecord]]] = deque([[]])
        self.acknowledged = 0
        """Records that the broker has acknowledged."""
        self._max_message_bytes: int | None = None  # the topic's limit for a batch in bytes, if known
        self._oversized: list[_SentRecord] = []  # records that are too large
        self._client_log = _ClientLog()
        _KAFKA_PYTHON_LOGGER.addHandler(self._client_log)
        try:
            self._producer = self._create_producer(partitions, low_latency, settings)
        except BaseException:
            _KAFKA_PYTHON_LOGGER.removeHandler(self._client_log)
            raise

    @staticmethod
    def settings(path: Path | None) -> dict[str, Any]:
        """Read settings of kafka-python, such as those of TLS and SASL, from a TOML file; no message shows a value.

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
        known = KafkaProducer.DEFAULT_CONFIG.keys() - RESERVED_SETTINGS
        if unknown := sorted(settings.keys() - known):
            raise ConfigError(
                *(f"--config {path}: {name} is not a setting of the producer that can be set here" for name in unknown)
            )
        if settings.get("security_protocol", "PLAINTEXT") not in PROTOCOLS:
            # kafka-python would treat any other word as PLAINTEXT, and send passwords unencrypted.
            raise ConfigError(f"--config {path}: security_protocol must be one of {', '.join(PROTOCOLS)}")
        if settings.get("sasl_mechanism") == "OAUTHBEARER":
            raise ConfigError(
                f"--config {path}: sasl_mechanism must not be OAUTHBEARER, which kafka-python, the client of this "
                "command, does not have without code; log in by another mechanism, or write with another tool"
            )
        return settings

    def _create_producer(self, partitions: int | None, low_latency: bool, settings: dict[str, Any]) -> Any:
        common = {"bootstrap_servers": self._servers.split(","), "bootstrap_timeout_ms": CONNECT_TIMEOUT_MS, **settings}
        try:
            self._ensure_topic(partitions, common)
            limit = MAX_REQUEST_BYTES
            if self._max_message_bytes is not None and settings.get("compression_type") is None:
                limit = min(limit, self._max_message_bytes)  # a larger batch may fit if it is compressed
            return KafkaProducer(
                **{
                    "linger_ms": 5 if low_latency else 50,
                    "batch_size": min(BATCH_BYTES, limit),
                    "delivery_timeout_ms": DELIVERY_TIMEOUT_MS,
                    "request_timeout_ms": DELIVERY_TIMEOUT_MS // 2,
                    "max_block_ms": CONNECT_TIMEOUT_MS,
                    **common,
                    "max_request_size": min(limit, settings.get("max_request_size", limit)),
                }
            )
        except kafka_errors.KafkaError as error:
            raise self._as_sink_error(error) from error
        except ConfigError:
            raise
        except (AssertionError, TypeError, ValueError, OSError):
            # Messages of kafka-python may quote values.
            raise ConfigError(
                "kafka-python cannot use these settings; see --config, "
                f"--bootstrap-servers {self._servers!r} and --topic {self._name!r}"
            ) from None

    def send(self, message: Message, number: int) -> None:
        size = len(message.value) + len(message.key or b"")
        try:
            future = self._producer.send(self._name, message.value, key=message.key, timestamp_ms=message.timestamp)
        except kafka_errors.MessageSizeTooLargeError:
            self._oversized.append(_SentRecord(number, size))
            return
        except kafka_errors.KafkaError as error:
            raise self._as_sink_error(error) from error
        newest = self._unacknowledged[-1]
        newest.append((future, _SentRecord(number, size)))
        if len(newest) == RECORDS_PER_WINDOW:
            self._unacknowledged.append([])
            if len(self._unacknowledged) > MAX_WINDOWS:
                self._await_window()

    def flush(self) -> None:
        # The client sends everything after ``linger_ms``.
        while self._unacknowledged:
            self._await_window()

    def close(self) -> None:
        """Close the connection; what was not flushed may be lost."""
        # `KafkaProducer.close` alone would wait for undeliverable records, and fail.
        self._producer._sender.force_close()  # noqa: SLF001
        try:
            self._producer.close(timeout=1)
        finally:
            _KAFKA_PYTHON_LOGGER.removeHandler(self._client_log)

    def oversized_report(self) -> str | None:
        if not self._oversized:
            return None
        first = self._oversized[0]
        which = "record" if len(self._oversized) == 1 else "first record"
        what = f"{counted(len(self._oversized), 'record')} not written ({which} {first.number}, {first.size:,} bytes)"
        largest = max(self._oversized, key=attrgetter("size"))
        return f"topic {self._name!r}: {what}: {self._too_large(largest.size)}"

    def _too_large(self, size: int) -> str:
        max_size = self._producer.config["max_request_size"]
        if max_size < min(MAX_REQUEST_BYTES, self._max_message_bytes or MAX_REQUEST_BYTES):
            return (
                f"larger than max_request_size, {max_size}, of the client allows; raise that by --config, or "
                "remove such records from the file"
            )
        limit = f", {self._max_message_bytes}," if self._max_message_bytes else ""
        return (
            f"larger than its {MAX_MESSAGE_BYTES}{limit} allows; raise that (kafka-configs.sh --alter --entity-type "
            f"topics --entity-name {self._name} --add-config {MAX_MESSAGE_BYTES}={2 * size + 1024}), or "
            "remove such records from the file"
        )

    def _ensure_topic(self, partitions: int | None, common: dict[str, Any]) -> None:
        known = KafkaAdminClient.DEFAULT_CONFIG
        admin = KafkaAdminClient(**{name: value for name, value in common.items() if name in known})
        try:
            if self._name not in admin.list_topics():
                new = {"num_partitions": partitions or 1, "replication_factor": -1}  # the brokers' default
                with suppress(kafka_errors.TopicAlreadyExistsError):  # created by another process meanwhile
                    admin.create_topics({self._name: new}, timeout_ms=CONNECT_TIMEOUT_MS, wait_for_metadata=True)
            n_existing = len(admin.describe_topics([self._name])[0]["partitions"])
            with suppress(kafka_errors.KafkaError, KeyError):  # a user allowed to write need not see settings
                resource = ConfigResource(ConfigResourceType.TOPIC, self._name, {MAX_MESSAGE_BYTES: None})
                configs = admin.describe_configs([resource], config_filter="all")
                self._max_message_bytes = int(configs["topic"][self._name][MAX_MESSAGE_BYTES]["value"])
        finally:
            admin.close()
        if partitions is not None and partitions != n_existing:
            raise ConfigError(
                f"--partitions {partitions}: topic {self._name!r} exists already, with {n_existing}; omit the option, "
                "or choose another topic"
            )

    def _await_window(self) -> None:
        window = deque(self._unacknowledged.popleft())
        while window:
            future, sent = window.popleft()
            try:
                future.get(ACK_TIMEOUT_SECONDS)
            except TOO_LARGE_ERRORS as error:
                # It ends kafka-python's idempotent producer, which fails all unacknowledged records alike.
                unacknowledged = [sent, *(later for records in (window, *self._unacknowledged) for _, later in records)]
                largest = max(unacknowledged, key=attrgetter("size"))
                raise SinkError(
                    f"topic {self._name!r}: it stopped at record {largest.number} ({largest.size:,} bytes), which is "
                    f"{self._too_large(largest.size)}; {self.acknowledged:,} records had been acknowledged"
                ) from error
            except kafka_errors.KafkaError as error:
                raise self._as_sink_error(error) from error
            self.acknowledged += 1

    def _as_sink_error(self, error: Exception) -> SinkError:
        unreachable = (kafka_errors.KafkaTimeoutError, kafka_errors.KafkaConnectionError)
        after = f"; {self.acknowledged:,} records had been acknowledged" if self.acknowledged else ""
        if isinstance(error, unreachable):
            why = f" ({self._client_log.first})" if self._client_log.first else ""
            return SinkError(
                f"no broker responds at {self._servers}{why}{after}; start one (make kafka-up, from a clone), or "
                "correct --bootstrap-servers or --config"
            )
        match = re.search(r"error_message=[\"'](.*?)[\"'], \w+=", str(error))
        why = match[1] if match else str(error)
        return SinkError(f"topic {self._name!r} at {self._servers}: {why}{after}")
