"""Conversion of Protobuf messages to JSON text, with descriptors written by protoc or serialized by a registry.

Fields have their names from the ``.proto`` file. Fields without presence always appear, others if they are set. 64-bit
integers become numbers, enumerations their names, a ``google.protobuf.Timestamp`` ISO 8601 in UTC, a ``Duration`` its
seconds, and wrappers such as ``DoubleValue`` their values.
"""

from __future__ import annotations

import base64
import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cache
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
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message import DecodeError, Message

from streammoe.errors import ConfigError
from streammoe_connectors.formats import as_json

_MAX_INDEXES = 100  # nesting of message types, and so the most indexes of a message
_MAX_DECIMAL_BYTES = 64  # 154 digits
_PROVIDED = [
    *(any_pb2, source_context_pb2, type_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2),
    *(struct_pb2, timestamp_pb2, wrappers_pb2),
]
"""Files that schemas import without registering them, each after its own imports."""

File = descriptor_pb2.FileDescriptorProto


class ProtobufReader:
    """A reader of the messages of a file.

    Args:
        root: the file.
        message: full name of the only message to read; by default all of them are read.
        framed: whether each message follows its indexes in the file, as serializers of a registry write them.

    Raises:
        ValueError: the file is not usable.
    """

    def __init__(self, root: FileDescriptor, message: str | None, *, framed: bool) -> None:
        self._types = dict(_messages(root.message_types_by_name, ()))
        try:
            for descriptor in self._types.values():
                message_factory.GetMessageClass(descriptor)
        except RecursionError:
            raise ValueError("its messages are nested too deeply") from None
        self._message = message
        self._framed = framed

    @classmethod
    def registered(cls, message: str | None, text: str, references: Sequence[tuple[str, str]]) -> ProtobufReader:
        """Return a reader of a registered file, given, like those that it refers to, as a descriptor in base64."""
        from confluent_kafka.schema_registry.confluent import meta_pb2
        from confluent_kafka.schema_registry.confluent.type import decimal_pb2
        from confluent_kafka.schema_registry.confluent.types import decimal_pb2 as earlier_pb2

        provided = [*_PROVIDED, meta_pb2, decimal_pb2, earlier_pb2]
        files = {each.DESCRIPTOR.name: File.FromString(each.DESCRIPTOR.serialized_pb) for each in provided}
        for name, each in (*((name, each) for name, each in references if name not in files), ("schema", text)):
            try:
                file = File.FromString(base64.b64decode(each, validate=True))
            except DecodeError as error:
                raise ValueError(f"{name!r} is no descriptor of a file ({error})") from None
            file.name = name
            if files.setdefault(name, file) != file:
                raise ValueError(f"it imports two different files as {name!r}")
        return cls(_pool(files.values()).FindFileByName("schema"), message, framed=True)

    @classmethod
    def in_set(cls, message: str, framed: bool, content: bytes) -> ProtobufReader:
        """Return a reader of one message, from the set of descriptors that protoc has written.

        Raises:
            ConfigError: the message is not in it.
            ValueError: it is no such set.
        """
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(content).file
        except DecodeError as error:
            raise ValueError(str(error)) from None
        pool = _pool(files)
        try:
            return cls(pool.FindMessageTypeByName(message).file, message, framed=framed)
        except KeyError:
            known = [pool.FindFileByName(file.name).message_types_by_name for file in files]
            names = sorted(each.full_name for messages in known for each in messages.values())
            similar = difflib.get_close_matches(message, names, n=3) or names[:10]
            raise ConfigError(
                f"source.message: {message!r} is not in source.schema_file; it must be the full name of a message "
                f"there, such as {', '.join(similar) or 'package.Message'}"
            ) from None

    def __call__(self, value: bytes, start: int = 0) -> bytes:
        """Convert a value, from a byte on, to JSON text; raise ValueError if it is no such message."""
        if self._framed:
            indexes, start = _indexes(value, start)
            descriptor = self._types.get(indexes)
            if descriptor is None:
                known = ", ".join(f"{each.full_name} at {list(at)}" for at, each in [*self._types.items()][:10])
                raise ValueError(f"must name a message of its schema, which has none at {list(indexes)}: {known}")
            if self._message not in {None, descriptor.full_name}:
                raise ValueError(f"must be a {self._message}, by source.message, and is a {descriptor.full_name}")
        else:
            descriptor = next(each for each in self._types.values() if each.full_name == self._message)
        try:
            message = message_factory.GetMessageClass(descriptor).FromString(value[start:])
            if message.IsInitialized():
                return as_json.as_json(message, _plain)
        # UnicodeError and times out of range are ValueErrors.
        except (DecodeError, ValueError) as error:
            raise ValueError(f"must be a {descriptor.full_name}, and is not ({error})") from None
        raise ValueError(f"must have all required fields of {descriptor.full_name}, and lacks some")


def _pool(files: Iterable[File]) -> descriptor_pool.DescriptorPool:
    """Return what knows the messages of files, each of which comes after those that it imports."""
    pool = descriptor_pool.DescriptorPool()
    try:
        for file in files:
            pool.AddSerializedFile(file.SerializeToString())
    except TypeError as error:
        raise ValueError(str(error)) from None
    return pool


def _messages(
    messages: Mapping[str, Descriptor], parent: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Descriptor]]:
    """Yield the indexes of each message in a file, and its descriptor."""
    for i, message in enumerate(messages.values()):
        yield (*parent, i), message
        yield from _messages(message.nested_types_by_name, (*parent, i))


def _indexes(value: bytes, start: int) -> tuple[tuple[int, ...], int]:
    """Return the indexes of a framed message in its file, and where it begins."""
    if value[start : start + 1] == b"\0":  # short for the first message
        return (0,), start + 1
    count, end = _varint(value, start)
    if not 0 <= count <= _MAX_INDEXES:
        raise ValueError(f"must have at most {_MAX_INDEXES} indexes of its message, and claims {count}")
    indexes = []
    for _ in range(count):
        index, end = _varint(value, end)
        indexes.append(index)
    return tuple(indexes or [0]), end


def _varint(value: bytes, start: int) -> tuple[int, int]:
    """Return a zigzag-encoded number of at most 32 bits, and where it ends."""
    number = 0
    for i, octet in enumerate(value[start : start + 5]):
        number |= (octet & 0x7F) << (7 * i)
        if octet < 0x80:
            return (number >> 1) ^ -(number & 1), start + i + 1
    raise ValueError(f"must have the indexes of its message from byte {start} on, but they do not end")


# --- values ---------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> object:
    """Return JSON for a part of a message, down to its own parts."""
    if isinstance(value, Message):
        special = _WELL_KNOWN.get(value.DESCRIPTOR.full_name)
        if special is not None:
            return special(value)
        return {
            name: convert(getattr(value, name))
            for name, has_presence, convert in _fields(value.DESCRIPTOR)
            if not has_presence or value.HasField(name)
        }
    return as_json.plain(value)


@cache
def _fields(descriptor: Descriptor) -> list[tuple[str, bool, Callable[[Any], object]]]:
    """Return of each field its name, whether it has presence, and what converts its values for JSON."""
    return [(field.name, field.has_presence, _converter(field)) for field in descriptor.fields]


def _converter(field: FieldDescriptor) -> Callable[[Any], object]:
    one: Callable[[Any], object] = _same
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        one = _converter(field.message_type.fields_by_name["value"])
        return lambda entries: {
            str(key).lower() if isinstance(key, bool) else str(key): one(entries[key]) for key in entries
        }
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        one = lambda number: names.get(number, number)  # noqa: E731 - unknown if from a later version of the schema
    elif field.type == field.TYPE_BYTES:
        one = as_json.plain
    return (lambda values: [one(value) for value in values]) if field.is_repeated else one


def _same(value: object) -> object:
    return value


def _decimal(message: Any) -> Decimal:
    """Return the number of a ``confluent.type.Decimal``, exactly."""
    if len(message.value) > _MAX_DECIMAL_BYTES:
        raise ValueError(f"a decimal has {len(message.value)} bytes, and may have {_MAX_DECIMAL_BYTES}")
    return Decimal(f"{int.from_bytes(message.value, 'big', signed=True)}E{-message.scale}")


_WELL_KNOWN: dict[str, Callable[[Any], object]] = {
    "confluent.type.Decimal": _decimal,
    "google.protobuf.Timestamp": lambda time: time.ToJsonString(),
    "google.protobuf.Duration": lambda duration: duration.seconds + duration.nanos / 1e9,
    "google.protobuf.BytesValue": lambda wrapper: as_json.plain(wrapper.value),
    **{
        f"google.protobuf.{kind}Value": lambda wrapper: wrapper.value
        for kind in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String")
    },
}
