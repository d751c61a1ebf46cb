"""Settings of the connection to a Kafka cluster."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo, field_validator

from streammoe.secrets import Secret, check_readable, is_secret, revealed
from streammoe_connectors.addresses import check_http_address, is_protected
from streammoe_connectors.conditions import Text, only_if

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
    sasl_oauth_token_url: Annotated[Text | None, _TOKENS] = None
    sasl_oauth_client_id: Annotated[Text | None, _TOKENS] = None
    sasl_oauth_client_secret: Annotated[Secret | None, _TOKENS] = None
    ssl_cafile: Annotated[Text | None, _ENCRYPTED] = None
    ssl_certfile: Annotated[Text | None, _ENCRYPTED] = None
    ssl_keyfile: Annotated[Text | None, _ENCRYPTED] = None
    ssl_password: Annotated[Secret | None, _ENCRYPTED] = None
    client: Literal["kafka-python", "librdkafka"] = "kafka-python"
    client_id: Text = "streammoe"
    options: dict[str, Any] = Field(default_factory=dict, repr=False)
    """Further options of the client, by their names there."""

    @field_validator("sasl_oauth_token_url")
    @classmethod
    def _check_oauth_url(cls, address: str | None) -> str | None:
        if address is None:
            return address
        check_http_address(address)
        if not is_protected(address):
            raise ValueError("must begin with https://, since it receives a secret, unless it is on this machine")
        return address

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
    def _check_options(cls, options: dict[str, Any]) -> dict[str, Any]:
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
        given = getattr(connection, name)
        found[name] = given.read(name) if isinstance(given, Secret) else given
        if name.endswith("file") and found[name] is not None:
            # kafka-python would retry for ever, and name neither the setting nor the file.
            check_readable(name, found[name])
    return {name: value for name, value in found.items() if value is not None}
