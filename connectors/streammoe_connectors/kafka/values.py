"""Conversion of Kafka records to batches for the daemon's decoders: events, and fields from keys, times and headers.

Values in JSON and csv are passed on unchanged; those in Avro and Protobuf become JSON text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

import msgspec
import numpy as np

from streammoe.errors import ConfigError, not_installed
from streammoe.ports import Batch, Location, Locations, Position, Unreadable
from streammoe_connectors.formats.as_json import FRAME_BYTES, Read, schema_number
from streammoe_connectors.formats.events import MANY, events_of, json_lines, numbered, packed
from streammoe_connectors.formats.records import csv_lines
from streammoe_connectors.kafka.contract import Records
from streammoe_connectors.kafka.settings import ValueSettings

_KINDS = {"avro": "Avro", "protobuf": "Protobuf"}


class Values:
    """A converter from records to batches of one format.

    Raises:
        ConfigError: a schema file is not usable, or a package is missing.
    """

    def __init__(self, settings: ValueSettings) -> None:
        self._settings = settings
        named = (settings.key_field, settings.timestamp_field)
        self._fields = (*(name for name in named if name is not None), *settings.header_fields)
        """Names of the fields from a record's key, time and headers, in the order of columns."""
        self._kind = _KINDS.get(settings.format, "JSON")
        self._to_json = _converter(settings)
        self._path = settings.record or ()
        self._is_csv = settings.format == "csv"
        self._columns = (*self._fields, *(settings.columns or ())) if self._is_csv else None

    def batch(self, records: Records, end: Position, origin: str) -> Batch:
        """Convert records.

        Args:
            records: in order; tombstones are skipped.
            end: the position behind them.
            origin: of the batch.

        Raises:
            RetriableSourceError: the registry does not respond; the call may be repeated with the same records.
            SourceError: the registry denies access.
        """
        is_event = np.array([value is not None for value in records["value"].tolist()], bool)
        n_tombstones = len(records) - int(is_event.sum())
        records = records[is_event] if n_tombstones else records
        values = records["value"].tolist()
        rejected: dict[int, Unreadable] = {}
        if self._is_csv:
            # Values that end with a line end would take the decoder's slow path.
            values = [value.rstrip(b"\r\n") for value in values]
        elif self._to_json is not None:
            for i, value in enumerate(values):
                try:
                    values[i] = self._to_json(value)
                except ValueError as error:
                    rejected[i] = Unreadable("malformed", f"{self._kind} value {value[:40]!r} {error}", value)
        if any(value.startswith(codecs.BOM_UTF8) for value in values):
            values = [value.removeprefix(codecs.BOM_UTF8) for value in values]  # each is a text of its own
        numbers, skipped = [-1] * len(values), 0
        marks = b"" if self._is_csv else MANY
        if self._path or any(b"\n" in value or value[:1] in marks for value in values):
            path, lines = (None, csv_lines) if self._is_csv else (self._path, json_lines)
            values, found, numbers, rejected, skipped = events_of(values, path, lines=lines, rejected=rejected)
            records = records[found]  # one with several events occurs as often
        if self._fields:
            columns = self._field_columns(records)
            values = _before_csv(values, columns) if self._is_csv else _into_json(values, self._fields, columns)
        form = "csv" if self._is_csv else "jsonl"
        block, ends = packed(values, rejected, form)
        keys, headers = records["key"].tolist(), records["headers"].tolist()
        return Batch(
            block=block,
            ends=ends,
            format=form,
            columns=self._columns,
            origin=origin,
            locations=numbered(_locations(records), numbers),
            end=end,
            skipped=n_tombstones + skipped,
            timestamps=records["time"].copy(),
            keys=None if keys.count(None) == len(keys) else keys,
            headers=[tuple(each) for each in headers] if any(headers) else None,
            unreadable=rejected,
        )

    def _field_columns(self, records: Records) -> list[Column]:
        """Return a column for each of the fields, ``None`` where a record lacks it.

        Keys and headers need not be text: other bytes appear as escapes, so that different ones stay different.
        """
        columns: list[Column] = []
        if self._settings.key_field is not None:
            columns.append(_texts(records["key"]))
        if self._settings.timestamp_field is not None:
            columns.append([None if ms < 0 else ms / 1000 for ms in records["time"].tolist()])
        if names := self._settings.header_fields:
            # The last of several equal ones counts.
            found = [dict(headers) for headers in records["headers"]]
            columns += [_texts(headers.get(name) for headers in found) for name in names]
        return columns


def _locations(records: Records) -> Sequence[Location]:
    topics = records["topic"].tolist()
    # Copies, since views would keep the values.
    numbers = {name: records[name].copy() for name in ("partition", "offset")}
    locations = Locations({"topic": topics[0] if topics else ""}, numbers)
    if len(set(topics)) > 1:
        return [{**place, "topic": topic} for place, topic in zip(locations, topics, strict=True)]
    return locations


def _converter(settings: ValueSettings) -> Callable[[bytes], bytes] | None:
    """Return what converts a value to JSON text, or raises ValueError with the rule that it breaks; or ``None``."""
    framed = settings.framing == "confluent"
    if settings.format == "csv" or (settings.format == "jsonl" and not framed):
        return None
    if settings.format == "jsonl":
        return partial(_framed, lambda value, start: value[start:])
    registered: Callable[[str, list[tuple[str, str]]], Read]
    in_file: Callable[[bytes], Callable[..., bytes]]
    try:
        if settings.format == "avro":
            from streammoe_connectors.formats.avro import AvroReader

            registered, in_file, content = AvroReader, AvroReader, "an Avro schema"
        else:
            from streammoe_connectors.formats.protobuf import ProtobufReader

            registered = partial(ProtobufReader.registered, settings.message)
            in_file = partial(ProtobufReader.in_set, str(settings.message), framed)
            content = "what protoc --include_imports --descriptor_set_out=FILE writes"
    except ModuleNotFoundError:
        package = "fastavro" if settings.format == "avro" else "protobuf"
        raise not_installed(f'source.format = "{settings.format}"', package, settings.format) from None
    path = settings.schema_file
    if settings.schema_registry is None:
        try:
            reader = in_file(Path(str(path)).read_bytes())
            return partial(_framed, reader) if framed else reader
        except OSError as error:
            raise ConfigError(
                f"source.schema_file: cannot read {path!r} ({error.strerror}); it must hold {content}"
            ) from None
        except ValueError as error:
            raise ConfigError(f"source.schema_file: {path!r} is not usable ({error}); it must hold {content}") from None
    try:
        from streammoe_connectors.formats.registry import RegistryReader
    except ModuleNotFoundError:
        raise not_installed("source.schema_registry", "confluent-kafka[schemaregistry]", "registry") from None
    return RegistryReader(_KINDS[settings.format], settings.schema_registry, registered)


def _framed(read: Read, value: bytes) -> bytes:
    """Convert a value whose schema is known behind the frame that names one."""
    schema_number(value)
    return read(value, FRAME_BYTES)


# --- fields of a record ---------------------------------------------------------------------------------------------

_JSON_WHITESPACE = b" \t\r\n"
_CSV_SPECIAL = frozenset(',"\r\n\ufeff')

Column = list[str | None] | list[float | None]


def _into_json(values: list[bytes], names: Sequence[str], columns: list[Column]) -> list[bytes]:
    """Prepend fields to JSON objects, so that the object's own field of the same name comes last and counts.

    Values that are not objects stay unchanged, for the decoder to reject.
    """
    encode = msgspec.json.encode
    parts = [
        [b"" if value is None else encode(name) + b":" + encode(value) for value in column]
        for name, column in zip(names, columns, strict=True)
    ]
    rows = (b",".join(filter(None, row)) for row in zip(*parts, strict=True))
    return [_prepend_members(value, members) if members else value for value, members in zip(values, rows, strict=True)]


def _before_csv(values: list[bytes], columns: list[Column]) -> list[bytes]:
    """Prepend fields to lines of csv."""
    rows = zip(*columns, strict=True)
    return [
        b"%b,%b" % (",".join(map(_csv_cell, cells)).encode(), value) for value, cells in zip(values, rows, strict=True)
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
