"""Rejected records, kept in a file for inspection and replay."""

from __future__ import annotations

import base64
import json
import os

from streammoe.persistence.append_log import AppendLog
from streammoe.ports import DECIMALS, DELIMITERS, DeadLetter


class DeadLetterFile(AppendLog):
    """A file of rejected records as JSON lines: place, stage, reason, detail, record, and how to replay it.

    A record that is not UTF-8 is written as ``record_base64`` instead. `read_letter` reads a line.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path, "dead_letters.path")

    def write(self, letters: list[DeadLetter]) -> None:
        """Append these letters; durable after `flush`."""
        for letter in letters:
            known = {name: value for name, value in letter._asdict().items() if value is not None}
            entry = {"place": known.pop("location"), **known}
            try:
                entry["record"] = letter.record.decode()
            except UnicodeDecodeError:
                del entry["record"]
                entry["record_base64"] = base64.b64encode(letter.record).decode()
            self.append(json.dumps(entry, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")


_REQUIRED: dict[str, type] = {"place": dict, "stage": str, "reason": str, "detail": str}
_OPTIONAL: dict[str, type] = {
    "format": str,
    "columns": list,
    "run": str,
    "events": int,
    "delimiter": str,
    "decimal": str,
}


def read_letter(line: bytes) -> DeadLetter | None:
    """Parse a line of a `DeadLetterFile`; return ``None`` for half a line or anything else."""
    try:
        entry = json.loads(line)
        record = (
            entry["record"].encode() if "record" in entry else base64.b64decode(entry["record_base64"], validate=True)
        )
        values = {name: entry[name] for name in _REQUIRED}
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
    return DeadLetter(location=values.pop("place"), record=record, **values)
