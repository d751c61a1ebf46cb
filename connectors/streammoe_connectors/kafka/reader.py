"""The thread that reads from Kafka for a `KafkaSource`, and keeps what it has read until the daemon takes it."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Mapping
from queue import SimpleQueue
from typing import NamedTuple

from streammoe.errors import RetriableSourceError, SourceError
from streammoe.ports import Batch, Position, SourceStatus, TopicPartition
from streammoe.text import some_of
from streammoe_connectors.kafka.assignment import Assignment
from streammoe_connectors.kafka.contract import (
    AssignedConsumer,
    Cause,
    Client,
    ClientError,
    OffsetsLostError,
    Records,
    explained,
)
from streammoe_connectors.kafka.link import Link
from streammoe_connectors.kafka.order import Order
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.settings import KafkaSettings
from streammoe_connectors.kafka.survey import Stalls, Survey
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
INCIDENTS = (
    *("reconnected", "login_rejected", "consumer_rebuilt", "partition_discovered"),
    *("offset_reset", "gap", "passed_early", "mirror_failed"),
)
"""All events that are counted, so that each has a series from the start."""
_POLL_SECONDS = 0.1
"""Timeout of `poll`; the regular checks wait this long."""
_FLOWING_POLL_SECONDS = 0.005
"""The same while records arrive; kafka-python sleeps for 0.1 s if a response precedes its request slightly."""
_TICK_SECONDS = 1.0
"""Interval of the status, of heartbeats and of checks for stalls."""
_PAUSE_SECONDS = 0.5
"""Pause after a request that the cluster or a schema registry has not answered, or a topic that is missing."""
_SILENT_SECONDS = 3.0
"""Time without any answer from which on the cluster counts as disconnected. After three times as much the login is read
again, and a new connection tried: clients do not, after one was rejected."""


class Moved(NamedTuple):
    """A position that no record has led to; the first one says that reading begins."""

    position: Position
    needs_checkpoint: bool  # before the next record
    remaining: int  # offsets from there to the stops


class Reader(threading.Thread):
    """The thread that reads for a daemon, from a position whose owner it is; it ends with the process."""

    def __init__(
        self, settings: KafkaSettings, client: Client, values: Values, position: Position | None, owner: str
    ) -> None:
        super().__init__(name="streammoe-kafka-reader", daemon=True)
        self.found: SimpleQueue[Batch | Moved | BaseException | None] = SimpleQueue()
        """What was read and not yet taken; ``None``, or an error, is the last of all."""
        self.checkpoints: deque[tuple[Position, int]] = deque(maxlen=1)
        """The position and generation of the latest durable one, until it is noted."""
        self.closing = False
        self.wake = threading.Event()
        """Ends a wait, after something was taken or it is to end."""
        self.status = SourceStatus(connected=False)
        """The state, but for positions and lags; a new one comes about once a second, at `status_at` (monotonic)."""
        self.status_at = time.monotonic()
        self.ends: Mapping[TopicPartition, int] = {}
        """High watermarks."""
        self._settings, self._client, self._values = settings, client, values
        topics = "s " + str(settings.topics_pattern) if settings.topics is None else " " + ", ".join(settings.topics)
        self._origin = f"kafka topic{topics}"
        self._position = position  # that the daemon knows
        self._counters = Counter(dict.fromkeys(INCIDENTS, 0))
        self._assignment = Assignment(settings, position, owner, self._counters)
        self._ownership = Ownership(settings, owner, self._counters)
        self._survey = Survey(settings)
        self._order = Order(settings, self._counters)
        self._stalls = Stalls(settings)
        self._link = Link(self._counters)
        self._consumer: AssignedConsumer | None = None
        self._paused: set[TopicPartition] = set()
        self._pending: Records | None = None
        """Records that could not be converted yet."""
        self._ready = self._finished = self._has_more = False
        self._failing = False  # whether nothing could be read since a request failed
        self._rebuilt_for_stall = False
        self._full_at = self._blocked_at = time.monotonic()  # by what the daemon has yet to take, and by a registry
        self._last_record_at = self._ticked_at = self._next_attempt_at = self._next_look_at = 0.0

    def run(self) -> None:
        """Read until closed, or it is not possible any more."""
        try:
            self._read_until_closed()
        except BaseException as error:  # noqa: BLE001 - raised where the daemon takes it
            self.found.put(error)
        self.status = SourceStatus(connected=False, counters=dict(self._counters))

    def _read_until_closed(self) -> None:
        while not self.closing:
            try:
                self._step()
            except ClientError as error:
                if error.cause is Cause.NOT_AUTHORIZED:
                    raise SourceError(
                        f"Kafka: this user may not read {error}; allow it to describe and read topics and to read the "
                        "group, or log in as another one"
                    ) from None
                now, self._failing = time.monotonic(), True
                self._next_attempt_at = now + _PAUSE_SECONDS
                self._link.lose(error, now)
        self._note_checkpoint()
        if self._consumer is not None:
            if self._link.connected:
                self._ownership.release(self._consumer)
            self._consumer.close()

    def _step(self) -> None:
        self.wake.clear()
        self._note_checkpoint()
        self._tick()
        if self.found.qsize() > 1:
            self._full_at = time.monotonic()
            self.wake.wait(_POLL_SECONDS)
        elif (pause := self._next_attempt_at - time.monotonic()) > 0:
            self.wake.wait(min(pause, _POLL_SECONDS))
        elif self._consumer is None:
            try:
                self._consumer = self._client.create_consumer(self._settings, self._settings)
            except ClientError as error:
                advice = "check bootstrap_servers, security_protocol and the login"
                raise ClientError(error.cause, f"{error}; {advice}") from None
            self._survey.renew()
            self._assign(self._consumer)
        else:
            self._read(self._consumer)
            self._failing = False

    def _note_checkpoint(self) -> None:
        while self.checkpoints:
            self._ownership.note(*self.checkpoints.popleft())

    def _tick(self) -> None:
        """Do what is due independent of what is being read."""
        now = time.monotonic()
        if self._consumer is not None:
            self._take_answers(self._consumer, now)
            self._watch(self._consumer, now)
        if now - self._ticked_at < _TICK_SECONDS and self._link.changed_at <= self._ticked_at:
            return
        self._ticked_at = now
        if self._consumer is not None and self._link.connected:
            self._ownership.heartbeat(self._consumer)
            self._find_stalls(self._consumer, now)
        self._report(now)

    def _report(self, now: float) -> None:
        buffers = self._assignment.buffers
        self.ends = {partition: buffer.end for partition, buffer in buffers.items()}
        self.status_at = now
        self.status = SourceStatus(
            connected=self._link.connected,
            refused=self._link.refused,
            held_back={partition: buffer.n_held_back for partition, buffer in buffers.items()},
            stalled=self._stalls.partitions | {tp: "topic" for tp in buffers if tp.topic in self._assignment.gone},
            counters=dict(self._counters),
        )

    # --- the cluster ------------------------------------------------------------------------------------------------

    def _assign(self, consumer: AssignedConsumer) -> None:
        """Let a consumer read on at the current offsets."""
        buffers = self._assignment.buffers
        consumer.assign({partition: buffer.fetch_position for partition, buffer in buffers.items()})
        for partition in buffers:  # clients keep those paused that were, whatever is assigned
            consumer.resume(partition)
        self._paused.clear()

    def _steer(self, consumer: AssignedConsumer) -> None:
        """Fetch from partitions that have room for more, and of which it is known where they go on."""
        buffers = self._assignment.buffers
        for partition, buffer in buffers.items():
            is_paused, room = partition in self._paused, self._settings.buffer_bytes / len(buffers)
            is_full = buffer.n_bytes > (room / 2 if is_paused else room)
            if is_paused != (is_full or buffer.reached_stop or partition in self._assignment.lost):
                (consumer.resume if is_paused else consumer.pause)(partition)
                self._paused ^= {partition}
                buffer.progress_at = time.monotonic()

    def _disconnect(self, consumer: AssignedConsumer) -> None:
        self._consumer = None
        self._survey.renew()
        consumer.close()

    def _watch(self, consumer: AssignedConsumer, now: float) -> None:
        """Note whether the cluster answers; only an answer shows that: a poll without records succeeds without one."""
        survey, link = self._survey, self._link
        silent = 0.0 if survey.waiting_since is None else now - survey.waiting_since
        if not silent:
            consumer.troubles.clear()
        if silent > _SILENT_SECONDS:
            why = f"no answer for {silent:.0f} s" + (f": {survey.trouble}" if survey.trouble else "")
            link.lose(explained(ClientError(Cause.NO_ANSWER, why), consumer.troubles), now)
            if silent > 3 * _SILENT_SECONDS:
                self._disconnect(consumer)
        elif not link.connected and not self._failing and survey.answered_since > link.failed_at:
            link.make(now)
            if self._ready:
                self._counters["reconnected"] += 1
                _LOGGER.info("Kafka responds again", extra={"event": "source_answers"})

    def _take_answers(self, consumer: AssignedConsumer, now: float) -> None:
        """Take account of what the cluster has said of topics and partitions."""
        survey, assignment = self._survey, self._assignment
        if survey.look(consumer, assignment.buffers, now) and not assignment.see(survey.topics):
            survey.describe_again(now + _PAUSE_SECONDS)
        survey.lose(assignment.lost)
        survey.want(assignment.wanted)
        for partition in survey.limits.keys() - assignment.wanted:
            limits = survey.limits.pop(partition)
            if partition in assignment.buffers:
                assignment.buffers[partition].update(limits, now)
        is_due = self._pending is None and now >= self._next_look_at and assignment.is_known
        if is_due and (assignment.wanted & survey.limits.keys() or not (self._ready or assignment.wanted)):
            self._settle(consumer, now)

    def _settle(self, consumer: AssignedConsumer, now: float) -> None:
        """Begin partitions, and go on elsewhere in those that have lost records, as far as it is known where."""
        survey, assignment = self._survey, self._assignment
        new = sorted(assignment.waiting & survey.limits.keys())
        marks = consumer.committed(new) if new else {}
        if not self._ownership.check({partition: mark for partition, (_, mark) in marks.items()}):
            self._next_look_at = now + min(1.0, self._settings.owner_seconds / 3)
            return
        settled = assignment.settle(survey.limits, marks)
        for partition in settled:
            del survey.limits[partition]
        survey.lose(assignment.lost)
        if not settled and (self._ready or assignment.wanted):
            return
        self._assign(consumer)
        buffers = assignment.buffers
        begun = [f"{tp.topic}/{tp.partition} from offset {buffers[tp].next_offset}" for tp in settled if tp in new]
        if begun:
            _LOGGER.info("connected; reading %s", some_of(begun, str), extra={"event": "source_answers"})
        elif not buffers:
            _LOGGER.warning("source.shard = %r has no partition of these topics", self._settings.shard)
        self._link.make(now)
        self._report(now)
        position = assignment.position()
        # It may differ by more than offsets: without a checkpoint another start might decide otherwise.
        remaining = sum(buffer.stop_offset - buffer.next_offset for buffer in buffers.values() if buffer.stop_offset)
        self.found.put(Moved(position, position != self._position, remaining))
        self._position, self._ready = position, True

    def _find_stalls(self, consumer: AssignedConsumer, now: float) -> None:
        if self._pending is not None:
            self._blocked_at = now
        fetched = [buffer for tp, buffer in self._assignment.buffers.items() if tp not in self._paused]
        unanswered = self._assignment.wanted - self._survey.limits.keys()
        deaf_at = max(self._blocked_at, self._link.changed_at)
        has_unread = self._stalls.check(fetched, unanswered, deaf_at, max(deaf_at, self._full_at), now)
        if has_unread and not self._rebuilt_for_stall:
            self._counters["consumer_rebuilt"] += 1
            self._disconnect(consumer)
        self._rebuilt_for_stall = has_unread

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, consumer: AssignedConsumer) -> None:
        if self._pending is not None:
            self._send(self._pending)
            return
        buffers, lost = self._assignment.buffers, self._assignment.lost
        if not buffers or self._finished:
            time.sleep(0.01)
            self._finish_if_complete()
            return
        self._steer(consumer)
        try:
            fetched = consumer.poll(self._poll_timeout())
        except OffsetsLostError as error:
            for partition in buffers.keys() & error.partitions:
                lost.setdefault(partition, False)
            return
        now = time.monotonic()
        self._last_record_at = now if fetched else self._last_record_at
        for topic in {partition.topic for partition in fetched}:
            self._assignment.see_id(topic, consumer.topic_id(topic))
        for partition, records in fetched.items():
            # The records of a lost one may belong to a new topic, at an offset of the old one.
            if partition in buffers and partition not in lost and (gaps := buffers[partition].add(records, now)):
                self._counters["gap"] += gaps
        for partition, buffer in buffers.items():
            if buffer.at_end_since is None and partition not in lost:
                at, end = consumer.place(partition)
                buffer.advance_to(at or 0, now)
                if end is not None:
                    buffer.update_watermark(end, now)
        in_order = list(buffers.values())
        taken = self._order.take(in_order, now)
        self._survey.want(buffer.partition for buffer in self._order.unsure)
        self._has_more = taken is not None and len(taken) == self._settings.max_poll_records
        if taken is not None:
            self._send(taken)
        self._finish_if_complete()

    def _poll_timeout(self) -> float:
        """Return the timeout of the next `poll` in seconds."""
        if self._has_more:
            return 0.0
        is_flowing = time.monotonic() - self._last_record_at < _TICK_SECONDS
        timeout = _FLOWING_POLL_SECONDS if is_flowing else _POLL_SECONDS
        if any(len(buffer.records) for buffer in self._assignment.buffers.values()):
            timeout = min(timeout, max(0.002, self._settings.idle_ms / 4000))
        return timeout

    def _send(self, taken: Records) -> None:
        end = self._assignment.position()
        try:
            batch = self._values.batch(taken, end, self._origin)
        except RetriableSourceError as error:
            self._pending = taken
            raise ClientError(Cause.NO_ANSWER, str(error)) from None
        self._pending, self._position = None, end
        self.found.put(batch)

    def _finish_if_complete(self) -> None:
        """Report once that everything was sent, if there is an end."""
        if self._settings.until == "end" and self._ready and not self._finished and self._assignment.finished:
            self._finished = True
            self._report(time.monotonic())
            self.found.put(None)
