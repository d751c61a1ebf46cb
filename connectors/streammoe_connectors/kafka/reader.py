"""The loop that reads from Kafka for a `KafkaSource`, in a separate process (see `kafka.process`).

It fetches records, orders them, and handles a cluster that does not respond or no longer holds the next records. One
long file, since these are steps of one loop over the same buffers.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Partition, Position
from streammoe.types import IntArray
from streammoe_connectors.kafka.consumer import Cluster, Lost, Unanswered
from streammoe_connectors.kafka.frames import Outlet
from streammoe_connectors.kafka.merge import merge
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.partitions import LogRecord, PartitionBuffer, position_of
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.start import left_of, partitions_of, report_vanished, reset_offset, start_offsets
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
POLL_SECONDS = 0.1
"""Longest wait for records, which delays everything else."""
_FLOWING_POLL_SECONDS = 0.005
"""Longest wait while records flow; kafka-python sleeps for 0.1 s if a response arrives just before its request."""
_FLOWING_SECONDS = 1.0  # time after the last record during which records count as flowing
_SILENT_SECONDS = 3.0  # time after which a request without response means that the cluster does not respond
QUIET_SECONDS = 30.0
"""Shortest time between equal log messages."""
_LOOK_SECONDS = 0.05  # shortest time between requests for the ends of idle partitions
_LONGEST_PAUSE = 30.0
_ASK_SECONDS = 2.0  # time between requests that check the cluster while no records arrive
_SHOWN = 20  # most partitions named in a log message
_MISSING_ANSWERS = 4  # number of consecutive responses without a topic before it counts as missing
_UNREADABLE = {"jsonl": b"!", "csv": b'"'}  # content that no decoder accepts, to replace rejected records


class Pending(NamedTuple):
    """Records that were taken from their buffers and are to be sent."""

    records: list[LogRecord]
    which: IntArray | None
    """Index of each record's partition in `partitions`, if there are several."""
    partitions: list[Partition]
    end: Position
    skipped: int
    done: int


class Reader:
    """The reader for a daemon.

    Args:
        order: the first frame: settings, options of clients, position and its owner.
        outlet: for frames to the daemon.
        orders: further frames from the daemon.
        tick_seconds: interval of status frames, heartbeats, and checks for new partitions, connection and stalls.
        pause_seconds: the pause after a request without response; doubled after each further one.
    """

    def __init__(
        self,
        order: Mapping[str, Any],
        outlet: Outlet,
        orders: SimpleQueue[dict[str, Any]],
        *,
        tick_seconds: float = 1.0,
        pause_seconds: float = 0.2,
    ) -> None:
        self._settings = ReadingSettings.model_validate(order["settings"])
        self._options: dict[str, Any] = order["options"]
        self._position: Position | None = order["position"]
        self._owner: str = order["owner"]
        self._left = left_of(self._settings, self._position)
        self._outlet = outlet
        self._orders = orders
        self._tick_seconds = tick_seconds
        self._pause_seconds = pause_seconds
        self._values = Values(self._settings)
        self._counters: Counter[str] = Counter()
        self._ownership = Ownership(self._settings, self._owner, self._counters)
        self._cluster: Cluster | None = None
        self._buffers: dict[Partition, PartitionBuffer] = {}
        self._paused: set[Partition] = set()
        self._ids: dict[str, str | None] = {}
        self._pending: Pending | None = None
        self._lost: dict[Partition, bool] = {}
        """Partitions that must continue at another offset, and whether their topic was recreated."""
        self._closing = False
        self._ready = False
        self._finished = False
        self._connected = False
        self._stalled: list[Partition] = []
        self._rebuilt = False
        self._received_at = 0.0
        self._held_up_at = time.monotonic()  # when fetching was last prevented by something else
        self._watch_at = 0.0
        self._missing = 0
        self._retry_at = 0.0
        self._failures = 0
        self._tick_at = 0.0
        self._status_due = False  # whether a status is due that the daemon could not receive yet
        self._asked_at = 0.0
        self._missed_at = 0.0
        self._more = False
        self._look_at = 0.0
        self._warned_at = -QUIET_SECONDS
        self.logs: deque[dict[str, Any]] = deque(maxlen=200)
        self.client_error: tuple[float, str] | None = None
        """When (monotonic seconds) kafka-python last logged why a connection failed, and its message."""

    def run(self) -> None:
        """Read until asked to close.

        Raises:
            SourceError: reading is not possible.
            BrokenPipeError: the daemon is gone.
        """
        while not self._closing:
            self._obey()
            try:
                self._tick()
                if self._outlet.pending:
                    self._held_up_at = time.monotonic()
                    self._outlet.flush(POLL_SECONDS)
                elif time.monotonic() < self._retry_at:
                    time.sleep(0.02)
                else:
                    if not self._ready:
                        self._prepare()
                    elif self._cluster is None:
                        self._rebuild()
                    else:
                        self._read(self._cluster)
                    self._failures = 0
            except Unanswered as error:
                self._back_off(str(error))
        self._close()

    # --- the daemon -------------------------------------------------------------------------------------------------

    def _obey(self) -> None:
        while True:
            try:
                order = self._orders.get_nowait()
            except Empty:
                return
            if order["type"] == "close":
                self._closing = True
            elif order["type"] == "commit" and self._cluster is not None:
                self._ownership.commit(self._cluster, order["position"], order["generation"], answers=self._connected)

    def _tick(self) -> None:
        """Do what is due regularly, independent of everything else."""
        self.send_logs()
        if self._status_due and not self._outlet.pending:
            self._report()
        now = time.monotonic()
        if now < self._tick_at:
            return
        self._tick_at = now + self._tick_seconds
        if self._cluster is not None:
            self._judge_connection(self._cluster)
            if self._ready:
                self._ownership.tend(self._cluster, answers=self._connected)
                self._discover(self._cluster, now)
                self._watch(self._cluster, now)
        self._status_due = True
        if not self._outlet.pending:  # else it follows the frames that the daemon has yet to read
            self._report()

    def _report(self) -> None:
        """Send the status, which is also a heartbeat."""
        self._status_due = False
        self._outlet.send(
            {
                "type": "status",
                "connected": self._connected,
                "ends": [
                    [*buffer.partition, buffer.end] for buffer in self._buffers.values() if buffer.end is not None
                ],
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
        longest = _LONGEST_PAUSE if self._pending is not None else 2.0
        self._retry_at = time.monotonic() + min(self._pause_seconds * 2 ** min(self._failures, 9), longest)
        self._failures += 1
        self._set_connected(False)
        now = time.monotonic()
        if now - self._warned_at >= QUIET_SECONDS:
            self._warned_at = now
            if self.client_error is not None and now - self.client_error[0] < QUIET_SECONDS:
                why = f"{why}; kafka-python says: {self.client_error[1]}"
            _LOGGER.warning("the source does not respond (%s); retrying until it does", why)

    def _set_connected(self, connected: bool) -> None:
        if connected and not self._connected and self._ready:
            self._counters["reconnected"] += 1
            _LOGGER.info("Kafka responds again")
        if connected != self._connected:
            self._tick_at = 0.0
            self._held_up_at = time.monotonic()
        self._connected = connected

    def _judge_connection(self, cluster: Cluster) -> None:
        asking = cluster.asking_seconds
        if asking is None:
            self._set_connected(not self._failures)
        elif asking > _SILENT_SECONDS:
            if self._connected:
                _LOGGER.warning("Kafka has not responded for %.0f s; waiting until it does", asking)
            self._set_connected(False)

    # --- the start --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        settings = self._settings
        if self._cluster is None:
            self._cluster = Cluster(self._options, settings)
            self._cluster.ask(settings.topics)
        cluster = self._cluster
        if cluster.asking_seconds is not None:
            self._retry_at = time.monotonic() + 0.005
            return
        self._look_for_topics(cluster)
        if self._missing:
            return
        partitions = partitions_of(cluster, settings)
        self._ownership.check(cluster, partitions)
        counters: Counter[str] = Counter()
        offsets = start_offsets(cluster, settings, self._position, partitions, counters)
        ends = cluster.end_offsets(partitions)
        stops = ends if settings.until == "end" else {}
        self._counters.update(counters)
        self._ids = {topic: cluster.topic_id(topic) for topic in settings.topics}
        for partition in partitions:
            stop = stops.get(partition)
            self._buffers[partition] = PartitionBuffer(
                partition, offsets[partition], None if stop is None else max(stop, offsets[partition])
            )
            self._buffers[partition].end = ends[partition]
        cluster.assign(offsets)
        if partitions:
            shown = [f"{one.topic}/{one.partition} from offset {offsets[one]}" for one in partitions]
            more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            _LOGGER.info("connected; reading %s%s", ", ".join(shown[:_SHOWN]), more)
        else:
            _LOGGER.warning("source.shard = %r has no partition of these topics", settings.shard)
        self._connected = self._ready = True
        self._asked_at = self._missed_at = self._held_up_at = time.monotonic()
        total = sum((buffer.stop or 0) - buffer.start for buffer in self._buffers.values()) if stops else 0
        self._outlet.send(
            {
                "type": "ready",
                "position": self._end(),
                "pin": self._position is None or counters["offset_reset"] > 0,
                "total": None if settings.until == "never" else total,
            }
        )
        self._report()

    def _look_for_topics(self, cluster: Cluster) -> None:
        missing = [topic for topic in self._settings.topics if cluster.partitions(topic) is None]
        if not missing:
            self._missing = 0
            return
        self._missing += 1
        if self._missing >= _MISSING_ANSWERS:  # brokers may not know a new topic yet
            raise SourceError(
                f"Kafka has no topic {', '.join(missing)}; create it, correct source.topics, or allow this user to "
                "see it"
            )
        self._retry_at = time.monotonic() + 0.5
        cluster.ask(self._settings.topics)

    def _discover(self, cluster: Cluster, now: float) -> None:
        """Look for new partitions, and for topics that were deleted or recreated."""
        if cluster.asking_seconds is not None:
            return
        self._compare_ids(cluster)
        self._check_topics(cluster)
        new = [partition for partition in partitions_of(cluster, self._settings) if partition not in self._buffers]
        if new and self._settings.until == "never" and not self._lost:
            self._add(cluster, new)
        silent = now - max(self._received_at, self._asked_at) >= _ASK_SECONDS
        if silent or now - self._asked_at >= self._settings.discover_seconds:
            self._ask(cluster)

    def _ask(self, cluster: Cluster) -> None:
        self._asked_at = time.monotonic()
        cluster.ask(self._settings.topics)

    def _compare_ids(self, cluster: Cluster) -> None:
        """Detect topics that were deleted and recreated."""
        for topic in self._settings.topics:
            before, topic_id = self._ids[topic], cluster.topic_id(topic)
            if topic_id is None or before == topic_id:
                continue
            self._ids[topic] = topic_id
            if before is not None:
                self._lost.update((partition, True) for partition in self._buffers if partition.topic == topic)

    def _check_topics(self, cluster: Cluster) -> None:
        """Detect deleted topics that are not recreated at once."""
        if self._missed_at == self._asked_at:
            return  # that response has been checked already
        self._missed_at = self._asked_at
        missing = [topic for topic in self._settings.topics if cluster.partitions(topic) is None]
        self._missing = self._missing + 1 if missing else 0
        if self._missing != _MISSING_ANSWERS:
            return
        gone = f"Kafka no longer has topic {', '.join(missing)}"
        if self._settings.on_lost == "fail":
            raise SourceError(
                f'{gone}. Set source.on_lost = "earliest" to continue with a new one, or start over with --fresh'
            )
        _LOGGER.warning("%s; waiting for a new one of that name", gone)

    def _add(self, cluster: Cluster, partitions: list[Partition]) -> None:
        try:
            firsts = cluster.first_offsets(partitions)
        except Unanswered:
            return  # they will be discovered again
        for partition in partitions:
            self._counters["partition_discovered"] += 1
            _LOGGER.info("topic %s has a new partition %d, read from its first record", *partition)
            self._buffers[partition] = PartitionBuffer(partition, firsts[partition])
        self._buffers = dict(sorted(self._buffers.items()))
        self._reassign(cluster)

    def _reassign(self, cluster: Cluster) -> None:
        cluster.assign({partition: buffer.fetched for partition, buffer in self._buffers.items()})
        self._paused.clear()

    def _watch(self, cluster: Cluster, now: float) -> None:
        """Detect partitions that hold more records but return none."""
        patience = self._settings.stall_seconds
        if self._pending is not None:
            self._held_up_at = now
        if now < self._watch_at or not self._connected:
            return
        self._watch_at = now + patience / 4
        silent = [
            buffer
            for buffer in self._buffers.values()
            if buffer.partition not in self._paused
            and not buffer.complete
            and now - max(buffer.received_at, self._held_up_at) >= patience
        ]
        ends = cluster.end_offsets([buffer.partition for buffer in silent])
        for buffer in silent:
            buffer.end = max(buffer.end or 0, ends[buffer.partition])
        stalled = [buffer.partition for buffer in silent if ends[buffer.partition] > buffer.fetched]
        new = [partition for partition in stalled if partition not in self._stalled]
        self._stalled = stalled
        if not stalled:
            self._rebuilt = False
            return
        if new:
            _LOGGER.warning(
                "no records for %.0f s from %s, although there are more to read",
                patience,
                ", ".join(f"topic {topic}, partition {number}" for topic, number in new),
            )
        if not self._rebuilt:
            self._rebuilt = True
            self._counters["consumer_rebuilt"] += 1
            self._cluster = None
            cluster.close()

    def _rebuild(self) -> None:
        """Reconnect, and resume at the current offsets."""
        cluster = Cluster(self._options, self._settings)
        cluster.ask(self._settings.topics)
        self._asked_at = time.monotonic()
        self._reassign(cluster)
        self._cluster = cluster

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, cluster: Cluster) -> None:
        if self._pending is not None:
            self._send(self._pending)
            return
        if self._lost:
            self._move_lost(cluster)
            return
        if not self._buffers or self._finished:
            time.sleep(0.02)
            self._finish()
            return
        try:
            found = cluster.poll(self._longest_wait())
        except Lost as lost:
            # The topic may have been recreated, which its id will tell.
            self._lost.update((partition, False) for partition in lost.partitions)
            self._ask(cluster)
            return
        self._compare_ids(cluster)
        if self._lost:
            # These records may belong to the new topic, at an offset of the old one.
            found = {partition: records for partition, records in found.items() if partition not in self._lost}
        now = time.monotonic()
        if found:
            self._received_at = now
        for partition, records in found.items():
            self._counters["gap"] += self._buffers[partition].add(records, now)
        if self._lost:
            return
        for buffer in self._buffers.values():
            if buffer.at_end_since is None:
                self._look(cluster, buffer, now)
        self._more = self._give(cluster)
        self._finish()

    def _longest_wait(self) -> float:
        """Return for how many seconds to wait for records."""
        if self._more:
            return 0.0
        wait = POLL_SECONDS
        if time.monotonic() - self._received_at < _FLOWING_SECONDS:
            wait = _FLOWING_POLL_SECONDS
        if any(buffer.records for buffer in self._buffers.values()):
            wait = min(wait, max(0.002, self._settings.idle_ms / 4000))
        return wait

    def _look(self, cluster: Cluster, buffer: PartitionBuffer, now: float) -> None:
        """Update what is known about the end of a partition."""
        fetched = cluster.fetched(buffer.partition)
        if fetched is not None and fetched > buffer.fetched:
            buffer.reach(fetched)
        end = cluster.log_end(buffer.partition)
        if end is None:
            return
        buffer.end = end
        if buffer.fetched >= end:
            buffer.at_end_since = buffer.received_at = now

    def _give(self, cluster: Cluster) -> bool:
        """Send the next records, as far as their order is certain; return whether more may follow at once."""
        buffers = list(self._buffers.values())
        now = time.monotonic()
        idle = self._settings.idle_ms / 1000
        holds = [buffer.holds(now, idle) for buffer in buffers]
        if any(buffer.records for buffer in buffers):
            self._ask_for_ends(cluster, [buffer for buffer, hold in zip(buffers, holds, strict=True) if hold], now)
        if len(buffers) == 1:
            counts, order = [min(len(buffers[0].records), self._settings.max_poll_records)], None
        else:
            counts, order = merge([buffer.times for buffer in buffers], holds, self._settings.max_poll_records)
        if sum(counts):
            given = [buffer.give(count) for buffer, count in zip(buffers, counts, strict=True)]
            records = [record for records in given for record in records]
            which = None
            partitions = [buffer.partition for buffer, count in zip(buffers, counts, strict=True) if count]
            if order is not None:
                which = np.repeat(np.arange(len(partitions)), [count for count in counts if count])[order]
                records = [records[i] for i in order.tolist()]
            self._send(
                Pending(
                    records,
                    which if len(partitions) > 1 else None,
                    partitions,
                    self._end(),
                    sum(buffer.passed() for buffer in buffers),
                    sum(buffer.next - buffer.start for buffer in buffers),
                )
            )
        self._bound(cluster, buffers)
        return sum(counts) == self._settings.max_poll_records

    def _ask_for_ends(self, cluster: Cluster, buffers: list[PartitionBuffer], now: float) -> None:
        """Request the readable ends of idle partitions: the end of the log includes open transactions."""
        if self._settings.isolation != "read_committed" or now < self._look_at:
            return
        unsure = [
            buffer
            for buffer in buffers
            if not buffer.records and buffer.at_end_since is None and buffer.end is not None
        ]
        unsure = [buffer for buffer in unsure if now - buffer.received_at >= _LOOK_SECONDS]
        if not unsure:
            return
        self._look_at = now + _LOOK_SECONDS
        ends = cluster.end_offsets([buffer.partition for buffer in unsure])
        for buffer in unsure:
            if buffer.fetched >= ends[buffer.partition]:
                buffer.at_end_since = now

    def _bound(self, cluster: Cluster, buffers: list[PartitionBuffer]) -> None:
        """Pause partitions whose buffers are full, and resume those with room."""
        if len(buffers) == 1:
            return
        room = self._settings.buffer_bytes / len(buffers)
        for buffer in buffers:
            partition = buffer.partition
            if partition in self._paused:
                if buffer.bytes < room / 2 and not buffer.complete:
                    cluster.resume(partition)
                    self._paused.discard(partition)
            elif buffer.bytes > room or buffer.complete:
                cluster.pause(partition)
                self._paused.add(partition)

    def _send(self, pending: Pending) -> None:
        records = pending.records
        try:
            block, ends, rejected = self._values.block(records)
        except RetriableSourceError as error:
            self._pending = pending
            raise Unanswered(str(error)) from None
        self._pending = None
        raw = [records[i].value for i in rejected]
        if rejected:
            block, ends = _masked(block, ends, rejected, _UNREADABLE[self._values.format] + b"\n")
        count = len(records)
        times = np.fromiter(
            (-1 if record.timestamp is None else record.timestamp for record in records), np.int64, count
        )
        offsets = np.fromiter((record.offset for record in records), np.int64, count)
        body = [offsets.tobytes(), times.tobytes(), ends.tobytes()]
        keys = [record.key for record in records]
        has_keys = keys.count(None) < count
        if has_keys:
            lengths = np.fromiter((-1 if key is None else len(key) for key in keys), np.int64, count)
            body += [lengths.tobytes(), b"".join(key for key in keys if key is not None)]
        if pending.which is not None:
            body.append(pending.which.tobytes())
        header = {
            "type": "batch",
            "count": count,
            "sizes": [*map(len, body), *map(len, raw), len(block)],
            "keys": has_keys,
            "partitions": pending.partitions,
            "rejected": [[i, *why] for i, why in rejected.items()],
            "end": pending.end,
            "skipped": pending.skipped,
            "done": pending.done,
        }
        self._outlet.send(header, [*body, *raw, block])

    def _finish(self) -> None:
        """Report once that everything was sent, if there is an end."""
        if (
            self._settings.until == "end"
            and not self._finished
            and self._pending is None
            and all(buffer.complete and not buffer.records for buffer in self._buffers.values())
        ):
            self._finished = True
            self._report()
            self._outlet.send({"type": "finished"})

    def _move_lost(self, cluster: Cluster) -> None:
        """Continue at another offset in partitions that no longer hold the next records.

        The new position is sent to the daemon, so that a checkpoint can hold it before the next record.
        """
        if cluster.asking_seconds is not None:
            self._retry_at = time.monotonic() + 0.005
            return
        self._compare_ids(cluster)
        if any(cluster.partitions(partition.topic) is None for partition in self._lost):
            # Deleted and not recreated yet: `_check_topics` counts the responses.
            self._retry_at = time.monotonic() + 0.5
            self._ask(cluster)
            return
        for partition, recreated in list(self._lost.items()):
            self._move(cluster, self._buffers[partition], recreated=recreated)
            del self._lost[partition]
        self._outlet.send({"type": "moved", "position": self._end()})

    def _move(self, cluster: Cluster, buffer: PartitionBuffer, *, recreated: bool) -> None:
        settings, partition = self._settings, buffer.partition
        if partition.partition not in (cluster.partitions(partition.topic) or ()):
            report_vanished(settings, {partition: buffer.next})
            del self._buffers[partition]
            self._reassign(cluster)
            return
        if buffer.jumped and not recreated:
            first, end = cluster.first_offsets([partition])[partition], cluster.end_offsets([partition])[partition]
            if first <= buffer.fetched <= end:
                # kafka-python has reported the previous offset late.
                cluster.seek(partition, buffer.fetched)
                return
        # A position cannot hold offsets of two topics, so records fetched from the old one are discarded.
        wanted = buffer.next if recreated else buffer.fetched
        stop = None if buffer.stop is None else cluster.end_offsets([partition])[partition]
        offset = reset_offset(cluster, settings, partition, wanted, self._counters, recreated=recreated)
        if recreated:
            buffer.drop()
        buffer.jump(offset)
        if stop is not None:
            buffer.stop = max(offset, stop)
        cluster.seek(partition, offset)

    def _end(self) -> Position:
        return position_of(self._settings.group, self._owner, self._ids, list(self._buffers.values()), self._left)

    def _close(self) -> None:
        if self._cluster is not None:
            if self._connected:
                self._ownership.release(self._cluster)
            self._cluster.close()
        self.send_logs()


def _masked(block: bytes, ends: IntArray, rejected: Collection[int], instead: bytes) -> tuple[bytes, IntArray]:
    """Replace the rejected records of a block; return it with the ends of its records."""
    starts = [0, *ends.tolist()]
    records = [instead if i in rejected else block[starts[i] : starts[i + 1]] for i in range(len(ends))]
    return b"".join(records), np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
