"""Conversion of what decoders of binary formats return to JSON text, so that the decoder of events judges it.

Registries' serializers write a frame before values: a byte 0, and the number of the schema in 4 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import msgspec

FRAME_BYTES = 5
Read = Callable[[bytes, int], bytes]
"""Converts a value, from a byte on, to JSON text; raises ValueError with the rule that it breaks."""


def schema_number(value: bytes) -> int:
    """Return the number of a value's schema; raise ValueError if it names none."""
    if len(value) < FRAME_BYTES or value[0] != 0:
        raise ValueError("must begin with a byte 0 and the 4 bytes of its schema's number, and does not")
    return int.from_bytes(value[1:FRAME_BYTES], "big")


def as_json(value: object, plain: Callable[[Any], object], *, has_bytes: bool = False) -> bytes:
    """Encode a value as JSON text on one line.

    Args:
        value: to encode.
        plain: converts objects that JSON does not know, step by step.
        has_bytes: whether the value may hold bytes for `plain`, which msgspec would encode in base 64.

    Raises:
        ValueError: it is nested too deeply, or holds a number of too many digits.
    """
    try:
        text = b"null" if has_bytes else _encoder(plain).encode(value)
        if b"null" in text:  # which may be NaN, as it must be called for the decoder to reject it
            text = json.dumps(value, default=plain, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise ValueError("must not be nested so deeply") from None
    return text


@cache
def _encoder(plain: Callable[[Any], object]) -> msgspec.json.Encoder:
    return msgspec.json.Encoder(enc_hook=plain, decimal_format="number")


def plain(value: object) -> object:
    r"""Return JSON for a value of Python: bytes as text with escapes for what is none, and times as in ISO 8601.

    >>> as_json({"a": b"\xc3\xbc\xff", "b": Decimal("1.50"), "c": float("nan")}, plain, has_bytes=True).decode()
    '{"a":"ü\\\\xff","b":1.5,"c":NaN}'
    """
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, Decimal):
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    return msgspec.to_builtins(value)
