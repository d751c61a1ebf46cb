"""Messages between the daemon and the process that reads from Kafka, and the frames in which they pass pipes.

A frame is a message in MessagePack behind its length. Nothing in it can execute.
"""

from __future__ import annotations

import os
import select
import struct
from collections import deque
from typing import Any

import msgspec

from streammoe.ports import Headers, Position, TopicPartition, Unreadable

_LENGTH = struct.Struct("<Q")
_ENCODER = msgspec.msgpack.Encoder()


class Start(msgspec.Struct, tag=True):
    """To the reader, the first message; options of the connection may hold passwords."""

    settings: dict[str, Any]
    client: str
    options: dict[str, Any]
    position: Position | None
    owner: str
    log_level: int = 0


class Commit(msgspec.Struct, tag=True):
    """To the reader: this position is in a checkpoint."""

    position: Position
    checkpoint_generation: int


class Close(msgspec.Struct, tag=True):
    """To the reader: end."""


class Fetched(msgspec.Struct, tag=True):
    """The next records, as parts of a `Batch`; arrays of int64 as their bytes."""

    block: bytes
    ends: bytes
    offsets: bytes
    timestamps: bytes
    partitions: bytes
    topics: list[str]
    """One for each record, or a single one if it is that of all."""
    keys: list[bytes | None] | None
    headers: list[Headers] | None
    numbers: list[int]
    """Number of each event in its record; −1 if it is the only one."""
    unreadable: dict[int, Unreadable]
    skipped: int
    end: Position


class Moved(msgspec.Struct, tag=True):
    """A position that no record has led to; the first one says that reading begins."""

    position: Position
    needs_checkpoint: bool
    """Whether a checkpoint must hold it before the next record."""
    remaining: int
    """Number of offsets from there to the stops."""


class Log(msgspec.Struct, tag=True):
    """A line for the log."""

    level: int
    name: str
    message: str


class Finished(msgspec.Struct, tag=True):
    """Everything was sent."""


class Failed(msgspec.Struct, tag=True):
    """The last message: reading is not possible."""

    is_config: bool
    """Whether the settings are at fault."""
    message: str


class Status(msgspec.Struct, tag=True):
    """The state of the reader, which comes about once a second through a pipe of its own; see `SourceStatus`."""

    connected: bool = False
    refused: str = ""
    ends: dict[TopicPartition, int] = {}
    """High watermarks."""
    held_back: dict[TopicPartition, int] = {}
    stalled: list[TopicPartition] = []
    counters: dict[str, int] = {}


Message = Start | Commit | Close | Fetched | Moved | Log | Finished | Failed | Status


class Inlet:
    """A reader of frames from a descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)
        self._buffer, self._filled = memoryview(bytearray(_LENGTH.size)), 0
        self._is_length = True

    def next(self) -> Message | None:
        """Return the next message; ``None`` if it is incomplete, which only a non-blocking descriptor allows.

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
            whole, self._filled = self._buffer, 0
            size = _LENGTH.unpack(whole)[0] if self._is_length else _LENGTH.size
            self._buffer, self._is_length = memoryview(bytearray(size)), not self._is_length
            if self._is_length:
                return self._decoder.decode(whole)


class Outlet:
    """A writer of frames to a descriptor that never blocks; what does not fit is buffered."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self._frames: deque[memoryview] = deque()

    @property
    def pending(self) -> bool:
        """Whether something is still buffered."""
        return bool(self._frames)

    def send(self, message: Message) -> None:
        """Write a message after everything buffered, as far as there is room.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        frame = bytearray()
        _ENCODER.encode_into(message, frame, _LENGTH.size)
        _LENGTH.pack_into(frame, 0, len(frame) - _LENGTH.size)
        self._frames.append(memoryview(frame))
        self.flush()

    def flush(self, timeout: float = 0.0) -> None:
        """Write what is buffered, and wait up to `timeout` seconds for room.

        Raises:
            BrokenPipeError: the other side is gone.
        """
        if timeout and self._frames:
            select.select([], [self._descriptor], [], timeout)
        while self._frames:
            frame = self._frames.popleft()
            try:
                rest = frame[os.write(self._descriptor, frame) :]
            except BlockingIOError:
                rest = frame
            if rest:
                self._frames.appendleft(rest)
                return
