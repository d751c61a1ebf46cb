"""Decoder for JSON objects, one per record (RFC 8259; the last value of a duplicate key counts)."""

from __future__ import annotations

import json
import math
import re
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.pipeline.decoders.decoder import Decoder, Found, is_utf8, malformed, readable, text_of
from streammoe.pipeline.decoders.rows import NewNames, Slot, Values
from streammoe.ports import Batch
from streammoe.text import ONE_A_LINE

_DEPTH = 100  # a fixed limit, well below the interpreter's, so that rejection does not depend on the caller's stack
_parse = msgspec.json.Decoder(dict[str, Any]).decode
_NOTHING = (None, "")
_NUMBERS = {float, int, bool, type(None)}
_BETWEEN_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^"\[\]{}]+', re.DOTALL)


class JsonlDecoder(Decoder):
    """A decoder for objects of numbers, booleans, texts and nulls; unwanted fields may hold anything."""

    def names(self, batch: Batch, i: int) -> Values:
        return object_of(readable(batch, i))

    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found:
        """Return the values of records that a compiled parser takes, but for those with values under new names."""
        ends = [int(batch.ends[start - 1]) if start else 0, *batch.ends[start:stop].tolist()]
        known, unknown = names.known, set[str]()
        rows: list[int] = []
        found: list[Values] = []
        # One record at a time: a parser of whole blocks would accept two objects on a line, or one across two lines.
        for i, (begin, end) in enumerate(pairwise(ends), start):
            record = batch.block[begin:end]
            if _brackets(record) > _DEPTH:
                continue
            try:
                values = _parse(record)
            except ValueError:
                continue  # it may be for the exact path
            if known is not None and not values.keys() <= known:
                unknown |= names.unknown(values.keys())
            if not (names.late or names.awaited) or all(values[name] in _NOTHING for name in filter(names.has, values)):
                rows.append(i)
                found.append(values)
        columns = {slot.name: _column(slot.kind, [values.get(slot.name) for values in found]) for slot in slots}
        return Found(np.array(rows, np.int64), columns, unknown)


def object_of(record: bytes) -> Values:
    """Parse a record without its line end into names and raw values, on the exact path.

    Raises:
        InvalidEvent: it is ``malformed``.
    """
    text = text_of(record)
    if _depth(text) > _DEPTH:
        raise malformed(text, f"must not be nested deeper than {_DEPTH} levels")
    try:
        value = _JSON.decode(text)
    except json.JSONDecodeError as error:
        rule = f"must be JSON, and is not at character {error.pos}: {error.msg}{ONE_A_LINE.get(text.strip(), '')}"
        raise malformed(text, rule) from None
    if not isinstance(value, dict):
        raise malformed(text, "must be a JSON object")
    return value


def is_for_parser(record: bytes) -> bool:
    """Whether a compiled parser may skip fields of a record, of which it checks neither depth nor UTF-8."""
    return _brackets(record) <= _DEPTH and is_utf8(record)


def _column(kind: ColumnKind, values: list[object]) -> Any:
    """Return values as `read_column` takes them."""
    try:
        is_array = kind == "number" and _NUMBERS.issuperset(map(type, values))
        return np.array(values, np.float64) if is_array else values
    except OverflowError:  # one is too large
        return values


def _integer(literal: str) -> int | Decimal:
    return int(literal) if math.isfinite(float(literal)) else Decimal(literal)


def _float(literal: str) -> float | Decimal:
    value = float(literal)
    return value if math.isfinite(value) else Decimal(literal)


_JSON = json.JSONDecoder(parse_int=_integer, parse_float=_float)


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _depth(record: str) -> int:
    """Return how deep a parser would descend."""
    if record.count("[") + record.count("{") <= _DEPTH:
        return 0
    brackets = _BETWEEN_BRACKETS.sub("", record)
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)
