"""The prefix that a registry's serializers write before values, and what readers of values share."""

from __future__ import annotations

from collections.abc import Callable

from streammoe.errors import InvalidEvent

FRAME_BYTES = 5
"""Length of the prefix: a byte 0, and the schema's number in 4 bytes."""

Read = Callable[[bytes, int], bytes]
"""Converts a value, from a byte on, to JSON text; raises ValueError with the rule that it breaks."""


def schema_number(value: bytes) -> int:
    """Return the number of a value's schema; raise ValueError if it names none."""
    if len(value) < FRAME_BYTES or value[0] != 0:
        raise ValueError("must begin with a byte 0 and the 4 bytes of its schema's number, and does not")
    return int.from_bytes(value[1:FRAME_BYTES], "big")


def malformed(kind: str, value: bytes, rule: object) -> InvalidEvent:
    """Return why a value is rejected."""
    return InvalidEvent(f"{kind} value {value[:40]!r} {rule}", reason="malformed")
