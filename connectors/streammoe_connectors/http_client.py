"""Requests to registries and token endpoints: bounded in size and time, never redirected, and by verified TLS."""

from __future__ import annotations

import http.client
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from ipaddress import ip_address
from typing import NamedTuple
from urllib.parse import urlsplit

from streammoe.errors import ConfigError
from streammoe.secrets import check_readable

_CHUNK_BYTES = 1 << 16


class Unreachable(Exception):  # noqa: N818 - a state of the server, which may pass
    """A server did not answer, or not completely or in time; the message says why."""


class TlsFailure(Exception):  # noqa: N818 - says what failed
    """A server and this client do not trust each other, which will not pass; the message says why and what to do."""


class Response(NamedTuple):
    """The answer of a server."""

    status: int
    body: bytes
    """Cut one byte after the limit, if it is longer."""


class ClientTls(NamedTuple):
    """Files for TLS, by the settings that name them.

    Args:
        prefix: of the settings' names, such as ``source.schema_registry``.
        cafile: certificates of authorities, instead of the system's.
        certfile: the client's own certificate.
        keyfile: its private key, unless `certfile` holds that, too.
        key_password: of the private key.
    """

    prefix: str
    cafile: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    key_password: str | None = None

    def context(self) -> ssl.SSLContext:
        """Return a context that verifies the server's certificate and its name.

        Raises:
            ConfigError: a file cannot be read, or is not what it should be.
        """
        for name in ("cafile", "certfile", "keyfile"):
            path: str | None = getattr(self, name)
            if path is not None:
                check_readable(f"{self.prefix}_{name}", path)
        try:
            context = ssl.create_default_context(cafile=self.cafile)
        except ssl.SSLError:
            raise ConfigError(
                f"{self.prefix}_cafile: {self.cafile!r} holds no certificates; it must be a PEM file with those of the "
                "authorities that sign the server's certificate"
            ) from None
        if self.certfile is not None:
            try:
                # Never prompt for a password: a daemon has no terminal.
                context.load_cert_chain(self.certfile, self.keyfile, password=lambda: self.key_password or "")
            except (ssl.SSLError, ValueError):  # ValueError: the password is longer than OpenSSL allows
                key = f" with {self.prefix}_keyfile {self.keyfile!r}" if self.keyfile is not None else ""
                raise ConfigError(
                    f"{self.prefix}_certfile {self.certfile!r}{key}: cannot be used; both must be PEM files, the key "
                    f"must match the certificate, and {self.prefix}_key_password must be its password, if it has one"
                ) from None
        return context


class HttpClient:
    """A client that neither follows redirects, which could send a login anywhere, nor waits without end.

    It uses the proxies named in the environment (``https_proxy``, ``no_proxy``), if any, but not for this machine.

    Args:
        tls: for ``https`` addresses.
        timeout_seconds: longest wait for a connection or the next bytes; a whole answer may take twice that.
        max_bytes: of an answer.
    """

    def __init__(self, tls: ClientTls, *, timeout_seconds: float, max_bytes: int) -> None:
        self._tls = tls
        context = tls.context()
        self._opener, self._direct_opener = (
            urllib.request.build_opener(_NoRedirectHandler, urllib.request.HTTPSHandler(context=context), *proxies)
            for proxies in ((), (urllib.request.ProxyHandler({}),))
        )
        self._timeout_seconds = timeout_seconds
        self._max_bytes = max_bytes

    def send(self, address: str, headers: Mapping[str, str], body: bytes | None = None) -> Response:
        """Return the answer to a GET or, with a body, a POST request, whatever its status.

        Raises:
            Unreachable: there is none.
            TlsFailure: of the certificates or the protocol.
        """
        request = urllib.request.Request(address, body, dict(headers))  # noqa: S310 - http or https, by the settings
        deadline = time.monotonic() + 2 * self._timeout_seconds
        # A proxy would see what must not leave this machine, and could not reach it.
        opener = self._direct_opener if _is_local(address) else self._opener
        try:
            try:
                with opener.open(request, timeout=self._timeout_seconds) as response:
                    return Response(response.status, self._read(response, deadline))
            except urllib.error.HTTPError as error:
                with error:
                    return Response(error.code, self._read(error, deadline))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)  # of the errors that urllib wraps
            cause = reason if isinstance(reason, OSError) else error
            if isinstance(cause, ssl.SSLError) and (failure := self._tls_failure(cause)) is not None:
                raise TlsFailure(failure) from None
            text = str(reason) or type(error).__name__
            if address.startswith("https:") and isinstance(
                cause, (BrokenPipeError, ConnectionResetError, ssl.SSLError)
            ):
                # From TLS 1.3 on servers reject certificates after the handshake, and what they say may be lost.
                text = f"{text}; it may require another certificate of this client"
            raise Unreachable(text) from None

    def _read(self, response: http.client.HTTPResponse | urllib.error.HTTPError, deadline: float) -> bytes:
        chunks: list[bytes] = []
        missing = self._max_bytes + 1
        while missing > 0:
            chunk = response.read1(min(missing, _CHUNK_BYTES))
            if not chunk:
                if getattr(response, "length", None):  # which `read1` does not check
                    raise http.client.IncompleteRead(b"".join(chunks), response.length)
                break
            chunks.append(chunk)
            missing -= len(chunk)
            if time.monotonic() > deadline:
                raise TimeoutError(f"no complete answer within {2 * self._timeout_seconds:g} s")
        return b"".join(chunks)

    def _tls_failure(self, error: ssl.SSLError) -> str | None:
        """Return what is wrong with certificates or protocol and what to do; ``None`` if it may pass."""
        if isinstance(error, ssl.SSLCertVerificationError):
            return (
                f"its certificate is not trusted ({error.verify_message}); set {self._tls.prefix}_cafile to the "
                "authority that signed it, and use the name in it as the address"
            )
        reason = error.reason or ""
        if "ALERT" in reason and ("CERTIFICATE" in reason or "UNKNOWN_CA" in reason or "HANDSHAKE_FAILURE" in reason):
            what = "rejects" if self._tls.certfile is not None else "requires"
            return (
                f"it {what} a certificate of this client ({_readable(reason)}); set {self._tls.prefix}_certfile and "
                f"{self._tls.prefix}_keyfile to one that it accepts"
            )
        if isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)) or not reason:
            return None
        return f"TLS fails ({_readable(reason)}); check the address: its port may not be one for https"


def _readable(reason: str) -> str:
    return reason.replace("_", " ").lower()


def is_http_address(address: str) -> bool:
    """Return whether a text is an http or https address without fragment.

    >>> is_http_address("https://registry.example:8081/path"), is_http_address("registry.example:8081")
    (True, False)
    """
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:  # an invalid port or host
        return False
    return usable and not parts.fragment and re.fullmatch(r"[!-~]+", address) is not None


def is_protected(address: str) -> bool:
    """Return whether nobody else can read what is sent to an address: it is encrypted, or stays on this machine.

    >>> is_protected("http://127.0.0.1:8081"), is_protected("http://registry.example")
    (True, False)
    """
    return urlsplit(address).scheme == "https" or _is_local(address)


def _is_local(address: str) -> bool:
    host = (urlsplit(address).hostname or "").rstrip(".")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        """Return None, so that a redirect counts as an answer of its own."""
