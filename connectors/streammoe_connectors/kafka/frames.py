"""Frames between the daemon and the process that reads from Kafka: a JSON object followed by bytes.

Nothing in them can execute.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, overload

import msgspec

from streammoe.ports import Headers

_HEAD = struct.Struct("<IQ")  # lengths of the JSON object and of the bytes after it
_MAX_HEADER_BYTES = 1 << 28


class Frame(NamedTuple):
    """A message through a pipe."""

    header: dict[str, Any]
    body: memoryview


def pack(header: Mapping[str, Any], body: Sequence[bytes] = ()) -> list[bytes]:
    """Encode a frame as pieces to be written one after the other."""
    text = msgspec.json.encode(header)
    return [_HEAD.pack(len(text), sum(map(len, body))) + text, *body]


def pack_headers(headers: Sequence[Sequence[tuple[str, bytes | None]] | None]) -> bytes:
    """Encode the headers of several records for the body of a frame."""
    return _HEADERS_ENCODER.encode([own or () for own in headers])


class PackedHeaders(Sequence[Headers]):
    """The result of `pack_headers`, decoded when a record's headers are first asked for.

    Only rejected records and those that wait for their label need theirs, and there are mostly none of either.
    """

    def __init__(self, packed: bytes, count: int) -> None:
        self._packed = packed
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> Headers: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Headers]: ...
    def __getitem__(self, i: int | slice) -> Headers | Sequence[Headers]:
        return self._decoded[i]

    @cached_property
    def _decoded(self) -> list[Headers]:
        return _HEADERS_DECODER.decode(self._packed)


_HEADERS_ENCODER = msgspec.msgpack.Encoder()
_HEADERS_DECODER = msgspec.msgpack.Decoder(list[Headers])


class Inlet:
    """A reader of frames from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = memoryview(bytearray(_HEAD.size))
        self._filled = 0
        self._header_bytes: int | None = None

    def next(self) -> Frame | None:
        """Return the next frame; ``None`` if it is incomplete, which only a non-blocking descriptor allows.

        Raises:
            EOFError: the other side is gone.
        """
        while True:
            try:
                count = os.readv(self._descriptor, [self._buffer[self._filled :]])
            except BlockingIOError:
                return None
            if not count:
                raise EOFError
            self._filled += count
            if self._filled < len(self._buffer):
                continue
            size, whole, self._filled = self._header_bytes, self._buffer, 0
            if size is None:
                header_bytes, body_bytes = _HEAD.unpack(whole)
                if header_bytes > _MAX_HEADER_BYTES:
                    raise EOFError  # not a frame
                self._header_bytes = header_bytes
                self._buffer = memoryview(bytearray(header_bytes + body_bytes))
                continue
            self._header_bytes = None
            self._buffer = memoryview(bytearray(_HEAD.size))
            return Frame(msgspec.json.decode(whole[:size]), whole[size:].toreadonly())


class Outlet:
    """A writer of frames to a descriptor that never blocks; what does not fit is buffered."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._pieces: deque[bytes | memoryview] = deque()

    @property
    def pending(self) -> bool:
        """Whether something is still buffered."""
        return bool(self._pieces)

    def send(self, header: Mapping[str, Any], body: Sequence[bytes] = ()) -> None:
        """Write a frame after everything buffered, as far as there is room.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        self._pieces.extend(piece for piece in pack(header, body) if piece)
        self.flush()

    def flush(self, timeout: float = 0.0) -> None:
        """Write what is buffered, and wait up to `timeout` seconds for room.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        if timeout and self._pieces:
            select.select([], [self._descriptor], [], timeout)
        while self._pieces:
            piece = memoryview(self._pieces[0])
            try:
                count = os.write(self._descriptor, piece)
            except BlockingIOError:
                return
            if count < len(piece):
                self._pieces[0] = piece[count:]
            else:
                self._pieces.popleft()
