"""Conversion of Protobuf messages to JSON text, with descriptors written by protoc or serialized by a registry."""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    message_factory,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from streammoe.errors import ConfigError, InvalidEvent
from streammoe_connectors.formats.json_text import json_text, utc_text
from streammoe_connectors.formats.schema_registry import FRAME_BYTES, RegisteredSchema, Registry, UnknownSchemaError

_MAX_INDEXES = 100  # nesting of message types, and so the most indexes of a message
_ADVICE = "it must be what protoc --include_imports --descriptor_set_out=FILE writes"
_MAX_DECIMAL_BYTES = 64  # 154 digits

Read = Callable[[Any], object]


class ProtobufFile:
    """A reader of messages of one type, whose descriptor is in a file.

    Fields have their names from the ``.proto`` file. Fields without presence always appear, others if they are set.
    64-bit integers become numbers, enumerations their names, a ``google.protobuf.Timestamp`` ISO 8601 in UTC, a
    ``Duration`` its seconds, and wrappers such as ``DoubleValue`` their values.

    Args:
        path: of the descriptors.
        message: full name of the message.
        framed: whether each message is preceded by a byte 0, 4 bytes of the schema's number, and the indexes of the
            message in its file.

    Raises:
        ConfigError: the file cannot be read, or has no descriptor of the message.
    """

    def __init__(self, path: str, message: str, *, framed: bool) -> None:
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes()).file
            pool = descriptor_pool.DescriptorPool()
            for file in files:
                pool.AddSerializedFile(file.SerializeToString())
        except OSError as error:
            raise ConfigError(f"source.schema_file: cannot read {path!r} ({error.strerror}); {_ADVICE}") from None
        except (DecodeError, TypeError) as error:
            raise ConfigError(f"source.schema_file: {path!r} holds no descriptors ({error}); {_ADVICE}") from None
        paths = {name: indexes for file in files for name, indexes in _messages(file.package, file.message_type, ())}
        if message not in paths:
            similar_names = difflib.get_close_matches(message, paths, n=3) or sorted(paths)[:10]
            raise ConfigError(
                f"source.message: {message!r} is not in {path!r}; it must be the full name of a message there, such as "
                f"{', '.join(similar_names) or 'package.Message'}"
            )
        self._indexes = paths[message] if framed else None
        self._type = _MessageType(pool, message)

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text; raise `InvalidEvent` if it is not such a message."""
        if self._indexes is None:
            return self._type.read(value, 0)
        indexes, start = _frame(value)
        if indexes != self._indexes:
            raise _malformed(
                value,
                f"must be a {self._type.name}, which source.schema_file has at {list(self._indexes)}, and is the "
                f"message at {list(indexes)}",
            )
        return self._type.read(value, start)


class ProtobufRegistry:
    """A reader of values that name their schema, and their message in it.

    Schemas are cached for ever, since a number always means the same one. Messages are read as by `ProtobufFile`.

    Args:
        registry: to request schemas from.
        message: full name of the only message to read; by default all of them are read.
    """

    def __init__(self, registry: Registry, message: str | None) -> None:
        self._registry = registry
        self._message = message
        self._schemas: dict[int, _Schema] = {}
        self._unusable: dict[int, str] = {}

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text.

        Raises:
            InvalidEvent: it does not name a usable schema and a message, or was not written with it.
            RetriableSourceError: the registry does not respond.
            SourceError: the registry denies access, or cannot serialize descriptors.
        """
        indexes, start = _frame(value)
        number = int.from_bytes(value[1:FRAME_BYTES], "big")
        schema = self._schemas.get(number)
        if schema is None:
            schema = self._fetch(number, value)
        try:
            kind = schema.message(indexes)
        except ValueError as error:
            self._unusable[number] = str(error)
            del self._schemas[number]
            raise self._not_usable(value, number, error) from None
        if kind is None:
            raise _malformed(
                value, f"must name a message of schema {number}, which has none at {list(indexes)}: {schema.names}"
            )
        if self._message is not None and kind.name != self._message:
            raise _malformed(value, f"must be a {self._message}, by source.message, and is a {kind.name}")
        return kind.read(value, start)

    def _fetch(self, number: int, value: bytes) -> _Schema:
        try:
            if number in self._unusable:
                raise ValueError(self._unusable[number])
            self._schemas[number] = _Schema(number, self._registry.schema(number, "PROTOBUF"))
        except UnknownSchemaError as error:
            raise _malformed(value, f"must name a registered Protobuf schema: {error}") from None
        except ValueError as error:
            self._unusable[number] = str(error)
            raise self._not_usable(value, number, error) from None
        return self._schemas[number]

    def _not_usable(self, value: bytes, number: int, error: ValueError) -> InvalidEvent:
        return _malformed(
            value, f"must name a usable schema, and {number} in {self._registry.name} is not usable: {error}"
        )


class _Schema:
    """The messages of a registered file.

    Raises:
        ValueError: it cannot be used.
    """

    def __init__(self, number: int, registered: RegisteredSchema) -> None:
        files: dict[str, descriptor_pb2.FileDescriptorProto] = {}
        for name, text in registered.references:
            file = _parse(name, text)
            if files.setdefault(name, file) != file:
                raise ValueError(f"it imports two different files as {name!r}")
        root = _parse(f"schema-{number}", registered.text)
        self._pool = descriptor_pool.DescriptorPool()
        imported = {path for file in (*files.values(), root) for path in file.dependency}
        if missing := sorted(imported - files.keys() - _PROVIDED.keys()):
            raise ValueError(
                f"it imports {missing[0]!r}, which the registry does not list among its references; register it with "
                "that reference"
            )
        try:
            registered_files = [file for name, file in files.items() if name not in _PROVIDED]
            for file in (*_provided(imported), *registered_files, root):
                self._pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise ValueError(str(error)) from None
        self._names = {indexes: name for name, indexes in _messages(root.package, root.message_type, ())}
        self._types: dict[tuple[int, ...], _MessageType] = {}

    @property
    def names(self) -> str:
        """Its messages, for an error."""
        return ", ".join(f"{name} at {list(indexes)}" for indexes, name in [*self._names.items()][:10]) or "no message"

    def message(self, indexes: tuple[int, ...]) -> _MessageType | None:
        """Return the message at these indexes, if there is one.

        Raises:
            ValueError: it cannot be used.
        """
        if indexes not in self._types:
            if indexes not in self._names:
                return None
            try:
                self._types[indexes] = _MessageType(self._pool, self._names[indexes])
            except RecursionError:
                raise ValueError("its messages are nested too deeply") from None
        return self._types[indexes]


class _MessageType:
    """A type of messages, with what reads it."""

    def __init__(self, pool: descriptor_pool.DescriptorPool, name: str) -> None:
        self.name = name
        descriptor = pool.FindMessageTypeByName(name)
        self._class = message_factory.GetMessageClass(descriptor)
        self._read = _Converters().message(descriptor)

    def read(self, value: bytes, start: int) -> bytes:
        """Convert the message that begins at `start` to JSON text; raise `InvalidEvent` if it is none of this type."""
        try:
            message = self._class.FromString(value[start:])
            if message.IsInitialized():
                return json_text(self._read(message))
        # UnicodeError and times out of range are ValueErrors.
        except (DecodeError, ValueError) as error:
            raise _malformed(value, f"must be a {self.name}, and is not ({error})") from None
        raise _malformed(value, f"must have all required fields of {self.name}, and lacks some")


def _parse(name: str, text: str) -> descriptor_pb2.FileDescriptorProto:
    """Return the descriptor of a file, under the name by which others import it; raise ValueError if it is none."""
    try:
        file = descriptor_pb2.FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except DecodeError as error:
        raise ValueError(f"{name!r} is no descriptor of a file ({error})") from None
    file.name = name
    return file


def _frame(value: bytes) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a framed message in its file, and where it begins."""
    if len(value) <= FRAME_BYTES or value[0] != 0:
        raise _malformed(
            value, "must begin with a byte 0, the 4 bytes of its schema's number and indexes, and does not"
        )
    if value[FRAME_BYTES] == 0:  # short for the first message
        return (0,), FRAME_BYTES + 1
    count, end = _varint(value, FRAME_BYTES)
    if not 0 <= count <= _MAX_INDEXES:
        raise _malformed(value, f"must have at most {_MAX_INDEXES} indexes of its message, and claims {count}")
    indexes = []
    for _ in range(count):
        index, end = _varint(value, end)
        indexes.append(index)
    return tuple(indexes or [0]), end


def _messages(
    package: str, messages: Iterable[descriptor_pb2.DescriptorProto], parent: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the full name of each message, and its indexes in the file."""
    for i, message in enumerate(messages):
        name = f"{package}.{message.name}" if package else message.name
        yield name, (*parent, i)
        yield from _messages(name, message.nested_type, (*parent, i))


def _varint(value: bytes, start: int) -> tuple[int, int]:
    """Return a zigzag-encoded number of at most 32 bits, and where it ends."""
    number = 0
    for i, octet in enumerate(value[start : start + 5]):
        number |= (octet & 0x7F) << (7 * i)
        if octet < 0x80:
            return (number >> 1) ^ -(number & 1), start + i + 1
    raise _malformed(value, f"must have the indexes of its message from byte {FRAME_BYTES} on, but they do not end")


class _Converters:
    """Converters from messages to Python objects, one per message type."""

    def __init__(self) -> None:
        self._known: dict[str, Read] = {}

    def message(self, descriptor: Descriptor) -> Read:
        """Return the converter of a message type to a dictionary, or to another object for well-known types."""
        name = descriptor.full_name
        if name not in self._known:
            parts: list[tuple[str, bool, Read]] = []
            # Registered before its fields, which may be messages of the same type.
            self._known[name] = _WELL_KNOWN.get(name) or _message_converter(parts)
            parts += [(field.name, field.has_presence, self._field(field)) for field in descriptor.fields]
        return self._known[name]

    def _field(self, field: FieldDescriptor) -> Read:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            read = self._single_value(field.message_type.fields_by_name["value"])
            return lambda entries: {_key_text(key): read(entries[key]) for key in entries}
        read = self._single_value(field)
        if field.is_repeated:
            return lambda values: [read(value) for value in values]
        return read

    def _single_value(self, field: FieldDescriptor) -> Read:
        if field.message_type is not None:
            return self.message(field.message_type)
        if field.enum_type is not None:
            names = {value.number: value.name for value in field.enum_type.values}
            return lambda number: names.get(number, number)  # unknown if from a later version of the schema
        return _identity


def _identity(value: object) -> object:
    return value


def _message_converter(parts: Sequence[tuple[str, bool, Read]]) -> Read:
    def read(message: Message) -> object:
        return {
            name: part(getattr(message, name))
            for name, has_presence, part in parts
            if not has_presence or message.HasField(name)
        }

    return read


def _key_text(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def _decimal(message: Any) -> Decimal:
    """Return the number of a ``confluent.type.Decimal``, exactly."""
    if len(message.value) > _MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal has {len(message.value)} bytes, and may have {_MAX_DECIMAL_BYTES}")
    return Decimal(f"{int.from_bytes(message.value, 'big', signed=True)}E{-message.scale}")


_WELL_KNOWN: dict[str, Read] = {
    "confluent.type.Decimal": _decimal,
    "google.protobuf.Timestamp": lambda time: utc_text(time.seconds, time.nanos),
    "google.protobuf.Duration": lambda duration: duration.seconds + duration.nanos / 1e9,
    **{
        f"google.protobuf.{kind}Value": lambda wrapper: wrapper.value
        for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
    },
}


def _confluent_files() -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """Yield the files that Confluent's registry provides, with what values may hold of them."""
    yield descriptor_pb2.FileDescriptorProto(name="confluent/meta.proto", package="confluent")  # options of fields only
    field = descriptor_pb2.FieldDescriptorProto
    parts = {"value": field.TYPE_BYTES, "precision": field.TYPE_UINT32, "scale": field.TYPE_INT32}
    fields = [
        field(number=i, name=name, type=kind, label=field.LABEL_OPTIONAL)
        for i, (name, kind) in enumerate(parts.items(), 1)
    ]
    decimal = descriptor_pb2.FileDescriptorProto(
        name="confluent/type/decimal.proto",
        package="confluent.type",
        syntax="proto3",
        message_type=[descriptor_pb2.DescriptorProto(name="Decimal", field=fields)],
    )
    yield decimal
    # The path that clients of other languages than Java had.
    yield descriptor_pb2.FileDescriptorProto(
        name="confluent/types/decimal.proto", dependency=[decimal.name], public_dependency=[0]
    )


def _protobuf_files() -> Iterator[descriptor_pb2.FileDescriptorProto]:
    """Yield the files that come with Protobuf, each after those that it imports."""
    for module in (
        *(any_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2),
        *(timestamp_pb2, wrappers_pb2, type_pb2, api_pb2),
    ):
        yield descriptor_pb2.FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)


_PROVIDED = {file.name: file for file in (*_protobuf_files(), *_confluent_files())}
"""Files that schemas import without registering them, by the path of the import."""


def _provided(imported: Iterable[str]) -> list[descriptor_pb2.FileDescriptorProto]:
    """Return those of these files that are provided, with all that they import, each after those that it imports."""
    wanted, found = set(imported), []
    for name, file in reversed(_PROVIDED.items()):
        if name in wanted:
            found.append(file)
            wanted.update(file.dependency)
    return found[::-1]


def _malformed(value: bytes, rule: str) -> InvalidEvent:
    return InvalidEvent(f"Protobuf value {value[:40]!r} {rule}", reason="malformed")
