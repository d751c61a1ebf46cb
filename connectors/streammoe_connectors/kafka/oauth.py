"""Tokens for SASL OAUTHBEARER, from an OAuth 2 token endpoint by the grant of client credentials (RFC 6749, 4.4).

Independent of any Kafka client: `TokenSource` is all that one needs.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from typing import NamedTuple
from urllib.parse import quote_plus, urlencode, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from streammoe.errors import ConfigError
from streammoe.secrets import read_secret
from streammoe_connectors.http_client import (
    ClientTls,
    HttpClient,
    Response,
    TlsFailure,
    Unreachable,
    is_protected,
)

_LOGGER = logging.getLogger("streammoe.source")
_TIMEOUT_SECONDS = 3.0
_MAX_RESPONSE_BYTES = 1 << 18
_DEFAULT_LIFETIME_SECONDS = 300.0  # of a token whose lifetime the endpoint does not state
_REFRESH_AT = 0.8  # part of a token's lifetime after which it is replaced; as Kafka's own clients do
_EXPIRY_MARGIN_SECONDS = 5.0  # for clocks that differ, and the time until a broker sees the token
_RETRY_SECONDS = 1.0
_LOG_INTERVAL_SECONDS = 30.0
_HTTP_BUSY = frozenset({408, 425, 429})
_TRANSIENT_ERRORS = frozenset({"server_error", "slow_down", "temporarily_unavailable"})
_TOKEN = re.compile(r"[!-~]+")


class TokenUnavailable(Exception):  # noqa: N818 - a state of the endpoint, which may pass
    """The endpoint gives no token for now; the message says why and what to check."""


class OAuthLogin(BaseModel):
    """A login by tokens of an OAuth 2 token endpoint.

    Attributes:
        sasl_oauth_token_url: the address of the endpoint, with https unless it is on this machine.
        sasl_oauth_client_id: identifies this client to the endpoint.
        sasl_oauth_client_secret: of the client; better set by file or environment variable.
        sasl_oauth_client_secret_file: a file that holds it, which is read again for each token; a line end after it is
            not part of it.
        sasl_oauth_client_secret_env: the environment variable that holds it.
        sasl_oauth_scope: the scopes to request, separated by spaces, if the endpoint needs any.
        sasl_oauth_cafile: certificates of the authorities that sign the endpoint's certificate; by default those that
            the system trusts.
        sasl_oauth_extensions: SASL extensions that brokers ask for, such as ``{ logicalCluster = "lkc-1" }``.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    sasl_oauth_client_id: str | None = Field(default=None, min_length=1)
    sasl_oauth_client_secret: SecretStr | None = None
    sasl_oauth_client_secret_file: str | None = Field(default=None, min_length=1)
    sasl_oauth_client_secret_env: str | None = Field(default=None, min_length=1, validate_default=True)
    sasl_oauth_scope: str | None = Field(default=None, min_length=1)
    sasl_oauth_cafile: str | None = Field(default=None, min_length=1)
    sasl_oauth_extensions: dict[str, str] = Field(default_factory=dict)
    sasl_oauth_token_url: str | None = Field(default=None, min_length=1, validate_default=True)

    @field_validator("sasl_oauth_client_secret_env")
    @classmethod
    def _check_oauth_secret(cls, variable: str | None, info: ValidationInfo) -> str | None:
        name = "sasl_oauth_client_secret"
        if sum(value is not None for value in (info.data.get(name), info.data.get(f"{name}_file"), variable)) > 1:
            raise ValueError(f"must not be set together with others; choose one of {name}, {name}_file and {name}_env")
        return variable

    @field_validator("sasl_oauth_extensions")
    @classmethod
    def _check_oauth_extensions(cls, extensions: dict[str, str]) -> dict[str, str]:
        for name, value in extensions.items():
            # RFC 7628, 3.1; a control character would end the value.
            if not re.fullmatch(r"[A-Za-z]+", name) or name == "auth" or not re.fullmatch(r"[ -~\t\r\n]+", value):
                raise ValueError("must be names of letters other than auth, with values of printable ASCII")
        return extensions

    @field_validator("sasl_oauth_token_url")
    @classmethod
    def _check_oauth_url(cls, address: str | None, info: ValidationInfo) -> str | None:
        given = [name for name in OAuthLogin.model_fields if info.data.get(name)]
        if address is None:
            if given:
                raise ValueError(f"must be set if {given[0]} is")
            return None
        try:
            parts = urlsplit(address)
            usable = (
                parts.scheme in {"http", "https"} and bool((parts.hostname or "").encode("idna")) and parts.port != 0
            )
        except ValueError:  # an invalid port or host
            usable = False
        if not usable or "@" in parts.netloc or parts.fragment or not re.fullmatch(r"[!-~]+", address):
            raise ValueError("must be the address of a token endpoint, such as https://login.example/oauth2/token")
        if not is_protected(address):
            raise ValueError("must begin with https://, since it receives a secret, unless it is on this machine")
        if "sasl_oauth_client_id" in info.data and info.data["sasl_oauth_client_id"] is None:
            raise ValueError("must be set together with sasl_oauth_client_id")
        secrets = ("sasl_oauth_client_secret", "sasl_oauth_client_secret_file", "sasl_oauth_client_secret_env")
        if all(info.data.get(name, "invalid") is None for name in secrets):
            raise ValueError("must be set together with sasl_oauth_client_secret_file, …_secret_env or …_secret")
        return address


def read_client_secret(login: OAuthLogin) -> str:
    """Return the secret of the client; raise `ConfigError` if its file or variable cannot be read."""
    return read_secret(login, "sasl_oauth_client_secret") or ""


class Token(NamedTuple):
    """An access token."""

    text: str
    expires_at: float
    """Seconds since 1970."""


class TokenSource:
    """A source of valid tokens, each used until shortly before it expires. Threads may share it.

    Args:
        login: with `sasl_oauth_token_url`.
        clock: seconds that only ever increase.

    Raises:
        ConfigError: the secret or a certificate cannot be read.
    """

    def __init__(self, login: OAuthLogin, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._login = login
        self._url = str(login.sasl_oauth_token_url)
        self._clock = clock
        self._http = HttpClient(
            ClientTls("sasl_oauth", login.sasl_oauth_cafile),
            timeout_seconds=_TIMEOUT_SECONDS,
            max_bytes=_MAX_RESPONSE_BYTES,
        )
        read_client_secret(login)
        self._lock = threading.Lock()
        self._token: Token | None = None
        self._refresh_at = self._usable_until = self._next_attempt_at = clock()
        self._failure: ConfigError | TokenUnavailable | None = None
        self._logged_at: float | None = None

    @property
    def extensions(self) -> dict[str, str]:
        """SASL extensions to send with a token."""
        return dict(self._login.sasl_oauth_extensions)

    def token(self) -> Token:
        """Return a token that is valid for now, requesting one if it is due; a failure is also logged.

        Raises:
            TokenUnavailable: there is none, for a reason that may pass.
            ConfigError: the endpoint rejects this client, or is none.
        """
        with self._lock:
            now = self._clock()
            if now >= self._refresh_at and now >= self._next_attempt_at:
                try:
                    self._request(now)
                except (ConfigError, TokenUnavailable) as error:
                    self._next_attempt_at = self._clock() + _RETRY_SECONDS
                    self._failure = error
                    if self._token is not None or isinstance(error, TokenUnavailable):  # else it ends the start
                        self._log(error, now)
            if self._token is not None and self._clock() < self._usable_until:
                return self._token
            raise self._failure or TokenUnavailable(f"{self._url} has given no token yet")

    def check(self) -> None:
        """Raise `ConfigError` if the endpoint rejects this client and no token is left."""
        with self._lock:
            if isinstance(self._failure, ConfigError) and self._clock() >= self._usable_until:
                raise self._failure

    def _request(self, now: float) -> None:
        login = self._login
        user, secret = (quote_plus(text) for text in (str(login.sasl_oauth_client_id), read_client_secret(login)))
        headers = {
            "Accept": "application/json",
            "Authorization": f"Basic {base64.b64encode(f'{user}:{secret}'.encode()).decode()}",
            "Content-Type": "application/x-www-form-urlencoded",
        }
        form = {"grant_type": "client_credentials"}
        if login.sasl_oauth_scope is not None:
            form["scope"] = login.sasl_oauth_scope
        try:
            answer = self._http.send(self._url, headers, urlencode(form).encode())
        except Unreachable as error:
            raise TokenUnavailable(
                f"the token endpoint {self._url} does not respond ({error}); check that it runs, and that "
                "sasl_oauth_token_url is its address"
            ) from None
        except TlsFailure as error:
            raise ConfigError(f"sasl_oauth_token_url: {self._url}: {error}") from None
        content = _json_object(answer)
        if answer.status != 200:
            raise self._error_of(answer.status, content)
        text, kind = content.get("access_token"), content.get("token_type", "bearer")
        if not isinstance(text, str) or not _TOKEN.fullmatch(text) or str(kind).lower() != "bearer":
            raise ConfigError(
                f"sasl_oauth_token_url: {self._url} responds without a bearer token; it must be the address of an "
                "OAuth 2 token endpoint"
            )
        lifetime = _lifetime(content.get("expires_in"))
        self._token = Token(text, time.time() + lifetime)
        self._refresh_at = now + _REFRESH_AT * lifetime
        self._usable_until = now + lifetime - min(_EXPIRY_MARGIN_SECONDS, 0.1 * lifetime)
        self._failure = None

    def _error_of(self, status: int, content: dict[str, object]) -> ConfigError | TokenUnavailable:
        code = content.get("error")
        # Of the answer only this may be shown: the rest could repeat what was sent.
        known = code if isinstance(code, str) and re.fullmatch(r"[a-z_]{1,40}", code) else None
        message = f"{self._url} responds with status {status}{f' ({known})' if known else ''}"
        if status >= 500 or status in _HTTP_BUSY or known in _TRANSIENT_ERRORS:
            return TokenUnavailable(f"the token endpoint {message}; see its log")
        if 300 <= status < 400:
            advice = "redirects are not followed, since they could send the secret anywhere; set its own address"
        elif known == "invalid_scope":
            advice = "correct sasl_oauth_scope"
        elif status == 401 or known in {"invalid_client", "unauthorized_client"}:
            advice = "check sasl_oauth_client_id and its secret, and that this client may request tokens for itself"
        else:
            advice = "it must be the address of an OAuth 2 token endpoint that grants tokens for client credentials"
        return ConfigError(f"sasl_oauth_token_url: {message}: {advice}")

    def _log(self, error: Exception, now: float) -> None:
        if self._logged_at is None or now - self._logged_at >= _LOG_INTERVAL_SECONDS:
            self._logged_at = now
            _LOGGER.warning("no new token for the login to Kafka: %s; retrying", error)


def _json_object(answer: Response) -> dict[str, object]:
    """Return the content of an answer; empty if it is no JSON object."""
    try:
        content = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _lifetime(seconds: object) -> float:
    """Return for how long a token is valid, in seconds."""
    try:
        lifetime = float(str(seconds))  # some endpoints write the number as text
    except ValueError:
        return _DEFAULT_LIFETIME_SECONDS
    return min(lifetime, 1e9) if lifetime > 0 else _DEFAULT_LIFETIME_SECONDS
