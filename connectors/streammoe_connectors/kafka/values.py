"""Conversion of Kafka records to blocks for the daemon's decoders: events, and fields from keys, times and headers.

Values in JSON and csv are passed on unchanged; those in Avro and Protobuf become JSON text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BeforeValidator, Field, ValidationInfo, field_serializer, field_validator

from streammoe.errors import InvalidEvent, not_installed
from streammoe.text import shown
from streammoe.types import IntArray
from streammoe_connectors.formats.events import MANY, events_of, json_lines, path_of
from streammoe_connectors.formats.records import csv_lines
from streammoe_connectors.formats.registry_login import (
    RegistryLogin,
    authorization,
    check_registry_address,
    registry_tls,
)
from streammoe_connectors.formats.schema_registry import FRAME_BYTES, Registry, without_password
from streammoe_connectors.kafka.fields import RecordFields
from streammoe_connectors.kafka.records import Records

_PACKAGES = {"avro": "fastavro", "protobuf": "protobuf"}  # the package to install for each format


def _names(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of names")
    if repeated := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"must have each name once, but repeats {', '.join(repeated)}")
    return tuple(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class ValueSettings(RegistryLogin):
    """The format of values, and the parts of a record that become fields of its event.

    Attributes:
        format: of the values.
        columns: for csv, the names of the values in each record, in order.
        schema_file: for avro, an Avro schema (``.avsc``) that all values were written with; for protobuf, the output of
            ``protoc --include_imports --descriptor_set_out=FILE``.
        schema_registry: for avro and protobuf instead of `schema_file`, the http(s) address of a registry with
            Confluent's interface. Each value then begins with a byte 0 and the 4 bytes of its schema's number, in
            protobuf followed by the indexes of its message. A user and a password may be part of the address, as in
            ``https://user:password@host``; messages omit them.
        message: for protobuf, the full name of the message, such as ``shop.Order``; with a registry values of other
            messages are then rejected, and by default all are read.
        record: for jsonl, avro and protobuf, names that lead from the value to the object that is the record, such as
            ``payload.after``.
        framing: for jsonl and protobuf, the prefix of each message: nothing (``none``), or that of serializers for a
            registry (``confluent``).
        key_field: name of the event's field for the record's key, as text.
        timestamp_field: name of the event's field for the record's timestamp, as seconds since 1970.
        header_fields: headers that become fields of the same names, as texts; the last of several equal ones counts.

    If a JSON, Avro or Protobuf value itself has one of the last three names, the field of the value counts. In csv they
    become columns, in this order, before `columns`. A record without key, timestamp or header lacks that field.
    """

    format: Literal["jsonl", "csv", "avro", "protobuf"] = "jsonl"
    columns: Names | None = Field(default=None, validate_default=True)
    schema_registry: str | None = Field(default=None, min_length=1, repr=False, validate_default=True)
    schema_file: str | None = Field(default=None, min_length=1, validate_default=True)
    message: str | None = Field(default=None, min_length=1, validate_default=True)
    record: str | None = None
    framing: Literal["none", "confluent"] = "none"
    key_field: str | None = Field(default=None, min_length=1)
    timestamp_field: str | None = Field(default=None, min_length=1)
    header_fields: Names = ()

    @field_validator("columns")
    @classmethod
    def _check_columns(cls, columns: tuple[str, ...] | None, info: ValidationInfo) -> tuple[str, ...] | None:
        kind = info.data.get("format")
        if kind == "csv" and not columns:
            raise ValueError('must name the values of a record, in order, if source.format is "csv"')
        if kind in {"jsonl", "avro", "protobuf"} and columns is not None:
            raise ValueError(f'must not be set if source.format is "{kind}", whose values have names')
        return columns

    @field_validator("schema_registry")
    @classmethod
    def _check_schema_registry(cls, address: str | None, info: ValidationInfo) -> str | None:
        if address is not None and info.data.get("format") in {"jsonl", "csv"}:
            raise ValueError('must be set only if source.format is "avro" or "protobuf"')
        return check_registry_address(address, info.data)

    @field_validator("schema_file")
    @classmethod
    def _check_schema_file(cls, path: str | None, info: ValidationInfo) -> str | None:
        match info.data.get("format"):
            case "jsonl" | "csv" as kind if path is not None:
                raise ValueError(f'must not be set if source.format is "{kind}"')
            case "avro" if _both_or_none(path, info):
                raise ValueError('must be set if source.format is "avro", unless source.schema_registry is; not both')
            case "protobuf" if _both_or_none(path, info):
                raise ValueError(
                    'must be set if source.format is "protobuf", to the output of protoc --include_imports '
                    "--descriptor_set_out=FILE, unless source.schema_registry is; not both"
                )
        return path

    @field_validator("message")
    @classmethod
    def _check_message(cls, message: str | None, info: ValidationInfo) -> str | None:
        kind = info.data.get("format")
        if kind == "protobuf" and message is None and info.data.get("schema_file") is not None:
            raise ValueError(
                'must be the full name of the message, such as shop.Order, if source.format is "protobuf" with a '
                "schema_file"
            )
        if kind in {"jsonl", "csv", "avro"} and message is not None:
            raise ValueError('must be set only if source.format is "protobuf"')
        return message

    @field_validator("record")
    @classmethod
    def _check_record(cls, record: str | None, info: ValidationInfo) -> str | None:
        if record is not None and info.data.get("format") == "csv":
            raise ValueError('must not be set if source.format is "csv", whose values are not nested')
        path_of(record)
        return record

    @field_validator("framing")
    @classmethod
    def _check_framing(cls, framing: str, info: ValidationInfo) -> str:
        if framing != "none" and info.data.get("format") in {"csv", "avro"}:
            raise ValueError(
                'must be "none" unless source.format is "jsonl" or "protobuf"; for avro it follows from schema_registry'
            )
        return framing

    @field_validator("key_field", "timestamp_field")
    @classmethod
    def _check_unique_name(cls, name: str | None, info: ValidationInfo) -> str | None:
        used_names = {*(info.data.get("columns") or ()), info.data.get("key_field")}
        if name is not None and name in used_names:
            raise ValueError("must differ from the names of other fields")
        return name

    @field_validator("header_fields")
    @classmethod
    def _check_unique_names(cls, names: tuple[str, ...], info: ValidationInfo) -> tuple[str, ...]:
        used_names = {*(info.data.get("columns") or ()), info.data.get("key_field"), info.data.get("timestamp_field")}
        if repeated := [name for name in names if name in used_names]:
            raise ValueError(f"must not repeat the names of other fields, but has {', '.join(repeated)}")
        return names

    @field_serializer("schema_registry")
    def _hide_password(self, address: str | None) -> str | None:
        return None if address is None else without_password(address)


def _both_or_none(schema_file: str | None, info: ValidationInfo) -> bool:
    return "schema_registry" in info.data and (schema_file is None) == (info.data["schema_registry"] is None)


class Block(NamedTuple):
    """The events of several records, as parts of a `Batch`."""

    block: bytes
    """The values, each followed by a line end. They may themselves contain line ends."""
    ends: IntArray
    """(n,) where each value ends, including its line end."""
    rejected: dict[int, tuple[str, str]]
    """Reason and detail of each rejected event, by index. The block holds its original value."""
    records: Records
    """The (n) records that the events came from; one with several events occurs as often."""
    origins: IntArray
    """(n,) their index in those that were given."""
    numbers: list[int]
    """Number of each event in its record, from 0; −1 if it is the only one."""
    skipped: int
    """Records, or parts of some, that hold no event."""


class Values:
    """A converter from records to blocks of one format.

    Raises:
        ConfigError: a schema file is not usable, or a package is missing.
    """

    format: str
    """Name of the decoder of the blocks: ``jsonl`` or ``csv``."""
    columns: tuple[str, ...] | None
    """Column names for csv."""

    def __init__(self, settings: ValueSettings) -> None:
        self._fields = RecordFields(settings.key_field, settings.timestamp_field, settings.header_fields)
        self._to_json = _create_converter(settings)
        self._path = path_of(settings.record)
        if settings.format == "csv":
            self.format = "csv"
            self.columns = (*self._fields.names, *(settings.columns or ()))
        else:
            self.format = "jsonl"
            self.columns = None

    def block(self, records: Records) -> Block:
        """Convert `records`, none of which is a tombstone.

        Raises:
            RetriableSourceError: the registry does not respond; the call may be repeated with the same records.
            SourceError: the registry denies access.
        """
        raw = [value or b"" for value in records.values]
        rejected: dict[int, str] = {}
        values = raw
        if self.format == "csv":
            # Values that end with a line end would take the decoder's slow path.
            values = [value.rstrip(b"\r\n") for value in raw]
        elif self._to_json is not None:
            values = _convert(raw, self._to_json, rejected)
        if any(value.startswith(codecs.BOM_UTF8) for value in values):
            values = [value.removeprefix(codecs.BOM_UTF8) for value in values]  # each is a text of its own
        index, numbers, skipped = np.arange(len(values)), [-1] * len(values), 0
        is_csv = self.format == "csv"
        marks = b"" if is_csv else MANY
        if self._path or any(b"\n" in value or value[:1] in marks for value in values):
            path, lines = (None, csv_lines) if is_csv else (self._path, json_lines)
            events = events_of(values, path, lines=lines, whole=rejected)
            values = raw = events.values
            rejected = {i: rejected[n] for i, n in enumerate(events.records) if n in rejected} | events.rejected
            index, numbers, skipped = np.array(events.records, np.int64), events.numbers, events.skipped
            records = records.take(index)
        if self._fields.names:
            columns = self._fields.read(records, rejected)
            add = self._fields.before_csv if self.format == "csv" else self._fields.into_json
            values = add(values, columns)
        for i in rejected:
            values[i] = raw[i]
        ends = np.cumsum(np.fromiter(map(len, values), np.int64, len(values)) + 1)
        values.append(b"")  # for the last line end
        reasons = {i: ("malformed", rejected[i]) for i in sorted(rejected)}
        return Block(b"\n".join(values), ends, reasons, records, index, numbers, skipped)


def _convert(raw: list[bytes], to_json: Callable[[bytes], bytes], rejected: dict[int, str]) -> list[bytes]:
    values = []
    for i, value in enumerate(raw):
        try:
            values.append(to_json(value))
        except InvalidEvent as error:
            rejected[i] = str(error)
            values.append(value)
    return values


def _without_frame(value: bytes) -> bytes:
    """Return the text behind the prefix of a registry's serializer; the schema is not needed to read it."""
    if len(value) < FRAME_BYTES or value[0] != 0:
        raise InvalidEvent(
            f"the value {shown(value[:40])} must begin with a byte 0 and the 4 bytes of its schema's number, and does "
            'not; values without them have source.framing = "none"',
            reason="malformed",
        )
    return value[FRAME_BYTES:]


def _create_converter(settings: ValueSettings) -> Callable[[bytes], bytes] | None:
    """Return the function that converts a value to JSON text, or ``None`` if no conversion is needed."""
    try:
        if settings.format == "avro":
            from streammoe_connectors.formats.avro import AvroFile, AvroRegistry

            if settings.schema_registry is not None:
                return AvroRegistry(_registry(settings, settings.schema_registry))
            return AvroFile(str(settings.schema_file))
        if settings.format == "protobuf":
            from streammoe_connectors.formats.protobuf import ProtobufFile, ProtobufRegistry

            if settings.schema_registry is not None:
                return ProtobufRegistry(_registry(settings, settings.schema_registry), settings.message)
            framed = settings.framing == "confluent"
            return ProtobufFile(str(settings.schema_file), str(settings.message), framed=framed)
        if settings.format == "jsonl" and settings.framing == "confluent":
            return _without_frame
    except ModuleNotFoundError:
        raise not_installed(
            f'source.format = "{settings.format}"', _PACKAGES[settings.format], settings.format
        ) from None
    return None


def _registry(settings: ValueSettings, address: str) -> Registry:
    authorization(settings, address)  # a missing secret is found before the first record
    return Registry(address, authorization=lambda: authorization(settings, address), tls=registry_tls(settings))
