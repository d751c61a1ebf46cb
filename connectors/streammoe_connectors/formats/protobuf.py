"""Conversion of Protobuf messages to JSON text, with descriptors written by protoc."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from streammoe.errors import ConfigError, InvalidEvent
from streammoe_connectors.formats.json_text import json_text, utc_text
from streammoe_connectors.formats.schema_registry import FRAME_BYTES

_MAX_INDEXES = 100  # nesting of message types, and so the most indexes of a message
_ADVICE = "it must be what protoc --include_imports --descriptor_set_out=FILE writes"

Read = Callable[[Any], object]


class ProtobufReader:
    """A reader of messages of one type.

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
        self._name = message
        self._indexes = paths[message] if framed else None
        descriptor = pool.FindMessageTypeByName(message)
        self._type = message_factory.GetMessageClass(descriptor)
        self._converters = _Converters()
        self._read = self._converters.message(descriptor)

    def __call__(self, value: bytes) -> bytes:
        """Convert a value to JSON text; raise `InvalidEvent` if it is not such a message."""
        start = 0 if self._indexes is None else self._message_start(value)
        try:
            message = self._type.FromString(value[start:])
            if not message.IsInitialized():
                raise _malformed(value, f"must have all required fields of {self._name}, and lacks some")
            return json_text(self._read(message))
        # UnicodeError and times out of range are ValueErrors.
        except (DecodeError, ValueError) as error:
            raise _malformed(value, f"must be a {self._name}, and is not ({error})") from None

    def _message_start(self, value: bytes) -> int:
        """Return where the message begins."""
        if len(value) <= FRAME_BYTES or value[0] != 0:
            raise _malformed(
                value, "must begin with a byte 0, the 4 bytes of its schema's number and indexes, and does not"
            )
        count, end = _varint(value, FRAME_BYTES)
        if not 0 <= count <= _MAX_INDEXES:
            raise _malformed(value, f"must have at most {_MAX_INDEXES} indexes of its message, and claims {count}")
        indexes = []
        for _ in range(count):
            index, end = _varint(value, end)
            indexes.append(index)
        if tuple(indexes or [0]) != self._indexes:  # a 0 alone is short for the first message
            raise _malformed(
                value,
                f"must be a {self._name}, which source.schema_file has at {list(self._indexes or ())}, and is the "
                f"message at {indexes or [0]}",
            )
        return end


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


_WELL_KNOWN: dict[str, Read] = {
    "google.protobuf.Timestamp": lambda time: utc_text(time.seconds, time.nanos),
    "google.protobuf.Duration": lambda duration: duration.seconds + duration.nanos / 1e9,
    **{
        f"google.protobuf.{kind}Value": lambda wrapper: wrapper.value
        for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
    },
}


def _malformed(value: bytes, rule: str) -> InvalidEvent:
    return InvalidEvent(f"Protobuf value {value[:40]!r} {rule}", reason="malformed")
