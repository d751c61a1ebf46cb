"""What the cluster says of topics and their ends, asked in threads.

Each node is asked by itself, so that one that does not answer holds up neither the others nor what is being read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, NamedTuple

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.background import in_background
from streammoe_connectors.kafka.consumer import END, FIRST, AssignedConsumer, ClusterUnavailableError, TopicDescription
from streammoe_connectors.kafka.partitions import PartitionBuffer
from streammoe_connectors.kafka.source_settings import ReadingSettings

_ENDS_SECONDS = 1.0
"""Time between two questions for the ends of the partitions that are read."""
_RETRY_SECONDS = 0.2
"""Time between an answer that something is not there, or none at all, and the next question."""


class Limits(NamedTuple):
    """Where a partition begins and ends."""

    first: int
    """The offset of its first record."""
    stable_end: int
    """Its end, or where the first open transaction begins if the settings wait for those."""
    end: int
    """Its high watermark, which includes records of open transactions."""
    at_time: int
    """The offset of the first record from the time on at which the settings begin; the end if there is none."""


class _Request(NamedTuple):
    asked_at: float
    answer: Future[Any]
    node: int | None
    """Of which the partitions are; ``None`` if all topics are described."""
    wanted: frozenset[TopicPartition]
    """Whose limits are asked for."""


class Survey:
    """Questions to a cluster, and its latest answers.

    Args:
        settings: of the source.
    """

    def __init__(self, settings: ReadingSettings) -> None:
        self._settings = settings
        self.topics: Mapping[str, TopicDescription] = {}
        """As of the last description."""
        self.n_descriptions = 0
        self.described_since = 0.0
        """When the last description was asked for."""
        self.ends: dict[TopicPartition, int] = {}
        """The latest high watermarks, until they are taken."""
        self.limits: dict[TopicPartition, Limits] = {}
        """Of partitions that were `wanted`, until they are taken."""
        self.waiting_since: float | None = None
        """Since when nothing has been answered; ``None`` if nothing has been asked since the last answer."""
        self.answered_since = 0.0
        """When the latest request that was answered was asked."""
        self.trouble = ""
        """Why the latest request failed."""
        self._wanted: set[TopicPartition] = set()
        self._pending: list[_Request] = []
        self._not_before: dict[int | None, float] = {}
        """When a node that has not answered may be asked again."""
        self._next_description_at = 0.0
        self._next_ends_at = 0.0

    def want(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for the limits of these partitions, as far as they are neither known nor asked for."""
        self._wanted.update(partition for partition in partitions if partition not in self.limits)

    def renew(self, partitions: Iterable[TopicPartition]) -> None:
        """Ask for the limits of these partitions and for the topics anew, since earlier answers no longer hold."""
        for partition in partitions:
            self.limits.pop(partition, None)
            self._wanted.add(partition)
        self._pending = [request._replace(wanted=request.wanted - self._wanted) for request in self._pending]
        self._next_description_at = 0.0

    def describe_again(self, at: float = 0.0) -> None:
        """Ask for a description of the topics at this time, if none is due before."""
        self._next_description_at = min(self._next_description_at, at)

    def forget(self) -> None:
        """Give up what was asked of a consumer that is replaced."""
        self._pending.clear()
        self.waiting_since = None
        self._next_description_at = self._next_ends_at = 0.0

    def look(self, consumer: AssignedConsumer, read: Mapping[TopicPartition, PartitionBuffer], now: float) -> None:
        """Take answers that have arrived, and ask what is due.

        Args:
            consumer: to ask.
            read: the partitions whose ends are to be known, where records that arrive do not tell them.
            now: monotonic seconds.

        Raises:
            SourceError: the user may not read a topic.
        """
        pending, self._pending = self._pending, []
        for request in pending:
            if request.answer.done():
                self._take(request, now)
            else:
                self._pending.append(request)
        busy = {request.node for request in self._pending}
        if now >= self._next_description_at and None not in busy:
            self._next_description_at = now + self._settings.discover_seconds
            self._ask(now, lambda: consumer.describe(self._settings.topics), None)
        ends_are_due = now >= self._next_ends_at
        if ends_are_due:
            self._next_ends_at = now + _ENDS_SECONDS
        elif not self._wanted:
            return
        questions: dict[int, set[TopicPartition]] = defaultdict(set)
        asked = set(self._wanted)
        if ends_are_due:
            asked.update(tp for tp, buffer in read.items() if now - buffer.end_known_at >= _ENDS_SECONDS / 2)
        for partition in asked:
            leader = self._leader(partition)
            if leader is not None and leader not in busy and now >= self._not_before.get(leader, 0.0):
                questions[leader].add(partition)
        for leader, partitions in questions.items():
            wanted = frozenset(partitions & self._wanted)
            self._ask(now, lambda p=partitions, w=wanted: self._limits(consumer, p, w), leader, wanted)

    def _leader(self, partition: TopicPartition) -> int | None:
        topic = self.topics.get(partition.topic)
        return None if topic is None else topic.leaders.get(partition.partition)

    def _ask(self, now: float, call: Any, node: int | None, wanted: frozenset[TopicPartition] = frozenset()) -> None:
        self.waiting_since = self.waiting_since or now
        self._pending.append(_Request(now, in_background(call), node, wanted))

    def _take(self, request: _Request, now: float) -> None:
        try:
            answer = request.answer.result()
        except ClusterUnavailableError as error:
            self.trouble = str(error)
            self.describe_again(now + _RETRY_SECONDS)  # it may have another leader by now
            self._not_before[request.node] = now + _RETRY_SECONDS
            return
        self.waiting_since, self.answered_since = None, request.asked_at
        if request.node is None:
            self.topics, self.described_since = answer, request.asked_at
            self.n_descriptions += 1
            if any(leader is None for topic in answer.values() for leader in topic.leaders.values()):
                self.describe_again(now + _ENDS_SECONDS)
            return
        ends, limits = answer
        self.ends |= ends
        self.limits |= {partition: limits[partition] for partition in request.wanted}
        self._wanted -= request.wanted

    def _limits(
        self, consumer: AssignedConsumer, partitions: set[TopicPartition], wanted: frozenset[TopicPartition]
    ) -> tuple[dict[TopicPartition, int], dict[TopicPartition, Limits]]:
        ends = consumer.offsets(sorted(partitions), END)
        if not wanted:
            return ends, {}
        those, timestamp_ms = sorted(wanted), self._settings.start_timestamp_ms
        stable = consumer.offsets(those, END, stable=True)
        first = consumer.offsets(those, FIRST)
        at_time = first if timestamp_ms is None else consumer.offsets(those, timestamp_ms)
        limits = {}
        for partition in those:
            at, end = at_time[partition], stable[partition]
            limits[partition] = Limits(first[partition], end, ends[partition], end if at < 0 else min(at, end))
        return ends, limits
