"""Conversion of what decoders of binary formats return to JSON text, so that the decoder of events judges it."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any


def as_json(value: object, plain: Callable[[Any], object]) -> bytes:
    """Encode a value as JSON text on one line; `plain` converts objects that JSON does not know, step by step.

    Raises:
        ValueError: it is nested too deeply, or holds a number of too many digits.
    """
    try:
        return json.dumps(value, default=plain, ensure_ascii=False, separators=(",", ":")).encode()
    except RecursionError:
        raise ValueError("must not be nested so deeply") from None


def plain(value: object) -> object:
    r"""Return JSON for a value of Python: bytes as text with escapes for what is none, and times as in ISO 8601.

    >>> as_json({"a": b"\xc3\xbc\xff", "b": Decimal("1.50"), "c": float("nan")}, plain).decode()
    '{"a":"ü\\\\xff","b":1.5,"c":NaN}'
    """
    match value:
        case bytes():
            return value.decode(errors="backslashreplace")
        case Decimal():
            return int(value) if value.as_tuple().exponent == 0 else float(value)
        case dt.date() | dt.time():
            return value.isoformat()
    return str(value)
