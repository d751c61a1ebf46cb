"""Conversion of Kafka records to blocks for the daemon's decoders: events, and fields from keys, times and headers.

Values in JSON and csv are passed on unchanged; those in Avro and Protobuf become JSON text.
"""

from __future__ import annotations

import codecs
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import urlsplit

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationInfo,
    field_serializer,
    field_validator,
)

from streammoe.errors import InvalidEvent, not_installed
from streammoe.secrets import is_given
from streammoe.types import IntArray
from streammoe_connectors.addresses import is_http_address, without_login
from streammoe_connectors.formats.events import MANY, events_of, json_lines, path_of
from streammoe_connectors.formats.framing import FRAME_BYTES, Read, malformed, schema_number
from streammoe_connectors.formats.records import csv_lines
from streammoe_connectors.kafka.fields import RecordFields
from streammoe_connectors.kafka.records import Records

_FORMATS: dict[str, tuple[str, ...]] = {
    "schema_registry": ("avro", "protobuf"),
    "columns": ("csv",),
    "schema_file": ("avro", "protobuf"),
    "message": ("protobuf",),
    "record": ("jsonl", "avro", "protobuf"),
    "framing": ("jsonl", "protobuf"),
}
"""The formats that each of these settings is for."""
_NEEDED = {
    "schema_registry_username": "schema_registry",
    "schema_registry_password_env": "schema_registry_username",
    "schema_registry_token_env": "schema_registry",
    "schema_registry_cafile": "schema_registry",
    "schema_registry_certfile": "schema_registry",
    "schema_registry_keyfile": "schema_registry_certfile",
    "schema_registry_key_password_env": "schema_registry_certfile",
}
"""What must be set together with each of these settings."""


def _names(value: object) -> object:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(isinstance(name, str) and name for name in value):
        raise ValueError("must be a list of names")
    if repeated := sorted({name for name in value if value.count(name) > 1}):
        raise ValueError(f"must have each name once, but repeats {', '.join(repeated)}")
    return tuple(value)


Names = Annotated[tuple[str, ...], BeforeValidator(_names)]


class ValueSettings(BaseModel):
    """The format of values, and the parts of a record that become fields of its event.

    If a JSON, Avro or Protobuf value itself has one of the last three names, the field of the value counts. In csv they
    become columns, in this order, before `columns`. A record without key, timestamp or header lacks that field.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    format: Literal["jsonl", "csv", "avro", "protobuf"] = "jsonl"
    schema_registry: str | None = Field(default=None, min_length=1, repr=False)
    schema_registry_username: str | None = Field(default=None, min_length=1)
    schema_registry_password: SecretStr | None = None
    schema_registry_password_file: str | None = Field(default=None, min_length=1)
    schema_registry_password_env: str | None = Field(default=None, min_length=1, validate_default=True)
    schema_registry_token: SecretStr | None = None
    schema_registry_token_file: str | None = Field(default=None, min_length=1)
    schema_registry_token_env: str | None = Field(default=None, min_length=1, validate_default=True)
    schema_registry_cafile: str | None = Field(default=None, min_length=1)
    schema_registry_certfile: str | None = Field(default=None, min_length=1)
    schema_registry_keyfile: str | None = Field(default=None, min_length=1)
    schema_registry_key_password: SecretStr | None = None
    schema_registry_key_password_file: str | None = Field(default=None, min_length=1)
    schema_registry_key_password_env: str | None = Field(default=None, min_length=1, validate_default=True)
    columns: Names | None = Field(default=None, validate_default=True)
    schema_file: str | None = Field(default=None, min_length=1, validate_default=True)
    message: str | None = Field(default=None, min_length=1, validate_default=True)
    record: str | None = None
    framing: Literal["none", "confluent"] = "none"
    key_field: str | None = Field(default=None, min_length=1)
    timestamp_field: str | None = Field(default=None, min_length=1)
    header_fields: Names = ()

    @field_validator(*_FORMATS)
    @classmethod
    def _check_format(cls, value: Any, info: ValidationInfo) -> Any:
        name, kind, registry = str(info.field_name), info.data.get("format"), info.data.get("schema_registry")
        if kind is None:
            return value
        if value not in (None, "none") and kind not in _FORMATS[name]:
            formats = " or ".join(f'"{each}"' for each in _FORMATS[name])
            raise ValueError(f'must be set only if source.format is {formats}, and it is "{kind}"')
        if name == "columns" and kind == "csv" and not value:
            raise ValueError('must name the values of a record, in order, if source.format is "csv"')
        is_either = name == "schema_file" and kind in _FORMATS[name] and "schema_registry" in info.data
        if is_either and (value is None) == (registry is None):
            raise ValueError(f'must be set if source.format is "{kind}", unless source.schema_registry is; not both')
        if name == "message" and kind == "protobuf" and value is None and info.data.get("schema_file") is not None:
            raise ValueError("must be the full name of the message, such as shop.Order, if source.schema_file is set")
        return value

    @field_validator("schema_registry")
    @classmethod
    def _check_registry(cls, address: str | None) -> str | None:
        if address is not None and (not is_http_address(address) or urlsplit(address).query):
            raise ValueError("must be the address of a registry, such as https://registry.example:8081")
        return address

    @field_validator(*_NEEDED)
    @classmethod
    def _check_registry_login(cls, value: str | None, info: ValidationInfo) -> str | None:
        name, found = str(info.field_name), info.data
        needed = _NEEDED[name]
        given = is_given(value, info) if name.endswith("_env") else value is not None
        if given and found.get(needed, "invalid") is None:
            raise ValueError(f"must be set only together with {needed}")
        address = found.get("schema_registry") or ""
        if given and name.endswith(("cafile", "certfile")) and address.startswith("http:"):
            raise ValueError("must not be set unless schema_registry begins with https://")
        if given and name.endswith(("username", "token_env")) and "@" in address:
            raise ValueError("must not be set if schema_registry holds a user")
        if given and name.endswith("token_env") and found.get("schema_registry_username") is not None:
            raise ValueError("must not be set together with schema_registry_username; a registry takes one login")
        if not given and name.endswith("_password_env") and "key" not in name and found.get(needed) is not None:
            raise ValueError("must be set if schema_registry_username is, unless …_password_file or …_password is")
        if name.endswith("username") and ":" in (value or ""):
            raise ValueError("must not hold a colon, which separates it from the password in HTTP")
        return value

    @field_validator("record")
    @classmethod
    def _check_record(cls, record: str | None) -> str | None:
        path_of(record)
        return record

    @field_validator("key_field", "timestamp_field", "header_fields")
    @classmethod
    def _check_unique_names(cls, names: Any, info: ValidationInfo) -> Any:
        used = {*(info.data.get("columns") or ()), info.data.get("key_field"), info.data.get("timestamp_field")}
        given = [names] if isinstance(names, str) else names or ()
        if repeated := [name for name in given if name in used]:
            raise ValueError(f"must not repeat the names of other fields, but has {', '.join(repeated)}")
        return names

    @field_serializer("schema_registry")
    def _hide_password(self, address: str | None) -> str | None:
        return None if address is None else without_login(address)


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
        self._to_json = _converter(settings)
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
        raw = records["value"].tolist()
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
            columns = self._fields.read(records)
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


def _converter(settings: ValueSettings) -> Callable[[bytes], bytes] | None:
    """Return the function that converts a value to JSON text, or ``None`` if no conversion is needed."""
    framed = settings.framing == "confluent"
    if settings.format == "csv" or (settings.format == "jsonl" and not framed):
        return None
    what = f'source.format = "{settings.format}"'
    if settings.format == "jsonl":
        return partial(_read, "JSON", lambda value, start: value[start:], True)
    parse: Callable[[str, list[tuple[str, str]]], Read]
    try:
        if settings.format == "avro":
            from streammoe_connectors.formats.avro import AvroReader

            parse = AvroReader
            if settings.schema_registry is None:
                return partial(_read, "Avro", AvroReader.from_file(str(settings.schema_file)), False)
        else:
            from streammoe_connectors.formats.protobuf import ProtobufReader

            parse = partial(ProtobufReader.registered, settings.message)
            if settings.schema_registry is None:
                reader = ProtobufReader.from_file(str(settings.schema_file), str(settings.message), framed=framed)
                return partial(_read, "Protobuf", reader, framed)
    except ModuleNotFoundError:
        package = "fastavro" if settings.format == "avro" else "protobuf"
        raise not_installed(what, package, settings.format) from None
    try:
        from streammoe_connectors.formats.registry import RegistryReader
    except ModuleNotFoundError:
        raise not_installed("source.schema_registry", "confluent-kafka[schemaregistry]", "registry") from None
    return RegistryReader("Avro" if settings.format == "avro" else "Protobuf", settings, parse)


def _read(kind: str, read: Read, framed: bool, value: bytes) -> bytes:
    """Convert a value whose schema is known, also where a frame names one."""
    try:
        if framed:
            schema_number(value)
        return read(value, FRAME_BYTES if framed else 0)
    except ValueError as error:
        raise malformed(kind, value, error) from None
