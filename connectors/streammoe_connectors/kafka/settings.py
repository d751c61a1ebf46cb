"""Settings of the connection to a Kafka cluster, for reading from it, and for writing to it."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from streammoe.secrets import HIDDEN, Secret, check_readable, is_secret
from streammoe_connectors.conditions import Text, check_http_address, is_protected, only_if
from streammoe_connectors.formats.events import RecordPath

LIBRDKAFKA_NAMES = {
    "bootstrap_servers": "bootstrap.servers",
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",  # nosec B105 # a name
    "sasl_oauth_client_id": "sasl.oauthbearer.client.id",
    "sasl_oauth_client_secret": "sasl.oauthbearer.client.secret",  # nosec B105 # a name
    "sasl_oauth_token_url": "sasl.oauthbearer.token.endpoint.url",  # nosec B105 # a name
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",  # nosec B105 # a name
    "client_id": "client.id",
}
"""The settings of a connection, which mostly have kafka-python's names, by those of librdkafka."""

_SETTINGS = {
    **{name: name for name in LIBRDKAFKA_NAMES},
    **{option.replace(".", "_"): name for name, option in LIBRDKAFKA_NAMES.items()},
    **dict.fromkeys(("delivery_timeout_ms", "message_timeout_ms"), "delivery_timeout_seconds"),
    **dict.fromkeys(("fetch_message_max_bytes", "max_partition_fetch_bytes"), "partition_fetch_bytes"),
    "group_id": "group",
    "isolation_level": "isolation",
    "max_poll_records": "max_poll_records",
    "metadata_broker_list": "bootstrap_servers",
    "sasl_mechanisms": "sasl_mechanism",
    "transaction_timeout_ms": "transaction_timeout_seconds",
    "transactional_id": "transactional_id",
}
"""The settings that options of either client stand for, by the names of the options with underscores."""
_FORBIDDEN = (
    # What is code, or runs some.
    "default_topic_config dr_cb error_cb kafka_client key_deserializer key_serializer log_cb logger metric_reporters "
    "oauth_cb on_commit on_delivery partition_assignment_strategy partitioner partitioner_cb plugin_library_paths "
    "sasl_kerberos_kinit_cmd sasl_oauth_token_provider selector ssl_context ssl_engine_location ssl_providers stats_cb "
    "throttle_cb value_deserializer value_serializer "
    # What would lose records, write some twice, or leave positions to the group.
    "acks auto_commit_enable auto_offset_reset default_offset_commit_callback enable_auto_commit "
    "enable_auto_offset_store enable_gapless_guarantee enable_idempotence group_instance_id group_protocol "
    "request_required_acks "
    # What would change the answers that are waited for.
    "allow_auto_create_topics bootstrap_timeout_ms consumer_timeout_ms delivery_report_only_error enable_partition_eof "
    "exclude_internal_topics sasl_oauthbearer_method test_mock_broker_rtt test_mock_num_brokers"
)
"""Further options of either client that may not be set, by their names with underscores."""

_secrets: set[str] = set()
"""All that clients were given."""
_PASSWORDS = only_if("sasl_mechanism", "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", required=True)
_TOKENS = only_if("sasl_mechanism", "OAUTHBEARER", required=True)
_ENCRYPTED = only_if("security_protocol", "SSL", "SASL_SSL")


def _parse_servers(value: object) -> object:
    """Parse a list of addresses, or a text of addresses separated by commas."""
    addresses = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if not isinstance(addresses, (list, tuple)) or not addresses:
        raise ValueError('must be the addresses of brokers, such as "one.example:9092,two.example:9092" or a list')
    for server in addresses:
        if not isinstance(server, str) or not re.fullmatch(
            r"[^\s:/@]+(:\d{1,5})?|\[[0-9a-fA-F:.]+\](:\d{1,5})?", server
        ):
            raise ValueError("must be addresses of brokers like broker.example:9092, without protocol or login")
    return tuple(addresses)


Servers = Annotated[tuple[str, ...], BeforeValidator(_parse_servers)]


def _check_oauth_url(address: str | None) -> str | None:
    if address is None:
        return address
    check_http_address(address)
    if not is_protected(address):
        raise ValueError("must begin with https://, since it receives a secret, unless it is on this machine")
    return address


def _check_client(client: str, info: ValidationInfo) -> str:
    if client != "librdkafka" and info.data.get("sasl_mechanism") == "OAUTHBEARER":
        raise ValueError(
            'must be "librdkafka" if sasl_mechanism is OAUTHBEARER, which only that client has; install it by the '
            "extra kafka-fast"
        )
    return client


def _check_options(options: dict[str, Any]) -> dict[str, Any]:
    for name, value in options.items():
        if (setting := _SETTINGS.get(name.replace(".", "_"))) is not None:
            raise ValueError(f"must not hold {name}, which is the setting {setting}")
        if name.replace(".", "_") in _FORBIDDEN.split():
            raise ValueError(
                f"must not hold {name}, by which records could be lost or written twice, or code run; leave it out"
            )
        if name.startswith("sasl.kerberos.") and not re.fullmatch(r"[\w./@:-]*", str(value)):
            # librdkafka makes a command for a shell of them.
            raise ValueError(f"must not have a {name} with other than letters, digits and ._/@:-")
    return options


class Connection(BaseModel):
    """The connection to a Kafka cluster, as part of the settings of sources and sinks.

    Passwords are never shown: not in the settings' representation, messages or checkpoints. They and certificates are
    read from their files again whenever a client is made.

    docs/kafka.md#settings explains each of them, also those of values and sinks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    bootstrap_servers: Servers
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Annotated[
        Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] | None,
        only_if("security_protocol", "SASL_PLAINTEXT", "SASL_SSL", required=True),
    ] = None
    sasl_plain_username: Annotated[Text | None, _PASSWORDS] = None
    sasl_plain_password: Annotated[Secret | None, _PASSWORDS] = None
    sasl_oauth_token_url: Annotated[Text | None, _TOKENS, AfterValidator(_check_oauth_url)] = None
    sasl_oauth_client_id: Annotated[Text | None, _TOKENS] = None
    sasl_oauth_client_secret: Annotated[Secret | None, _TOKENS] = None
    ssl_cafile: Annotated[Text | None, _ENCRYPTED] = None
    ssl_certfile: Annotated[Text | None, _ENCRYPTED] = None
    ssl_keyfile: Annotated[Text | None, _ENCRYPTED] = None
    ssl_password: Annotated[Secret | None, _ENCRYPTED] = None
    client: Annotated[Literal["kafka-python", "librdkafka"], AfterValidator(_check_client)] = "kafka-python"
    client_id: Text = "streammoe"
    options: Annotated[dict[str, Any], AfterValidator(_check_options)] = Field(default_factory=dict, repr=False)
    """Further options of the client, by their names there."""


def connection_options(connection: Connection) -> dict[str, Any]:
    """Return what is set of a connection, but for `options`, with passwords and what files hold at present.

    Raises:
        ConfigError: a file or variable cannot be read.
    """
    found: dict[str, Any] = {}
    _secrets.update(str(value) for name, value in connection.options.items() if is_secret(name))
    for name in LIBRDKAFKA_NAMES:
        given = getattr(connection, name)
        found[name] = given.read(name) if isinstance(given, Secret) else given
        if isinstance(given, Secret):
            _secrets.add(found[name])
        if name.endswith("file") and found[name] is not None:
            # kafka-python would retry for ever, and name neither the setting nor the file.
            check_readable(name, found[name])
    return {name: value for name, value in found.items() if value is not None}


def hidden(text: str) -> str:
    """Hide the secrets that clients were given: what they ask may repeat them in its errors, as token endpoints do."""
    for secret in _secrets:
        text = text.replace(secret, HIDDEN)
    return text


class TopicSettings(Connection):
    """Settings of a sink that writes to a topic; without servers the whole connection is that of the Kafka source.

    docs/kafka.md explains those of how records are sent.
    """

    kind: Literal["kafka"]
    topic: str = Field(pattern=r"^[a-zA-Z0-9._-]{1,249}$")
    bootstrap_servers: Servers | None = None  # type: ignore[assignment]
    compression: Literal["none", "gzip", "lz4", "zstd", "snappy"] = "none"
    linger_ms: int = Field(default=20, ge=0, le=10_000)
    batch_bytes: int = Field(default=1 << 17, ge=0, le=1 << 24)
    delivery_timeout_seconds: float = Field(default=120.0, ge=10.0, le=3600.0)


# --- reading --------------------------------------------------------------------------------------------------------

STARTS = ("earliest", "latest", "committed")


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
    if not isinstance(value, str) or not 0 < len(value) <= 500:
        raise ValueError("must be a regular expression of at most 500 characters")
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


def _names(value: object) -> object:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of names")
    if repeated := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"must have each name once, but repeats {', '.join(repeated)}")
    return tuple(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


def _check_username(name: str | None) -> str | None:
    if name is not None and ":" in name:
        raise ValueError("must not hold a colon, which separates it from the password in HTTP")
    return name


def _check_token(token: Secret | None, info: ValidationInfo) -> Secret | None:
    if token is not None and info.data.get("username") is not None:
        raise ValueError("must not be set together with username; a registry takes one login")
    return token


def _check_file(path: str | None, info: ValidationInfo) -> str | None:
    if path is not None and info.data.get("url", "").startswith("http:"):
        raise ValueError("must not be set unless the url begins with https://")
    return path


class RegistrySettings(BaseModel):
    """A schema registry, and the login to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    url: Annotated[str, AfterValidator(check_http_address)]
    username: Annotated[Text | None, AfterValidator(_check_username)] = None
    password: Annotated[Secret | None, only_if("username", required=True)] = None
    token: Annotated[Secret | None, AfterValidator(_check_token)] = None
    cafile: Annotated[Text | None, AfterValidator(_check_file)] = None
    certfile: Annotated[Text | None, AfterValidator(_check_file)] = None
    keyfile: Annotated[Text | None, only_if("certfile")] = None
    key_password: Annotated[Secret | None, only_if("certfile")] = None


def _check_schema(path: str | None, info: ValidationInfo) -> str | None:
    kind = info.data.get("format")
    is_either = kind in {"avro", "protobuf"} and "schema_registry" in info.data
    if is_either and (path is None) == (info.data["schema_registry"] is None):
        raise ValueError(f'must be set if source.format is "{kind}", unless source.schema_registry is; not both')
    return path


def _check_message(message: str | None, info: ValidationInfo) -> str | None:
    if message is None and info.data.get("format") == "protobuf" and info.data.get("schema_file") is not None:
        raise ValueError("must be the full name of the message, such as shop.Order, if source.schema_file is set")
    return message


def _check_unique_names(names: Any, info: ValidationInfo) -> Any:
    used = {*(info.data.get("columns") or ()), info.data.get("key_field"), info.data.get("timestamp_field")}
    given = [names] if isinstance(names, str) else names or ()
    if repeated := [name for name in given if name in used]:
        raise ValueError(f"must not repeat the names of other fields, but has {', '.join(repeated)}")
    return names


_UNIQUE = AfterValidator(_check_unique_names)


class ValueSettings(BaseModel):
    """The format of values, and the parts of a record that become fields of its event.

    If a JSON, Avro or Protobuf value itself has one of the last three names, the field of the value counts. In csv they
    become columns, in this order, before `columns`. A record without key, timestamp or header lacks that field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    format: Literal["jsonl", "csv", "avro", "protobuf"] = "jsonl"
    schema_registry: Annotated[RegistrySettings | None, only_if("format", "avro", "protobuf")] = None
    columns: Annotated[Names | None, only_if("format", "csv", required=True)] = None
    schema_file: Annotated[Text | None, only_if("format", "avro", "protobuf"), AfterValidator(_check_schema)] = None
    message: Annotated[Text | None, only_if("format", "protobuf"), AfterValidator(_check_message)] = None
    record: Annotated[RecordPath | None, only_if("format", "jsonl", "avro", "protobuf")] = None
    framing: Annotated[Literal["none", "confluent"], only_if("format", "jsonl", "protobuf")] = "none"
    key_field: Annotated[Text | None, _UNIQUE] = None
    timestamp_field: Annotated[Text | None, _UNIQUE] = None
    header_fields: Annotated[Names, _UNIQUE] = ()


def _check_either(pattern: str | None, info: ValidationInfo) -> str | None:
    if "topics" in info.data and (pattern is None) == (info.data["topics"] is None):
        raise ValueError("must be set if source.topics is not, and must not be set if that is")
    return pattern


class ReadingSettings(ValueSettings):
    """Settings for reading from a cluster, which docs/kafka.md#settings explains."""

    topics: Annotated[tuple[str, ...], BeforeValidator(_check_topics)] | None = None
    topics_pattern: Annotated[Annotated[str, BeforeValidator(_check_pattern)] | None, AfterValidator(_check_either)] = (
        None
    )
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

    def reads(self, topic: str) -> bool:
        """Whether this topic is named, or matches the pattern; those of Kafka's own, which begin with __, never do."""
        if self.topics_pattern is None:
            return topic in (self.topics or ())
        return not topic.startswith("__") and re.fullmatch(self.topics_pattern, topic) is not None

    @property
    def start_timestamp_ms(self) -> int | None:
        """The time to start at, in milliseconds since 1970, if `start` is a time."""
        return None if self.start in STARTS else _timestamp_ms(self.start)

    def reads_partition(self, topic: str, partition: int) -> bool:
        """Whether this topic is read, and its partition belongs to the shard."""
        index, count = map(int, self.shard.split("/"))
        return self.reads(topic) and partition % count == index


class KafkaSettings(Connection, ReadingSettings):
    """The ``[source]`` section for Kafka."""

    kind: Literal["kafka"]
