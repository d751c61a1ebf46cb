"""Conversion of Avro data, without file headers, to JSON text."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import fastavro
import numpy as np
from fastavro.read import LOGICAL_READERS

from streammoe_connectors.formats.as_json import as_json, plain

_MAX_DEPTH = 60  # of nested schemas; the decoder accepts JSON up to 100 levels
# Types that the package leaves as plain numbers.
LOGICAL_READERS.setdefault("long-timestamp-nanos", lambda ticks, *_: f"{np.datetime64(ticks, 'ns')}Z")
LOGICAL_READERS.setdefault("long-local-timestamp-nanos", lambda ticks, *_: str(np.datetime64(ticks, "ns")))


class AvroReader:
    """A reader of values that were all written with one schema.

    Args:
        schema: as JSON.
        references: the names and texts of schemas that it refers to, each after its own references.

    Raises:
        ValueError: the schema is not usable.
    """

    def __init__(self, schema: str | bytes, references: Sequence[tuple[str, str]] = ()) -> None:
        named: dict[str, Any] = {}
        try:
            for _, reference in references:
                fastavro.parse_schema(json.loads(reference), named)
            self._schema = fastavro.parse_schema(json.loads(schema), named)
            _is_empty(self._schema, named, {}, 0)
        # The parser's errors for invalid schemas are not documented; KeyError, TypeError, AttributeError occur too.
        except Exception as error:  # noqa: BLE001
            known = isinstance(error, ValueError)
            raise ValueError(str(error) if known else f"{type(error).__name__}: {error}") from None
        # Decimals, too, are written as bytes.
        texts = (str(schema), *(text for _, text in references))
        self._has_bytes = any('"bytes"' in each or '"fixed"' in each for each in texts)
        top = self._schema if isinstance(self._schema, list) else [self._schema]
        if not any(isinstance(part, dict) and part.get("type") == "record" for part in top):
            raise ValueError("it must be a record, whose fields have names")

    def __call__(self, value: bytes, start: int = 0) -> bytes:
        """Convert a value, from a byte on, to JSON text; raise ValueError if it was not written with the schema."""
        stream = io.BytesIO(value)
        stream.seek(start)
        try:
            found = fastavro.schemaless_reader(stream, self._schema, None)
        # The reader's errors for damaged bytes are not documented: EOFError, IndexError, OverflowError, UnicodeError.
        except Exception as error:  # noqa: BLE001
            said = str(error).partition(" from <")[0]  # where it would name an object of its own
            raise ValueError(f"must be written with the schema, and is not ({type(error).__name__}: {said})") from None
        if stream.tell() != len(value):
            raise ValueError(f"must end where its schema ends, at byte {stream.tell()}, and has {len(value)} bytes")
        return as_json(found, plain, has_bytes=self._has_bytes)


def _is_empty(schema: Any, named: dict[str, Any], known: dict[str, bool | None], depth: int) -> bool:
    """Return whether values may take no byte.

    Raises:
        ValueError: with this schema a few bytes could exhaust the process's memory or stack.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it must not be nested deeper than {_MAX_DEPTH} levels")

    def inside(part: Any) -> bool:
        return _is_empty(part, named, known, depth + 1)

    if isinstance(schema, list):
        for part in schema:
            inside(part)
        return False
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        return inside(kind)
    if kind == "array" and inside(schema["items"]):
        raise ValueError("it has an array of items of zero bytes, so that a value could claim any number of them")
    if kind == "map":
        inside(schema["values"])
    if kind in {"record", "error"}:
        name = schema["name"]
        if name not in known:
            known[name] = None
            fields = [inside(field["type"]) for field in schema["fields"]]
            known[name] = all(fields)
        if (empty := known[name]) is None:
            raise ValueError(
                f"record {name} contains itself, so that a value could be nested without end; use one that does not"
            )
        return empty
    if kind in named:
        return inside(named[kind])
    return kind == "null" or (kind == "fixed" and schema["size"] <= 0)
