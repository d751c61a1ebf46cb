"""A partition that is being read: what was fetched of it and not yet sent, and what is known of its ends."""

from __future__ import annotations

import time
from math import inf
from typing import NamedTuple

import numpy as np

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.merge import Hold
from streammoe_connectors.kafka.records import NONE, Records


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
    asked_at: float = 0.0
    """When this was asked, in monotonic seconds."""


class PartitionBuffer:
    """The fetched records of a partition that have not been sent yet.

    Args:
        partition: which one.
        offset: the first one to read.
        stop_offset: offset at which to stop, if any; not below `offset`.
    """

    def __init__(self, partition: TopicPartition, offset: int, stop_offset: int | None = None) -> None:
        self.partition = partition
        self.fetch_position = offset
        """The next offset to fetch."""
        self.seek_pending = False
        """Whether nothing has been fetched since a `seek`."""
        self.stop_offset = stop_offset
        self.end = self.stable_end = offset
        """The high watermark as far as it is known, and the last stable offset, which is behind open transactions."""
        self.known_at = time.monotonic()
        """When it was last heard of: the cluster has said where it ends, or records came."""
        self.progress_at = time.monotonic()
        """When it last made progress, or more to fetch became known where there had been none."""
        self.at_end_since: float | None = None
        """Since when (monotonic seconds) the whole log has been fetched."""
        self.was_at_end = False
        """Whether the whole log had been fetched at any time since the start, or since a `seek`."""
        self.records = NONE
        """Fetched and not yet sent, tombstones included."""
        self.n_bytes = 0
        """Size of the values in `records`."""
        self.n_held_back = 0
        """How many of `records` wait for older ones of other partitions."""
        self._ahead_until = -inf
        """Until when this partition counts as one whose timestamps are ahead of the others'."""

    @property
    def next_offset(self) -> int:
        """The next offset to send, for checkpoints."""
        if len(self.records):
            return int(self.records["offset"][0])
        return self.fetch_position if self.stop_offset is None else min(self.fetch_position, self.stop_offset)

    @property
    def reached_stop(self) -> bool:
        """Whether everything before `stop_offset` has been fetched."""
        return self.stop_offset is not None and self.fetch_position >= self.stop_offset

    @property
    def is_behind(self) -> bool:
        """Whether there is more to fetch, or an open transaction, as far as is known."""
        return self.fetch_position < self.end

    def add(self, records: Records, now: float) -> int:
        """Append fetched records in order; return the number of gaps in their offsets."""
        if self.stop_offset is not None and records["offset"][-1] >= self.stop_offset:
            records = records[: np.searchsorted(records["offset"], self.stop_offset)]
            if not len(records):
                self.advance_to(self.stop_offset, now)
                return 0
        gaps = np.count_nonzero(np.diff(records["offset"], prepend=self.fetch_position - 1) != 1)
        (records["topic"], records["partition"]), records["arrived"] = self.partition, now
        self.progress_at = self.known_at = now
        self.fetch_position = int(records["offset"][-1]) + 1
        self.seek_pending, self.at_end_since = False, None
        self.n_bytes += _size(records)
        self.records = np.concatenate([self.records, records]) if len(self.records) else records
        return int(gaps)

    def advance_to(self, offset: int, now: float) -> None:
        """Advance to this offset: before it are only markers and records that were aborted or compacted."""
        if offset > self.fetch_position:
            self.fetch_position, self.progress_at = offset, now

    def take(self, count: int) -> Records:
        """Remove and return the first `count` records."""
        taken = self.records[:count]
        self.records = self.records[count:] if count < len(self.records) else NONE
        self.n_bytes -= _size(taken)
        return taken

    def seek(self, offset: int) -> None:
        """Continue at another offset, since the next records are lost; fetched records stay."""
        self.fetch_position = self.end = self.stable_end = offset
        self.seek_pending, self.at_end_since, self.was_at_end = True, None, False
        self.progress_at = time.monotonic()

    def clear(self) -> None:
        """Discard all fetched records."""
        self.records, self.n_bytes, self.n_held_back = NONE, 0, 0

    def update_watermark(self, end: int, now: float) -> None:
        """Record the high watermark that came with the latest fetch."""
        self._raise_end(end, now)
        if self.fetch_position >= end:
            self.mark_at_end(now)

    def update(self, limits: Limits, now: float) -> None:
        """Record what the cluster says; it is older than what has been fetched since it was asked."""
        is_fresh = limits.asked_at >= self.progress_at
        self._raise_end(limits.end, now)
        self.end, self.stable_end, self.known_at = max(limits.end, self.fetch_position), limits.stable_end, now
        if self.at_end_since is None and is_fresh and self.fetch_position >= limits.stable_end:
            self.mark_at_end(now)

    def mark_at_end(self, now: float) -> None:
        """Record that the whole log has been fetched."""
        self.at_end_since, self.was_at_end = now, True

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
        count = int(np.searchsorted(self.records["arrived"], now - longest, "right"))
        if self.n_bytes > room and now < self._ahead_until:
            count = len(self.records)
        if count:
            self._ahead_until = now + longest
        return count

    def _raise_end(self, end: int, now: float) -> None:
        if not self.is_behind:
            self.progress_at = now
        self.end = max(self.end, end)


def _size(records: Records) -> int:
    return sum(map(len, filter(None, records["value"].tolist())))
