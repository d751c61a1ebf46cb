"""Addresses of registries and token endpoints."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit


def check_http_address(address: str) -> str:
    """Return an http or https address; raise ValueError if it is none, or has a fragment or a login."""
    try:
        parts = urlsplit(address)
        usable = parts.scheme in {"http", "https"} and bool((parts.hostname or "").encode("idna")) and parts.port != 0
    except ValueError:  # an invalid port or host
        usable = False
    if not usable or parts.fragment or "@" in parts.netloc or re.fullmatch(r"[!-~]+", address) is None:
        raise ValueError("must be an address such as https://host.example:8081/path, without a login")
    return address


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
