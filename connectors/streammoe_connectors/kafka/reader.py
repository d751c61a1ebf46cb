"""The loop that reads from Kafka for a `KafkaSource`, in a separate process (see `kafka.process`).

It fetches records, puts them in order, and handles a cluster that does not respond or no longer holds the next records.
The steps are in one module because they form one loop over the same buffers.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Position, TopicPartition
from streammoe.text import some_of
from streammoe.types import IntArray
from streammoe_connectors.formats.records import UNDECODABLE
from streammoe_connectors.kafka.clients import load_client
from streammoe_connectors.kafka.consumer import AssignedConsumer, ClusterUnavailableError, OffsetsLostError
from streammoe_connectors.kafka.frames import Outlet, pack_headers
from streammoe_connectors.kafka.merge import Hold, merge
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.partitions import PartitionBuffer, position_of
from streammoe_connectors.kafka.records import Records, concatenate
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.start import (
    no_topic,
    partitions_of,
    report_missing_partitions,
    reset_offset,
    start_offsets,
    topics_of,
    unassigned_offsets,
)
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
POLL_SECONDS = 0.1
"""Timeout of `poll`; commands from the daemon and the regular checks wait this long."""
LOG_INTERVAL_SECONDS = 30.0
"""Shortest time between two log messages of the same kind."""
_EARLY_LOG_INTERVAL_SECONDS = 600.0
"""Shortest time between two warnings of records that are passed although older ones may still come."""
_FLOWING_POLL_SECONDS = 0.005
"""Timeout of `poll` while records arrive; kafka-python sleeps for 0.1 s if a response precedes its request slightly."""
_FLOWING_SECONDS = 1.0
"""Time after the last record during which more are expected at once."""
_RESPONSE_TIMEOUT_SECONDS = 3.0
"""Age of a metadata request without response from which on the cluster counts as disconnected."""
_END_REQUEST_INTERVAL_SECONDS = 0.05
"""Shortest time between requests for the ends of idle partitions."""
_MAX_PAUSE_SECONDS = 30.0
"""Longest pause before a failed conversion is retried."""
_METADATA_CHECK_SECONDS = 2.0
"""Time between metadata requests that check the connection while no records arrive."""
_MAX_NAMED_PARTITIONS = 20
"""Most partitions named in a log message."""
_MISSING_RESPONSES = 4
"""Consecutive responses without a topic after which it counts as missing."""


class OutgoingBatch(NamedTuple):
    """Records that were taken from their buffers, in the order in which they are sent to the daemon."""

    records: Records
    partition_index: IntArray | None
    """Index of each record's partition in `partitions`, if there are several."""
    partitions: list[TopicPartition]
    end_position: Position
    n_skipped: int
    """Tombstones that were passed since the previous batch."""
    n_consumed: int
    """Offsets between the start of the run and `end_position`, over all partitions."""


class Reader:
    """The reader for a daemon.

    Args:
        start_command: the first frame: settings, client and its options, position and its owner.
        outlet: for frames to the daemon.
        commands: further frames from the daemon.
        show_connected: called often with whether the cluster responds, for a daemon that reads no frames at present.
        tick_seconds: interval of status frames, heartbeats, and checks for new partitions, connection and stalls.
        pause_seconds: the pause after a request without response; doubled after each further one.
    """

    def __init__(
        self,
        start_command: Mapping[str, Any],
        outlet: Outlet,
        commands: SimpleQueue[dict[str, Any]],
        *,
        show_connected: Callable[[bool], object] = bool,
        tick_seconds: float = 1.0,
        pause_seconds: float = 0.2,
    ) -> None:
        self._settings = ReadingSettings.model_validate(start_command["settings"])
        self._client = load_client(start_command["client"])
        self._options: dict[str, Any] = start_command["options"]
        self._start_position: Position | None = start_command["position"]
        self._owner: str = start_command["owner"]
        self._unassigned_offsets = unassigned_offsets(self._settings, self._start_position)
        self._outlet = outlet
        self._commands = commands
        self._show_connected = show_connected
        self._tick_seconds = tick_seconds
        self._pause_seconds = pause_seconds
        self._values = Values(self._settings)
        self._counters: Counter[str] = Counter()
        self._ownership = Ownership(self._settings, self._owner, self._counters)
        self._consumer: AssignedConsumer | None = None
        self._buffers: dict[TopicPartition, PartitionBuffer] = {}
        self._paused: set[TopicPartition] = set()
        self._topics: list[str] = []
        """Those that are read, in order; with a pattern those that have matched it so far."""
        self._topic_ids: dict[str, str | None] = {}
        self._pending: OutgoingBatch | None = None
        self._lost: dict[TopicPartition, bool] = {}
        """Partitions that must continue at another offset, and whether their topic was recreated."""
        self._closing = False
        self._ready = False
        self._finished = False
        self._connected = False
        self._stalled: list[TopicPartition] = []
        self._rebuilt_for_stall = False
        self._open_transactions: dict[TopicPartition, int] = {}
        """Partitions that an open transaction has held up for so long that it was reported, and at which offset."""
        self._last_record_at = 0.0
        self._last_held_up_at = time.monotonic()  # when fetching was last prevented by something else
        self._next_stall_check_at = 0.0
        self._missing_topic_responses = 0
        self._next_attempt_at = 0.0
        self._failures = 0
        self._next_tick_at = 0.0
        self._status_due = False  # whether a status is due that the daemon could not receive yet
        self._last_metadata_request_at = 0.0
        self._last_checked_request_at = 0.0
        self._has_more = False
        self._next_end_request_at = 0.0
        self._last_warning_at = -LOG_INTERVAL_SECONDS
        self._warned_of_early_at = -_EARLY_LOG_INTERVAL_SECONDS
        self.logs: deque[dict[str, Any]] = deque(maxlen=200)
        self.client_error: tuple[float, str] | None = None
        """When (monotonic seconds) the client last logged why a connection failed, and its message."""

    def run(self) -> None:
        """Read until asked to close.

        Raises:
            SourceError: reading is not possible.
            BrokenPipeError: the daemon is gone.
        """
        while not self._closing:
            self._handle_commands()
            try:
                self._tick()
                if self._outlet.pending:
                    self._last_held_up_at = time.monotonic()
                    self._outlet.flush(POLL_SECONDS)
                elif time.monotonic() < self._next_attempt_at:
                    time.sleep(0.02)
                else:
                    if not self._ready:
                        self._prepare()
                    elif self._consumer is None:
                        self._rebuild()
                    else:
                        self._read(self._consumer)
                    self._failures = 0
            except ClusterUnavailableError as error:
                self._back_off(str(error))
        self._close()

    # --- the daemon -------------------------------------------------------------------------------------------------

    def _handle_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            if command["type"] == "close":
                self._closing = True
            elif command["type"] == "commit" and self._consumer is not None:
                self._ownership.commit(
                    self._consumer,
                    command["position"],
                    command["checkpoint_generation"],
                    is_connected=self._connected,
                )

    def _tick(self) -> None:
        """Do what is due regularly, independent of everything else."""
        self.send_logs()
        self._show_connected(self._connected)
        if self._status_due and not self._outlet.pending:
            self._report()
        now = time.monotonic()
        if now < self._next_tick_at:
            return
        self._next_tick_at = now + self._tick_seconds
        if self._consumer is not None:
            self._update_connected(self._consumer)
            if self._ready:
                self._ownership.heartbeat(self._consumer, is_connected=self._connected)
                self._refresh_metadata(self._consumer, now)
                for buffer in self._buffers.values() if not self._lost else ():
                    self._update_end(self._consumer, buffer, now)
                self._detect_stalls(self._consumer, now)
        self._status_due = True
        if not self._outlet.pending:  # else it follows the frames that the daemon has yet to read
            self._report()

    def _report(self) -> None:
        """Send the status, which is also a heartbeat."""
        self._status_due = False
        self._outlet.send(
            {
                "type": "status",
                "ends": [
                    [*buffer.partition, buffer.known_end]
                    for buffer in self._buffers.values()
                    if buffer.known_end is not None
                ],
                "held_back": [[*buffer.partition, buffer.n_held_back] for buffer in self._buffers.values()],
                "stalled": self._stalled,
                "counters": self._counters,
            }
        )

    def send_logs(self) -> None:
        """Send the log messages since the last call."""
        while self.logs:
            self._outlet.send(self.logs.popleft())

    def _back_off(self, why: str) -> None:
        """Retry after a pause that doubles each time."""
        longest = _MAX_PAUSE_SECONDS if self._pending is not None else 2.0
        self._next_attempt_at = time.monotonic() + min(self._pause_seconds * 2 ** min(self._failures, 9), longest)
        self._failures += 1
        self._set_connected(False)
        if self._ready and self._consumer is not None and self._consumer.metadata_request_age is None:
            # Only an answer shows that the cluster responds: a poll without records succeeds without one, too.
            self._request_metadata(self._consumer)
        now = time.monotonic()
        if now - self._last_warning_at >= LOG_INTERVAL_SECONDS:
            self._last_warning_at = now
            if self.client_error is not None and now - self.client_error[0] < LOG_INTERVAL_SECONDS:
                why = f"{why}; the client says: {self.client_error[1]}"
            _LOGGER.warning("the source does not respond (%s); retrying until it does", why)

    def _set_connected(self, connected: bool) -> None:
        if connected and not self._connected and self._ready:
            self._counters["reconnected"] += 1
            _LOGGER.info("Kafka responds again")
        if connected != self._connected:
            self._next_tick_at = 0.0
            self._last_held_up_at = time.monotonic()
        self._connected = connected

    def _update_connected(self, consumer: AssignedConsumer) -> None:
        request_age = consumer.metadata_request_age
        if request_age is None:
            self._set_connected(not self._failures)
        elif request_age > _RESPONSE_TIMEOUT_SECONDS:
            if self._connected:
                _LOGGER.warning("Kafka has not responded for %.0f s; waiting until it does", request_age)
            self._set_connected(False)

    # --- the start --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        settings = self._settings
        if self._consumer is None:
            self._consumer = self._client.create_consumer(self._options, settings)
            self._consumer.request_metadata(self._requested_topics)
        consumer = self._consumer
        if consumer.metadata_request_age is not None:
            self._next_attempt_at = time.monotonic() + 0.005
            return
        self._require_topics(consumer)
        if self._missing_topic_responses:
            return
        partitions = partitions_of(consumer, settings, self._topics)
        self._ownership.check(consumer, partitions)
        counters: Counter[str] = Counter()
        offsets = start_offsets(consumer, settings, self._start_position, partitions, counters)
        ends = consumer.end_offsets(partitions)
        stops = ends if settings.until == "end" else {}
        self._counters.update(counters)
        self._topic_ids = {topic: consumer.topic_id(topic) for topic in self._topics}
        for partition in partitions:
            stop = stops.get(partition)
            self._buffers[partition] = PartitionBuffer(
                partition, offsets[partition], None if stop is None else max(stop, offsets[partition])
            )
            self._buffers[partition].known_end = ends[partition]
        consumer.assign(offsets)
        if partitions:
            shown = [f"{tp.topic}/{tp.partition} from offset {offsets[tp]}" for tp in partitions]
            more = f", and {len(shown) - _MAX_NAMED_PARTITIONS} more" if len(shown) > _MAX_NAMED_PARTITIONS else ""
            _LOGGER.info("connected; reading %s%s", ", ".join(shown[:_MAX_NAMED_PARTITIONS]), more)
        else:
            _LOGGER.warning("source.shard = %r has no partition of these topics", settings.shard)
        self._connected = self._ready = True
        self._show_connected(True)  # before the frame that says ready
        self._last_metadata_request_at = self._last_checked_request_at = self._last_held_up_at = time.monotonic()
        buffers = self._buffers.values() if stops else ()
        total = sum((buffer.stop_offset or 0) - buffer.start_offset for buffer in buffers)
        position = self._current_position()
        self._outlet.send(
            {
                "type": "ready",
                "position": position,
                # It may differ by more than offsets: without a checkpoint another start might decide otherwise.
                "needs_checkpoint": position != self._start_position,
                "total": None if settings.until == "never" else total,
            }
        )
        self._report()

    @property
    def _requested_topics(self) -> tuple[str, ...] | None:
        """Topics to request metadata of; ``None`` for all, among which a pattern selects."""
        return self._settings.topics

    def _require_topics(self, consumer: AssignedConsumer) -> None:
        settings = self._settings
        known = () if self._start_position is None else self._start_position["topics"]
        self._topics = topics_of(consumer, settings, known)
        missing = [topic for topic in self._topics if consumer.partitions(topic) is None]
        if self._topics and not missing:
            self._missing_topic_responses = 0
            return
        self._missing_topic_responses += 1
        if self._missing_topic_responses >= _MISSING_RESPONSES:  # brokers may not know a new topic yet
            if settings.topics is None and settings.on_lost != "fail" and len(missing) < len(self._topics):
                # `start_offsets` warns of their partitions.
                self._topics = [topic for topic in self._topics if topic not in missing]
                self._missing_topic_responses = 0
                return
            raise SourceError(no_topic(settings, missing))
        self._next_attempt_at = time.monotonic() + 0.5
        consumer.request_metadata(self._requested_topics)

    def _refresh_metadata(self, consumer: AssignedConsumer, now: float) -> None:
        """Handle the last metadata response (new partitions, deleted or recreated topics), and request the next one."""
        if consumer.metadata_request_age is not None:
            return
        self._detect_recreated_topics(consumer)
        self._detect_deleted_topics(consumer)
        if self._settings.until == "never" and not self._lost:
            self._add_topics(consumer)
            partitions = partitions_of(consumer, self._settings, self._topics)
            if new := [partition for partition in partitions if partition not in self._buffers]:
                self._add_partitions(consumer, new)
        silent = now - max(self._last_record_at, self._last_metadata_request_at) >= _METADATA_CHECK_SECONDS
        if silent or now - self._last_metadata_request_at >= self._settings.discover_seconds:
            self._request_metadata(consumer)

    def _request_metadata(self, consumer: AssignedConsumer) -> None:
        self._last_metadata_request_at = time.monotonic()
        consumer.request_metadata(self._requested_topics)

    def _detect_recreated_topics(self, consumer: AssignedConsumer) -> None:
        """Detect topics that were deleted and recreated."""
        for topic in self._topics:
            before, topic_id = self._topic_ids[topic], consumer.topic_id(topic)
            if topic_id is None or before == topic_id:
                continue
            self._topic_ids[topic] = topic_id
            if before is not None:
                self._lost.update((partition, True) for partition in self._buffers if partition.topic == topic)

    def _detect_deleted_topics(self, consumer: AssignedConsumer) -> None:
        """Detect deleted topics that are not recreated at once."""
        if self._last_checked_request_at == self._last_metadata_request_at:
            return  # that response has been checked already
        self._last_checked_request_at = self._last_metadata_request_at
        missing = [topic for topic in self._topics if consumer.partitions(topic) is None]
        self._missing_topic_responses = self._missing_topic_responses + 1 if missing else 0
        if self._missing_topic_responses != _MISSING_RESPONSES:
            return
        gone = f"Kafka no longer has topic {', '.join(missing)}"
        if self._settings.on_lost == "fail":
            raise SourceError(
                f'{gone}. Set source.on_lost = "earliest" to continue with a new one, or start over with --fresh'
            )
        _LOGGER.warning("%s; waiting for a new one of that name", gone)

    def _add_topics(self, consumer: AssignedConsumer) -> None:
        """Add topics that match the pattern and did not exist before."""
        topics = topics_of(consumer, self._settings, self._topics)
        for topic in sorted(set(topics).difference(self._topics)):
            _LOGGER.info("topic %s is new and matches source.topics_pattern", topic)
            self._topic_ids[topic] = consumer.topic_id(topic)
        self._topics = topics

    def _add_partitions(self, consumer: AssignedConsumer, partitions: list[TopicPartition]) -> None:
        try:
            beginnings = consumer.beginning_offsets(partitions)
        except ClusterUnavailableError:
            return  # they will be discovered again
        for partition in partitions:
            self._counters["partition_discovered"] += 1
            _LOGGER.info("topic %s has a new partition %d, read from its first record", *partition)
            self._buffers[partition] = PartitionBuffer(partition, beginnings[partition])
        self._buffers = dict(sorted(self._buffers.items()))
        self._reassign(consumer)

    def _reassign(self, consumer: AssignedConsumer) -> None:
        consumer.assign({partition: buffer.fetch_position for partition, buffer in self._buffers.items()})
        self._paused.clear()

    def _detect_stalls(self, consumer: AssignedConsumer, now: float) -> None:
        """Detect partitions that hold more records but return none."""
        stall_seconds = self._settings.stall_seconds
        if self._pending is not None:
            self._last_held_up_at = now
        if now < self._next_stall_check_at or not self._connected:
            return
        self._next_stall_check_at = now + stall_seconds / 4
        silent = [
            buffer
            for buffer in self._buffers.values()
            if buffer.partition not in self._paused
            and not buffer.reached_stop
            and now - max(buffer.received_at, self._last_held_up_at) >= stall_seconds
        ]
        ends = consumer.end_offsets([buffer.partition for buffer in silent])
        for buffer in silent:
            buffer.known_end = max(buffer.known_end or 0, ends[buffer.partition])
        self._report_open_transactions(silent, ends, now)
        stalled = [buffer.partition for buffer in silent if ends[buffer.partition] > buffer.fetch_position]
        new = [partition for partition in stalled if partition not in self._stalled]
        self._stalled = stalled
        if not stalled:
            self._rebuilt_for_stall = False
            return
        if new:
            _LOGGER.warning(
                "no records for %.0f s from %s, although there are more to read",
                stall_seconds,
                ", ".join(f"topic {topic}, partition {number}" for topic, number in new),
            )
        if not self._rebuilt_for_stall:
            self._rebuilt_for_stall = True
            self._counters["consumer_rebuilt"] += 1
            self._consumer = None
            consumer.close()

    def _report_open_transactions(
        self, silent: list[PartitionBuffer], ends: Mapping[TopicPartition, int], now: float
    ) -> None:
        """Warn once of each transaction that holds up a partition for too long."""
        before, self._open_transactions = self._open_transactions, {}
        if self._settings.isolation != "read_committed":
            return
        for buffer in silent:
            offset = buffer.fetch_position
            if ends[buffer.partition] > offset or buffer.seconds_behind_end(now) < self._settings.stall_seconds:
                continue
            self._open_transactions[buffer.partition] = offset
            if before.get(buffer.partition) == offset:
                continue
            topic, number = buffer.partition
            _LOGGER.warning(
                "topic %s, partition %d: a transaction has been open at offset %d for %.0f s, and %d records from "
                "there on wait until it ends. Find its producer by kafka-transactions.sh --bootstrap-server HOST:PORT "
                "describe-producers --topic %s --partition %d. If that is gone for good, end the transaction: the same "
                "with abort --topic %s --partition %d --start-offset %d",
                topic,
                number,
                offset,
                buffer.seconds_behind_end(now),
                (buffer.known_end or offset) - offset,
                topic,
                number,
                topic,
                number,
                offset,
            )

    def _rebuild(self) -> None:
        """Reconnect, and resume at the current offsets."""
        consumer = self._client.create_consumer(self._options, self._settings)
        consumer.request_metadata(self._requested_topics)
        self._last_metadata_request_at = time.monotonic()
        self._reassign(consumer)
        self._consumer = consumer

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, consumer: AssignedConsumer) -> None:
        if self._pending is not None:
            self._send(self._pending)
            return
        if self._lost:
            self._reset_lost_partitions(consumer)
            return
        if not self._buffers or self._finished:
            time.sleep(0.02)
            self._finish_if_complete()
            return
        try:
            fetched = consumer.poll(self._poll_timeout())
        except OffsetsLostError as lost:
            # The topic may have been recreated; its id will show that.
            self._lost.update((partition, False) for partition in lost.partitions)
            self._request_metadata(consumer)
            return
        self._detect_recreated_topics(consumer)
        if self._lost:
            # These records may belong to the new topic, at an offset of the old one.
            fetched = {partition: records for partition, records in fetched.items() if partition not in self._lost}
        now = time.monotonic()
        if fetched:
            self._last_record_at = now
        for partition, records in fetched.items():
            self._counters["gap"] += self._buffers[partition].add(records, now)
        if self._lost:
            return
        for buffer in self._buffers.values():
            if buffer.at_end_since is None:
                self._update_end(consumer, buffer, now)
        self._has_more = self._send_in_order(consumer)
        self._finish_if_complete()

    def _poll_timeout(self) -> float:
        """Return the timeout of the next `poll` in seconds."""
        if self._has_more:
            return 0.0
        timeout = POLL_SECONDS
        if time.monotonic() - self._last_record_at < _FLOWING_SECONDS:
            timeout = _FLOWING_POLL_SECONDS
        if any(buffer.records for buffer in self._buffers.values()):
            timeout = min(timeout, max(0.002, self._settings.idle_ms / 4000))
        return timeout

    def _update_end(self, consumer: AssignedConsumer, buffer: PartitionBuffer, now: float) -> None:
        """Update what is known about the end of a partition.

        Its records include those of open transactions, which are to be read once those end.
        """
        position = consumer.fetch_position(buffer.partition)
        if position is not None and position > buffer.fetch_position:
            buffer.advance_to(position)
        end = consumer.high_watermark(buffer.partition)
        if end is None:
            return
        buffer.update_end(end, now)
        if buffer.at_end_since is None and buffer.fetch_position >= end:
            buffer.mark_at_end(now)
            buffer.received_at = now

    def _send_in_order(self, consumer: AssignedConsumer) -> bool:
        """Send the next records, as far as their order is certain; return whether more may follow at once."""
        buffers = list(self._buffers.values())
        now = time.monotonic()
        idle = self._settings.idle_ms / 1000
        holds = [buffer.hold(now, idle) for buffer in buffers]
        if any(buffer.records for buffer in buffers):
            self._request_end_offsets(
                consumer, [buffer for buffer, hold in zip(buffers, holds, strict=True) if hold is not Hold.NONE], now
            )
        if len(buffers) == 1:
            counts, order = [min(len(buffers[0].records), self._settings.max_poll_records)], None
        else:
            longest, room = self._settings.order_wait_ms / 1000, self._room
            overdue = [buffer.count_overdue(now, longest, room) for buffer in buffers]
            counts, order, n_early = merge(
                [buffer.records.times for buffer in buffers], holds, overdue, self._settings.max_poll_records
            )
            if n_early:
                self._report_early([buffer for buffer, n in zip(buffers, overdue, strict=True) if n], n_early, now)
        if sum(counts):
            records = concatenate([buffer.take(count) for buffer, count in zip(buffers, counts, strict=True)])
            partition_index = None
            partitions = [buffer.partition for buffer, count in zip(buffers, counts, strict=True) if count]
            if order is not None:
                partition_index = np.repeat(np.arange(len(partitions)), [count for count in counts if count])[order]
                records = records.take(order)
            self._send(
                OutgoingBatch(
                    records,
                    partition_index if len(partitions) > 1 else None,
                    partitions,
                    self._current_position(),
                    sum(buffer.count_passed_tombstones() for buffer in buffers),
                    sum(buffer.next_offset - buffer.start_offset for buffer in buffers),
                )
            )
        self._apply_backpressure(consumer, buffers)
        has_more = sum(counts) == self._settings.max_poll_records
        if not has_more:
            for buffer in buffers:
                buffer.n_held_back = len(buffer.records)
        return has_more

    def _report_early(self, overdue: list[PartitionBuffer], n_early: int, now: float) -> None:
        """Count records that are passed although older ones may still come, and warn of it now and then."""
        self._counters["passed_early"] += n_early
        if not self._settings.order_wait_ms or now - self._warned_of_early_at < _EARLY_LOG_INTERVAL_SECONDS:
            return
        self._warned_of_early_at = now
        _LOGGER.warning(
            "records of %s have waited %g s for older ones of other partitions, and are learned before those: their "
            "timestamps are ahead of the others', or another partition is stalled. Compare the clocks of the "
            "producers, or set message.timestamp.type=LogAppendTime; source.order_wait_ms is how long records wait",
            some_of((f"topic {topic}, partition {number}" for topic, number in (b.partition for b in overdue)), str),
            self._settings.order_wait_ms / 1000,
        )

    @property
    def _room(self) -> float:
        """How many bytes of one partition may wait for the others."""
        return self._settings.buffer_bytes / len(self._buffers)

    def _request_end_offsets(self, consumer: AssignedConsumer, buffers: list[PartitionBuffer], now: float) -> None:
        """Request the last stable offsets of idle partitions: the high watermark includes open transactions."""
        if self._settings.isolation != "read_committed" or now < self._next_end_request_at:
            return
        unsure = [
            buffer
            for buffer in buffers
            if not buffer.records and buffer.at_end_since is None and buffer.known_end is not None
        ]
        unsure = [buffer for buffer in unsure if now - buffer.received_at >= _END_REQUEST_INTERVAL_SECONDS]
        if not unsure:
            return
        self._next_end_request_at = now + _END_REQUEST_INTERVAL_SECONDS
        ends = consumer.end_offsets([buffer.partition for buffer in unsure])
        for buffer in unsure:
            if buffer.fetch_position >= ends[buffer.partition]:
                buffer.mark_at_end(now)

    def _apply_backpressure(self, consumer: AssignedConsumer, buffers: list[PartitionBuffer]) -> None:
        """Pause partitions whose buffers are full, and resume those with room."""
        if len(buffers) == 1:
            return
        room = self._room
        for buffer in buffers:
            partition = buffer.partition
            if partition in self._paused:
                if buffer.n_bytes < room / 2 and not buffer.reached_stop:
                    consumer.resume(partition)
                    self._paused.discard(partition)
            elif buffer.n_bytes > room or buffer.reached_stop:
                consumer.pause(partition)
                self._paused.add(partition)

    def _send(self, batch: OutgoingBatch) -> None:
        try:
            block, ends, rejected, records, origins, numbers, skipped = self._values.block(batch.records)
        except RetriableSourceError as error:
            self._pending = batch
            raise ClusterUnavailableError(str(error)) from None
        self._pending = None
        raw = [block[int(ends[i - 1]) if i else 0 : int(ends[i]) - 1] for i in rejected]
        if rejected:
            block, ends = _replace_rejected(block, ends, rejected, UNDECODABLE[self._values.format] + b"\n")
        count = len(records)
        body = [records.offsets.tobytes(), records.times.tobytes(), ends.tobytes()]
        if records.keys is not None:
            lengths = np.fromiter((-1 if key is None else len(key) for key in records.keys), np.int64, count)
            body += [lengths.tobytes(), b"".join(filter(None, records.keys))]
        if records.headers is not None:
            body.append(pack_headers(records.headers))
        if batch.partition_index is not None:
            body.append(batch.partition_index[origins].tobytes())
        has_numbers = max(numbers, default=-1) >= 0
        if has_numbers:
            body.append(np.array(numbers, np.int64).tobytes())
        header = {
            "type": "batch",
            "count": count,
            "sizes": [*map(len, body), *map(len, raw), len(block)],
            "keys": records.keys is not None,
            "headers": records.headers is not None,
            "partitions": batch.partitions,
            "numbers": has_numbers,
            "rejected": [[i, *why] for i, why in rejected.items()],
            "end": batch.end_position,
            "skipped": batch.n_skipped + skipped,
            "n_consumed": batch.n_consumed,
        }
        self._outlet.send(header, [*body, *raw, block])

    def _finish_if_complete(self) -> None:
        """Report once that everything was sent, if there is an end."""
        if (
            self._settings.until == "end"
            and not self._finished
            and self._pending is None
            and all(buffer.reached_stop and not buffer.records for buffer in self._buffers.values())
        ):
            self._finished = True
            self._report()
            self._outlet.send({"type": "finished"})

    def _reset_lost_partitions(self, consumer: AssignedConsumer) -> None:
        """Continue at another offset in partitions that no longer hold the next records.

        The new position is sent to the daemon, so that a checkpoint can hold it before the next record.
        """
        if consumer.metadata_request_age is not None:
            self._next_attempt_at = time.monotonic() + 0.005
            return
        self._detect_recreated_topics(consumer)
        if any(consumer.partitions(partition.topic) is None for partition in self._lost):
            # Deleted and not recreated yet: `_detect_deleted_topics` counts the responses.
            self._next_attempt_at = time.monotonic() + 0.5
            self._request_metadata(consumer)
            return
        for partition, recreated in list(self._lost.items()):
            self._reset_partition(consumer, self._buffers[partition], recreated=recreated)
            del self._lost[partition]
        self._outlet.send({"type": "moved", "position": self._current_position()})

    def _reset_partition(self, consumer: AssignedConsumer, buffer: PartitionBuffer, *, recreated: bool) -> None:
        settings, partition = self._settings, buffer.partition
        if partition.partition not in (consumer.partitions(partition.topic) or ()):
            report_missing_partitions(settings, {partition: buffer.next_offset})
            del self._buffers[partition]
            self._reassign(consumer)
            return
        if buffer.seek_pending and not recreated:
            first = consumer.beginning_offsets([partition])[partition]
            end = consumer.end_offsets([partition])[partition]
            if first <= buffer.fetch_position <= end:
                # The client has reported the previous offset late.
                consumer.seek(partition, buffer.fetch_position)
                return
        # A position cannot hold offsets of two topics, so records fetched from the old one are discarded.
        wanted = buffer.next_offset if recreated else buffer.fetch_position
        stop = None if buffer.stop_offset is None else consumer.end_offsets([partition])[partition]
        offset = reset_offset(consumer, settings, partition, wanted, self._counters, recreated=recreated)
        if recreated:
            buffer.clear()
        buffer.seek(offset)
        if stop is not None:
            buffer.stop_offset = max(offset, stop)
        consumer.seek(partition, offset)

    def _current_position(self) -> Position:
        settings = self._settings
        return position_of(
            settings.group,
            self._owner,
            settings.shard,
            settings.topics_pattern,
            self._topic_ids,
            list(self._buffers.values()),
            self._unassigned_offsets,
        )

    def _close(self) -> None:
        if self._consumer is not None:
            if self._connected:
                self._ownership.release(self._consumer)
            self._consumer.close()
        self.send_logs()


def _replace_rejected(
    block: bytes, ends: IntArray, rejected: Collection[int], replacement: bytes
) -> tuple[bytes, IntArray]:
    """Replace the rejected records of a block; return it with the ends of its records."""
    starts = [0, *ends.tolist()]
    records = [replacement if i in rejected else block[starts[i] : starts[i + 1]] for i in range(len(ends))]
    return b"".join(records), np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
