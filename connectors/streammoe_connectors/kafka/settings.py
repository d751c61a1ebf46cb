"""Settings of the connection to a Kafka cluster."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BeforeValidator, Field, SecretStr, ValidationInfo, field_validator

from streammoe.secrets import check_readable, read_secret, revealed
from streammoe_connectors.kafka.oauth import OAuthLogin, read_client_secret


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

_OWN_SETTINGS = {
    "bootstrap_servers",
    "security_protocol",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "ssl_cafile",
    "ssl_certfile",
    "ssl_keyfile",
    "ssl_password",
    "client_id",
    "api_version",
}
_FORBIDDEN_OPTIONS = {
    "acks": "nothing that was written may be lost",
    "auto_offset_reset": "positions are kept in checkpoints",
    "consumer_timeout_ms": "records are polled",
    "delivery_timeout_ms": "it is the setting delivery_timeout_seconds",
    "default_offset_commit_callback": "failed commits are counted",
    "enable_auto_commit": "positions are kept in checkpoints",
    "enable_idempotence": "nothing may be written twice",
    "exclude_internal_topics": "topics are named, or match a pattern, which Kafka's own never do",
    "group_id": "it is the setting group",
    "group_instance_id": "partitions are not assigned by the group",
    "isolation_level": "it is the setting isolation",
    "kafka_client": "it is code",
    "key_deserializer": "it is code",
    "key_serializer": "it is code",
    "metric_reporters": "it is code",
    "partition_assignment_strategy": "it is code",
    "partitioner": "it is code",
    "sasl_oauth": "set sasl_oauth_token_url and what belongs to it",
    "sasl_oauth_token_provider": "it is code; set sasl_oauth_token_url",
    "selector": "it is code",
    "ssl_context": "it is code",
    "transactional_id": "transactions are a setting of their own",
    "value_deserializer": "it is code",
    "value_serializer": "it is code",
}
"""Options of kafka-python that would break promises of streammoe, or cannot be written in a file, with the reason."""
LIBRDKAFKA_NAMES = {
    "bootstrap_servers": "bootstrap.servers",
    "security_protocol": "security.protocol",
    "sasl_mechanism": "sasl.mechanism",
    "sasl_plain_username": "sasl.username",
    "sasl_plain_password": "sasl.password",  # nosec B105 # a name
    "ssl_cafile": "ssl.ca.location",
    "ssl_certfile": "ssl.certificate.location",
    "ssl_keyfile": "ssl.key.location",
    "ssl_password": "ssl.key.password",  # nosec B105 # a name
    "client_id": "client.id",
}
"""The settings that both clients know, by kafka-python's names."""
_FORBIDDEN_LIBRDKAFKA_OPTIONS = {
    **dict.fromkeys(("metadata.broker.list", "sasl.mechanisms"), "it is another name of a setting of its own"),
    **dict.fromkeys(("acks", "request.required.acks"), "nothing that was written may be lost"),
    "allow.auto.create.topics": "a topic that is missing is an error",
    "auto.commit.enable": "positions are kept in checkpoints",
    "auto.offset.reset": "positions are kept in checkpoints",
    **dict.fromkeys(("delivery.timeout.ms", "message.timeout.ms"), "it is the setting delivery_timeout_seconds"),
    "delivery.report.only.error": "deliveries are counted",
    "dr_cb": "it is code",
    "enable.auto.commit": "positions are kept in checkpoints",
    "enable.auto.offset.store": "positions are kept in checkpoints",
    "enable.gapless.guarantee": "it would stop at the first record that fails",
    "enable.idempotence": "nothing may be written twice",
    "enable.partition.eof": "it tells where a partition ends",
    "group.id": "it is the setting group",
    "group.instance.id": "partitions are not assigned by the group",
    "group.protocol": "partitions are not assigned by the group",
    "isolation.level": "it is the setting isolation",
    "partitioner": "records of a key go to the same partition whatever the client",
    "plugin.library.paths": "it is code",
    "sasl.kerberos.kinit.cmd": "it is code",
    "ssl.engine.location": "it is code",
    "ssl.providers": "it is code",
    **dict.fromkeys(
        ("test.mock.broker.rtt", "test.mock.num.brokers"), "it would put a cluster in memory in place of the brokers"
    ),
    "transaction.timeout.ms": "it is the setting transaction_timeout_seconds",
    "transactional.id": "transactions are a setting of their own",
    **dict.fromkeys(
        (
            "default.topic.config",
            "error_cb",
            "log_cb",
            "logger",
            "oauth_cb",
            "on_commit",
            "on_delivery",
            "partitioner_cb",
            "stats_cb",
            "throttle_cb",
        ),
        "it is code",
    ),
}
"""The same of librdkafka."""


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


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


class Connection(OAuthLogin):
    """The connection to a Kafka cluster, as part of the settings of sources and sinks.

    Passwords are never shown: not in the settings' representation, messages or checkpoints.

    Attributes:
        bootstrap_servers: addresses of some brokers, as a list or separated by commas.
        security_protocol: whether the connection is encrypted (SSL), and whether it uses a login (SASL).
        sasl_mechanism: of the login.
        sasl_plain_username: the user name for PLAIN and SCRAM; OAUTHBEARER has the settings of `OAuthLogin`.
        sasl_plain_password: the password for that; better set by file or environment variable.
        sasl_plain_password_file: a file that holds it, such as a mounted secret; a line end after it is not part of it.
        sasl_plain_password_env: the environment variable that holds it.
        ssl_cafile: certificates of the authorities that sign the brokers' certificates.
        ssl_certfile: the client's own certificate.
        ssl_keyfile: the private key of that certificate.
        ssl_password: the password of that key; better set by file or environment variable.
        ssl_password_file: a file that holds it.
        ssl_password_env: the environment variable that holds it.
        client: the package that talks to the brokers: ``kafka-python``, or ``librdkafka``, which takes a fraction of
            the processor time and is installed by the extra ``kafka-fast``.
        client_id: identifies this client in the brokers' logs and quotas.
        api_version: of the brokers, such as ``[2, 3]``; detected if not set. Only for kafka-python.
        options: further options of the client, by their names there, such as ``fetch_min_bytes`` of kafka-python or
            ``fetch.min.bytes`` of librdkafka.
    """

    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(parse_servers)]
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "GSSAPI", "OAUTHBEARER"] | None = Field(
        default=None, validate_default=True
    )
    sasl_plain_username: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_plain_password: SecretStr | None = None
    sasl_plain_password_file: str | None = Field(default=None, min_length=1)
    sasl_plain_password_env: str | None = Field(default=None, min_length=1, validate_default=True)
    ssl_cafile: str | None = Field(default=None, min_length=1)
    ssl_certfile: str | None = Field(default=None, min_length=1)
    ssl_keyfile: str | None = Field(default=None, min_length=1)
    ssl_password: SecretStr | None = None
    ssl_password_file: str | None = Field(default=None, min_length=1)
    ssl_password_env: str | None = Field(default=None, min_length=1)
    client: Literal["kafka-python", "librdkafka"] = "kafka-python"
    client_id: str = Field(default="streammoe", min_length=1)
    api_version: Annotated[tuple[int, ...] | None, BeforeValidator(_as_tuple)] = None
    options: dict[str, Any] = Field(default_factory=dict, repr=False)

    @field_validator("sasl_mechanism")
    @classmethod
    def _check_mechanism(cls, mechanism: str | None, info: ValidationInfo) -> str | None:
        protocol = info.data.get("security_protocol")
        if protocol in {"SASL_PLAINTEXT", "SASL_SSL"} and mechanism is None:
            raise ValueError(f'must be set if security_protocol is "{protocol}"')
        if protocol in {"PLAINTEXT", "SSL"} and mechanism is not None:
            raise ValueError(f'must not be set if security_protocol is "{protocol}", which has no login')
        if mechanism == "OAUTHBEARER" and info.data.get("sasl_oauth_token_url", "invalid") is None:
            raise ValueError('needs sasl_oauth_token_url if it is "OAUTHBEARER"')
        if mechanism != "OAUTHBEARER" and info.data.get("sasl_oauth_token_url") is not None:
            raise ValueError('must be "OAUTHBEARER" if sasl_oauth_token_url is set')
        return mechanism

    @field_validator("sasl_plain_username")
    @classmethod
    def _check_username(cls, name: str | None, info: ValidationInfo) -> str | None:
        mechanism = info.data.get("sasl_mechanism")
        if name is None and mechanism not in {None, "GSSAPI", "OAUTHBEARER"}:
            raise ValueError(f'must be set if sasl_mechanism is "{mechanism}"')
        if name is not None and mechanism == "OAUTHBEARER":
            raise ValueError('must not be set if sasl_mechanism is "OAUTHBEARER"; set sasl_oauth_client_id')
        return name

    @field_validator("sasl_plain_password_env")
    @classmethod
    def _check_password(cls, variable: str | None, info: ValidationInfo) -> str | None:
        if "sasl_plain_password" not in info.data or "sasl_plain_password_file" not in info.data:
            return variable
        n_set = _count_set(info.data["sasl_plain_password"], info.data["sasl_plain_password_file"], variable)
        if n_set > 1:
            raise ValueError(_ONE_OF_SOURCES.format("sasl_plain_password"))
        if not n_set and info.data.get("sasl_plain_username") is not None:
            raise ValueError(
                "must be set if sasl_plain_username is, unless sasl_plain_password_file or sasl_plain_password is"
            )
        return variable

    @field_validator("ssl_password_env")
    @classmethod
    def _check_ssl_password(cls, variable: str | None, info: ValidationInfo) -> str | None:
        if _count_set(info.data.get("ssl_password"), info.data.get("ssl_password_file"), variable) > 1:
            raise ValueError(_ONE_OF_SOURCES.format("ssl_password"))
        return variable

    @field_validator("ssl_cafile", "ssl_certfile", "ssl_keyfile")
    @classmethod
    def _check_ssl_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        protocol = info.data.get("security_protocol")
        if path is not None and protocol in {"PLAINTEXT", "SASL_PLAINTEXT"}:
            raise ValueError(f'must not be set if security_protocol is "{protocol}", which is not encrypted')
        return path

    @field_validator("api_version")
    @classmethod
    def _check_api_version(cls, version: tuple[int, ...] | None, info: ValidationInfo) -> tuple[int, ...] | None:
        if version is not None and info.data.get("client") == "librdkafka":
            raise ValueError('must not be set if client is "librdkafka", which always detects it')
        return version

    @field_validator("options")
    @classmethod
    def _check_options(cls, options: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        is_librdkafka = info.data.get("client") == "librdkafka"
        own = set(LIBRDKAFKA_NAMES.values()) if is_librdkafka else _OWN_SETTINGS
        forbidden = _FORBIDDEN_LIBRDKAFKA_OPTIONS if is_librdkafka else _FORBIDDEN_OPTIONS
        for name, value in options.items():
            if name in own:
                raise ValueError(f"must not hold {name}, which is a setting of its own")
            if name in forbidden:
                raise ValueError(f"must not hold {name}: {forbidden[name]}")
            if name.startswith("sasl.kerberos.") and not re.fullmatch(r"[\w./@:-]*", str(value)):
                # librdkafka makes a command for a shell of them.
                raise ValueError(f"must not have a {name} with other than letters, digits and ._/@:-")
        return options


_ONE_OF_SOURCES = "must not be set together with others; choose one of {0}, {0}_file and {0}_env"


def _count_set(*values: object) -> int:
    return sum(value is not None for value in values)


def connection_options(connection: Connection) -> dict[str, Any]:
    """Return the settings of a connection by kafka-python's names, with passwords, which must not be logged.

    All are of types that JSON has. With OAUTHBEARER ``sasl_oauth`` holds the settings of an `OAuthLogin`, from which
    each client makes what it takes for them.

    Raises:
        ConfigError: the file or variable of a password, or the file of a certificate or key, cannot be read.
    """
    for name in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "sasl_oauth_cafile"):
        path: str | None = getattr(connection, name)
        if path is not None:
            # kafka-python would retry for ever, and name neither the setting nor the file.
            check_readable(name, path)
    options: dict[str, Any] = {
        "bootstrap_servers": list(connection.bootstrap_servers),
        "security_protocol": connection.security_protocol,
        "client_id": connection.client_id,
        "sasl_mechanism": connection.sasl_mechanism,
        "sasl_plain_username": connection.sasl_plain_username,
        "sasl_plain_password": read_secret(connection, "sasl_plain_password"),
        "sasl_oauth": _oauth_login(connection) if connection.sasl_mechanism == "OAUTHBEARER" else None,
        "ssl_cafile": connection.ssl_cafile,
        "ssl_certfile": connection.ssl_certfile,
        "ssl_keyfile": connection.ssl_keyfile,
        "ssl_password": read_secret(connection, "ssl_password"),
        "api_version": connection.api_version,
    }
    return {name: value for name, value in options.items() if value is not None}


def _oauth_login(connection: Connection) -> dict[str, object]:
    read_client_secret(connection)  # which must be readable
    return revealed(connection, OAuthLogin.model_fields)
