"""Secrets, certificates and keys in or named by settings; no message shows one."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import BaseModel, SecretStr, ValidationInfo

from streammoe.errors import ConfigError

HIDDEN = "***"
"""Replaces a secret in messages."""
_NAMES = re.compile("password|secret|token(?!_url)", re.IGNORECASE)
_LOGIN = re.compile(r"(?<=//)\S*@|[^\s/'\",]*:(?!//)[^\s'\",]*@")  # the login in an address, with or without a protocol


def is_secret(name: str) -> bool:
    """Whether the setting of this name holds a secret."""
    return bool(_NAMES.search(name))


def masked(text: str) -> str:
    """Hide the logins of all addresses in a text.

    >>> masked("https://me:word@host/path")
    'https://***@host/path'
    """
    return _LOGIN.sub(f"{HIDDEN}@", text)


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


def is_given(variable: str | None, info: ValidationInfo) -> bool:
    """Return whether a secret is set, in a validator of ``<name>_env``, which follows ``<name>`` and ``<name>_file``.

    Raises:
        ValueError: more than one of these settings is.
    """
    name = str(info.field_name).removesuffix("_env")
    count = sum(value is not None for value in (variable, info.data.get(name), info.data.get(f"{name}_file")))
    if count > 1:
        raise ValueError(f"must be the only one set of {name}, {name}_file and {name}_env")
    return count == 1


def read_secret(settings: BaseModel, name: str, section: str = "") -> str | None:
    """Return the secret `name`, from the setting itself, ``<name>_env`` or ``<name>_file``, or None if none is set.

    A line end after a secret in a file is not part of it.

    Args:
        settings: a section with these three settings, of which at most one is set.
        name: of the secret.
        section: for messages, such as ``metrics``; empty if the caller adds it.

    Raises:
        ConfigError: the variable is not set, or the file cannot be read.
    """
    setting = f"{section}.{name}" if section else name
    secret: SecretStr | None = getattr(settings, name)
    if secret is not None:
        return secret.get_secret_value()
    variable: str | None = getattr(settings, f"{name}_env")
    if variable is not None:
        if variable not in os.environ:
            raise ConfigError(f"{setting}_env: names the environment variable {variable!r}, which is not set; set it")
        return os.environ[variable]
    path: str | None = getattr(settings, f"{name}_file")
    if path is None:
        return None
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{setting}_file: {path!r} cannot be read ({reason}); put the secret there") from None


def revealed(settings: BaseModel, names: Iterable[str]) -> dict[str, object]:
    """Return settings with secrets as plain text, to be handed to another process; they must not be logged."""
    values = {name: getattr(settings, name) for name in names}
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()}
