"""Buffers of fetched records per partition."""

from __future__ import annotations

import time
from collections import deque
from itertools import takewhile
from math import inf
from typing import NamedTuple

import numpy as np

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.merge import Hold
from streammoe_connectors.kafka.records import NONE, Records, concatenate


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
        self.end = self.stable_end = offset
        """The high watermark as far as it is known, and the last stable offset, which is behind open transactions."""
        self.end_known_at = time.monotonic()
        """When `end` was last asked for with success, or records came that tell it."""
        self.stable_end_known_at = -inf
        self.behind_since: float | None = None
        """Since when (monotonic seconds) there has been more to fetch, without any progress."""
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
        self._asked_at = -1

    def add(self, records: Records, now: float) -> int:
        """Append fetched records in order; return the number of gaps in their offsets."""
        if self.stop_offset is not None and records.offsets[-1] >= self.stop_offset:
            records = records.part(slice(int(np.searchsorted(records.offsets, self.stop_offset))))
            if not records:
                self.advance_to(self.stop_offset)
                return 0
        gaps = int(records.offsets[0] != self.fetch_position) + int(np.count_nonzero(np.diff(records.offsets) != 1))
        self.fetch_position = int(records.offsets[-1]) + 1
        self.behind_since = None
        self.seek_pending = False
        self.at_end_since = None
        self.received_at = self.end_known_at = now
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
        if offset > self.fetch_position:
            self.fetch_position = offset
            self.behind_since = None
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
        self.at_end_since = self.behind_since = None
        self.was_at_end = False
        self.end = self.stable_end = offset
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

    def update_watermark(self, end: int, now: float) -> None:
        """Record the high watermark that came with the latest fetch."""
        self.end = max(self.end, end)
        if self.fetch_position < end:
            self.behind_since = self.behind_since or now
        elif self.at_end_since is None:
            self.mark_at_end(now)
            self.received_at = now

    def update_end(self, end: int, now: float) -> None:
        """Record the high watermark that was asked for; it may be older than what has been fetched since."""
        self.end, self.end_known_at = max(end, self.fetch_position), now
        if self.fetch_position < end:
            self.behind_since = self.behind_since or now

    def question(self) -> TopicPartition:
        """Return the partition, to ask for its last stable offset."""
        self._asked_at = self.fetch_position
        return self.partition

    def update_stable_end(self, end: int, now: float) -> None:
        """Record the last stable offset, which is no end if more was fetched since the `question`."""
        self.stable_end, self.stable_end_known_at = end, now
        if self.at_end_since is None and self._asked_at == self.fetch_position >= end:
            self.mark_at_end(now)

    def mark_at_end(self, now: float) -> None:
        """Record that the whole log has been fetched."""
        self.at_end_since = now
        self.was_at_end = True
        self.behind_since = None if self.fetch_position >= self.end else self.behind_since

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
