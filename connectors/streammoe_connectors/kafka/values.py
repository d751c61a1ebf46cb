"""Conversion of Kafka records to blocks for the daemon's decoders: events, and fields from keys, times and headers.

Values in JSON and csv are passed on unchanged; those in Avro and Protobuf become JSON text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationInfo,
    field_validator,
)

from streammoe.errors import ConfigError, not_installed
from streammoe.ports import Unreadable
from streammoe.secrets import Secret
from streammoe.types import IntArray
from streammoe_connectors.addresses import check_http_address
from streammoe_connectors.conditions import Text, only_if
from streammoe_connectors.formats.as_json import FRAME_BYTES, Read, schema_number
from streammoe_connectors.formats.events import MANY, RecordPath, events_of, json_lines, packed
from streammoe_connectors.formats.records import csv_lines
from streammoe_connectors.kafka.fields import RecordFields
from streammoe_connectors.kafka.records import Records


def _names(value: object) -> object:
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of names")
    if repeated := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"must have each name once, but repeats {', '.join(repeated)}")
    return tuple(value)


_KINDS = {"avro": "Avro", "protobuf": "Protobuf"}
Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class RegistrySettings(BaseModel):
    """A schema registry, and the login to it."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    url: Annotated[str, AfterValidator(check_http_address)]
    username: Text | None = None
    password: Annotated[Secret | None, only_if("username", required=True)] = None
    token: Secret | None = None
    cafile: Text | None = None
    certfile: Text | None = None
    keyfile: Annotated[Text | None, only_if("certfile")] = None
    key_password: Annotated[Secret | None, only_if("certfile")] = None

    @field_validator("username")
    @classmethod
    def _check_username(cls, name: str | None) -> str | None:
        if name is not None and ":" in name:
            raise ValueError("must not hold a colon, which separates it from the password in HTTP")
        return name

    @field_validator("token")
    @classmethod
    def _check_token(cls, token: Secret | None, info: ValidationInfo) -> Secret | None:
        if token is not None and info.data.get("username") is not None:
            raise ValueError("must not be set together with username; a registry takes one login")
        return token

    @field_validator("cafile", "certfile")
    @classmethod
    def _check_files(cls, path: str | None, info: ValidationInfo) -> str | None:
        if path is not None and info.data.get("url", "").startswith("http:"):
            raise ValueError("must not be set unless the url begins with https://")
        return path


class ValueSettings(BaseModel):
    """The format of values, and the parts of a record that become fields of its event.

    If a JSON, Avro or Protobuf value itself has one of the last three names, the field of the value counts. In csv they
    become columns, in this order, before `columns`. A record without key, timestamp or header lacks that field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, validate_default=True)

    format: Literal["jsonl", "csv", "avro", "protobuf"] = "jsonl"
    schema_registry: Annotated[RegistrySettings | None, only_if("format", "avro", "protobuf")] = None
    columns: Annotated[Names | None, only_if("format", "csv", required=True)] = None
    schema_file: Annotated[Text | None, only_if("format", "avro", "protobuf")] = None
    message: Annotated[Text | None, only_if("format", "protobuf")] = None
    record: Annotated[RecordPath | None, only_if("format", "jsonl", "avro", "protobuf")] = None
    framing: Annotated[Literal["none", "confluent"], only_if("format", "jsonl", "protobuf")] = "none"
    key_field: Text | None = None
    timestamp_field: Text | None = None
    header_fields: Names = ()

    @field_validator("schema_file")
    @classmethod
    def _check_schema(cls, path: str | None, info: ValidationInfo) -> str | None:
        kind = info.data.get("format")
        is_either = kind in {"avro", "protobuf"} and "schema_registry" in info.data
        if is_either and (path is None) == (info.data["schema_registry"] is None):
            raise ValueError(f'must be set if source.format is "{kind}", unless source.schema_registry is; not both')
        return path

    @field_validator("message")
    @classmethod
    def _check_message(cls, message: str | None, info: ValidationInfo) -> str | None:
        if message is None and info.data.get("format") == "protobuf" and info.data.get("schema_file") is not None:
            raise ValueError("must be the full name of the message, such as shop.Order, if source.schema_file is set")
        return message

    @field_validator("key_field", "timestamp_field", "header_fields")
    @classmethod
    def _check_unique_names(cls, names: Any, info: ValidationInfo) -> Any:
        used = {*(info.data.get("columns") or ()), info.data.get("key_field"), info.data.get("timestamp_field")}
        given = [names] if isinstance(names, str) else names or ()
        if repeated := [name for name in given if name in used]:
            raise ValueError(f"must not repeat the names of other fields, but has {', '.join(repeated)}")
        return names


class Block(NamedTuple):
    """The events of several records, as parts of a `Batch`."""

    block: bytes
    """The values, each followed by a line end. They may themselves contain line ends."""
    ends: IntArray
    """(n,) where each value ends, including its line end."""
    rejected: dict[int, Unreadable]
    """Why events are rejected, by index; the block holds what no decoder accepts in their place."""
    records: Records
    """The (n) records that the events came from; one with several events occurs as often."""
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
        self._kind = _KINDS.get(settings.format, "JSON")
        self._to_json = _converter(settings)
        self._path = settings.record or ()
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
        values = records["value"].tolist()
        rejected: dict[int, Unreadable] = {}
        is_csv = self.format == "csv"
        if is_csv:
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
        marks = b"" if is_csv else MANY
        if self._path or any(b"\n" in value or value[:1] in marks for value in values):
            path, lines = (None, csv_lines) if is_csv else (self._path, json_lines)
            values, found, numbers, rejected, skipped = events_of(values, path, lines=lines, rejected=rejected)
            records = records[found]
        if self._fields.names:
            columns = self._fields.read(records)
            values = (self._fields.before_csv if is_csv else self._fields.into_json)(values, columns)
        block, ends = packed(values, rejected, self.format)
        return Block(block, ends, rejected, records, numbers, skipped)


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
