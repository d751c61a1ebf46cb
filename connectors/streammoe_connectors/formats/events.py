"""The events that a record holds: itself, the object at some path, each object of an array, or each of several lines.

The events of one record stay in one batch, so that no checkpoint divides them: a position is that of a record.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np
from pydantic import BeforeValidator

from streammoe.ports import Location, Locations, Unreadable
from streammoe.text import ONE_A_LINE, shown, some_of
from streammoe.types import IntArray

MANY = b"[ \t\r\n"
"""First characters of a JSON text that holds an array."""
_UNDECODABLE = {"jsonl": b"!", "csv": b'"'}
_VALUE = msgspec.json.Decoder(msgspec.Raw).decode
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ELEMENTS = msgspec.json.Decoder(list[msgspec.Raw]).decode


def _literal(text: str) -> msgspec.Raw:
    return msgspec.Raw(text.encode())


_LENIENT = json.JSONDecoder(parse_constant=_literal, parse_float=_literal, parse_int=_literal).decode
"""Also takes NaN and infinities, for which the decoder of events rejects those that hold them, and no others."""


class FoundEvents(NamedTuple):
    """The n events of some records, in order."""

    values: list[bytes]
    records: list[int]
    """Index of the record that each came from."""
    numbers: list[int]
    """Its number in that record, from 0; −1 if the record is one event."""
    rejected: dict[int, Unreadable]
    """Why there is no event, by index; the value is then that of its record or line."""
    skipped: int
    """How many had null in place of the object, or an array of none."""


def _names(path: object) -> object:
    names = path.split(".") if isinstance(path, str) else path
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) and name for name in names):
        raise ValueError('must be names with points between them, such as "payload.after", or a list of names')
    return tuple(names)


RecordPath = Annotated[tuple[str, ...], BeforeValidator(_names)]
"""Names that lead to the object that is the event, in settings."""


def events_of(
    values: Sequence[bytes],
    path: tuple[str, ...] | None,
    *,
    lines: Callable[[bytes], list[bytes]] | None = None,
    rejected: Mapping[int, Unreadable] = MappingProxyType({}),
) -> FoundEvents:
    """Return the events of records.

    Args:
        values: the records.
        path: names that lead to the object that is the event, in JSON; each object of an array on the way counts.
            ``None`` for other formats.
        lines: divides a record into lines, which count like records.
        rejected: records that are none already, by index; they stay as they are.
    """
    events = FoundEvents([], [], [], {}, 0)
    skipped = 0
    for i, value in enumerate(values):
        pieces = [value] if i in rejected or lines is None else lines(value)
        is_one = len(pieces) == 1
        found: list[bytes | None] = []
        bad: dict[int, Unreadable] = {0: rejected[i]} if i in rejected else {}
        for piece in pieces:
            try:
                if i in rejected or path is None:
                    found.append(piece)
                elif _collect(piece, path, found):
                    is_one = False
            except ValueError as error:
                bad[len(found)] = Unreadable("malformed", f"record {shown(piece)} {error}", piece)
                found.append(piece)
        kept = [(number, event) for number, event in enumerate(found) if event is not None]
        events.rejected.update((len(events.values) + at, bad[n]) for at, (n, _) in enumerate(kept) if n in bad)
        events.values.extend(event for _, event in kept)
        events.records.extend([i] * len(kept))
        events.numbers.extend(-1 if is_one else number for number, _ in kept)
        skipped += found.count(None)
    return events._replace(skipped=skipped)


def packed(values: Sequence[bytes], replaced: Collection[int], format: str) -> tuple[bytes, IntArray]:
    """Return values in one block, each with a line end, and where they end.

    Args:
        values: of events.
        replaced: indexes of those in whose place the block holds what no decoder accepts.
        format: of the block.
    """
    if replaced:
        values = [_UNDECODABLE[format] if i in replaced else value for i, value in enumerate(values)]
    ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1)
    return b"\n".join([*values, b""]), ends


def numbered(locations: Sequence[Location], numbers: Sequence[int]) -> Sequence[Location]:
    """Return the locations of records with the numbers of events in them, as entry ``record``."""
    if all(number < 0 for number in numbers):
        return locations
    if isinstance(locations, Locations) and all(number >= 0 for number in numbers):
        return Locations(locations.common, {**locations.numbers, "record": np.array(numbers, np.int64)})
    return [
        place if number < 0 else {**place, "record": number} for place, number in zip(locations, numbers, strict=True)
    ]


def json_lines(value: bytes) -> list[bytes]:
    """Return the lines of a text if the first one is a JSON text, or else the whole, whose line ends are blanks."""
    lines = [line for line in value.split(b"\n") if not line.isspace() and line]
    try:
        if len(lines) > 1:
            _VALUE(lines[0])
    except (ValueError, RecursionError):
        return [value]
    return lines if len(lines) > 1 else [value]


def _collect(value: bytes, path: tuple[str, ...], found: list[bytes | None]) -> bool:
    """Add the events of a JSON text to those found, None in place of null or no event; return whether it is an array.

    Raises:
        ValueError: there is none; nothing is added then.
    """
    start = value.lstrip()[:1]
    if start == b"[":
        events: list[bytes | None] = []
        for element in _decoded(_ELEMENTS, value):
            if bytes(element)[:1] != b"{":
                raise ValueError(f"must be a JSON object, or an array of objects; it holds {shown(bytes(element))}")
            _collect(bytes(element), path, events)
        found.extend(events or [None])
        return True
    if not path:
        found.append(value)
        return False
    if start != b"{":
        raise ValueError(f"must be a JSON object with the field {path[0]!r}, which source.record names")
    fields = _decoded(_FIELDS, value)
    if path[0] not in fields:
        names = some_of(sorted(fields)) if fields else "none"
        raise ValueError(f"must have the field {path[0]!r}, which source.record names; its fields are {names}")
    inner = bytes(fields[path[0]])
    if inner == b"null":
        found.append(None)
        return False
    if len(path) == 1 and inner[:1] not in b"[{":
        raise ValueError(f"must hold an object in the field {path[0]!r}, which source.record names")
    return _collect(inner, path[1:], found)


def _decoded(decode: Any, value: bytes) -> Any:
    """Return the members of an object, or the elements of an array, as they are written."""
    try:
        return decode(value)
    except (ValueError, RecursionError):
        pass  # it is none, or holds what is not quite JSON
    try:
        found = _LENIENT(value.decode())
        encode = msgspec.json.encode
        return {k: encode(v) for k, v in found.items()} if isinstance(found, dict) else [*map(encode, found)]
    except (ValueError, RecursionError) as error:
        remedy = ONE_A_LINE.get(value.decode(errors="replace").strip(), "")
        raise ValueError(f"must be JSON, and is not: {error}{remedy}") from None
