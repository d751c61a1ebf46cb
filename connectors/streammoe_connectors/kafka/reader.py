"""The loop that reads from Kafka for a `KafkaSource`, in a separate process (see `kafka.child`)."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque

from streammoe.errors import RetriableSourceError
from streammoe.ports import TopicPartition
from streammoe.text import some_of
from streammoe_connectors.kafka.assignment import Assignment
from streammoe_connectors.kafka.batches import packed
from streammoe_connectors.kafka.clients import load_client
from streammoe_connectors.kafka.consumer import AssignedConsumer, ClusterUnavailableError, OffsetsLostError
from streammoe_connectors.kafka.frames import Close, Commit, Finished, Inlet, Log, Moved, Outlet, Start, Status
from streammoe_connectors.kafka.link import Link
from streammoe_connectors.kafka.order import Order
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.records import Records
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.stalls import Stalls
from streammoe_connectors.kafka.survey import Survey
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
POLL_SECONDS = 0.1
"""Timeout of `poll`; commands from the daemon and the regular checks wait this long."""
_TICK_SECONDS = 1.0
"""Interval of the status, of heartbeats and of checks for stalls."""
_PAUSE_SECONDS, _REGISTRY_PAUSE_SECONDS = 0.2, 2.0
"""Pauses after a request that the cluster, or a schema registry, has not answered."""
_FLOWING_POLL_SECONDS = 0.005
"""Timeout of `poll` while records arrive; kafka-python sleeps for 0.1 s if a response precedes its request slightly."""
_FLOWING_SECONDS = 1.0
"""Time after the last record during which more are expected at once."""
_SILENT_SECONDS = 3.0
"""Time without any answer from which on the cluster counts as disconnected."""
_REBUILD_SECONDS = 10.0
"""Time without an answer after which the login is read again, and a new connection tried: clients do not, after one was
rejected."""
_MISSING_PAUSE_SECONDS = 0.5
"""Pause before it is asked again for a topic that is missing."""


class Reader:
    """The reader for a daemon.

    Args:
        start: the first message from the daemon.
        inlet: for its further ones, which never waits.
        outlet: for records and messages to the daemon, which it reads when it learns.
        status: for the status, which it reads at once.
    """

    def __init__(self, start: Start, inlet: Inlet, outlet: Outlet, status: Outlet) -> None:
        self._settings = settings = ReadingSettings.model_validate(start.settings)
        self._client = load_client(start.client)
        self._options = start.options
        self._position = start.position
        """The position that the daemon knows."""
        self._inlet, self._outlet, self._status = inlet, outlet, status
        self._values = Values(settings)
        self._counters: Counter[str] = Counter()
        self._assignment = Assignment(settings, start.position, start.owner, self._counters)
        self._ownership = Ownership(settings, start.owner, self._counters)
        self._survey = Survey(settings)
        self._order = Order(settings, self._counters)
        self._stalls = Stalls(settings)
        self.link = Link(start.options["security_protocol"], self._counters)
        self.logs: deque[Log] = deque(maxlen=200)
        self._consumer: AssignedConsumer | None = None
        self._paused: set[TopicPartition] = set()
        """Partitions that are not fetched for now."""
        self._pending: Records | None = None
        """Records that could not be converted yet."""
        self._closing = self._ready = self._finished = self._has_more = False
        self._failing = False
        """Whether nothing could be read since a request failed."""
        self._rebuilt_for_stall = False
        self._held_up_at = time.monotonic()
        """When reading was last prevented by the daemon or a registry."""
        self._last_record_at = self._ticked_at = self._next_attempt_at = self._next_look_at = 0.0

    def run(self) -> None:
        """Read until asked to close.

        Raises:
            SourceError: reading is not possible.
            BrokenPipeError: the daemon is gone, as with an EOFError.
        """
        while not self._closing:
            self._handle_commands()
            try:
                self._tick()
                if self._outlet.pending:
                    self._held_up_at = time.monotonic()
                    self._outlet.flush(POLL_SECONDS)
                elif time.monotonic() < self._next_attempt_at:
                    time.sleep(0.02)
                elif self._consumer is None:
                    self._consumer = self._client.create_consumer(self._options, self._settings)
                    self._survey.renew()
                    self._assign(self._consumer)
                else:
                    self._read(self._consumer)
                    self._failing = False
            except ClusterUnavailableError as error:
                now, self._failing = time.monotonic(), True
                self._next_attempt_at = now + (_PAUSE_SECONDS if self._pending is None else _REGISTRY_PAUSE_SECONDS)
                self.link.lose(str(error), now)
        if self._consumer is not None:
            if self.link.connected:
                self._ownership.release(self._consumer)
            self._consumer.close()

    # --- the daemon -------------------------------------------------------------------------------------------------

    def _handle_commands(self) -> None:
        # Behind the last command the pipe has ended.
        while not self._closing and (command := self._inlet.next()) is not None:
            if isinstance(command, Commit):
                self._ownership.note(command.position, command.checkpoint_generation)
            self._closing = isinstance(command, Close)

    def _tick(self) -> None:
        """Do what is due independent of what is being read."""
        self.send_logs()
        now = time.monotonic()
        if self._consumer is not None:
            self._take_answers(self._consumer, now)
            self._watch(self._consumer, now)
        if now - self._ticked_at < _TICK_SECONDS and self.link.changed_at <= self._ticked_at:
            return
        self._ticked_at = now
        if self._consumer is not None and self.link.connected:
            self._ownership.heartbeat(self._consumer)
            self._find_stalls(self._consumer, now)
        self._report()

    def _report(self) -> None:
        """Send the status, which is also a heartbeat, unless the last one has not been read yet."""
        self._status.flush()
        if not self._status.pending:
            buffers = self._assignment.buffers
            self._status.send(
                Status(
                    connected=self.link.connected,
                    refused=self.link.refused,
                    ends={partition: buffer.end for partition, buffer in buffers.items()},
                    held_back={partition: buffer.n_held_back for partition, buffer in buffers.items()},
                    stalled=self._stalls.partitions,
                    counters=self._counters,
                )
            )

    def send_logs(self) -> None:
        """Send the log messages since the last call."""
        while self.logs:
            self._outlet.send(self.logs.popleft())

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
        survey, link = self._survey, self.link
        silent = 0.0 if survey.waiting_since is None else now - survey.waiting_since
        if silent > _SILENT_SECONDS:
            link.lose(f"no answer for {silent:.0f} s" + (f": {survey.trouble}" if survey.trouble else ""), now)
            if silent > _REBUILD_SECONDS:
                self._disconnect(consumer)
        elif not link.connected and not self._failing and survey.answered_since > link.failed_at:
            link.make(now)
            if self._ready:
                self._counters["reconnected"] += 1
                _LOGGER.info("Kafka responds again")

    def _take_answers(self, consumer: AssignedConsumer, now: float) -> None:
        """Take account of what the cluster has said of topics and partitions."""
        survey, assignment = self._survey, self._assignment
        if survey.look(consumer, assignment.buffers, now) and not assignment.see(survey.topics):
            survey.describe_again(now + _MISSING_PAUSE_SECONDS)
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
            _LOGGER.info("connected; reading %s", some_of(begun, str))
        elif not buffers:
            _LOGGER.warning("source.shard = %r has no partition of these topics", self._settings.shard)
        self.link.make(now)
        self._report()
        position = assignment.position()
        # It may differ by more than offsets: without a checkpoint another start might decide otherwise.
        remaining = sum(buffer.stop_offset - buffer.next_offset for buffer in buffers.values() if buffer.stop_offset)
        self._outlet.send(Moved(position, position != self._position, remaining))
        self._position, self._ready = position, True

    def _find_stalls(self, consumer: AssignedConsumer, now: float) -> None:
        if self._pending is not None:
            self._held_up_at = now
        fetched = [buffer for tp, buffer in self._assignment.buffers.items() if tp not in self._paused]
        unanswered = self._assignment.wanted - self._survey.limits.keys()
        has_unread = self._stalls.check(fetched, unanswered, max(self._held_up_at, self.link.changed_at), now)
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
        is_flowing = time.monotonic() - self._last_record_at < _FLOWING_SECONDS
        timeout = _FLOWING_POLL_SECONDS if is_flowing else POLL_SECONDS
        if any(len(buffer.records) for buffer in self._assignment.buffers.values()):
            timeout = min(timeout, max(0.002, self._settings.idle_ms / 4000))
        return timeout

    def _send(self, taken: Records) -> None:
        end = self._assignment.position()
        try:
            message = packed(self._values, taken, end)
        except RetriableSourceError as error:
            self._pending = taken
            raise ClusterUnavailableError(str(error)) from None
        self._pending, self._position = None, end
        self._outlet.send(message)

    def _finish_if_complete(self) -> None:
        """Report once that everything was sent, if there is an end."""
        if self._settings.until == "end" and self._ready and not self._finished and self._assignment.finished:
            self._finished = True
            self._report()
            self._outlet.send(Finished())
