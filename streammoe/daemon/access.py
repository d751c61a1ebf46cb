"""Who may scrape metrics: passwords and tokens, and the certificate that keeps them from others' eyes."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import ssl
from pathlib import Path

from streammoe.errors import ConfigError
from streammoe.settings import Metrics


class Access:
    """What a request must bring to see metrics. Holds digests of the secrets and not the secrets themselves.

    Args:
        settings: the section ``[metrics]``.

    Raises:
        ConfigError: the file or variable of a secret cannot be read, or holds none.
    """

    def __init__(self, settings: Metrics) -> None:
        self._expected: list[bytes] = []
        """Digests of what may follow each scheme."""
        self.challenges: list[str] = []
        """Schemes to offer to whoever brings nothing."""
        password = _secret(settings, "password")
        if settings.username is not None and password is not None:
            self._expected.append(_digest(b"basic", f"{settings.username}:{password}".encode()))
            self.challenges.append('Basic realm="streammoe", charset="UTF-8"')
        token = _secret(settings, "bearer_token")
        if token is not None:
            if not (token.isascii() and token.isprintable() and " " not in token):
                raise ConfigError(
                    "metrics.bearer_token: must be visible ASCII characters without blanks, since a header cannot hold "
                    "others; make one with: openssl rand -hex 32"
                )
            self._expected.append(_digest(b"bearer", token.encode()))
            self.challenges.append('Bearer realm="streammoe"')

    def allows(self, authorization: str | None) -> bool:
        """Whether a request with this header, or none, may see metrics.

        Takes the same time however much of a secret was guessed.
        """
        if not self._expected:
            return True
        scheme, _, credentials = (authorization or "").partition(" ")
        given = credentials.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":
            try:
                given = base64.b64decode(given, validate=True)
            except binascii.Error:
                return False
        digest = _digest(scheme.lower().encode("latin-1", "replace"), given)
        return any(hmac.compare_digest(digest, expected) for expected in self._expected)


def tls_context(settings: Metrics) -> ssl.SSLContext | None:
    """What encrypts, at TLS 1.2 or later, with the certificate of the settings; ``None`` where they name none.

    Raises:
        ConfigError: certificate or key cannot be read, or do not go together.
    """
    certificate, key = settings.tls_certfile, settings.tls_keyfile
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for setting, path in (("tls_certfile", certificate), ("tls_keyfile", key)):
        try:
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise ConfigError(
                f"metrics.{setting}: {path!r} cannot be read ({error.strerror}); put the file there, allow this user "
                "to read it, or correct the path"
            ) from None
    try:
        # The password is never asked for: a daemon has nobody to ask.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError as error:
        raise ConfigError(
            f"metrics.tls_certfile {certificate!r} with metrics.tls_keyfile {key!r}: cannot be used "
            f"({error.reason or error}); both must be PEM files, the key must be that of the certificate, and without "
            "a password"
        ) from None
    return context


def _digest(scheme: bytes, credentials: bytes) -> bytes:
    return hashlib.sha256(scheme + b" " + credentials).digest()


def _secret(settings: Metrics, name: str) -> str | None:
    """A secret, wherever the settings say that it is."""
    given = getattr(settings, name)
    variable: str | None = getattr(settings, f"{name}_env")
    path: str | None = getattr(settings, f"{name}_file")
    if given is not None:
        secret, where = str(given.get_secret_value()), name
    elif variable is not None:
        if variable not in os.environ:
            raise ConfigError(
                f"metrics.{name}_env: names the environment variable {variable!r}, which is not set; set it"
            )
        secret, where = os.environ[variable], f"{name}_env"
    elif path is not None:
        try:
            secret, where = Path(path).read_text(encoding="utf-8").rstrip("\r\n"), f"{name}_file"
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or "it is not UTF-8"
            raise ConfigError(
                f"metrics.{name}_file: {path!r} cannot be read ({reason}); put the secret there"
            ) from None
    else:
        return None
    if not secret:
        raise ConfigError(f"metrics.{where}: is empty, which would let everybody in; put a secret there")
    return secret
