"""Buffers of fetched records per partition, and the position that they define."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import takewhile
from math import inf
from typing import Any, NamedTuple

import numpy as np

from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.merge import Hold
from streammoe_connectors.kafka.records import NONE, Records, concatenate
from streammoe_connectors.positions import check_kind, invalid, is_count

KIND = "kafka"


class _Arrival(NamedTuple):
    """Consecutive records that arrived at once."""

    at: float
    """In monotonic seconds."""
    records: int


class PartitionBuffer:
    """The fetched records of a partition that have not been sent yet.

    Args:
        partition: which one.
        offset: the first one to read.
        stop_offset: offset at which to stop, if any; not below `offset`.
    """

    def __init__(self, partition: TopicPartition, offset: int, stop_offset: int | None = None) -> None:
        self.partition = partition
        self.start_offset = offset
        self.next_offset = offset
        """The next offset to send, for checkpoints."""
        self.fetch_position = offset
        """The next offset to fetch."""
        self.seek_pending = False
        """Whether nothing has been fetched since a `seek`."""
        self.stop_offset = stop_offset
        self.known_end: int | None = None
        """The high watermark or the last stable offset, whichever was received last; ``None`` if neither was."""
        self._behind_end: tuple[int, float] | None = None
        """At which offset fetching is behind `known_end`, and since when (monotonic seconds)."""
        self.at_end_since: float | None = None
        """Since when (monotonic seconds) the whole log has been fetched."""
        self.was_at_end = False
        """Whether the whole log had been fetched at any time since the start, or since a `seek`."""
        self.received_at = time.monotonic()
        """When records were last fetched, or there were none to fetch."""
        self.records = NONE
        """Fetched and not yet sent, without tombstones."""
        self.n_bytes = 0
        """Size of the values in `records`."""
        self.n_held_back = 0
        """How many of `records` wait for older ones of other partitions."""
        self._arrivals: deque[_Arrival] = deque()
        """When `records` arrived."""
        self._ahead_until = -inf
        """Until when this partition counts as one whose timestamps are ahead of the others'."""
        self._tombstones: deque[int] = deque()

    def add(self, records: Records, now: float) -> int:
        """Append fetched records in order; return the number of gaps in their offsets."""
        if self.stop_offset is not None and records.offsets[-1] >= self.stop_offset:
            records = records.part(slice(int(np.searchsorted(records.offsets, self.stop_offset))))
            if not records:
                self.advance_to(self.stop_offset)
                return 0
        gaps = int(records.offsets[0] != self.fetch_position) + int(np.count_nonzero(np.diff(records.offsets) != 1))
        self.fetch_position = int(records.offsets[-1]) + 1
        self.seek_pending = False
        self.at_end_since = None
        self.received_at = now
        if None in records.values:
            is_tombstone = np.array([value is None for value in records.values])
            self._tombstones.extend(records.offsets[is_tombstone].tolist())
            records = records.take(np.flatnonzero(~is_tombstone))
        self.n_bytes += _size(records)
        self.records = concatenate([self.records, records])
        if records:
            self._arrivals.append(_Arrival(now, len(records)))
        self._update_next_offset()
        return gaps

    def advance_to(self, offset: int) -> None:
        """Advance to this offset: before it are only markers and records that were aborted or compacted."""
        self.fetch_position = max(self.fetch_position, offset)
        self._update_next_offset()

    def take(self, count: int) -> Records:
        """Remove and return the first `count` records."""
        taken, self.records = self.records.part(slice(count)), self.records.part(slice(count, None))
        left = count
        while left > 0:
            first = self._arrivals.popleft()
            if first.records > left:
                self._arrivals.appendleft(first._replace(records=first.records - left))
            left -= first.records
        self.n_bytes = self.n_bytes - _size(taken) if self.records else 0
        if taken:
            self.next_offset = int(taken.offsets[-1]) + 1
        self._update_next_offset()
        return taken

    def count_passed_tombstones(self) -> int:
        """Return how many tombstones have been passed since the last call."""
        count = 0
        while self._tombstones and self._tombstones[0] < self.next_offset:
            self._tombstones.popleft()
            count += 1
        return count

    def seek(self, offset: int) -> None:
        """Continue at another offset, since the next records are lost; fetched records stay."""
        self.fetch_position = offset
        self.seek_pending = True
        self.at_end_since = None
        self.was_at_end = False
        self.known_end = None
        if not self.records:
            self.next_offset = offset

    def clear(self) -> None:
        """Discard all fetched records."""
        self.records = NONE
        self.n_bytes = self.n_held_back = 0
        self._arrivals.clear()
        self._tombstones.clear()

    @property
    def reached_stop(self) -> bool:
        """Whether everything before `stop_offset` has been fetched."""
        return self.stop_offset is not None and self.fetch_position >= self.stop_offset

    def update_end(self, end: int, now: float) -> None:
        """Record the high watermark, which includes records of open transactions."""
        self.known_end = end
        if self.fetch_position >= end:
            self._behind_end = None
        elif self._behind_end is None or self._behind_end[0] != self.fetch_position:
            self._behind_end = self.fetch_position, now

    def seconds_behind_end(self, now: float) -> float:
        """Return for how long there has been more to fetch, without any progress."""
        behind = self._behind_end
        return 0.0 if behind is None or behind[0] != self.fetch_position else now - behind[1]

    def mark_at_end(self, now: float) -> None:
        """Record that the whole log has been fetched."""
        self.at_end_since = now
        self.was_at_end = True

    def hold(self, now: float, idle: float) -> Hold:
        """Return whether other partitions must wait for records after the last fetched one.

        They wait without a bound as long as it has never been at its end: the order of a backlog must depend on nothing
        but the log.

        Args:
            now: monotonic seconds.
            idle: for how many seconds they wait for a partition at its end.
        """
        if self.reached_stop or (self.at_end_since is not None and now - self.at_end_since >= idle):
            return Hold.NONE
        return Hold.BOUNDED if self.was_at_end else Hold.UNBOUNDED

    def count_overdue(self, now: float, longest: float, room: float) -> int:
        """Return how many of the first records have waited for too long.

        Once some have, the partition counts as one that is ahead of the others for as long again, and if it then has
        more than there is room for, all are overdue: else it could deliver no more than its room in each such time.

        Args:
            now: monotonic seconds.
            longest: for how many seconds a record may wait.
            room: for how many bytes there is room.
        """
        overdue = takewhile(lambda arrival: now - arrival.at >= longest, self._arrivals)
        count = sum(arrival.records for arrival in overdue)
        if self.n_bytes > room and now < self._ahead_until:
            count = len(self.records)
        if count:
            self._ahead_until = now + longest
        return count

    def _update_next_offset(self) -> None:
        if not self.records:
            stop = self.fetch_position if self.stop_offset is None else self.stop_offset
            self.next_offset = min(self.fetch_position, stop)


def _size(records: Records) -> int:
    return sum(map(len, filter(None, records.values)))


def position_of(
    group: str,
    owner: str,
    shard: str,
    pattern: str | None,
    topic_ids: Mapping[str, str | None],
    buffers: Sequence[PartitionBuffer],
    unassigned: Mapping[str, Any],
) -> Position:
    """Return the position for a checkpoint.

    Args:
        group: of the reader.
        owner: of the position.
        shard: whose partitions are read, such as ``0/4``.
        pattern: of topics, if they are not named one by one.
        topic_ids: by topic.
        buffers: of the partitions that are read.
        unassigned: see `kafka.start.unassigned_offsets`.
    """
    topics: dict[str, Any] = {topic: {"id": topic_id, "partitions": {}} for topic, topic_id in topic_ids.items()}
    for buffer in buffers:
        topics[buffer.partition.topic]["partitions"][str(buffer.partition.partition)] = buffer.next_offset
    return {
        "kind": KIND,
        "group": group,
        "owner": owner,
        "shard": shard,
        **({"pattern": pattern} if pattern is not None else {}),
        "topics": topics,
        **({"left": unassigned} if unassigned else {}),
    }


def check_position(position: Position) -> None:
    """Raise `SourceError` unless a position is a valid one of Kafka."""
    check_kind(position, KIND)
    try:
        for topic in [*position["topics"].values(), *position.get("left", {}).values()]:
            if not all(_is_number(number) and is_count(at) for number, at in topic["partitions"].items()):
                raise TypeError
            if not isinstance(topic["id"], str | None):
                raise TypeError
        if not isinstance(position["owner"], str) or not isinstance(position.get("pattern"), str | None):
            raise TypeError
        index, _, count = position["shard"].partition("/")
        if not (_is_number(index) and _is_number(count) and int(index) < int(count)):
            raise TypeError
    except (KeyError, TypeError, AttributeError):
        raise invalid(KIND, "it must hold owner, shard, and topics with partitions and their offsets") from None


def _is_number(text: str) -> bool:
    """Whether `text` is the number of a partition, which is below 2^31 in Kafka."""
    return text.isascii() and text.isdecimal() and len(text) <= 10
