"""What the cluster says of topics and of where their partitions begin and end, asked in threads; and where it stalls.

Each node is asked by itself, so that one that does not answer holds up neither the others nor what is being read.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.contract import (
    END,
    FIRST,
    AssignedConsumer,
    Cause,
    ClientError,
    TopicDescription,
    in_background,
)
from streammoe_connectors.kafka.order import Limits, PartitionBuffer
from streammoe_connectors.kafka.settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_ENDS_SECONDS = 1.0
"""Time between two questions for the ends of the partitions that are read; after none a fifth of it."""


class Survey:
    """Questions to a cluster, and its latest answers."""

    def __init__(self, settings: ReadingSettings) -> None:
        self._settings = settings
        self.topics: Mapping[str, TopicDescription] = {}
        """As of the last description."""
        self.limits: dict[TopicPartition, Limits] = {}
        """Of partitions that were asked for, until they are taken."""
        self.waiting_since: float | None = None
        """Since when nothing has been answered; ``None`` if nothing has been asked since the last answer."""
        self.answered_since = 0.0
        """When the latest request that was answered was asked."""
        self.trouble = ""
        """Why the latest request failed."""
        self._wanted: set[TopicPartition] = set()
        self._lost: set[TopicPartition] = set()
        self._pending: dict[int | None, tuple[float, Future[Any]]] = {}
        """When each node was asked of its partitions, and its answer; at ``None`` that of any node, of all topics."""
        self._not_before: dict[int | None, float] = {}
        """When a node that has not answered may be asked again."""
        self._next_description_at = self._next_ends_at = 0.0

    def want(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for the limits of these partitions, as far as they are neither known nor asked for."""
        self._wanted.update(partition for partition in partitions if partition not in self.limits)

    def renew(self) -> None:
        """Ask for everything anew, since answers no longer hold, or a consumer is replaced."""
        self.topics, self.limits, self.waiting_since = {}, {}, None
        self._pending.clear()
        self._next_description_at = self._next_ends_at = 0.0

    def lose(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask anew where more partitions are lost than before; the id of a topic tells whether it was recreated."""
        before, self._lost = self._lost, set(partitions)
        if self._lost - before:
            self.renew()

    def describe_again(self, at: float) -> None:
        """Ask for a description of the topics at this time, if none is due before."""
        self._next_description_at = min(self._next_description_at, at)

    def look(self, consumer: AssignedConsumer, read: Mapping[TopicPartition, PartitionBuffer], now: float) -> bool:
        """Take answers that have arrived, and ask what is due; return whether topics were described.

        `read` are the partitions whose ends are to be known, where records that arrive do not tell them.
        """
        answered = [node for node, (_, answer) in self._pending.items() if answer.done()]
        taken = [node for node in answered if self._take(node, *self._pending.pop(node), now)]
        if now >= self._next_description_at and None not in self._pending:
            self._next_description_at = now + self._settings.discover_seconds
            self._ask(now, partial(consumer.describe, self._settings.topics), None)
        asked = set(self._wanted)
        if now >= self._next_ends_at:
            self._next_ends_at = now + _ENDS_SECONDS
            asked.update(tp for tp, buffer in read.items() if now - buffer.known_at >= _ENDS_SECONDS / 2)
        questions: dict[int, list[TopicPartition]] = defaultdict(list)
        for topic, number in sorted(asked):
            leader = self.topics[topic].leaders.get(number) if topic in self.topics else None
            if leader is not None and leader not in self._pending and now >= self._not_before.get(leader, 0.0):
                questions[leader].append(TopicPartition(topic, number))
        for leader, partitions in questions.items():
            self._ask(now, partial(self._limits, consumer, partitions, now), leader)
        return None in taken

    def _ask(self, now: float, call: Callable[[], object], node: int | None) -> None:
        self.waiting_since = self.waiting_since or now
        self._pending[node] = now, in_background(call)

    def _take(self, node: int | None, asked_at: float, pending: Future[Any], now: float) -> bool:
        """Take an answer; return whether it is one."""
        try:
            answer = pending.result()
        except ClientError as error:
            if error.cause is Cause.NOT_AUTHORIZED:
                raise
            self.trouble = str(error)
            self.describe_again(now + _ENDS_SECONDS / 5)  # it may have another leader by now
            self._not_before[node] = now + _ENDS_SECONDS / 5
            return False
        self.waiting_since, self.answered_since = None, asked_at
        if node is not None:
            self.limits |= answer
            self._wanted -= answer.keys()
            return True
        self.topics = answer
        if any(leader is None for topic in answer.values() for leader in topic.leaders.values()):
            self.describe_again(now + _ENDS_SECONDS)
        return True

    def _limits(
        self, consumer: AssignedConsumer, partitions: list[TopicPartition], now: float
    ) -> dict[TopicPartition, Limits]:
        timestamp_ms, isolation = self._settings.start_timestamp_ms, self._settings.isolation
        ends = consumer.offsets(partitions, END)
        stable = ends if isolation == "read_uncommitted" else consumer.offsets(partitions, END, stable=True)
        first = consumer.offsets(partitions, FIRST)
        at_time = first if timestamp_ms is None else consumer.offsets(partitions, timestamp_ms)
        limits = {}
        for partition in partitions:
            at, end = at_time[partition], stable[partition]
            at = end if at < 0 else min(at, end)
            limits[partition] = Limits(first[partition], end, ends[partition], at, now)
        return limits


class Stalls:
    """What is known of partitions that are held up."""

    def __init__(self, settings: ReadingSettings) -> None:
        self._settings = settings
        self.partitions: dict[TopicPartition, str] = {}
        """Those that have been held up for ``stall_seconds``, and why; see `streammoe.ports.STALLS`."""
        self._waiting_since: dict[TopicPartition, float] = {}
        self._transactions: dict[TopicPartition, int] = {}
        """Partitions that an open transaction has held up for so long that it was reported, and at which offset."""

    def check(
        self,
        buffers: Sequence[PartitionBuffer],
        waiting: Collection[TopicPartition],
        deaf_at: float,
        held_up_at: float,
        now: float,
    ) -> bool:
        """Find those that are held up, and report the ones that are new; return whether there are records to read.

        Args:
            buffers: of the partitions that are fetched.
            waiting: other partitions of which the cluster has not said yet where they begin and end.
            deaf_at: when something else last prevented that the cluster is heard.
            held_up_at: when something else last prevented that anything is read.
            now: as all times here, in monotonic seconds.
        """
        longest = self._settings.stall_seconds

        def is_long(since: float, prevented_at: float = deaf_at) -> bool:
            return now - max(since, prevented_at) >= longest

        self._waiting_since = {tp: self._waiting_since.get(tp, now) for tp in waiting}
        silent = {tp for tp, since in self._waiting_since.items() if is_long(since)}
        silent |= {buffer.partition for buffer in buffers if is_long(buffer.known_at)}
        behind = [b for b in buffers if b.partition not in silent and b.is_behind and is_long(b.progress_at)]
        readable = {b.partition for b in behind if b.stable_end > b.fetch_position}
        unread = {b.partition for b in behind if b.partition in readable and is_long(b.progress_at, held_up_at)}
        before, self._transactions = self._transactions, {}
        for buffer in behind:
            if buffer.partition not in readable:
                self._transactions[buffer.partition] = buffer.fetch_position
                if before.get(buffer.partition) != buffer.fetch_position:
                    _report_open_transaction(buffer, now)
        for found, message in (
            (silent, "no answer for %.0f s from the leader of %s, if it has one; it is tried on"),
            (unread, "no records for %.0f s from %s, although there are more to read"),
        ):
            if new := sorted(found.difference(self.partitions)):
                names = ", ".join(f"topic {topic}, partition {number}" for topic, number in new)
                _LOGGER.warning(message, longest, names, extra={"event": "partition_stalled"})
        self.partitions = {
            **dict.fromkeys(self._transactions, "transaction"),
            **dict.fromkeys(unread, "records"),
            **dict.fromkeys(silent, "leader"),
        }
        return bool(unread)


def _report_open_transaction(buffer: PartitionBuffer, now: float) -> None:
    (topic, number), offset = buffer.partition, buffer.fetch_position
    _LOGGER.warning(
        "topic %s, partition %d: a transaction has been open at offset %d for %.0f s, and %d records from there on "
        "wait until it ends. Find its producer by kafka-transactions.sh --bootstrap-server HOST:PORT "
        "describe-producers --topic %s --partition %d. If that is gone for good, end the transaction: the same with "
        "abort --topic %s --partition %d --start-offset %d",
        *(topic, number, offset, now - buffer.progress_at, buffer.end - offset),
        *(topic, number, topic, number, offset),
        extra={"event": "partition_stalled", "topic": topic, "partition": number},
    )
