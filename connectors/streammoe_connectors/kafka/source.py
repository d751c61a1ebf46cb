"""A source of records from Kafka topics, in the order of their timestamps."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from streammoe.errors import ConfigError, SourceError
from streammoe.ports import Batch, Location, Locations, Position, Source, SourceStatus, TopicPartition, Unreadable
from streammoe.secrets import revealed
from streammoe.types import IntArray
from streammoe_connectors.formats.events import numbered
from streammoe_connectors.kafka.clients import load_client, require_client
from streammoe_connectors.kafka.frames import Frame, PackedHeaders
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.partitions import check_position
from streammoe_connectors.kafka.process import ReaderProcess
from streammoe_connectors.kafka.resharding import redistributed
from streammoe_connectors.kafka.source_settings import KafkaSettings, ReadingSettings
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
_HANG_SECONDS = 10.0  # time without a frame after which the process that reads counts as hanging


class KafkaSource(Source):
    """A source of records from topics of a Kafka cluster, read in a separate process (see `kafka.child`).

    Checkpoints hold the authoritative positions; offsets are committed to the consumer group after them, for lag
    monitoring only. Partitions are assigned by the settings, never by the group.

    Raises:
        ConfigError: a password, a schema or a package is missing.
    """

    Settings = KafkaSettings

    @staticmethod
    def redistributed(positions: Sequence[Position], count: int) -> list[Position]:
        """Return the positions of another number of shards; see `kafka.resharding`."""
        return redistributed(positions, count)

    @staticmethod
    def reader_of(location: Location, count: int) -> int:
        """Return the shard of a record's partition."""
        return int(location["partition"]) % count

    def __init__(self, settings: KafkaSettings) -> None:
        require_client(settings, 'source.kind = "kafka"')
        self._settings = settings
        self._options = load_client(settings.client).client_options(settings)
        values = Values(settings)
        self._format, self._columns = values.format, values.columns
        topics = "s " + str(settings.topics_pattern) if settings.topics is None else " " + ", ".join(settings.topics)
        self._origin = f"kafka topic{topics}"
        self._process: ReaderProcess | None = None
        self._ready = False
        self._finished = False
        self._position_to_checkpoint: Position | None = None
        self._silent_seconds = 0.0  # seconds spent waiting for the next frame
        self._last_wait_at: float | None = None
        """When a frame was last waited for; ``None`` until the first one arrived."""
        self._batch: Batch | None = None
        self._n_consumed = 0
        self._total: int | None = None
        self._positions: dict[TopicPartition, int] = {}
        self._ends: dict[TopicPartition, int] = {}
        self._status = SourceStatus()

    def seek(self, position: Position | None) -> None:
        if position is not None:
            check_position(position)
        self._process = ReaderProcess(
            {
                "settings": revealed(self._settings, ReadingSettings.model_fields),
                "client": self._settings.client,
                "options": self._options,
                "position": position,
                "owner": uuid.uuid4().hex if position is None else position["owner"],
                "log_level": _LOGGER.getEffectiveLevel(),
            }
        )

    def prepare(self, timeout: float) -> bool:
        deadline = time.monotonic() + timeout
        while not self._ready:
            remaining = deadline - time.monotonic()
            if not self._receive(max(remaining, 0.0)) and remaining <= 0:
                return False
        return True

    @property
    def position(self) -> Position | None:
        return self._position_to_checkpoint

    def poll(self, timeout: float) -> Batch | None:
        deadline = time.monotonic() + timeout
        while not self._finished and self._batch is None:
            remaining = deadline - time.monotonic()
            if not self._receive(max(remaining, 0.0)) and remaining <= 0:
                break
        batch, self._batch = self._batch, None
        if batch is not None:
            self._positions = offsets_of(batch.end)
            self._position_to_checkpoint = None
        return batch

    @property
    def finished(self) -> bool:
        return self._finished and self._batch is None

    def commit(self, position: Position, generation: int) -> None:
        if self._process is not None:
            # If the pipe is full now, the next commit will do.
            self._process.send({"type": "commit", "position": position, "checkpoint_generation": generation})

    def progress(self) -> tuple[int, int] | None:
        """Return the number of offsets consumed so far, and in total."""
        if self._settings.until == "never":
            return None
        return self._n_consumed, self._total or 0

    def status(self) -> SourceStatus:
        process = self._process
        lags = {
            partition: max(0, self._ends[partition] - offset)
            for partition, offset in self._positions.items()
            if partition in self._ends
        }
        return self._status._replace(
            ready=self._ready,
            connected=process is not None and process.connected and self._silent_seconds < _HANG_SECONDS,
            positions=self._positions,
            lags=lags,
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    # --- frames -----------------------------------------------------------------------------------------------------

    def _receive(self, timeout: float) -> bool:
        """Handle the next frame, if one arrives within `timeout` seconds; return whether it did."""
        if self._process is None:
            raise SourceError("Kafka has no position; call seek first")
        frame = self._process.receive(timeout)
        self._detect_hang(self._process, timeout, received=frame is not None)
        if frame is None:
            return False
        header = frame.header
        match header["type"]:
            case "batch":
                self._n_consumed = header["n_consumed"]
                self._batch = self._decode(frame)
            case "ready":
                self._ready = True
                self._position_to_checkpoint = header["position"] if header["needs_checkpoint"] else None
                self._positions = offsets_of(header["position"])
                self._total = header["total"]
            case "moved":
                self._position_to_checkpoint = header["position"]
                self._positions = offsets_of(header["position"])
            case "status":
                self._ends = {TopicPartition(topic, number): end for topic, number, end in header["ends"]}
                self._status = SourceStatus(
                    held_back={TopicPartition(topic, number): n for topic, number, n in header["held_back"]},
                    stalled=[TopicPartition(*partition) for partition in header["stalled"]],
                    counters=header["counters"],
                )
            case "log":
                logging.getLogger(header["name"]).log(header["level"], "%s", header["message"])
            case "finished":
                self._finished = True
                self._n_consumed = self._total or 0
            case _:
                kinds: Mapping[str, type[ConfigError | SourceError]] = {"ConfigError": ConfigError}
                raise kinds.get(header["kind"], SourceError)(header["message"])
        return True

    def _detect_hang(self, process: ReaderProcess, waited: float, *, received: bool) -> None:
        """Detect a hanging process: a healthy one sends a frame every second."""
        now = time.monotonic()
        if received:
            if self._silent_seconds >= _HANG_SECONDS:
                _LOGGER.info("the process that reads from Kafka responds again")
            self._silent_seconds = 0.0
        elif self._last_wait_at is not None:
            before = self._silent_seconds
            # Time without a call does not count.
            self._silent_seconds += min(now - self._last_wait_at, max(waited, 1.0))
            if before < _HANG_SECONDS <= self._silent_seconds:
                _LOGGER.warning(
                    "the process that reads from Kafka (%d) has not responded for %.0f s; waiting until it does. If it "
                    "does not, check whether it was stopped, or end it and start again",
                    process.pid,
                    self._silent_seconds,
                )
        if received or self._last_wait_at is not None:
            self._last_wait_at = now

    def _decode(self, frame: Frame) -> Batch:
        header = frame.header
        pieces = _split_body(frame)
        count = header["count"]
        offsets, times, ends = (np.frombuffer(next(pieces), np.int64) for _ in range(3))
        keys = _split_keys(np.frombuffer(next(pieces), np.int64), next(pieces)) if header["keys"] else None
        headers = PackedHeaders(bytes(next(pieces)), count) if header["headers"] else None
        partitions = header["partitions"]
        partition_index = np.frombuffer(next(pieces), np.int64) if len(partitions) > 1 else np.zeros(count, np.int64)
        numbers = np.frombuffer(next(pieces), np.int64).tolist() if header["numbers"] else [-1] * count
        unreadable = {i: Unreadable(reason, detail, bytes(next(pieces))) for i, reason, detail in header["rejected"]}
        return Batch(
            block=bytes(next(pieces)),
            ends=ends,
            format=self._format,
            columns=self._columns,
            origin=self._origin,
            locations=numbered(_locations(partitions, partition_index, offsets), numbers),
            end=header["end"],
            skipped=header["skipped"],
            timestamps=times,
            keys=keys,
            headers=headers,
            unreadable=unreadable,
        )


def _locations(
    partitions: Sequence[tuple[str, int]], partition_index: IntArray, offsets: IntArray
) -> Sequence[Location]:
    topics = {topic for topic, _ in partitions}
    if len(topics) == 1:
        numbers = np.array([partition for _, partition in partitions], np.int64)[partition_index]
        return Locations({"topic": topics.pop()}, {"partition": numbers, "offset": offsets})
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in zip(
            map(partitions.__getitem__, partition_index), offsets.tolist(), strict=True
        )
    ]


def _split_body(frame: Frame) -> Iterator[memoryview]:
    start = 0
    for size in frame.header["sizes"]:
        yield frame.body[start : start + size]
        start += size


def _split_keys(lengths: IntArray, joined: memoryview) -> list[bytes | None]:
    stops = np.cumsum(np.maximum(lengths, 0)).tolist()
    return [
        None if length < 0 else bytes(joined[stop - length : stop])
        for length, stop in zip(lengths.tolist(), stops, strict=True)
    ]
