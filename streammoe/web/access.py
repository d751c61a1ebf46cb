"""Access to what is served: passwords, TLS, and permitted host names."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import logging
import ssl
from collections.abc import Iterable

from streammoe.errors import ConfigError
from streammoe.secrets import check_readable
from streammoe.settings import ListenerSettings


class Access:
    """The credentials that are required, stored as a digest.

    Args:
        settings: the section of the listener.

    Raises:
        ConfigError: the file or variable of the password cannot be read, or is empty.
    """

    def __init__(self, settings: ListenerSettings) -> None:
        self._section, self._exposes, self._expected = settings.section, settings.exposes, b""
        if settings.username is not None and settings.password is not None:
            password = settings.password.read(f"{settings.section}.password")
            self._expected = hashlib.sha256(f"{settings.username}:{password}".encode()).digest()

    def allows(self, authorization: str | None) -> bool:
        """Return whether a request with this header, or none, may be answered.

        Takes constant time, however much of the password was guessed.
        """
        if not self._expected:
            return True
        scheme, _, credentials = (authorization or "").partition(" ")
        try:
            given = base64.b64decode(credentials.strip().encode("latin-1", "replace"), validate=True)
        except binascii.Error:
            return False
        return scheme.lower() == "basic" and hmac.compare_digest(hashlib.sha256(given).digest(), self._expected)

    def warn_if_exposed(self, address: str, *, encrypted: bool) -> None:
        """Log a warning if other machines are answered, or credentials cross the network unencrypted."""
        if is_loopback(address):
            return
        section = self._section
        logger = logging.getLogger(f"streammoe.{section}")
        with_tls = f"{section}.tls_certfile %s {section}.tls_keyfile"
        if not self._expected:
            logger.warning(
                "%s.host %s: ANYBODY WHO CAN REACH THIS MACHINE %s; set %s.username with %s.password%s, or restrict "
                "access by a firewall",
                *(section, address, self._exposes, section, section),
                "" if encrypted else f" and {with_tls % 'with'}",
            )
        elif not encrypted:
            logger.warning(
                "%s.host %s: PASSWORDS CROSS THE NETWORK IN PLAIN TEXT; set %s", section, address, with_tls % "and"
            )


def is_served(name: str, address: str, allowed: Iterable[str]) -> bool:
    """Return whether requests may use a host name, which prevents web pages from reading answers by DNS rebinding.

    A page's own domain name may be made to resolve to 127.0.0.1. The browser then takes this server's answers for the
    page's, but still sends that name in the header ``Host``. A server that listens on other addresses may have any
    name, so it accepts all of them unless the settings list some.

    Args:
        name: given without port.
        address: to which the server is bound.
        allowed: ``allowed_hosts`` of the settings, in addition to this machine's loopback names.
    """
    name, names = _plain(name), {*map(_plain, allowed)}
    if not names and not is_loopback(address):
        return True
    return name == "localhost" or name in names or is_loopback(name)


def is_loopback(address: str) -> bool:
    """Return whether this is an address in 127.0.0.0/8, or ::1; host names are not."""
    try:
        return ipaddress.ip_address(address.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _plain(name: str) -> str:
    """Return a host name in lower case, without brackets around an IPv6 address and without a trailing dot."""
    return name.lower().removeprefix("[").removesuffix("]").removesuffix(".")


def tls_context(settings: ListenerSettings) -> ssl.SSLContext | None:
    """Return a context for TLS 1.2 or later with the certificate of the settings; ``None`` if there is none.

    Raises:
        ConfigError: certificate or key cannot be read, or do not match.
    """
    certificate, key = settings.tls_certfile, settings.tls_keyfile
    if certificate is None or key is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    for setting, path in (("tls_certfile", certificate), ("tls_keyfile", key)):
        check_readable(f"{settings.section}.{setting}", path)
    try:
        # Never prompt for a password: a daemon has no terminal.
        context.load_cert_chain(certificate, key, password=lambda: "")
    except ssl.SSLError:
        raise ConfigError(
            f"{settings.section}.tls_certfile {certificate!r} with {settings.section}.tls_keyfile {key!r}: cannot be "
            "used; both must be PEM files, and the key must match the certificate and have no password"
        ) from None
    return context
