"""Settings for access to a schema registry: a user's password or a token, and certificates."""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator

from streammoe.errors import ConfigError
from streammoe.secrets import read_secret
from streammoe_connectors.http_client import ClientTls, is_http_address

_SECTION = "source"
_TOKEN = re.compile(r"[!-~]+")  # what a header may hold of it; any other character would also be shown in errors
_TLS_FILES = ("schema_registry_cafile", "schema_registry_certfile", "schema_registry_keyfile")


class RegistryLogin(BaseModel):
    """Access to a schema registry.

    Attributes:
        schema_registry_password: of the user, for HTTP basic authentication; better set by file or environment
            variable.
        schema_registry_password_file: a file that holds it, which is read again for each request, so that it may be
            replaced at any time; a line end after it is not part of it.
        schema_registry_password_env: the environment variable that holds it.
        schema_registry_token: a bearer token instead of user and password; better set by file or environment variable.
        schema_registry_token_file: a file that holds it, likewise.
        schema_registry_token_env: the environment variable that holds it.
        schema_registry_username: the user whose password that is.
        schema_registry_cafile: certificates of the authorities that sign the registry's certificate; by default those
            that the system trusts.
        schema_registry_certfile: the client's own certificate, for a registry that requires one.
        schema_registry_keyfile: the private key of that certificate, unless that file holds it, too.
        schema_registry_key_password: the password of that key; better set by file or environment variable.
        schema_registry_key_password_file: a file that holds it.
        schema_registry_key_password_env: the environment variable that holds it.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    schema_registry_password: SecretStr | None = None
    schema_registry_password_file: str | None = Field(default=None, min_length=1)
    schema_registry_password_env: str | None = Field(default=None, min_length=1, validate_default=True)
    schema_registry_token: SecretStr | None = None
    schema_registry_token_file: str | None = Field(default=None, min_length=1)
    schema_registry_token_env: str | None = Field(default=None, min_length=1, validate_default=True)
    schema_registry_username: str | None = Field(default=None, min_length=1, validate_default=True)
    schema_registry_cafile: str | None = Field(default=None, min_length=1)
    schema_registry_certfile: str | None = Field(default=None, min_length=1)
    schema_registry_keyfile: str | None = Field(default=None, min_length=1)
    schema_registry_key_password: SecretStr | None = None
    schema_registry_key_password_file: str | None = Field(default=None, min_length=1)
    schema_registry_key_password_env: str | None = Field(default=None, min_length=1, validate_default=True)

    @field_validator("schema_registry_username")
    @classmethod
    def _check_registry_username(cls, name: str | None, info: ValidationInfo) -> str | None:
        has_password = _is_given("schema_registry_password", info)
        if name is None:
            if has_password:
                raise ValueError("must be set if schema_registry_password, …_password_file or …_password_env is")
            return None
        if ":" in name:
            raise ValueError("must not hold a colon, which separates it from the password in HTTP")
        if _is_given("schema_registry_token", info):
            raise ValueError("must not be set together with a token; a registry takes one login")
        if not has_password:
            raise ValueError("must be set together with schema_registry_password_file, …_password_env or …_password")
        return name

    @field_validator("schema_registry_keyfile")
    @classmethod
    def _check_registry_keyfile(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is not None and info.data.get("schema_registry_certfile") is None:
            raise ValueError("must be set together with schema_registry_certfile")
        return path

    @field_validator("schema_registry_password_env", "schema_registry_token_env", "schema_registry_key_password_env")
    @classmethod
    def _check_registry_secret(cls, variable: str | None, info: ValidationInfo) -> str | None:
        name = str(info.field_name).removesuffix("_env")
        count = sum(
            value is not None for value in (*(info.data.get(each) for each in (name, f"{name}_file")), variable)
        )
        if count > 1:
            raise ValueError(f"must not be set together with others; choose one of {name}, {name}_file and {name}_env")
        if name == "schema_registry_key_password" and count and info.data.get("schema_registry_certfile") is None:
            raise ValueError("must be set only with schema_registry_certfile, whose key it opens")
        return variable


def _is_given(secret: str, info: ValidationInfo) -> bool:
    """Return whether a secret is set in any way; also if one of them is invalid, which is an error of its own."""
    return any(info.data.get(name, "invalid") is not None for name in (secret, f"{secret}_file", f"{secret}_env"))


def check_registry_address(address: str | None, login: dict[str, object]) -> str | None:
    """Return the address of a registry, if it is one and goes together with the settings of `RegistryLogin`.

    Raises:
        ValueError: it does not.
    """
    given = sorted(name for name in RegistryLogin.model_fields if login.get(name) is not None)
    if address is None:
        if given:
            raise ValueError(f"must be set if {given[0]} is")
        return None
    if not is_http_address(address) or urlsplit(address).query:
        raise ValueError("must be the address of a registry, such as https://registry.example:8081")
    parts = urlsplit(address)
    if parts.username is not None and any("_username" in name or "_token" in name for name in given):
        raise ValueError("must not hold a user if schema_registry_username or a token is set")
    if parts.scheme == "http" and (files := [name for name in given if name in _TLS_FILES]):
        raise ValueError(f"must begin with https:// if {files[0]} is set")
    return address


def registry_tls(settings: RegistryLogin) -> ClientTls:
    """Return the files for TLS, with the key's password.

    Raises:
        ConfigError: the password's file or variable cannot be read.
    """
    return ClientTls(
        f"{_SECTION}.schema_registry",
        settings.schema_registry_cafile,
        settings.schema_registry_certfile,
        settings.schema_registry_keyfile,
        read_secret(settings, "schema_registry_key_password", _SECTION),
    )


def authorization(settings: RegistryLogin, address: str) -> str | None:
    """Return the header that logs in, read from files again; ``None`` without a login.

    Raises:
        ConfigError: the secret's file or variable cannot be read, or it is no token.
    """
    token = read_secret(settings, "schema_registry_token", _SECTION)
    if token is not None:
        if not _TOKEN.fullmatch(token):
            raise ConfigError(
                f"{_SECTION}.schema_registry_token: must be letters, digits and punctuation of ASCII without spaces, "
                "and is not; write the token alone into its file or variable"
            )
        return f"Bearer {token}"
    if settings.schema_registry_username is not None:
        password = read_secret(settings, "schema_registry_password", _SECTION)
        return _basic(settings.schema_registry_username, password or "")
    parts = urlsplit(address)
    if parts.username is not None:
        return _basic(unquote(parts.username), unquote(parts.password or ""))
    return None


def _basic(user: str, password: str) -> str:
    return f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"
