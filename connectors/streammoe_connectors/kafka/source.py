"""A source of records from Kafka topics, in the order of their timestamps."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from queue import Empty

from streammoe.errors import SourceError
from streammoe.ports import Batch, Position, Source, SourceStatus, TopicPartition
from streammoe_connectors.kafka.contract import load_client
from streammoe_connectors.kafka.position import check_position, offsets_of
from streammoe_connectors.kafka.reader import Moved, Reader
from streammoe_connectors.kafka.settings import KafkaSettings, connection_options
from streammoe_connectors.kafka.values import Values


class KafkaSource(Source):
    """A source of records from topics of a Kafka cluster, read in a thread of its own.

    Checkpoints hold the authoritative positions; offsets are committed to the consumer group after them, for lag
    monitoring only. Partitions are assigned by the settings, never by the group.

    Raises:
        ConfigError: a password, a schema or a package is missing.
    """

    Settings = KafkaSettings

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._client = load_client(settings, "source")
        connection_options(settings)  # which says if a file is missing
        self._values = Values(settings)
        self._reader: Reader | None = None
        self._ready = False
        self._finished = False
        self._position_to_checkpoint: Position | None = None
        self._batch: Batch | None = None
        self._n_consumed = 0
        self._total = 0
        self._positions: dict[TopicPartition, int] = {}
        self._began_at = time.time()  # noqa: TID251 - compared with timestamps of records
        self._newest: dict[TopicPartition, float] = {}  # when the newest record returned was written

    def seek(self, position: Position | None) -> None:
        if position is not None:
            check_position(position)
        owner = uuid.uuid4().hex if position is None else position["owner"]
        self._reader = Reader(self._settings, self._client, self._values, position, owner)
        self._reader.start()

    def renamed(self, position: Position) -> Position:
        """Return a position whose owner has a name of its own, which begins with that of the original."""
        check_position(position)
        return {**position, "owner": f"{position['owner']}.{uuid.uuid4().hex[:8]}"}

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
            if batch.timestamps is not None and len(batch) and (newest := batch.timestamps.max() / 1000) > 0.0:
                # Partitions are read in the order of timestamps, so all have come as far as the newest one.
                self._newest |= dict.fromkeys(dict(self._positions.items() - before.items()), newest)
            self._position_to_checkpoint = None
        return batch

    @property
    def finished(self) -> bool:
        return self._finished and self._batch is None

    def commit(self, position: Position, generation: int) -> None:
        if self._reader is not None:
            self._reader.checkpoints.append((position, generation))

    def progress(self) -> tuple[int, int] | None:
        """Return the number of offsets consumed so far, and in total."""
        if self._settings.until == "never":
            return None
        return self._n_consumed, self._total

    def status(self) -> SourceStatus:
        if (reader := self._reader) is None:
            return SourceStatus(connected=False)
        shown, ends, positions = reader.status, reader.ends, self._positions
        lags = {tp: max(0, ends[tp] - offset) for tp, offset in positions.items() if tp in ends}
        now = time.time()  # noqa: TID251 - compared with timestamps of records
        ages = (now - self._newest.get(tp, self._began_at) for tp, lag in lags.items() if lag)
        return shown._replace(
            # A client that does not return, while it looks for an address for example, is not connected.
            connected=shown.connected and time.monotonic() - reader.status_at < 10.0,
            positions=positions,
            lags=lags,
            behind=max([0.0, *ages]) if self._ready else None,
        )

    def close(self) -> None:
        if self._reader is not None:
            self._reader.closing = True
            self._reader.wake.set()
            self._reader.join(8.0)  # longer than the last commit may take

    def _receive_until(self, is_met: Callable[[], bool], timeout: float) -> None:
        """Take what the reader has found until a condition is met, or it has found nothing for `timeout` seconds."""
        if self._reader is None:
            raise SourceError("Kafka has no position; call seek first")
        deadline = time.monotonic() + timeout
        while not is_met():
            try:
                found = self._reader.found.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                return
            self._reader.wake.set()
            if isinstance(found, BaseException):
                self._reader.found.put(found)
                raise found
            if isinstance(found, Batch):
                self._batch = found
            elif isinstance(found, Moved):
                self._ready = True
                self._position_to_checkpoint = found.position if found.needs_checkpoint else None
                self._positions = offsets_of(found.position)
                self._total = self._n_consumed + found.remaining
            else:  # all was read
                self._finished, self._n_consumed = True, self._total
