"""A source of records from Kafka topics, in the order of their timestamps."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Mapping, Sequence

from streammoe.errors import ConfigError, SourceError
from streammoe.ports import Batch, Location, Position, Source, SourceStatus, TopicPartition
from streammoe.secrets import revealed
from streammoe_connectors.kafka.batches import unpacked
from streammoe_connectors.kafka.clients import require_client
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.position import check_position
from streammoe_connectors.kafka.process import ReaderProcess
from streammoe_connectors.kafka.resharding import redistributed
from streammoe_connectors.kafka.settings import client_options
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
        self._options = client_options(settings)
        self._values = Values(settings)
        topics = "s " + str(settings.topics_pattern) if settings.topics is None else " " + ", ".join(settings.topics)
        self._origin = f"kafka topic{topics}"
        self._process: ReaderProcess | None = None
        self._ready = False
        self._finished = False
        self._position_to_checkpoint: Position | None = None
        self._is_hanging = False
        self._batch: Batch | None = None
        self._n_consumed = 0
        self._total = 0
        self._positions: dict[TopicPartition, int] = {}
        self._counters: Mapping[str, int] = {}

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
        return self._n_consumed, self._total

    def status(self) -> SourceStatus:
        process = self._process
        shown = None if process is None else process.status
        if process is None or shown is None:
            return SourceStatus(ready=self._ready, connected=False, positions=self._positions, counters=self._counters)
        self._counters = shown["counters"]
        positions = self._positions
        ends = {TopicPartition(topic, number): end for topic, number, end in shown["ends"]}
        return SourceStatus(
            ready=self._ready,
            connected=shown["connected"] and self._silent_seconds(process) < _HANG_SECONDS,
            refused=shown["refused"],
            positions=positions,
            lags={tp: max(0, ends[tp] - offset) for tp, offset in positions.items() if tp in ends},
            held_back={TopicPartition(topic, number): n for topic, number, n in shown["held_back"]},
            stalled=[TopicPartition(*partition) for partition in shown["stalled"]],
            counters=self._counters,
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
        self._detect_hang(self._process)
        if frame is None:
            return False
        header = frame.header
        match header["type"]:
            case "batch":
                self._n_consumed, self._total = header["n_consumed"], header["total"]
                self._batch = unpacked(frame, self._values, self._origin)
            case "ready" | "moved":
                self._ready = True
                self._position_to_checkpoint = header["position"] if header["needs_checkpoint"] else None
                self._positions = offsets_of(header["position"])
                self._total = header["total"]
            case "log":
                logging.getLogger(header["name"]).log(header["level"], "%s", header["message"])
            case "finished":
                self._finished = True
                self._n_consumed = self._total
            case _:
                kinds: Mapping[str, type[ConfigError | SourceError]] = {"ConfigError": ConfigError}
                raise kinds.get(header["kind"], SourceError)(header["message"])
        return True

    def _detect_hang(self, process: ReaderProcess) -> None:
        """Report a hanging process, once; a healthy one sends its status every second."""
        was_hanging, self._is_hanging = self._is_hanging, self._silent_seconds(process) >= _HANG_SECONDS
        if was_hanging and not self._is_hanging:
            _LOGGER.info("the process that reads from Kafka responds again")
        elif self._is_hanging and not was_hanging:
            _LOGGER.warning(
                "the process that reads from Kafka (%d) has not responded for %.0f s; waiting until it does. If it "
                "does not, check whether it was stopped, or end it and start again",
                process.pid,
                self._silent_seconds(process),
            )

    @staticmethod
    def _silent_seconds(process: ReaderProcess) -> float:
        return time.monotonic() - process.heard_at
