"""The next records of all partitions in their order, and how much of each is fetched ahead.

As in Kafka Streams, the record with the smallest timestamp among the heads of all partitions is next; among equal ones
that of the first partition. Within a partition the order of the log is kept whatever the timestamps. The next record
depends only on the heads, so a restart between any two records continues with the same order; unless a record has
waited too long for those of a partition whose log has been read to its end, and is passed before they arrive.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from streammoe.ports import TopicPartition
from streammoe.text import some_of
from streammoe.types import IntArray
from streammoe_connectors.kafka.contract import NONE, Records
from streammoe_connectors.kafka.link import Seldom
from streammoe_connectors.kafka.settings import ReadingSettings

_UNSURE_SECONDS = 0.05
"""Time without records after which a partition is asked whether there are any; open transactions end it earlier than
the high watermark, which is all that fetches tell."""


class Hold(Enum):
    """Whether others must wait for the records after the last one that was fetched from a partition."""

    NONE = auto()
    BOUNDED = auto()
    """As long as they are not overdue."""
    UNBOUNDED = auto()


class Limits(NamedTuple):
    """Where a partition begins and ends."""

    first: int
    stable_end: int
    """Its end, or where the first open transaction begins if the settings wait for those."""
    end: int
    """Its high watermark, which includes records of open transactions."""
    at_time: int
    """The offset of the first record from the time on at which the settings begin; the end if there is none."""
    asked_at: float = 0.0  # in monotonic seconds


class PartitionBuffer:
    """The fetched records of a partition that have not been sent yet, from an offset on, up to one at which to stop."""

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

    def seek(self, offset: int, *, discard: bool = False) -> None:
        """Continue at another offset, since the next records are lost; discard fetched records, or keep them."""
        if discard:
            self.records, self.n_bytes, self.n_held_back = NONE, 0, 0
        self.fetch_position = self.end = self.stable_end = offset
        self.seek_pending, self.at_end_since, self.was_at_end = True, None, False
        self.progress_at = time.monotonic()

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
        """Return whether others must wait for records after the last fetched one; `idle` seconds if it is at its end.

        They wait without a bound as long as it has never been at its end: the order of a backlog must depend on nothing
        but the log.
        """
        if self.reached_stop or (self.at_end_since is not None and now - self.at_end_since >= idle):
            return Hold.NONE
        return Hold.BOUNDED if self.was_at_end else Hold.UNBOUNDED

    def count_overdue(self, now: float, longest: float) -> int:
        """Return how many of the first records have waited for longer than so many seconds."""
        return int(np.searchsorted(self.records["arrived"], now - longest, "right"))

    def _raise_end(self, end: int, now: float) -> None:
        if not self.is_behind:
            self.progress_at = now
        self.end = max(self.end, end)


def _size(records: Records) -> int:
    return sum(map(len, filter(None, records["value"].tolist())))


def merge(
    times: Sequence[IntArray], holds: Sequence[Hold], overdue: Sequence[int], max_records: int
) -> tuple[list[int], IntArray, int]:
    """Select the next records, as far as their order is certain or they have waited for too long.

    Return the number from each partition; their order, as indexes into the concatenation of the first records of all
    partitions; and how many of them, the last ones, are passed although older ones may still come.

    Args:
        times: for each partition the timestamps of its fetched records, in the order of the log.
        holds: for each partition whether others must wait for records after its last one.
        overdue: for each partition how many of its first records have waited for too long.
        max_records: limit of their total number.
    """
    # No partition can contribute more, and many more may have been fetched.
    holds = [Hold.UNBOUNDED if own.size > max_records else hold for own, hold in zip(times, holds, strict=True)]
    # A record waits for earlier records of its partition with later timestamps, so merging heads is a stable sort by
    # running maxima.
    keys = [np.maximum.accumulate(own[:max_records]) for own in times]
    sizes = np.array([own.size for own in keys])
    starts = np.cumsum(sizes) - sizes
    order = np.argsort(np.concatenate(keys), kind="stable")
    place = np.empty(order.size + 1, np.int64)  # one more, so that there is one to look at
    place[order] = np.arange(order.size)

    def place_of_last(counts: IntArray) -> IntArray:
        return np.where(counts > 0, place[starts + counts - 1], -1)

    ends, is_held = place_of_last(sizes), np.array([hold is not Hold.NONE for hold in holds])
    certain = int(ends[is_held].min(initial=order.size))
    unbounded = int(ends[np.array([hold is Hold.UNBOUNDED for hold in holds])].min(initial=order.size))
    late = int(place_of_last(np.minimum(overdue, sizes)).max())
    order = order[: min(max(certain, late), unbounded) + 1][:max_records]
    partition_index = np.repeat(np.arange(sizes.size), sizes)[order]
    counts = np.bincount(partition_index, minlength=sizes.size)
    # They are the first of each partition; what remains of those before is not counted.
    order = order - (starts - (np.cumsum(counts) - counts))[partition_index]
    return counts.tolist(), order, max(0, order.size - certain - 1)


class Order:
    """Takes records from buffers in the order of their times."""

    def __init__(self, settings: ReadingSettings, counters: Counter[str]) -> None:
        self._settings = settings
        self._counters = counters
        self._passed = Seldom("passed_early", 600.0)
        self.unsure: list[PartitionBuffer] = []
        """Those that others wait for, though there may be nothing to wait for."""

    def take(self, buffers: Sequence[PartitionBuffer], now: float) -> Records | None:
        """Take the next records, as far as their order is certain; ``None`` if there are none."""
        settings = self._settings
        holds = [buffer.hold(now, settings.idle_ms / 1000) for buffer in buffers]
        has_records = any(len(buffer.records) for buffer in buffers)
        self.unsure = [
            buffer
            for buffer, hold in zip(buffers, holds, strict=True)
            if has_records and hold is not Hold.NONE and not len(buffer.records)
            if buffer.at_end_since is None and now - buffer.progress_at >= _UNSURE_SECONDS
        ]
        overdue = [buffer.count_overdue(now, settings.order_wait_ms / 1000) for buffer in buffers]
        times = [buffer.records["time"] for buffer in buffers]
        counts, order, n_early = merge(times, holds, overdue, settings.max_poll_records)
        if n_early:
            self._report_early([buffer for buffer, n in zip(buffers, overdue, strict=True) if n], n_early)
        if sum(counts) < settings.max_poll_records:
            for buffer, count in zip(buffers, counts, strict=True):
                buffer.n_held_back = len(buffer.records) - count
        if not sum(counts):
            return None
        parts = [buffer.take(count) for buffer, count in zip(buffers, counts, strict=True) if count]
        return np.concatenate(parts)[order] if len(parts) > 1 else parts[0]

    def _report_early(self, overdue: Sequence[PartitionBuffer], n_early: int) -> None:
        """Count records that are passed although older ones may still come, and warn of it now and then."""
        self._counters["passed_early"] += n_early
        if self._settings.order_wait_ms:
            self._passed.warn(
                "records of %s have waited %g s for older ones of other partitions, and are learned before those: "
                "their timestamps are ahead of the others', or another partition is stalled. Compare the clocks of the "
                "producers, or set message.timestamp.type=LogAppendTime; source.order_wait_ms is how long records wait",
                some_of(
                    (f"topic {topic}, partition {number}" for topic, number in (b.partition for b in overdue)), str
                ),
                self._settings.order_wait_ms / 1000,
            )
