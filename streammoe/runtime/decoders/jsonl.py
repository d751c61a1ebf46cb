"""JSON objects, one a record (RFC 8259; of a key that comes twice the last value counts)."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import msgspec
import numpy as np

from streammoe.errors import InvalidEvent
from streammoe.ports import Batch
from streammoe.runtime.decoders import Decoded, Rejected, TooLarge, collect, is_utf8, malformed, text_of, to_row

_DEPTH = 100  # a fixed limit, well below the interpreter's: what is refused must not depend on the caller's stack
_BETWEEN_BRACKETS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"?|[^"\[\]{}]+', re.DOTALL)


class JsonlDecoder:
    """Decodes objects of numbers, booleans (as 1 and 0) and nulls; other fields may hold anything."""

    def names(self, batch: Batch, i: int) -> dict[str, object]:
        record = text_of(batch.record(i))
        if _depth(record) > _DEPTH:
            raise malformed(record, f"must not be nested deeper than {_DEPTH} levels")
        try:
            value = _JSON.decode(record)
        except json.JSONDecodeError as error:
            raise malformed(record, f"must be JSON, and is not at character {error.pos}: {error.msg}") from None
        if not isinstance(value, dict):
            raise malformed(record, "must be a JSON object")
        return value

    def decode(self, batch: Batch, columns: Sequence[str], targets: Sequence[str]) -> Decoded:
        read = _reader((*columns, *targets))
        ascii_only = batch.block.isascii()
        refused = (math.nan,) * (len(columns) + len(targets))
        rows: list[Sequence[float]] = []
        rejected: list[Rejected] = []
        # One record at a time: a parser of whole blocks also takes two objects in a line, or one across two lines.
        for i, (start, stop) in enumerate(pairwise([0, *batch.ends.tolist()])):
            record = batch.block[start:stop]
            # The parser leaves out both checks for what it skips.
            if _brackets(record) <= _DEPTH and (ascii_only or is_utf8(record)):
                try:
                    rows.append(read(record))
                    continue
                except msgspec.MsgspecError:
                    pass  # the exact path says why, or accepts it
            try:
                x, y = to_row(self.names(batch, i), columns, targets)
                rows.append(x + y)
            except InvalidEvent as error:
                rejected.append(Rejected(i, error.reason, str(error)))
                rows.append(refused)
        return collect(np.array(rows, np.float64).reshape(len(rows), len(refused)), len(columns), rejected)


def _integer(literal: str) -> object:
    return int(literal) if math.isfinite(float(literal)) else TooLarge(literal)


def _float(literal: str) -> object:
    value = float(literal)
    return value if math.isfinite(value) else TooLarge(literal)


_JSON = json.JSONDecoder(parse_int=_integer, parse_float=_float)


def _brackets(text: bytes) -> int:
    return text.count(b"[") + text.count(b"{")


def _depth(record: str) -> int:
    """How deep a parser would descend."""
    if record.count("[") + record.count("{") <= _DEPTH:
        return 0
    brackets = _BETWEEN_BRACKETS.sub("", record)
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


@lru_cache(maxsize=8)
def _reader(names: tuple[str, ...]) -> Callable[[bytes], tuple[Any, ...]]:
    """A compiled parser from a record to the values of `names`."""
    fields = {f"f{j}": name for j, name in enumerate(names)}
    try:
        kind = msgspec.defstruct("Record", [(field, float | bool | None, None) for field in fields], rename=fields)
    except ValueError:  # a name twice, or one that needs escapes in JSON
        return _refuse
    decode = msgspec.json.Decoder(kind).decode
    return lambda record: msgspec.structs.astuple(decode(record))


def _refuse(record: bytes) -> tuple[Any, ...]:
    raise msgspec.ValidationError(record)
