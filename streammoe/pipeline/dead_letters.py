"""Rejected records, kept in a file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from streammoe.errors import SourceError
from streammoe.persistence.append_log import AppendLog
from streammoe.ports import DECIMALS, DELIMITERS, DeadLetter, DeadLetterSink, Location


class DeadLetterFile(AppendLog, DeadLetterSink):
    """A file of rejected records as JSON lines: place, stage, reason, detail, record, and how to read it again.

    A record, key or value of a header that is not UTF-8 is an object with ``base64``. `read_letter` reads a line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "dead_letters.path")

    def write(self, letters: list[DeadLetter]) -> None:
        """Append these letters; durable after `flush`."""
        for letter in letters:
            self.append(json.dumps(entry_of(letter), ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


def letters_in(path: str) -> Iterator[DeadLetter | None]:
    """Yield the letters in a file, in order; ``None`` for what is no letter.

    Raises:
        SourceError: it cannot be read.
    """
    try:
        with Path(path).open("rb") as lines:
            yield from map(read_letter, lines)
    except OSError as error:
        raise SourceError(
            f"dead_letters.path {path}: cannot be read ({error.strerror}); name the file that holds the letters, or "
            "start the daemon, which creates it"
        ) from error


def entry_of(letter: DeadLetter) -> dict[str, Any]:
    """Return a letter as the object that is its line."""
    known = {name: value for name, value in letter._asdict().items() if value is not None}
    entry = {"place": known.pop("location"), **known}
    entry |= {name: _text(known[name]) for name in ("record", "key") if name in known}
    if letter.headers is not None:
        entry["headers"] = [[name, None if value is None else _text(value)] for name, value in letter.headers]
    return entry


def _text(octets: bytes) -> str | dict[str, str]:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(octets).decode()}


class _Octets(msgspec.Struct, forbid_unknown_fields=True):
    """Bytes that are no text."""

    base64: bytes


class _Line(msgspec.Struct):
    """What a line holds."""

    place: Location
    stage: str
    reason: str
    detail: str
    record: str | _Octets
    format: str | None = None
    columns: tuple[str, ...] | None = None
    delimiter: str | None = None
    decimal: str | None = None
    key: str | _Octets | None = None
    headers: list[tuple[str, str | _Octets | None]] | None = None
    omitted_bytes: int | None = None


def read_letter(line: bytes) -> DeadLetter | None:
    """Parse a line of a `DeadLetterFile`; return ``None`` for half a line or anything else."""
    try:
        found = msgspec.structs.asdict(msgspec.convert(json.loads(line), _Line))
        headers = tuple((name, _octets(value)) for name, value in found.pop("headers") or ()) or None
        record, key = _octets(found.pop("record")) or b"", _octets(found.pop("key"))
    except (ValueError, RecursionError):
        return None
    if found["delimiter"] not in {None, *DELIMITERS} or found["decimal"] not in {None, *DECIMALS}:
        return None
    return DeadLetter(location=found.pop("place"), record=record, key=key, headers=headers, **found)


def _octets(value: str | _Octets | None) -> bytes | None:
    return value.base64 if isinstance(value, _Octets) else value if value is None else value.encode()
