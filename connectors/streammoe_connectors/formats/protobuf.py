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
from pathlib import Path
from typing import Any

from google.protobuf import (  # the first ones for `_provided`
    any_pb2,  # noqa: F401
    api_pb2,  # noqa: F401
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,  # noqa: F401
    empty_pb2,  # noqa: F401
    field_mask_pb2,  # noqa: F401
    message_factory,
    source_context_pb2,  # noqa: F401
    struct_pb2,  # noqa: F401
    timestamp_pb2,  # noqa: F401
    type_pb2,  # noqa: F401
    wrappers_pb2,  # noqa: F401
)
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import DecodeError, Message

from streammoe.errors import ConfigError
from streammoe_connectors.formats import as_json

_MAX_INDEXES = 100  # nesting of message types, and so the most indexes of a message
_ADVICE = "it must be what protoc --include_imports --descriptor_set_out=FILE writes"
_MAX_DECIMAL_BYTES = 64  # 154 digits

File = descriptor_pb2.FileDescriptorProto


class ProtobufReader:
    """A reader of the messages of a file.

    Args:
        root: the file.
        files: those that it imports, by the paths of the imports; those that come with Protobuf may be left out.
        message: full name of the only message to read; by default all of them are read.
        framed: where the indexes of a message in its file are: before it, or nowhere.

    Raises:
        ValueError: the file is not usable.
    """

    def __init__(self, root: File, files: Mapping[str, File], message: str | None, *, framed: bool) -> None:
        pool = descriptor_pool.DescriptorPool()
        try:
            _add(pool, root, files, set())
            self._types = {
                indexes: pool.FindMessageTypeByName(name)
                for name, indexes in _messages(root.package, root.message_type, ())
            }
            for descriptor in self._types.values():
                message_factory.GetMessageClass(descriptor)
        except TypeError as error:
            raise ValueError(str(error)) from None
        except RecursionError:
            raise ValueError("its messages are nested too deeply") from None
        self._message = message
        self._framed = framed

    @classmethod
    def registered(cls, message: str | None, text: str, references: Sequence[tuple[str, str]]) -> ProtobufReader:
        """Return a reader of the messages of a registered file, see `RegistryReader`."""
        import confluent_kafka.schema_registry.confluent.meta_pb2
        import confluent_kafka.schema_registry.confluent.type.decimal_pb2
        import confluent_kafka.schema_registry.confluent.types.decimal_pb2  # noqa: F401 - for `_provided`

        files: dict[str, File] = {}
        for name, reference in references:
            file = _parse(name, reference)
            if files.setdefault(name, file) != file:
                raise ValueError(f"it imports two different files as {name!r}")
        return cls(_parse("schema", text), files, message, framed=True)

    @classmethod
    def from_file(cls, path: str, message: str, *, framed: bool) -> ProtobufReader:
        """Return a reader of one message whose descriptor is in a file; raise `ConfigError` if it is not usable."""
        try:
            files = {
                file.name: file for file in descriptor_pb2.FileDescriptorSet.FromString(Path(path).read_bytes()).file
            }
        except OSError as error:
            raise ConfigError(f"source.schema_file: cannot read {path!r} ({error.strerror}); {_ADVICE}") from None
        except DecodeError as error:
            raise ConfigError(f"source.schema_file: {path!r} holds no descriptors ({error}); {_ADVICE}") from None
        names = {name: file for file in files.values() for name, _ in _messages(file.package, file.message_type, ())}
        if message not in names:
            similar_names = difflib.get_close_matches(message, names, n=3) or sorted(names)[:10]
            raise ConfigError(
                f"source.message: {message!r} is not in {path!r}; it must be the full name of a message there, such as "
                f"{', '.join(similar_names) or 'package.Message'}"
            )
        try:
            return cls(names[message], files, message, framed=framed)
        except ValueError as error:
            raise ConfigError(f"source.schema_file: {path!r} holds no descriptors ({error}); {_ADVICE}") from None

    def __call__(self, value: bytes, start: int = 0) -> bytes:
        """Convert a value, from a byte on, to JSON text; raise ValueError if it is no such message."""
        indexes = None
        if self._framed:
            indexes, start = _indexes(value, start)
            descriptor = self._types.get(indexes)
        else:
            descriptor = next(each for each in self._types.values() if each.full_name == self._message)
        if descriptor is None:
            known = ", ".join(f"{each.full_name} at {list(at)}" for at, each in [*self._types.items()][:10])
            raise ValueError(f"must name a message of its schema, which has none at {list(indexes or ())}: {known}")
        if self._message not in {None, descriptor.full_name}:
            raise ValueError(f"must be a {self._message}, by source.message, and is a {descriptor.full_name}")
        try:
            message = message_factory.GetMessageClass(descriptor).FromString(value[start:])
            if message.IsInitialized():
                return as_json.as_json(message, _plain)
        # UnicodeError and times out of range are ValueErrors.
        except (DecodeError, ValueError) as error:
            raise ValueError(f"must be a {descriptor.full_name}, and is not ({error})") from None
        raise ValueError(f"must have all required fields of {descriptor.full_name}, and lacks some")


def _parse(name: str, text: str) -> File:
    """Return the descriptor of a file, under the name by which others import it; raise ValueError if it is none."""
    try:
        file = File.FromString(base64.b64decode(text, validate=True))
    except DecodeError as error:
        raise ValueError(f"{name!r} is no descriptor of a file ({error})") from None
    file.name = name
    return file


def _add(pool: descriptor_pool.DescriptorPool, file: File, files: Mapping[str, File], added: set[str]) -> None:
    """Add a file to a pool, after those that it imports; raise ValueError if one of them is missing."""
    added.add(file.name)
    for path in file.dependency:
        if path not in added:
            _add(pool, _provided(path) or files.get(path) or _missing(path), files, added)
    pool.AddSerializedFile(file.SerializeToString())


def _missing(path: str) -> File:
    raise ValueError(
        f"it imports {path!r}, which the registry does not list among its references; register it with that reference"
    )


def _provided(path: str) -> File | None:
    """Return a file that schemas import without registering it: of Protobuf, or of Confluent's registry."""
    if not path.startswith(("google/protobuf/", "confluent/")):
        return None
    try:
        return File.FromString(descriptor_pool.Default().FindFileByName(path).serialized_pb)
    except KeyError:
        return None


def _messages(
    package: str, messages: Iterable[descriptor_pb2.DescriptorProto], parent: tuple[int, ...]
) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the full name of each message, and its indexes in the file."""
    for i, message in enumerate(messages):
        name = f"{package}.{message.name}" if package else message.name
        yield name, (*parent, i)
        yield from _messages(name, message.nested_type, (*parent, i))


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
            name: getattr(value, name) if convert is None else convert(getattr(value, name))
            for name, has_presence, convert in _fields(value.DESCRIPTOR)
            if not has_presence or value.HasField(name)
        }
    return as_json.plain(value) if isinstance(value, Decimal) else list(value)


@cache
def _fields(descriptor: Descriptor) -> list[tuple[str, bool, Callable[[Any], object] | None]]:
    """Return of each field its name, whether it has presence, and what converts its values, if JSON differs."""
    return [(field.name, field.has_presence, _converter(field)) for field in descriptor.fields]


def _converter(field: FieldDescriptor) -> Callable[[Any], object] | None:
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        one = _converter(field.message_type.fields_by_name["value"]) or _same
        return lambda entries: {
            str(key).lower() if isinstance(key, bool) else str(key): one(entries[key]) for key in entries
        }
    if field.enum_type is not None:
        names = {value.number: value.name for value in field.enum_type.values}
        one = lambda number: names.get(number, number)  # noqa: E731 - unknown if from a later version of the schema
    elif field.type == field.TYPE_BYTES:
        one = as_json.plain
    else:
        return None
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
