"""The loop that reads from Kafka for a `KafkaSource`, in a process of its own (see `kafka.process`).

What is fetched, in which order it goes out, and what is done when the cluster does not answer, or no longer holds what
was to be read.

One long file: fetching, ordering and losing records are steps of one loop over the same buffers.
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
from streammoe_connectors.kafka.cluster import Cluster, Lost, Unanswered
from streammoe_connectors.kafka.frames import Outlet
from streammoe_connectors.kafka.merge import merge
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.partitions import LogRecord, PartitionBuffer, position_of
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.start import beginnings, elsewhere, left_of, partitions_of, report_vanished
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
POLL_SECONDS = 0.1
"""Longest wait for records, so that nothing else waits longer."""
_FLOWING_POLL_SECONDS = 0.005
"""The same while records flow; for kafka-python sleeps for 0.1 s if an answer comes just when it is about to ask."""
_FLOWING_SECONDS = 1.0
"""So long after the last one they do."""
_SILENT_SECONDS = 3.0
"""A cluster that leaves a question unanswered for so long does not answer."""
QUIET_SECONDS = 30.0
"""How often to say the same thing again."""
_LOOK_SECONDS = 0.05
"""How often to ask whether a partition of which nothing comes is at its end."""
_LONGEST_PAUSE = 30.0
_ASK_SECONDS = 2.0
"""How often to ask whether the cluster is there while nothing comes."""
_SHOWN = 20
"""Partitions to name in a line of the log."""
_MISSING_ANSWERS = 4
"""How many answers in a row must lack a topic before that is believed."""
_UNREADABLE = {"jsonl": b"!", "csv": b'"'}
"""What no decoder accepts, in place of records that are refused."""


class Pending(NamedTuple):
    """Records that were given by their lanes, and are to be sent."""

    records: list[LogRecord]
    which: IntArray | None
    """The number of each record's partition in `partitions`, if there are several."""
    partitions: list[Partition]
    end: Position
    skipped: int
    done: int


class Reader:
    """Reads for one daemon.

    Args:
        order: the first frame: settings, options of clients, position.
        owner: whose position it is.
        outlet: where frames go.
        orders: where further ones come from.
        tick_seconds: how often to send the status, and to see to marks, new partitions, connections and stalls.
        pause_seconds: the pause after a question that was not answered; twice as long after each further one.
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
        self._keeper = Ownership(self._settings, self._owner, self._counters)
        self._cluster: Cluster | None = None
        self._lanes: dict[Partition, PartitionBuffer] = {}
        self._paused: set[Partition] = set()
        self._ids: dict[str, str | None] = {}
        self._pending: Pending | None = None
        self._lost: dict[Partition, bool] = {}
        """Partitions that must go on elsewhere, and whether that is because their topic was created anew."""
        self._closing = False
        self._ready = False
        self._finished = False
        self._connected = False
        self._stalled: list[Partition] = []
        self._rebuilt = False
        self._received_at = 0.0
        self._held_up_at = time.monotonic()
        """When something else last kept records from being fetched."""
        self._watch_at = 0.0
        self._missing = 0
        self._retry_at = 0.0
        self._failures = 0
        self._tick_at = 0.0
        self._untold = False
        """Whether the status was due while the daemon took nothing."""
        self._asked_at = 0.0
        self._missed_at = 0.0
        self._more = False
        self._look_at = 0.0
        self._complained_at = -QUIET_SECONDS
        self.logs: deque[dict[str, Any]] = deque(maxlen=200)
        self.client_error: tuple[float, str] | None = None
        """When (monotonic seconds) kafka-python last told why a connection failed, and what it said."""

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
                self._put_off(str(error))
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
                self._keeper.commit(self._cluster, order["position"], order["generation"], answers=self._connected)

    def _tick(self) -> None:
        """What is due from time to time, whatever else is going on."""
        self.send_logs()
        if self._untold and not self._outlet.pending:
            self._report()
        now = time.monotonic()
        if now < self._tick_at:
            return
        self._tick_at = now + self._tick_seconds
        if self._cluster is not None:
            self._judge_connection(self._cluster)
            if self._ready:
                self._keeper.tend(self._cluster, answers=self._connected)
                self._discover(self._cluster, now)
                self._watch(self._cluster, now)
        self._untold = True
        if not self._outlet.pending:  # else the daemon has enough to read, and is told behind it
            self._report()

    def _report(self) -> None:
        """Send the status, which is also a sign of life."""
        self._untold = False
        self._outlet.send(
            {
                "type": "status",
                "connected": self._connected,
                "ends": [[*lane.partition, lane.end] for lane in self._lanes.values() if lane.end is not None],
                "stalled": self._stalled,
                "counters": self._counters,
            }
        )

    def send_logs(self) -> None:
        """Hand on what was logged since."""
        while self.logs:
            self._outlet.send(self.logs.popleft())

    def _put_off(self, why: str) -> None:
        """Try again later, each time a bit later."""
        longest = _LONGEST_PAUSE if self._pending is not None else 2.0
        self._retry_at = time.monotonic() + min(self._pause_seconds * 2 ** min(self._failures, 9), longest)
        self._failures += 1
        self._set_connected(False)
        now = time.monotonic()
        if now - self._complained_at >= QUIET_SECONDS:
            self._complained_at = now
            if self.client_error is not None and now - self.client_error[0] < QUIET_SECONDS:
                why = f"{why}; kafka-python says: {self.client_error[1]}"
            _LOGGER.warning("what is read from does not answer (%s); trying again and again", why)

    def _set_connected(self, connected: bool) -> None:
        if connected and not self._connected and self._ready:
            self._counters["reconnected"] += 1
            _LOGGER.info("Kafka answers again")
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
                _LOGGER.warning("Kafka has not answered for %.0f s; waiting until it does", asking)
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
        self._keeper.check(cluster, partitions)
        counters: Counter[str] = Counter()
        offsets = beginnings(cluster, settings, self._position, partitions, counters)
        ends = cluster.end_offsets(partitions)
        stops = ends if settings.until == "end" else {}
        self._counters.update(counters)
        self._ids = {topic: cluster.topic_id(topic) for topic in settings.topics}
        for partition in partitions:
            stop = stops.get(partition)
            self._lanes[partition] = PartitionBuffer(
                partition, offsets[partition], None if stop is None else max(stop, offsets[partition])
            )
            self._lanes[partition].end = ends[partition]
        cluster.assign(offsets)
        if partitions:
            shown = [f"{one.topic}/{one.partition} from offset {offsets[one]}" for one in partitions]
            more = f", and {len(shown) - _SHOWN} more" if len(shown) > _SHOWN else ""
            _LOGGER.info("connected; reading %s%s", ", ".join(shown[:_SHOWN]), more)
        else:
            _LOGGER.warning("source.shard = %r has no partition of these topics", settings.shard)
        self._connected = self._ready = True
        self._asked_at = self._missed_at = self._held_up_at = time.monotonic()
        total = sum((lane.stop or 0) - lane.start for lane in self._lanes.values()) if stops else 0
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
        if self._missing >= _MISSING_ANSWERS:  # brokers may not have heard yet of what has just been created
            raise SourceError(
                f"Kafka has no topic {', '.join(missing)}; create it, correct source.topics, or allow this user to "
                "see it"
            )
        self._retry_at = time.monotonic() + 0.5
        cluster.ask(self._settings.topics)

    def _discover(self, cluster: Cluster, now: float) -> None:
        """Look for new partitions, and for topics that are no longer the same."""
        if cluster.asking_seconds is not None:
            return
        self._compare_ids(cluster)
        self._miss(cluster)
        new = [partition for partition in partitions_of(cluster, self._settings) if partition not in self._lanes]
        if new and self._settings.until == "never" and not self._lost:
            self._add(cluster, new)
        silent = now - max(self._received_at, self._asked_at) >= _ASK_SECONDS
        if silent or now - self._asked_at >= self._settings.discover_seconds:
            self._ask(cluster)

    def _ask(self, cluster: Cluster) -> None:
        self._asked_at = time.monotonic()
        cluster.ask(self._settings.topics)

    def _compare_ids(self, cluster: Cluster) -> None:
        """See whether topics were deleted, and others have their names now."""
        for topic in self._settings.topics:
            before, topic_id = self._ids[topic], cluster.topic_id(topic)
            if topic_id is None or before == topic_id:
                continue
            self._ids[topic] = topic_id
            if before is not None:
                self._lost.update((partition, True) for partition in self._lanes if partition.topic == topic)

    def _miss(self, cluster: Cluster) -> None:
        """See whether topics are gone, and do not come back at once."""
        if self._missed_at == self._asked_at:
            return  # that answer was looked at before
        self._missed_at = self._asked_at
        missing = [topic for topic in self._settings.topics if cluster.partitions(topic) is None]
        self._missing = self._missing + 1 if missing else 0
        if self._missing != _MISSING_ANSWERS:
            return
        gone = f"Kafka no longer has topic {', '.join(missing)}"
        if self._settings.on_lost == "fail":
            raise SourceError(
                f'{gone}. Set source.on_lost = "earliest" to go on with one of that name, or begin anew with --fresh'
            )
        _LOGGER.warning("%s; waiting for one of that name", gone)

    def _add(self, cluster: Cluster, partitions: list[Partition]) -> None:
        try:
            firsts = cluster.first_offsets(partitions)
        except Unanswered:
            return  # they are still new at the next look
        for partition in partitions:
            self._counters["partition_discovered"] += 1
            _LOGGER.info("topic %s has a new partition %d, read from its first record", *partition)
            self._lanes[partition] = PartitionBuffer(partition, firsts[partition])
        self._lanes = dict(sorted(self._lanes.items()))
        self._reassign(cluster)

    def _reassign(self, cluster: Cluster) -> None:
        cluster.assign({partition: lane.fetched for partition, lane in self._lanes.items()})
        self._paused.clear()

    def _watch(self, cluster: Cluster, now: float) -> None:
        """See whether partitions that hold more give nothing."""
        patience = self._settings.stall_seconds
        if self._pending is not None:
            self._held_up_at = now
        if now < self._watch_at or not self._connected:
            return
        self._watch_at = now + patience / 4
        silent = [
            lane
            for lane in self._lanes.values()
            if lane.partition not in self._paused
            and not lane.complete
            and now - max(lane.received_at, self._held_up_at) >= patience
        ]
        ends = cluster.end_offsets([lane.partition for lane in silent])
        for lane in silent:
            lane.end = max(lane.end or 0, ends[lane.partition])
        stalled = [lane.partition for lane in silent if ends[lane.partition] > lane.fetched]
        new = [partition for partition in stalled if partition not in self._stalled]
        self._stalled = stalled
        if not stalled:
            self._rebuilt = False
            return
        if new:
            _LOGGER.warning(
                "nothing has come for %.0f s of %s, though there is more to read",
                patience,
                ", ".join(f"topic {topic}, partition {number}" for topic, number in new),
            )
        if not self._rebuilt:
            self._rebuilt = True
            self._counters["consumer_rebuilt"] += 1
            self._cluster = None
            cluster.close()

    def _rebuild(self) -> None:
        """Connect anew, and go on where reading stood."""
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
            self._settle(cluster)
            return
        if not self._lanes or self._finished:
            time.sleep(0.02)
            self._finish()
            return
        try:
            found = cluster.poll(self._longest_wait())
        except Lost as lost:
            # Perhaps the topic is another one by now, which its id tells.
            self._lost.update((partition, False) for partition in lost.partitions)
            self._ask(cluster)
            return
        self._compare_ids(cluster)
        if self._lost:
            # What was found may belong to the new topic, at an offset of the one before.
            found = {partition: records for partition, records in found.items() if partition not in self._lost}
        now = time.monotonic()
        if found:
            self._received_at = now
        for partition, records in found.items():
            self._counters["gap"] += self._lanes[partition].add(records, now)
        if self._lost:
            return
        for lane in self._lanes.values():
            if lane.at_end_since is None:
                self._look(cluster, lane, now)
        self._more = self._give(cluster)
        self._finish()

    def _longest_wait(self) -> float:
        """Seconds to wait for records."""
        if self._more:
            return 0.0
        wait = POLL_SECONDS
        if time.monotonic() - self._received_at < _FLOWING_SECONDS:
            wait = _FLOWING_POLL_SECONDS
        if any(lane.records for lane in self._lanes.values()):
            wait = min(wait, max(0.002, self._settings.idle_ms / 4000))
        return wait

    def _look(self, cluster: Cluster, lane: PartitionBuffer, now: float) -> None:
        """Whether all that the log holds of this partition has been fetched."""
        fetched = cluster.fetched(lane.partition)
        if fetched is not None and fetched > lane.fetched:
            lane.reach(fetched)
        end = cluster.log_end(lane.partition)
        if end is None:
            return
        lane.end = end
        if lane.fetched >= end:
            lane.at_end_since = lane.received_at = now

    def _give(self, cluster: Cluster) -> bool:
        """Send what is next, as far as that can be told, and keep the rest in bounds; whether more may follow."""
        lanes = list(self._lanes.values())
        now = time.monotonic()
        idle = self._settings.idle_ms / 1000
        holds = [lane.holds(now, idle) for lane in lanes]
        if any(lane.records for lane in lanes):
            self._ask_for_ends(cluster, [lane for lane, hold in zip(lanes, holds, strict=True) if hold], now)
        if len(lanes) == 1:
            counts, order = [min(len(lanes[0].records), self._settings.max_poll_records)], None
        else:
            counts, order = merge([lane.times for lane in lanes], holds, self._settings.max_poll_records)
        if sum(counts):
            given = [lane.give(count) for lane, count in zip(lanes, counts, strict=True)]
            records = [record for records in given for record in records]
            which = None
            partitions = [lane.partition for lane, count in zip(lanes, counts, strict=True) if count]
            if order is not None:
                which = np.repeat(np.arange(len(partitions)), [count for count in counts if count])[order]
                records = [records[i] for i in order.tolist()]
            self._send(
                Pending(
                    records,
                    which if len(partitions) > 1 else None,
                    partitions,
                    self._end(),
                    sum(lane.passed() for lane in lanes),
                    sum(lane.next - lane.start for lane in lanes),
                )
            )
        self._bound(cluster, lanes)
        return sum(counts) == self._settings.max_poll_records

    def _ask_for_ends(self, cluster: Cluster, lanes: list[PartitionBuffer], now: float) -> None:
        """Records of open transactions count for `log_end`, and not for what may be read."""
        if self._settings.isolation != "read_committed" or now < self._look_at:
            return
        unsure = [lane for lane in lanes if not lane.records and lane.at_end_since is None and lane.end is not None]
        unsure = [lane for lane in unsure if now - lane.received_at >= _LOOK_SECONDS]
        if not unsure:
            return
        self._look_at = now + _LOOK_SECONDS
        ends = cluster.end_offsets([lane.partition for lane in unsure])
        for lane in unsure:
            if lane.fetched >= ends[lane.partition]:
                lane.at_end_since = now

    def _bound(self, cluster: Cluster, lanes: list[PartitionBuffer]) -> None:
        """Fetch no more of what waits for other partitions than there is room for."""
        if len(lanes) == 1:
            return
        room = self._settings.buffer_bytes / len(lanes)
        for lane in lanes:
            partition = lane.partition
            if partition in self._paused:
                if lane.bytes < room / 2 and not lane.complete:
                    cluster.resume(partition)
                    self._paused.discard(partition)
            elif lane.bytes > room or lane.complete:
                cluster.pause(partition)
                self._paused.add(partition)

    def _send(self, pending: Pending) -> None:
        records = pending.records
        try:
            block, ends, refused = self._values.block(records)
        except RetriableSourceError as error:
            self._pending = pending
            raise Unanswered(str(error)) from None
        self._pending = None
        raw = [records[i].value for i in refused]
        if refused:
            block, ends = _masked(block, ends, refused, _UNREADABLE[self._values.format] + b"\n")
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
            "refused": [[i, *why] for i, why in refused.items()],
            "end": pending.end,
            "skipped": pending.skipped,
            "done": pending.done,
        }
        self._outlet.send(header, [*body, *raw, block])

    def _finish(self) -> None:
        """Say once that everything was sent, if there is an end."""
        if (
            self._settings.until == "end"
            and not self._finished
            and self._pending is None
            and all(lane.complete and not lane.records for lane in self._lanes.values())
        ):
            self._finished = True
            self._report()
            self._outlet.send({"type": "finished"})

    def _settle(self, cluster: Cluster) -> None:
        """Go on elsewhere in the partitions that no longer hold what was to be read, each once.

        The daemon is told where, so that a checkpoint can hold it before the next record comes.
        """
        if cluster.asking_seconds is not None:
            self._retry_at = time.monotonic() + 0.005
            return
        self._compare_ids(cluster)
        if any(cluster.partitions(partition.topic) is None for partition in self._lost):
            # Deleted, and not there again yet: `_miss` counts how often.
            self._retry_at = time.monotonic() + 0.5
            self._ask(cluster)
            return
        for partition, recreated in list(self._lost.items()):
            self._leave(cluster, self._lanes[partition], recreated=recreated)
            del self._lost[partition]
        self._outlet.send({"type": "moved", "position": self._end()})

    def _leave(self, cluster: Cluster, lane: PartitionBuffer, *, recreated: bool) -> None:
        settings, partition = self._settings, lane.partition
        if partition.partition not in (cluster.partitions(partition.topic) or ()):
            report_vanished(settings, {partition: lane.next})
            del self._lanes[partition]
            self._reassign(cluster)
            return
        if lane.jumped and not recreated:
            first, end = cluster.first_offsets([partition])[partition], cluster.end_offsets([partition])[partition]
            if first <= lane.fetched <= end:
                # What kafka-python has told late is of the offset before.
                cluster.seek(partition, lane.fetched)
                return
        # Offsets of two topics cannot stand in one position; so what was fetched of the old one is not given.
        wanted = lane.next if recreated else lane.fetched
        stop = None if lane.stop is None else cluster.end_offsets([partition])[partition]
        offset = elsewhere(cluster, settings, partition, wanted, self._counters, recreated=recreated)
        if recreated:
            lane.drop()
        lane.jump(offset)
        if stop is not None:
            lane.stop = max(offset, stop)
        cluster.seek(partition, offset)

    def _end(self) -> Position:
        return position_of(self._settings.group, self._owner, self._ids, list(self._lanes.values()), self._left)

    def _close(self) -> None:
        if self._cluster is not None:
            if self._connected:
                self._keeper.release(self._cluster)
            self._cluster.close()
        self.send_logs()


def _masked(block: bytes, ends: IntArray, refused: Collection[int], instead: bytes) -> tuple[bytes, IntArray]:
    """The block with something else in place of refused records, and where its records end."""
    starts = [0, *ends.tolist()]
    records = [instead if i in refused else block[starts[i] : starts[i + 1]] for i in range(len(ends))]
    return b"".join(records), np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))
