"""Merging of records from several partitions by their timestamps, as in Kafka Streams.

Among the heads of all partitions the record with the smallest timestamp is next; among equal ones that of the first
partition. Within a partition the order of the log is kept whatever the timestamps. The next record depends only on the
heads, so a restart between any two records continues with the same order; unless a record has waited too long for
those of a partition whose log has been read to its end, and is passed before they arrive.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum, auto
from typing import NamedTuple

import numpy as np

from streammoe.types import IntArray


class Merged(NamedTuple):
    """The next records."""

    counts: list[int]
    """Number of records from each partition."""
    order: IntArray
    """Their order: indexes into the concatenation of the first records of all partitions."""
    n_early: int
    """How many of them, the last ones, are passed although older ones may still come."""


class Hold(Enum):
    """Whether others must wait for the records after the last one that was fetched from a partition."""

    NONE = auto()
    BOUNDED = auto()
    """As long as they are not overdue."""
    UNBOUNDED = auto()


def merge(times: Sequence[IntArray], holds: Sequence[Hold], overdue: Sequence[int], max_records: int) -> Merged:
    """Select the next records, as far as their order is certain or they have waited for too long.

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
    return Merged(counts.tolist(), order, max(0, order.size - certain - 1))
