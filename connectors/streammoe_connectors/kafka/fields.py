"""Fields of an event from the key, timestamp and headers of a Kafka record."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from streammoe_connectors.kafka.records import Records

_JSON_WHITESPACE = b" \t\r\n"
_CSV_SPECIAL = frozenset(',"\r\n\ufeff')

Column = list[str] | list[float | None] | list[str | None]


class RecordFields:
    """A reader of fields from records, which also adds them to their values.

    Args:
        key: name of the field for the key, if wanted.
        timestamp: name of the field for the timestamp, if wanted.
        headers: names of the wanted headers.
    """

    def __init__(self, key: str | None, timestamp: str | None, headers: tuple[str, ...]) -> None:
        self.names = (*(name for name in (key, timestamp) if name is not None), *headers)
        """Names of all fields, in the order of columns."""
        self._key = key
        self._timestamp = timestamp
        self._headers = headers
        self._members = [json.dumps(name).encode() + b":" for name in self.names]

    def read(self, records: Records) -> list[Column]:
        """Return a column for each name, ``None`` where a record lacks the field.

        Keys and headers need not be text: other bytes appear as escapes, so that different ones stay different.
        """
        columns: list[Column] = []
        if self._key is not None:
            columns.append(_texts(records["key"]))
        if self._timestamp is not None:
            columns.append([None if ms < 0 else ms / 1000 for ms in records["time"].tolist()])
        if self._headers:
            # The last of several equal ones counts.
            found = [dict(headers) for headers in records["headers"]]
            columns += [_texts(headers.get(name) for headers in found) for name in self._headers]
        return columns

    def into_json(self, values: list[bytes], columns: list[Column]) -> list[bytes]:
        """Prepend these fields to JSON objects, so that the object's own field of the same name comes last and counts.

        Values that are not objects stay unchanged, for the decoder to reject.
        """
        encode = msgspec.json.encode
        parts = [
            [b"" if value is None else member + encode(value) for value in column]
            for member, column in zip(self._members, columns, strict=True)
        ]
        members = parts[0] if len(parts) == 1 else [b",".join(filter(None, row)) for row in zip(*parts, strict=True)]
        return [
            _prepend_members(value, members) if members else value
            for value, members in zip(values, members, strict=True)
        ]

    def before_csv(self, values: list[bytes], columns: list[Column]) -> list[bytes]:
        """Prepend these fields to lines of csv."""
        return [
            b"%b,%b" % (",".join(map(_csv_cell, cells)).encode(), value)
            for value, cells in zip(values, zip(*columns, strict=True), strict=True)
        ]


def _texts(raw: Iterable[bytes | None]) -> list[str | None]:
    return [None if octets is None else octets.decode(errors="backslashreplace") for octets in raw]


def _prepend_members(value: bytes, members: bytes) -> bytes:
    body = value.lstrip(_JSON_WHITESPACE)
    if not body.startswith(b"{"):
        return value
    rest = body[1:]
    return b"{%b%b%b" % (members, b"" if rest.lstrip(_JSON_WHITESPACE).startswith(b"}") else b",", rest)


def _csv_cell(value: str | float | None) -> str:
    if not isinstance(value, str):
        return "" if value is None else repr(value)
    return value if _CSV_SPECIAL.isdisjoint(value) else '"' + value.replace('"', '""') + '"'
