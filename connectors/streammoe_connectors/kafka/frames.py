"""Frames between the daemon and the process that reads from Kafka: a JSON object, and bytes behind it.

Nothing that travels can execute.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

_HEAD = struct.Struct("<IQ")
"""Bytes of the JSON object and of what follows it."""
_LONGEST_HEADER = 1 << 28


class Frame(NamedTuple):
    """What has come through a pipe in one piece."""

    header: dict[str, Any]
    body: memoryview


def pack(header: Mapping[str, Any], body: Sequence[bytes] = ()) -> list[bytes]:
    """A frame as the pieces to be written, one after the other."""
    text = msgspec.json.encode(header)
    return [_HEAD.pack(len(text), sum(map(len, body))) + text, *body]


class Inlet:
    """Puts frames together from what comes through a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._buffer = memoryview(bytearray(_HEAD.size))
        self._filled = 0
        self._header_bytes: int | None = None

    def next(self) -> Frame | None:
        """The next frame; ``None`` if it is not complete yet, which only happens where reading does not wait.

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
                if header_bytes > _LONGEST_HEADER:
                    raise EOFError  # something else was written into the pipe
                self._header_bytes = header_bytes
                self._buffer = memoryview(bytearray(header_bytes + body_bytes))
                continue
            self._header_bytes = None
            self._buffer = memoryview(bytearray(_HEAD.size))
            return Frame(msgspec.json.decode(whole[:size]), whole[size:].toreadonly())


class Outlet:
    """Writes frames into a descriptor without waiting; what does not fit is kept."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._pieces: deque[bytes | memoryview] = deque()

    @property
    def pending(self) -> bool:
        """Whether something could not be written yet."""
        return bool(self._pieces)

    def send(self, header: Mapping[str, Any], body: Sequence[bytes] = ()) -> None:
        """Write this behind everything before it, as far as there is room.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        self._pieces.extend(piece for piece in pack(header, body) if piece)
        self.flush()

    def flush(self, timeout: float = 0.0) -> None:
        """Write what could not be written yet, and wait up to `timeout` seconds for some room.

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
