"""Tokens for kafka-python's clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka.errors import KafkaConnectionError
from kafka.net.sasl.oauth import AbstractTokenProvider

from streammoe.errors import ConfigError
from streammoe_connectors.kafka.oauth import OAuthLogin, TokenSource, TokenUnavailable


class TokenProvider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
    """A provider of the tokens of a `TokenSource`.

    kafka-python asks for one in its own thread whenever it connects or authenticates again. An error there counts as a
    failed connection, which it retries.
    """

    def __init__(self, source: TokenSource) -> None:
        super().__init__()
        self.source = source

    def token(self) -> str:
        try:
            return self.source.token().text
        except (ConfigError, TokenUnavailable) as error:
            raise KafkaConnectionError(str(error)) from None

    def extensions(self) -> dict[str, str]:
        return self.source.extensions


def kafka_python_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with a token provider instead of the settings of one, if they have any.

    Raises:
        ConfigError: the secret or a certificate cannot be read.
    """
    arguments = dict(options)
    login = arguments.pop("sasl_oauth", None)
    if login is not None:
        arguments["sasl_oauth_token_provider"] = TokenProvider(TokenSource(OAuthLogin.model_validate(login)))
    return arguments


def token_source(options: Mapping[str, Any]) -> TokenSource | None:
    """Return the source of the tokens of `kafka_python_options`, if these have any."""
    provider = options.get("sasl_oauth_token_provider")
    return provider.source if isinstance(provider, TokenProvider) else None


def request_first_token(options: Mapping[str, Any]) -> TokenSource | None:
    """Return `token_source` once it has a token: kafka-python's thread would not say why there is none.

    Raises:
        ConfigError: the endpoint rejects this client.
        TokenUnavailable: there is no token, for a reason that may pass.
    """
    source = token_source(options)
    if source is not None:
        source.token()
    return source
