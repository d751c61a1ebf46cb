"""Conversion of Avro data, without file headers, to JSON text."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fastavro
from fastavro.read import LOGICAL_READERS

from streammoe.errors import ConfigError, InvalidEvent
from streammoe_connectors.formats.json_text import json_text, utc_text
from streammoe_connectors.formats.schema_registry import FRAME_BYTES, Registry, UnknownSchemaError

_MAX_DEPTH = 60  # of nested schemas; the decoder accepts JSON up to 100 levels
_MIN_BYTES = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1, "enum": 1}


class AvroFile:
    """A reader of values that were all written with the schema in a file.

    Raises:
        ConfigError: the file cannot be read, or does not hold a usable schema.
    """

    def __init__(self, path: str) -> None:
        try:
            self._schema = _parse(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigError(
                f"source.schema_file: cannot read {path!r} ({error.strerror}); it must be an Avro schema"
            ) from None
        except ValueError as error:
            raise ConfigError(f"source.schema_file: {path!r} must hold a usable Avro schema: {error}") from None

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text; raise `InvalidEvent` if it was not written with the schema."""
        return _read(value, self._schema)


class AvroRegistry:
    """A reader of values that name their schema.

    Schemas are cached for ever, since a number always means the same one.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._schemas: dict[int, Any] = {}
        self._unusable: dict[int, str] = {}

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text.

        Raises:
            InvalidEvent: it does not name a usable schema, or was not written with it.
            RetriableSourceError: the registry does not respond.
            SourceError: the registry denies access.
        """
        if len(value) < FRAME_BYTES or value[0] != 0:
            raise _malformed(value, "must begin with a byte 0 and the 4 bytes of its schema's number, and does not")
        number = int.from_bytes(value[1:FRAME_BYTES], "big")
        schema = self._schemas.get(number)
        if schema is None:
            schema = self._fetch(number, value)
        return _read(value[FRAME_BYTES:], schema)

    def _fetch(self, number: int, value: bytes) -> Any:
        try:
            if number in self._unusable:
                raise ValueError(self._unusable[number])
            registered = self._registry.schema(number, "AVRO")
            self._schemas[number] = _parse(registered.text, [reference.text for reference in registered.references])
        except UnknownSchemaError as error:
            raise _malformed(value, f"must name a registered Avro schema: {error}") from None
        except ValueError as error:
            self._unusable[number] = str(error)
            raise _malformed(
                value, f"must name a usable schema, and {number} in {self._registry.name} is not usable: {error}"
            ) from None
        return self._schemas[number]


def _parse(text: str, references: Sequence[str] = ()) -> Any:
    """Parse a schema; raise ValueError if it is not usable."""
    named: dict[str, Any] = {}
    try:
        for reference in references:
            fastavro.parse_schema(json.loads(reference), named)
        schema = fastavro.parse_schema(json.loads(text), named)
        _min_bytes(schema, named, {}, 0)
    # The parser's errors for invalid schemas are not documented; KeyError, TypeError, AttributeError occur too.
    except Exception as error:  # noqa: BLE001
        known = isinstance(error, ValueError)
        raise ValueError(str(error) if known else f"{type(error).__name__}: {error}") from None
    top = schema if isinstance(schema, list) else [schema]
    if not any(isinstance(part, dict) and part.get("type") == "record" for part in top):
        raise ValueError("it must be a record, whose fields have names")
    return schema


def _min_bytes(schema: Any, named: dict[str, Any], known: dict[str, int | None], depth: int) -> int:
    """Return the fewest bytes that a value takes.

    Raises:
        ValueError: with this schema a few bytes could exhaust the process's memory or stack.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it must not be nested deeper than {_MAX_DEPTH} levels")
    if isinstance(schema, list):
        return 1 + min((_min_bytes(part, named, known, depth + 1) for part in schema), default=0)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if not isinstance(kind, str):
        return _min_bytes(kind, named, known, depth + 1)
    if kind in _MIN_BYTES:
        return _MIN_BYTES[kind]
    if kind == "fixed":
        return int(schema["size"])
    if kind == "array":
        if _min_bytes(schema["items"], named, known, depth + 1) == 0:
            raise ValueError("it has an array of items of zero bytes, so that a value could claim any number of them")
        return 1
    if kind == "map":
        _min_bytes(schema["values"], named, known, depth + 1)
        return 1
    if kind not in {"record", "error"}:
        return _min_bytes(named[kind], named, known, depth + 1)
    name = schema["name"]
    if name not in known:
        known[name] = None
        known[name] = sum(_min_bytes(field["type"], named, known, depth + 1) for field in schema["fields"])
    min_bytes = known[name]
    if min_bytes is None:
        raise ValueError(
            f"record {name} contains itself, so that a value could be nested without end; use one that does not"
        )
    return min_bytes


def _read(datum: bytes, schema: Any) -> bytes:
    stream = io.BytesIO(datum)
    try:
        value = fastavro.schemaless_reader(stream, schema, None)
    # The reader's errors for damaged bytes are not documented: EOFError, IndexError, OverflowError, UnicodeError, ...
    except Exception as error:  # noqa: BLE001
        raise _malformed(
            datum, f"must be written with the schema, and is not ({type(error).__name__}: {error})"
        ) from None
    if stream.tell() != len(datum):
        raise _malformed(datum, f"must end where its schema ends, at byte {stream.tell()}, and has {len(datum)} bytes")
    return json_text(value)


def _malformed(value: bytes, rule: str) -> InvalidEvent:
    return InvalidEvent(f"Avro value {value[:40]!r} {rule}", reason="malformed")


def _nanoseconds(ticks: int, *_: object) -> str:
    return utc_text(*divmod(ticks, 10**9))


def _local_nanoseconds(ticks: int, *_: object) -> str:
    return _nanoseconds(ticks).removesuffix("Z")  # as the package reads other local times


# Types that the package leaves as plain numbers.
LOGICAL_READERS.setdefault("long-timestamp-nanos", _nanoseconds)
LOGICAL_READERS.setdefault("long-local-timestamp-nanos", _local_nanoseconds)
