"""Decoder for JSON objects, one per record (RFC 8259; the last value of a duplicate key counts)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from decimal import Decimal
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, Any, Literal

import msgspec
import numpy as np
import pyarrow as pa

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import MAX_TEXT_LENGTH
from streammoe.errors import InvalidEvent
from streammoe.pipeline.decoders.decoder import Decoder, Found, is_utf8, malformed, readable, text_of
from streammoe.pipeline.decoders.rows import NewNames, Slot, Values
from streammoe.ports import Batch
from streammoe.text import ONE_A_LINE

_DEPTH = 100  # a fixed limit, well below the interpreter's, so that rejection does not depend on the caller's stack
_BETWEEN_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^"\[\]{}]+', re.DOTALL)


class JsonlDecoder(Decoder):
    """A decoder for objects of numbers, booleans, texts and nulls; unwanted fields may hold anything."""

    def names(self, batch: Batch, i: int) -> Values:
        return object_of(readable(batch, i))

    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found:
        """Return the values of records that a compiled parser takes: without new values, or names that are not known.

        Such a name becomes known with its first record, or if there may be late columns, one of which records may have
        null.
        """
        known, nulls, unknown = names.known, frozenset[str]() if names.late else names.awaited, set[str]()
        read = _reader(slots, known, nulls)
        ascii_only = batch.block.isascii()
        ends = [int(batch.ends[start - 1]) if start else 0, *batch.ends[start:stop].tolist()]
        rows: list[int] = []
        taken: list[tuple[Any, ...]] = []
        # One record at a time: a parser of whole blocks would accept two objects on a line, or one across two lines.
        for i, (begin, end) in enumerate(pairwise(ends), start):
            record = batch.block[begin:end]
            if is_for_parser(record, ascii_only=ascii_only):
                try:
                    taken.append(read(record))
                    rows.append(i)
                    continue
                except msgspec.MsgspecError:
                    pass  # it has a name more, or has to be read alone
            if known is not None and len(nulls) + len(unknown) < _MOST_NAMES:
                with suppress(InvalidEvent):
                    values = self.names(batch, i)
                    more = values.keys() - known - nulls
                    if names.late:
                        nulls = nulls.union(name for name in more if values[name] is None or values[name] == "")
                    else:
                        known, unknown = known | more, unknown | more
                    read = _reader(slots, known, nulls)
        columns = zip(slots, zip(*taken, strict=True), strict=True) if taken else ()
        return Found(np.array(rows, np.int64), {slot.name: _column(slot, each) for slot, each in columns}, unknown)


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


def is_for_parser(record: bytes, *, ascii_only: bool = False) -> bool:
    """Whether a compiled parser may decode a record: it checks neither depth nor UTF-8 in fields that it skips."""
    return _brackets(record) <= _DEPTH and (ascii_only or is_utf8(record))


def _column(slot: Slot, values: tuple[Any, ...]) -> Any:
    """Return values as `read_column` takes them."""
    if slot.kind == "number":
        return np.array(values, np.float64)
    try:
        return pa.array(values, pa.string())
    except (pa.ArrowException, UnicodeEncodeError):  # some are no texts, or hold half a surrogate pair
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


_TYPES: Mapping[ColumnKind, Any] = {
    "number": float | bool | None,
    "time": float | str | None,
    "category": Annotated[str, msgspec.Meta(max_length=MAX_TEXT_LENGTH)] | int | float | bool | None,
}
_NOTHING: Any = Literal[""] | None
_MOST_NAMES = 64  # that are not known; each new one compiles another parser


@lru_cache(maxsize=64)
def _reader(
    slots: tuple[Slot, ...], known: frozenset[str] | None, nulls: frozenset[str]
) -> Callable[[bytes], tuple[Any, ...]]:
    """Compile a parser from a record to the values of `slots`.

    Args:
        slots: the values to read.
        known: if given, a record with other names is rejected,
        nulls: unless they are listed here and null or an empty text; without `known`, a record with other values
            under these names.
    """
    if known is None and not all(map(_is_plain, nulls)):
        return _reject
    others: dict[str, Any] = dict.fromkeys(known or (), msgspec.Raw) | dict.fromkeys(nulls, _NOTHING)
    taken = {slot.name for slot in slots}
    named = [(slot.name, _TYPES[slot.kind]) for slot in slots]
    named += [(name, others[name]) for name in sorted(others) if name not in taken and _is_plain(name)]
    try:
        record_type = msgspec.defstruct(
            "Record",
            [(f"f{j}", expected, None) for j, (_, expected) in enumerate(named)],
            rename={f"f{j}": name for j, (name, _) in enumerate(named)},
            forbid_unknown_fields=known is not None,
        )
    except ValueError:  # a name twice, or one that needs escapes in JSON
        return _reject
    decode, astuple = msgspec.json.Decoder(record_type).decode, msgspec.structs.astuple
    if len(named) == len(slots):
        return lambda record: astuple(decode(record))
    return lambda record: astuple(decode(record))[: len(slots)]


def _is_plain(name: str) -> bool:
    return json.dumps(name, ensure_ascii=False) == f'"{name}"'


def _reject(record: bytes) -> tuple[Any, ...]:
    raise msgspec.ValidationError(record)
