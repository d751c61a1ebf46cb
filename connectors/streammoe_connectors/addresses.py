"""Addresses of registries and token endpoints."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit, urlunsplit


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
    parts = urlsplit(address)
    host = (parts.hostname or "").rstrip(".")
    try:
        is_local = ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    return is_local or parts.scheme == "https"


def without_login(address: str) -> str:
    """Remove user and password from an address.

    >>> without_login("https://user:password@host:8081/path")
    'https://host:8081/path'
    """
    parts = urlsplit(address)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))
