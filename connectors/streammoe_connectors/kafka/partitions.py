"""The partitions that are read: what has been fetched of each and not yet given, and where reading stands."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from streammoe.errors import SourceError
from streammoe.ports import Partition, Position
from streammoe.types import IntArray
from streammoe_connectors.kafka.fields import Record

KIND = "kafka"


class LogRecord(Record, Protocol):
    """What is used of kafka-python's ``ConsumerRecord`` beside its contents."""

    @property
    def offset(self) -> int: ...
    @property
    def value(self) -> Any:
        """Bytes, or ``None`` in a tombstone."""
        ...


class PartitionBuffer:
    """One partition.

    Args:
        partition: its name.
        offset: the first one to read.
        stop: what is at this offset and beyond is not read; not below `offset`.
    """

    def __init__(self, partition: Partition, offset: int, stop: int | None = None) -> None:
        self.partition = partition
        self.start = offset
        self.next = offset
        """The next offset to give: what a checkpoint holds."""
        self.fetched = offset
        """The next offset to fetch."""
        self.jumped = False
        """Whether nothing has been fetched since reading went on elsewhere."""
        self.stop = stop
        self.end: int | None = None
        """Behind the last record in the log, as far as is known."""
        self.at_end_since: float | None = None
        """Since when (monotonic seconds) all that the log holds has been fetched."""
        self.received_at = time.monotonic()
        """When something was last fetched, or there was nothing to fetch."""
        self.records: list[LogRecord] = []
        """Fetched and not yet given."""
        self.times: IntArray = np.empty(0, np.int64)
        """Theirs, in milliseconds since 1970."""
        self.bytes = 0
        """Of their values."""
        self._tombstones: deque[int] = deque()

    def add(self, records: Sequence[LogRecord], now: float) -> int:
        """Take up what was fetched, in order; how many gaps in the offsets there were."""
        if self.stop is not None and records[-1].offset >= self.stop:
            records = [record for record in records if record.offset < self.stop]
            if not records:
                self.reach(self.stop)
                return 0
        gaps = int(records[0].offset != self.fetched)
        if records[-1].offset - records[0].offset >= len(records):
            gaps += sum(b.offset != a.offset + 1 for a, b in pairwise(records))
        self.fetched = records[-1].offset + 1
        self.jumped = False
        self.at_end_since = None
        self.received_at = now
        values: list[bytes | None] = [record.value for record in records]
        if None in values:
            self._tombstones.extend(record.offset for record in records if record.value is None)
            records = [record for record in records if record.value is not None]
        self.bytes += sum(len(record.value) for record in records)
        self.records += records
        times = np.fromiter((record.timestamp or 0 for record in records), np.int64, len(records))
        self.times = np.concatenate([self.times, times]) if self.times.size else times
        self._move_on()
        return gaps

    def reach(self, offset: int) -> None:
        """Nothing is left before this offset: markers of transactions, and what was aborted or compacted."""
        self.fetched = max(self.fetched, offset)
        self._move_on()

    def give(self, count: int) -> list[LogRecord]:
        """The first records, which are given up."""
        given = self.records[:count]
        del self.records[:count]
        self.times = self.times[count:]
        self.bytes = self.bytes - sum(len(record.value) for record in given) if self.records else 0
        if given:
            self.next = given[-1].offset + 1
        self._move_on()
        return given

    def passed(self) -> int:
        """How many records without a value have been passed since the last call."""
        count = 0
        while self._tombstones and self._tombstones[0] < self.next:
            self._tombstones.popleft()
            count += 1
        return count

    def jump(self, offset: int) -> None:
        """Go on elsewhere, for what was to be read is no longer there. What was fetched stays."""
        self.fetched = offset
        self.jumped = True
        self.at_end_since = None
        self.end = None
        if not self.records:
            self.next = offset

    def drop(self) -> None:
        """Give up what was fetched and not yet given."""
        self.records = []
        self.times = self.times[:0]
        self.bytes = 0
        self._tombstones.clear()

    @property
    def complete(self) -> bool:
        """Whether everything before `stop` has been fetched."""
        return self.stop is not None and self.fetched >= self.stop

    @property
    def lag(self) -> int:
        """Records, as far as is known, that are in the log and were not given."""
        return max(0, (self.end or 0) - self.next)

    def holds(self, now: float, idle: float) -> bool:
        """Whether others must wait for what follows behind the last record at hand.

        Args:
            now: monotonic seconds.
            idle: for how many seconds they wait for one at its end.
        """
        if self.complete:
            return False
        return self.at_end_since is None or now - self.at_end_since < idle

    def _move_on(self) -> None:
        if not self.records:
            self.next = self.fetched if self.stop is None else min(self.fetched, self.stop)


def position_of(
    group: str, owner: str, ids: Mapping[str, str | None], lanes: Sequence[PartitionBuffer], left: Mapping[str, Any]
) -> Position:
    """Where reading goes on, for a checkpoint.

    Args:
        group: of the reader.
        owner: same.
        ids: of its topics.
        lanes: what it reads.
        left: see `kafka_start.left_of`.
    """
    topics: dict[str, Any] = {topic: {"id": topic_id, "partitions": {}} for topic, topic_id in ids.items()}
    for lane in lanes:
        topics[lane.partition.topic]["partitions"][str(lane.partition.partition)] = lane.next
    return {"kind": KIND, "group": group, "owner": owner, "topics": topics, **({"left": left} if left else {})}


def check_position(position: Position) -> None:
    """Make sure that a position is one of ours.

    Raises:
        SourceError: it is not.
    """
    if position.get("kind") != KIND:
        raise SourceError(
            f"the checkpoint's position is of kind {position.get('kind')!r}, and source.kind is {KIND!r}; "
            "go back to that source, or start with a fresh checkpoint folder"
        )
    try:
        for topic in [*position["topics"].values(), *position.get("left", {}).values()]:
            if not all(_is_number(number) and _is_offset(at) for number, at in topic["partitions"].items()):
                raise TypeError
            if not isinstance(topic["id"], str | None):
                raise TypeError
        if not isinstance(position["owner"], str):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise SourceError(
            "the checkpoint's position is not one of Kafka's: it must hold owner, and topics with partitions and their "
            "offsets; go back to an earlier checkpoint, or start with a fresh checkpoint folder"
        ) from None


def _is_number(text: str) -> bool:
    """Whether it is the number of a partition, of which Kafka has less than 2^31."""
    return text.isascii() and text.isdecimal() and len(text) <= 10


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
