"""Rejected records, kept in a file."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from streammoe.errors import SourceError
from streammoe.persistence.append_log import AppendLog
from streammoe.ports import DECIMALS, DELIMITERS, DeadLetter, DeadLetterSink, Headers


class DeadLetterFile(AppendLog, DeadLetterSink):
    """A file of rejected records as JSON lines: place, stage, reason, detail, record, and how to read it again.

    A record or key that is not UTF-8 is written as ``record_base64`` or ``key_base64`` instead, and such a value of a
    header as an object with ``base64``. `read_letter` reads a line.
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
    for name in ("record", "key"):
        octets = entry.pop(name, None)
        if octets is not None:
            value = _text(octets)
            entry |= {name: value} if isinstance(value, str) else {f"{name}_base64": value["base64"]}
    if letter.headers is not None:
        entry["headers"] = [[name, None if value is None else _text(value)] for name, value in letter.headers]
    return entry


def _text(octets: bytes) -> str | dict[str, str]:
    try:
        return octets.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(octets).decode()}


def _octets(value: str | dict[str, str]) -> bytes:
    """Return what `_text` was given; raise `ValueError`, `LookupError` or `TypeError` for anything else."""
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"], validate=True)


def _headers(entry: list[Any]) -> Headers:
    found = tuple((name, None if value is None else _octets(value)) for name, value in entry)
    if not all(isinstance(name, str) for name, _ in found):
        raise TypeError
    return found


_REQUIRED: dict[str, type] = {"place": dict, "stage": str, "reason": str, "detail": str}
_OPTIONAL: dict[str, type] = {
    "format": str,
    "columns": list,
    "delimiter": str,
    "decimal": str,
    "omitted_bytes": int,
}


def read_letter(line: bytes) -> DeadLetter | None:
    """Parse a line of a `DeadLetterFile`; return ``None`` for half a line or anything else."""
    try:
        entry = json.loads(line)
        record = (
            entry["record"].encode() if "record" in entry else base64.b64decode(entry["record_base64"], validate=True)
        )
        values = {name: entry[name] for name in _REQUIRED}
        octets: dict[str, Any] = {}
        if entry.get("key") is not None:
            octets["key"] = entry["key"].encode()
        elif "key_base64" in entry:
            octets["key"] = base64.b64decode(entry["key_base64"], validate=True)
        if entry.get("headers") is not None:
            octets["headers"] = _headers(entry["headers"])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    values |= {name: entry[name] for name in _OPTIONAL if entry.get(name) is not None}
    if not all(isinstance(value, (_REQUIRED | _OPTIONAL)[name]) for name, value in values.items()):
        return None
    if "columns" in values:
        values["columns"] = tuple(values["columns"])
        if not all(isinstance(column, str) for column in values["columns"]):
            return None
    if values.get("delimiter", ";") not in DELIMITERS or values.get("decimal", ",") not in DECIMALS:
        return None
    return DeadLetter(location=values.pop("place"), record=record, **values, **octets)
