"""Secrets, certificates and keys in or named by settings; no message shows one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import BaseModel, ConfigDict, SecretStr, model_validator

from streammoe.errors import ConfigError

HIDDEN = "***"
"""Replaces a secret in messages."""
_NAMES = re.compile("password|secret|token(?!_url)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=//)\S*@|[^\s/'\",]*:(?!//)[^\s'\",]*@")  # the login in an address, with or without a protocol
_QUERY = re.compile(r"(//[^\s'\",?]*\?)[^\s'\",]*")  # of an address, which may be signed


def is_secret(name: str) -> bool:
    """Whether the setting of this name holds a secret."""
    return bool(_NAMES.search(name))


def masked(text: str) -> str:
    """Hide the logins and queries of all addresses in a text.

    >>> masked("https://me:word@host/path?sig=key")
    'https://***@host/path?***'
    """
    return _QUERY.sub(rf"\1{HIDDEN}", _LOGIN.sub(f"{HIDDEN}@", text))


def check_readable(setting: str, path: str) -> None:
    """Raise `ConfigError` unless the file named by a setting, such as a certificate, can be read."""
    try:
        with Path(path).open("rb"):
            pass
    except OSError as error:
        raise ConfigError(
            f"{setting}: {path!r} cannot be read ({error.strerror}); put the file there, allow this user to read it, "
            "or correct the path"
        ) from None


class Secret(BaseModel):
    """A secret in settings: itself, or a table with the ``file`` or the ``env``ironment variable that holds it."""

    model_config = ConfigDict(frozen=True)

    text: SecretStr | None = None
    file: str | None = None
    env: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _opened(cls, value: object) -> object:
        if isinstance(value, str | SecretStr):
            return {"text": value}
        where = list(value.items()) if isinstance(value, Mapping) else []
        if not (len(where) == 1 and where[0][0] in {"file", "env"} and where[0][1] and isinstance(where[0][1], str)):
            raise ValueError(
                'must be the secret itself, or where it is, such as { file = "/run/secrets/name" } or { env = "NAME" }'
            )
        return value

    def read(self, name: str) -> str:
        """Return the secret, without a line end after it in a file; `name` is that of the setting, for messages.

        Raises:
            ConfigError: the variable is not set, the file cannot be read, or there is nothing.
        """
        if self.text is not None:
            found, where = self.text.get_secret_value(), "the text"
        elif self.env is not None:
            if self.env not in os.environ:
                raise ConfigError(f"{name}: names the environment variable {self.env!r}, which is not set; set it")
            found, where = os.environ[self.env], f"the environment variable {self.env!r}"
        else:
            where = repr(self.file)
            try:
                found = Path(str(self.file)).read_text(encoding="utf-8").rstrip("\r\n")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not UTF-8"
                raise ConfigError(f"{name}: {where} cannot be read ({reason}); put the secret there") from None
        if not found:
            raise ConfigError(f"{name}: {where} is empty; put the secret there, or leave the setting out")
        return found


def unreadable(settings: BaseModel, section: str) -> Iterator[str]:
    """Yield what is wrong with the secrets, certificates and keys that settings name, each with its place."""
    for name, value in settings:
        place = f"{section}.{name}"
        try:
            if isinstance(value, Secret):
                value.read(place)
            elif isinstance(value, BaseModel):
                yield from unreadable(value, place)
            elif isinstance(value, str) and name.endswith(("cafile", "certfile", "keyfile")):
                check_readable(place, value)
        except ConfigError as error:
            yield from error.problems
