"""Settings of the connection to a Kafka cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from streammoe.secrets import check_readable, is_given, is_secret, read_secret, revealed
from streammoe_connectors.addresses import is_http_address, is_protected


class ClientPackage(NamedTuple):
    """Where a client comes from."""

    module: str
    package: str
    extra: str


CLIENTS = {
    "kafka-python": ClientPackage("kafka", "kafka-python", "kafka"),
    "librdkafka": ClientPackage("confluent_kafka", "confluent-kafka", "kafka-fast"),
}
"""By the name in the settings."""

LIBRDKAFKA_NAMES = {
    "bootstrap_servers": "bootstrap.servers",
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",  # nosec B105 # a name
    "sasl_oauth_client_id": "sasl.oauthbearer.client.id",
    "sasl_oauth_client_secret": "sasl.oauthbearer.client.secret",  # nosec B105 # a name
    "sasl_oauth_token_url": "sasl.oauthbearer.token.endpoint.url",  # nosec B105 # a name
    "sasl_oauth_scope": "sasl.oauthbearer.scope",
    "sasl_oauth_extensions": "sasl.oauthbearer.extensions",
    "sasl_oauth_cafile": "https.ca.location",
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",  # nosec B105 # a name
    "client_id": "client.id",
}
"""The settings of a connection, which mostly have kafka-python's names, by those of librdkafka."""

_CODE = "it is code, or runs some"
_COMMITS = "positions are kept in checkpoints"
_GROUP = "partitions are not assigned by the group"
_FORBIDDEN = {
    "kafka-python": {
        _CODE: "kafka_client key_deserializer key_serializer metric_reporters partition_assignment_strategy "
        "partitioner sasl_oauth_token_provider selector ssl_context value_deserializer value_serializer",
        _COMMITS: "auto_offset_reset default_offset_commit_callback enable_auto_commit",
        _GROUP: "group_instance_id",
        "nothing that was written may be lost, or written twice": "acks enable_idempotence",
        "it is the setting delivery_timeout_seconds": "delivery_timeout_ms",
        "it is the setting group": "group_id",
        "it is the setting isolation": "isolation_level",
        "records are polled": "consumer_timeout_ms",
        "topics are named, or match a pattern, which Kafka's own never do": "exclude_internal_topics",
        "transactions are a setting of their own": "transactional_id",
    },
    "librdkafka": {
        _CODE: "default.topic.config dr_cb error_cb log_cb logger oauth_cb on_commit on_delivery partitioner_cb "
        "plugin.library.paths sasl.kerberos.kinit.cmd ssl.engine.location ssl.providers stats_cb throttle_cb",
        _COMMITS: "auto.commit.enable auto.offset.reset enable.auto.commit enable.auto.offset.store",
        _GROUP: "group.instance.id group.protocol",
        "nothing that was written may be lost, or written twice": "acks enable.idempotence request.required.acks",
        "a topic that is missing is an error": "allow.auto.create.topics",
        "deliveries are counted": "delivery.report.only.error",
        "it is another name of a setting of its own": "metadata.broker.list sasl.mechanisms sasl.oauthbearer.method",
        "it is the setting delivery_timeout_seconds": "delivery.timeout.ms message.timeout.ms",
        "it is the setting group": "group.id",
        "it is the setting isolation": "isolation.level",
        "it is the setting transaction_timeout_seconds": "transaction.timeout.ms",
        "it tells where a partition ends": "enable.partition.eof",
        "it would put a cluster in memory in place of the brokers": "test.mock.broker.rtt test.mock.num.brokers",
        "it would stop at the first record that fails": "enable.gapless.guarantee",
        "records of a key go to the same partition whatever the client": "partitioner",
        "transactions are a setting of their own": "transactional.id",
    },
}
"""Options of each client that would break promises of streammoe, or cannot be written in a file, by the reason."""

_PASSWORDS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")
_MECHANISMS = {"plain": _PASSWORDS, "oauth": ("OAUTHBEARER",)}
"""Mechanisms by the second part of the names of their settings."""


def parse_servers(value: object) -> object:
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


class Connection(BaseModel):
    """The connection to a Kafka cluster, as part of the settings of sources and sinks.

    Passwords are never shown: not in the settings' representation, messages or checkpoints. They and certificates are
    read from their files again whenever a client is made.

    docs/kafka.md#settings explains each of them, also those of values and sinks.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(parse_servers)]
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] | None = Field(
        default=None, validate_default=True
    )
    sasl_plain_username: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_plain_password: SecretStr | None = None
    sasl_plain_password_file: str | None = Field(default=None, min_length=1)
    sasl_plain_password_env: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_oauth_token_url: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_oauth_client_id: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_oauth_client_secret: SecretStr | None = None
    sasl_oauth_client_secret_file: str | None = Field(default=None, min_length=1)
    sasl_oauth_client_secret_env: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_oauth_scope: str | None = Field(default=None, min_length=1)
    sasl_oauth_cafile: str | None = Field(default=None, min_length=1)
    sasl_oauth_extensions: dict[str, str] = Field(default_factory=dict)
    ssl_cafile: str | None = Field(default=None, min_length=1)
    ssl_certfile: str | None = Field(default=None, min_length=1)
    ssl_keyfile: str | None = Field(default=None, min_length=1)
    ssl_password: SecretStr | None = None
    ssl_password_file: str | None = Field(default=None, min_length=1)
    ssl_password_env: str | None = Field(default=None, min_length=1, validate_default=True)
    client: Literal["kafka-python", "librdkafka"] = Field(default="kafka-python", validate_default=True)
    client_id: str = Field(default="streammoe", min_length=1)
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Further options of the client, by their names there."""

    @field_validator("sasl_mechanism")
    @classmethod
    def _check_mechanism(cls, mechanism: str | None, info: ValidationInfo) -> str | None:
        protocol = info.data.get("security_protocol")
        if protocol in {"SASL_PLAINTEXT", "SASL_SSL"} and mechanism is None:
            raise ValueError(f'must be set if security_protocol is "{protocol}"')
        if protocol in {"PLAINTEXT", "SSL"} and mechanism is not None:
            raise ValueError(f'must not be set if security_protocol is "{protocol}", which has no login')
        return mechanism

    @field_validator(
        *("sasl_plain_username", "sasl_plain_password_env", "sasl_oauth_token_url", "sasl_oauth_client_id"),
        *("sasl_oauth_client_secret_env", "sasl_oauth_scope", "sasl_oauth_cafile", "sasl_oauth_extensions"),
        "ssl_password_env",
    )
    @classmethod
    def _check_login(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        given = is_given(value, info) if name.endswith("_env") else bool(value)
        mechanisms = _MECHANISMS.get(name.split("_")[1])
        if mechanisms is None or "sasl_mechanism" not in info.data:
            return value
        mechanism = info.data["sasl_mechanism"]
        if given and mechanism not in mechanisms:
            raise ValueError(f"must be set only if sasl_mechanism is {' or '.join(mechanisms)}")
        if not given and mechanism in mechanisms and cls.model_fields[name].validate_default:
            secret = name.removesuffix("_env")
            raise ValueError(
                f"must be set if sasl_mechanism is {mechanism}"
                + (f", unless {secret}_file or {secret} is" if secret != name else "")
            )
        return value

    @field_validator("sasl_oauth_token_url")
    @classmethod
    def _check_oauth_url(cls, address: str | None) -> str | None:
        if address is None:
            return address
        if not is_http_address(address) or "@" in address:
            raise ValueError("must be the address of a token endpoint, such as https://login.example/oauth2/token")
        if not is_protected(address):
            raise ValueError("must begin with https://, since it receives a secret, unless it is on this machine")
        return address

    @field_validator("sasl_oauth_extensions")
    @classmethod
    def _check_oauth_extensions(cls, extensions: dict[str, str]) -> dict[str, str]:
        for name, value in extensions.items():
            # RFC 7628, 3.1; librdkafka separates them by commas.
            if not re.fullmatch(r"[A-Za-z]+", name) or name == "auth" or not re.fullmatch(r"[!-+\--~]+", value):
                raise ValueError("must be names of letters other than auth, with values without blanks and commas")
        return extensions

    @field_validator("ssl_cafile", "ssl_certfile", "ssl_keyfile")
    @classmethod
    def _check_ssl_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        protocol = info.data.get("security_protocol")
        if path is not None and protocol in {"PLAINTEXT", "SASL_PLAINTEXT"}:
            raise ValueError(f'must not be set if security_protocol is "{protocol}", which is not encrypted')
        return path

    @field_validator("client")
    @classmethod
    def _check_client(cls, client: str, info: ValidationInfo) -> str:
        if client != "librdkafka" and info.data.get("sasl_mechanism") == "OAUTHBEARER":
            raise ValueError(
                'must be "librdkafka" if sasl_mechanism is OAUTHBEARER, which only that client has; install it by the '
                "extra kafka-fast"
            )
        return client

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        client = info.data.get("client", "kafka-python")
        own = LIBRDKAFKA_NAMES.values() if client == "librdkafka" else LIBRDKAFKA_NAMES
        for name, value in options.items():
            if name in own:
                raise ValueError(f"must not hold {name}, which is a setting of its own")
            for reason, names in _FORBIDDEN[client].items():
                if name in names.split():
                    raise ValueError(f"must not hold {name}: {reason}")
            if name.startswith("sasl.kerberos.") and not re.fullmatch(r"[\w./@:-]*", str(value)):
                # librdkafka makes a command for a shell of them.
                raise ValueError(f"must not have a {name} with other than letters, digits and ._/@:-")
        return options


def client_options(connection: Connection) -> dict[str, Any]:
    """Return a connection's settings as JSON has them, for clients, which read the files in them when they are made.

    They may hold passwords, and must not be logged.

    Raises:
        ConfigError: the file or variable of a password, or the file of a certificate or key, cannot be read.
    """
    connection_options(connection)
    return {name: value for name, value in revealed(connection, Connection.model_fields).items() if value is not None}


def secrets_of(options: Mapping[str, Any]) -> list[str]:
    """Return what must not be logged of `client_options`."""
    held = {**options["options"], **connection_options(Connection.model_validate(options))}
    return [value for name, value in held.items() if is_secret(name) and isinstance(value, str)]


def connection_options(connection: Connection) -> dict[str, Any]:
    """Return what is set of a connection, but for `options`, with passwords and what files hold at present.

    Raises:
        ConfigError: a file or variable cannot be read.
    """
    found: dict[str, Any] = {}
    for name in LIBRDKAFKA_NAMES:
        is_read = f"{name}_file" in Connection.model_fields
        found[name] = read_secret(connection, name) if is_read else getattr(connection, name)
        if name.endswith("file") and found[name] is not None:
            # kafka-python would retry for ever, and name neither the setting nor the file.
            check_readable(name, found[name])
    return {name: value for name, value in found.items() if value not in (None, {})}
