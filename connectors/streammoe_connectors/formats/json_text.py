"""Conversion of values from binary formats to JSON text, so that the decoder judges them as they were."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from math import isfinite

import msgspec

_JSON_TYPES = frozenset({str, int, bool, type(None)})
_OMITTED = object()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Python's JSON literals, which the decoder rejects; as null these numbers would count as missing.
_NON_FINITE = {"nan": msgspec.Raw(b"NaN"), "inf": msgspec.Raw(b"Infinity"), "-inf": msgspec.Raw(b"-Infinity")}


def json_text(value: object) -> bytes:
    """Encode a value as JSON text on one line.

    Bytes become text if they are UTF-8 without NUL; else their field is omitted. Decimals become numbers, times
    ISO 8601, non-finite numbers the literals ``NaN``, ``Infinity`` and ``-Infinity``.

    >>> json_text({"a": b"text", "b": bytes([0, 255]), "c": Decimal("1.50"), "d": float("nan")})
    b'{"a":"text","c":1.50,"d":NaN}'
    """
    return msgspec.json.encode(None if (plain := _to_plain(value)) is _OMITTED else plain)


def utc_text(seconds: int, nanoseconds: int) -> str:
    """Format a time since 1970 as ISO 8601 in UTC.

    >>> utc_text(86400, 5)
    '1970-01-02T00:00:00.000000005Z'

    Raises:
        ValueError: the time is not within the years 1 to 9999, or `nanoseconds` are not part of one second.
    """
    if not 0 <= nanoseconds < 10**9:
        raise ValueError(f"{nanoseconds} nanoseconds are not part of a second")
    try:
        whole = _EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise ValueError(f"{seconds} seconds since 1970 are not within the years 1 to 9999") from None
    fraction = f".{nanoseconds:09}" if nanoseconds else ""
    return f"{whole.isoformat().removesuffix('+00:00')}{fraction}Z"


def _to_plain(value: object) -> object:
    kind = value.__class__
    if kind in _JSON_TYPES:
        return value
    if isinstance(value, dict):
        # Inlined for numbers and texts, the most frequent parts: calls would take twice the time.
        return {
            name: plain
            for name, part in value.items()
            if (
                plain := part
                if (kind := part.__class__) in _JSON_TYPES or (kind is float and isfinite(part))
                else _to_plain(part)
            )
            is not _OMITTED
        }
    if isinstance(value, float):
        return value if isfinite(value) else _NON_FINITE[repr(value)]
    if isinstance(value, list | tuple):
        return [None if (plain := _to_plain(part)) is _OMITTED else plain for part in value]
    if isinstance(value, bytes):
        try:
            text = value.decode()
        except UnicodeDecodeError:
            return _OMITTED
        return _OMITTED if "\0" in text else text
    if isinstance(value, Decimal):
        return msgspec.Raw(str(value).encode())
    return value  # dates and times, which the encoder supports
