"""Rules that settings share."""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, ValidationInfo

Text = Annotated[str, Field(min_length=1)]
"""A text that is not empty."""


def only_if(other: str, *values: str, required: bool = False) -> AfterValidator:
    """Return the rule that a setting is for some values of another one, or for any, which its model has before it.

    Args:
        other: the other setting.
        *values: of it; by default any that is set.
        required: whether the setting must be set then. Its model must validate defaults.
    """

    def check(value: Any, info: ValidationInfo) -> Any:
        if other not in info.data:  # it is not valid itself
            return value
        found = info.data[other]
        is_wanted = found in values if values else found is not None
        is_given = value not in (None, "none", ())
        if is_given and not is_wanted:
            rule = f"if {other} is {' or '.join(values)}, and it is {found}" if values else f"together with {other}"
            raise ValueError(f"must be set only {rule}")
        if required and is_wanted and not is_given:
            raise ValueError("must be set " + (f"if {other} is {found}" if values else f"together with {other}"))
        return value

    return AfterValidator(check)


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
    """Return whether what is sent to an address stays private: it is encrypted, or does not leave this machine.

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
