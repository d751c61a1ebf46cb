"""A source of records from Kafka topics, in the order of their timestamps."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable

from streammoe.errors import ConfigError, SourceError
from streammoe.ports import Batch, Position, Source, SourceStatus, TopicPartition
from streammoe.secrets import revealed
from streammoe_connectors.kafka.batches import unpacked
from streammoe_connectors.kafka.clients import require_client
from streammoe_connectors.kafka.frames import Commit, Failed, Fetched, Finished, Moved, Start, Status
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.position import check_position
from streammoe_connectors.kafka.process import ReaderProcess
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

    def seek(self, position: Position | None) -> None:
        if position is not None:
            check_position(position)
        self._process = ReaderProcess(
            Start(
                revealed(self._settings, ReadingSettings.model_fields),
                self._settings.client,
                self._options,
                position,
                uuid.uuid4().hex if position is None else position["owner"],
                _LOGGER.getEffectiveLevel(),
            )
        )

    def prepare(self, timeout: float) -> bool:
        self._receive_until(lambda: self._ready, timeout)
        return self._ready

    @property
    def position(self) -> Position | None:
        return self._position_to_checkpoint

    def poll(self, timeout: float) -> Batch | None:
        self._receive_until(lambda: self._finished or self._batch is not None, timeout)
        batch, self._batch = self._batch, None
        if batch is not None:
            before, self._positions = self._positions, offsets_of(batch.end)
            self._n_consumed += sum(self._positions.values()) - sum(before.values())
            self._position_to_checkpoint = None
        return batch

    @property
    def finished(self) -> bool:
        return self._finished and self._batch is None

    def commit(self, position: Position, generation: int) -> None:
        if self._process is not None:
            # If the pipe is full now, the next commit will do.
            self._process.send(Commit(position, generation))

    def progress(self) -> tuple[int, int] | None:
        """Return the number of offsets consumed so far, and in total."""
        if self._settings.until == "never":
            return None
        return self._n_consumed, self._total

    def status(self) -> SourceStatus:
        process, positions = self._process, self._positions
        shown = Status() if process is None else process.status
        return SourceStatus(
            ready=self._ready,
            connected=shown.connected and process is not None and process.silent_seconds < _HANG_SECONDS,
            refused=shown.refused,
            positions=positions,
            lags={tp: max(0, shown.ends[tp] - offset) for tp, offset in positions.items() if tp in shown.ends},
            held_back=shown.held_back,
            stalled=shown.stalled,
            counters=shown.counters,
        )

    def close(self) -> None:
        if self._process is not None:
            self._process.close()

    # --- messages ---------------------------------------------------------------------------------------------------

    def _receive_until(self, is_met: Callable[[], bool], timeout: float) -> None:
        """Handle messages until a condition is met, or none has come for the rest of `timeout` seconds."""
        if self._process is None:
            raise SourceError("Kafka has no position; call seek first")
        deadline = time.monotonic() + timeout
        while not is_met():
            message = self._process.receive(max(0.0, deadline - time.monotonic()))
            self._detect_hang(self._process)
            match message:
                case Fetched():
                    self._batch = unpacked(message, self._values, self._origin)
                case Moved():
                    self._ready = True
                    self._position_to_checkpoint = message.position if message.needs_checkpoint else None
                    self._positions = offsets_of(message.position)
                    self._total = self._n_consumed + message.remaining
                case Finished():
                    self._finished, self._n_consumed = True, self._total
                case Failed():
                    raise (ConfigError if message.is_config else SourceError)(message.message)
                case _:
                    if time.monotonic() >= deadline:
                        return

    def _detect_hang(self, process: ReaderProcess) -> None:
        """Report a hanging process, once; a healthy one sends its status every second."""
        was_hanging, self._is_hanging = self._is_hanging, process.silent_seconds >= _HANG_SECONDS
        if was_hanging and not self._is_hanging:
            _LOGGER.info("the process that reads from Kafka responds again")
        elif self._is_hanging and not was_hanging:
            _LOGGER.warning(
                "the process that reads from Kafka (%d) has not responded for %.0f s; waiting until it does. If it "
                "does not, check whether it was stopped, or end it and start again",
                process.pid,
                process.silent_seconds,
            )
