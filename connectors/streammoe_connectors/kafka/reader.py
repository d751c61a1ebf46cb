"""The loop that reads from Kafka for a `KafkaSource`, in a separate process (see `kafka.child`)."""

from __future__ import annotations

import logging
import re
import time
from collections import Counter, deque
from collections.abc import Collection, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from streammoe.errors import RetriableSourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.assignment import Assignment
from streammoe_connectors.kafka.batches import packed
from streammoe_connectors.kafka.clients import load_client
from streammoe_connectors.kafka.consumer import AssignedConsumer, ClusterUnavailableError, OffsetsLostError
from streammoe_connectors.kafka.frames import Outlet
from streammoe_connectors.kafka.order import Order, Taken
from streammoe_connectors.kafka.ownership import Ownership
from streammoe_connectors.kafka.source_settings import ReadingSettings
from streammoe_connectors.kafka.stalls import Stalls
from streammoe_connectors.kafka.survey import Survey
from streammoe_connectors.kafka.values import Values

_LOGGER = logging.getLogger("streammoe.source")
POLL_SECONDS = 0.1
"""Timeout of `poll`; commands from the daemon and the regular checks wait this long."""
LOG_INTERVAL_SECONDS = 30.0
"""Shortest time between two log messages of the same kind."""
_FLOWING_POLL_SECONDS = 0.005
"""Timeout of `poll` while records arrive; kafka-python sleeps for 0.1 s if a response precedes its request slightly."""
_FLOWING_SECONDS = 1.0
"""Time after the last record during which more are expected at once."""
_SILENT_SECONDS = 3.0
"""Time without any answer from which on the cluster counts as disconnected."""
_MAX_PAUSE_SECONDS = 30.0
"""Longest pause before a failed conversion is retried."""
_MISSING_PAUSE_SECONDS = 0.5
"""Pause before it is asked again for a topic that is missing."""
_REBUILD_SECONDS = 10.0
"""Time without an answer after which the login is read again, and a new connection tried: clients do not, after one was
rejected."""
_MAX_NAMED_PARTITIONS = 20
"""Most partitions named in a log message."""
_LOGIN_WORDS = ("sasl", "authentica", "certificate", "ssl", "tls")
"""Words of both clients about a login that is rejected, or about certificates."""
_NOT_LOGIN = re.compile(r"\S*://\S*|connecting to a SSL listener")
"""Where librdkafka has such words for any connection: in addresses, and in a guess at what has closed one."""


class Reader:
    """The reader for a daemon.

    Args:
        start_command: the first frame: settings, client and its options, position and its owner.
        outlet: for records and messages to the daemon, which it reads when it learns.
        status: for the status, which it reads at once.
        commands: further frames from the daemon.
        tick_seconds: interval of the status, of heartbeats and of checks for stalls.
        pause_seconds: the pause after a request without response; doubled after each further one.
    """

    def __init__(
        self,
        start_command: Mapping[str, Any],
        outlet: Outlet,
        status: Outlet,
        commands: SimpleQueue[dict[str, Any]],
        *,
        tick_seconds: float = 1.0,
        pause_seconds: float = 0.2,
    ) -> None:
        self._settings = ReadingSettings.model_validate(start_command["settings"])
        self._client = load_client(start_command["client"])
        self._options: dict[str, Any] = start_command["options"]
        self._position: Position | None = start_command["position"]
        """The position that the daemon knows."""
        self._outlet, self._status, self._commands = outlet, status, commands
        self._tick_seconds, self._pause_seconds = tick_seconds, pause_seconds
        self._values = Values(self._settings)
        self._counters: Counter[str] = Counter()
        self._assignment = Assignment(self._settings, self._position, start_command["owner"], self._counters)
        self._ownership = Ownership(self._settings, start_command["owner"], self._counters)
        self._survey = Survey(self._settings)
        self._order = Order(self._settings, self._counters)
        self._stalls = Stalls(self._settings)
        self._consumer: AssignedConsumer | None = None
        self._pending: Taken | None = None
        """Records that could not be converted yet."""
        self._closing = self._ready = self._finished = self._connected = self._has_more = False
        self._rebuilt_for_stall = False
        self._n_seen = 0
        """Number of descriptions of the topics that have been taken into account."""
        self._refused = ""
        """That the login is rejected, or a certificate, and what the client says of it; empty if that is not so."""
        self._last_record_at = self._lost_at = 0.0
        self._last_held_up_at = self._failed_at = time.monotonic()
        """When reading was last prevented by something other than a partition, and when a request last failed."""
        self._next_attempt_at = self._next_tick_at = self._next_look_at = 0.0
        self._failures = 0
        self._last_warning_at = -LOG_INTERVAL_SECONDS
        self.logs: deque[dict[str, Any]] = deque(maxlen=200)
        self._client_error: tuple[float, str] | None = None
        """When (monotonic seconds) the client logged why a connection failed, and its message."""

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
                elif self._consumer is None:
                    self._connect()
                else:
                    self._read(self._consumer)
                    self._failures = 0
            except ClusterUnavailableError as error:
                self._back_off(str(error))
        if self._consumer is not None:
            if self._connected:
                self._ownership.release(self._consumer)
            self._consumer.close()
        self.send_logs()

    # --- the daemon -------------------------------------------------------------------------------------------------

    def _handle_commands(self) -> None:
        while True:
            try:
                command = self._commands.get_nowait()
            except Empty:
                return
            if command["type"] == "close":
                self._closing = True
            elif command["type"] == "commit":
                self._ownership.note(command["position"], command["checkpoint_generation"])

    def _tick(self) -> None:
        """Do what is due independent of what is being read."""
        self.send_logs()
        now = time.monotonic()
        if self._consumer is not None:
            self._survey.look(self._consumer, self._assignment.buffers, now)
            self._take_answers(self._consumer, now)
            self._update_connected(self._consumer, now)
        if now < self._next_tick_at:
            return
        self._next_tick_at = now + self._tick_seconds
        if self._consumer is not None and self._connected:
            self._ownership.heartbeat(self._consumer)
            self._find_stalls(self._consumer, now)
        self._report()

    def _report(self) -> None:
        """Send the status, which is also a heartbeat, unless the last one has not been read yet."""
        self._status.flush()
        if self._status.pending:
            return
        buffers = self._assignment.buffers.values()
        self._status.send(
            {
                "connected": self._connected,
                "refused": self._refused,
                "ends": [[*buffer.partition, buffer.end] for buffer in buffers],
                "held_back": [[*buffer.partition, buffer.n_held_back] for buffer in buffers],
                "stalled": self._stalls.partitions,
                "counters": self._counters,
            }
        )

    def hear(self, logged: str) -> None:
        """Note why a connection failed in the client's words; those about a login are kept though others fail, too."""
        said = logged.rpartition(">: ")[2].rpartition("]: ")[2]  # without the name of the connection
        if said.startswith(("Bootstrap failed", "Metadata refresh")):
            return  # this follows from such a failure, and is raised as well
        # kafka-python mostly closes a connection before it has read why the login is rejected.
        if "=bootstrap" in logged and "socket disconnected" in said and "SASL" in self._options["security_protocol"]:
            said = f"{said}, as by brokers that reject a login (SASL)"
        now, known = time.monotonic(), self._client_error
        is_old = known is None or now - known[0] >= LOG_INTERVAL_SECONDS
        if is_old or _is_about_login(said) or not _is_about_login(known[1] if known else ""):
            self._client_error = now, said

    def send_logs(self) -> None:
        """Send the log messages since the last call."""
        while self.logs:
            self._outlet.send(self.logs.popleft())

    def _send_position(self, kind: str) -> None:
        """Send a position that no batch has led to, and that a checkpoint must hold before the next record."""
        position = self._assignment.position()
        # It may differ by more than offsets: without a checkpoint another start might decide otherwise.
        needs_checkpoint = position != self._position
        self._outlet.send(
            {"type": kind, "position": position, "needs_checkpoint": needs_checkpoint, **self._progress()}
        )
        self._position = position

    def _progress(self) -> dict[str, int]:
        """Return the number of offsets between the start of the run and the position, and up to the stops."""
        buffers = self._assignment.buffers.values()
        return {
            "n_consumed": sum(buffer.next_offset - buffer.start_offset for buffer in buffers),
            "total": sum((buffer.stop_offset or 0) - buffer.start_offset for buffer in buffers),
        }

    # --- the connection ---------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect, and resume at the current offsets."""
        self._consumer = self._client.create_consumer(self._options, self._settings)
        self._survey.forget()
        self._assign(self._consumer)

    def _assign(self, consumer: AssignedConsumer) -> None:
        buffers = self._assignment.buffers
        consumer.assign({partition: buffer.fetch_position for partition, buffer in buffers.items()})
        self._order.paused.clear()
        for partition in buffers:  # clients keep those paused that were, whatever is assigned
            (consumer.pause if partition in self._assignment.lost else consumer.resume)(partition)

    def _disconnect(self, consumer: AssignedConsumer) -> None:
        self._consumer = None
        self._survey.forget()
        consumer.close()

    def _back_off(self, why: str) -> None:
        """Retry after a pause that doubles each time."""
        now = time.monotonic()
        longest = _MAX_PAUSE_SECONDS if self._pending is not None else 2.0
        self._next_attempt_at = now + min(self._pause_seconds * 2 ** min(self._failures, 9), longest)
        self._failures += 1
        self._lose(why, now)

    def _update_connected(self, consumer: AssignedConsumer, now: float) -> None:
        """Note whether the cluster answers; only an answer shows that: a poll without records succeeds without one."""
        survey = self._survey
        silent = 0.0 if survey.waiting_since is None else now - survey.waiting_since
        if silent > _SILENT_SECONDS:
            self._lose(f"no answer for {silent:.0f} s" + (f": {survey.trouble}" if survey.trouble else ""), now)
            if silent > _REBUILD_SECONDS:
                self._disconnect(consumer)
        elif not self._connected and not self._failures and survey.answered_since > self._failed_at:
            self._connected, self._refused, self._client_error = True, "", None
            self._last_held_up_at, self._next_tick_at = now, 0.0
            if self._ready:
                self._counters["reconnected"] += 1
                _LOGGER.info("Kafka responds again")

    def _lose(self, why: str, now: float) -> None:
        """Note that the cluster does not answer, and why; say so now and then."""
        error = self._client_error
        if error is not None and now - error[0] < LOG_INTERVAL_SECONDS:
            why = f"{why}; the client says: {error[1]}"
        was_refused, self._refused = bool(self._refused), ""
        if _is_about_login(why):
            self._refused = f"the source rejects the login, or its connection is not trusted ({why})"
        if self._connected:
            self._last_held_up_at, self._next_tick_at = now, 0.0
        self._connected, self._failed_at = False, now
        if now - self._last_warning_at >= LOG_INTERVAL_SECONDS or (self._refused and not was_refused):
            self._last_warning_at = now
            if self._refused:
                self._counters["login_rejected"] += 1
            _LOGGER.warning("%s; retrying until it does", self._refused or f"the source does not respond ({why})")

    def _take_answers(self, consumer: AssignedConsumer, now: float) -> None:
        """Take account of what the cluster has said of topics and partitions."""
        survey, assignment = self._survey, self._assignment
        if survey.n_descriptions > self._n_seen:
            self._n_seen = survey.n_descriptions
            before = set(assignment.lost)
            if not assignment.see(survey.topics):
                survey.describe_again(now + _MISSING_PAUSE_SECONDS)
                return
            self._hold(consumer, assignment.lost.keys() - before)
        if not assignment.is_known:
            return
        for partition, end in survey.ends.items():
            if partition in assignment.buffers:
                assignment.buffers[partition].update_end(end, now)
        survey.ends.clear()
        survey.want(assignment.wanted)
        for partition in survey.limits.keys() - assignment.wanted:
            stable_end = survey.limits.pop(partition).stable_end
            if partition in assignment.buffers:
                assignment.buffers[partition].update_stable_end(stable_end, now)
        # The topic of what is lost may have been recreated, which its id tells.
        is_due = self._pending is None and now >= self._next_look_at and survey.described_since > self._lost_at
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
        if not settled and (self._ready or assignment.wanted):
            return
        buffers = assignment.buffers
        self._assign(consumer)
        begun = [partition for partition in settled if partition in new]
        if begun:
            shown = [f"{tp.topic}/{tp.partition} from offset {buffers[tp].next_offset}" for tp in begun]
            more = f", and {len(shown) - _MAX_NAMED_PARTITIONS} more" if len(shown) > _MAX_NAMED_PARTITIONS else ""
            _LOGGER.info("connected; reading %s%s", ", ".join(shown[:_MAX_NAMED_PARTITIONS]), more)
        elif not buffers:
            _LOGGER.warning("source.shard = %r has no partition of these topics", self._settings.shard)
        self._connected, self._last_held_up_at = True, now
        self._report()
        self._send_position("moved" if self._ready else "ready")
        self._ready = True

    def _find_stalls(self, consumer: AssignedConsumer, now: float) -> None:
        if self._pending is not None:
            self._last_held_up_at = now
        assignment, stalls = self._assignment, self._stalls
        fetched = [
            b for b in assignment.buffers.values() if b.partition not in self._order.paused and not b.reached_stop
        ]
        has_unread = stalls.check(fetched, assignment.waiting - self._survey.limits.keys(), self._last_held_up_at, now)
        self._survey.want(buffer.question() for buffer in stalls.behind)
        if has_unread and not self._rebuilt_for_stall:
            self._counters["consumer_rebuilt"] += 1
            self._disconnect(consumer)
        self._rebuilt_for_stall = has_unread

    # --- reading ----------------------------------------------------------------------------------------------------

    def _read(self, consumer: AssignedConsumer) -> None:
        if self._pending is not None:
            self._send(self._pending)
            return
        buffers = self._assignment.buffers
        if not buffers or self._finished:
            time.sleep(0.005 if not self._ready else 0.02)
            self._finish_if_complete()
            return
        try:
            fetched = consumer.poll(self._poll_timeout())
        except OffsetsLostError as lost:
            self._hold(consumer, [tp for tp in lost.partitions if tp in buffers and tp not in self._assignment.lost])
            return
        now, before = time.monotonic(), set(self._assignment.lost)
        self._last_record_at = now if fetched else self._last_record_at
        for topic in {partition.topic for partition in fetched}:
            self._assignment.see_id(topic, consumer.topic_id(topic))
        lost_now = self._assignment.lost
        self._hold(consumer, lost_now.keys() - before)
        for partition, records in fetched.items():
            # The records of a lost one may belong to a new topic, at an offset of the old one.
            is_read = partition in buffers and partition not in lost_now
            if is_read and (gaps := buffers[partition].add(records, now)):
                self._counters["gap"] += gaps
        for partition, buffer in buffers.items():
            if buffer.at_end_since is None and partition not in lost_now:
                buffer.advance_to(consumer.fetch_position(partition) or 0)
                watermark = consumer.high_watermark(partition)
                if watermark is not None:
                    buffer.update_watermark(watermark, now)
        in_order = list(buffers.values())
        taken = self._order.take(in_order, now)
        self._survey.want(buffer.question() for buffer in self._order.unsure)
        self._has_more = taken is not None and len(taken.records) == self._settings.max_poll_records
        if taken is not None:
            self._send(taken)
        self._order.limit(consumer, in_order, now)
        self._finish_if_complete()

    def _hold(self, consumer: AssignedConsumer, lost: Collection[TopicPartition]) -> None:
        """Fetch no more from partitions that have lost records, until it is known where they go on."""
        for partition in lost:
            self._assignment.lost.setdefault(partition, False)
            consumer.pause(partition)
        if lost:
            self._lost_at = time.monotonic()
            self._survey.renew(lost)

    def _poll_timeout(self) -> float:
        """Return the timeout of the next `poll` in seconds."""
        if self._has_more:
            return 0.0
        timeout = POLL_SECONDS
        if time.monotonic() - self._last_record_at < _FLOWING_SECONDS:
            timeout = _FLOWING_POLL_SECONDS
        if any(buffer.records for buffer in self._assignment.buffers.values()):
            timeout = min(timeout, max(0.002, self._settings.idle_ms / 4000))
        return timeout

    def _send(self, taken: Taken) -> None:
        end = self._assignment.position()
        try:
            header, body = packed(self._values, taken, end=end, **self._progress())
        except RetriableSourceError as error:
            self._pending = taken
            raise ClusterUnavailableError(str(error)) from None
        self._pending = None
        self._position = end
        self._outlet.send(header, body)

    def _finish_if_complete(self) -> None:
        """Report once that everything was sent, if there is an end."""
        if (
            self._settings.until == "end"
            and self._ready
            and not self._finished
            and self._pending is None
            and self._assignment.finished
        ):
            self._finished = True
            self._report()
            self._outlet.send({"type": "finished"})


def _is_about_login(text: str) -> bool:
    about = _NOT_LOGIN.sub("", text).lower()
    return any(word in about for word in _LOGIN_WORDS)
