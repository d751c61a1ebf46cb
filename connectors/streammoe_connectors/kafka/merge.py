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


class _Bound(NamedTuple):
    """The last record that is passed, by its time and partition; records of the same time are in that order."""

    time: int
    partition: int

    def counts(self, keys: Sequence[IntArray]) -> list[int]:
        """Return how many records of each partition are not behind it."""
        return [
            int(np.searchsorted(own, self.time, "right" if i <= self.partition else "left"))
            for i, own in enumerate(keys)
        ]


_BEFORE_ALL, _AFTER_ALL = _Bound(-(1 << 63), -1), _Bound((1 << 63) - 1, 1 << 31)


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
    ends = [_Bound(int(own[-1]), i) if own.size else _BEFORE_ALL for i, own in enumerate(keys)]
    certain = min((end for end, hold in zip(ends, holds, strict=True) if hold is not Hold.NONE), default=_AFTER_ALL)
    unbounded = min((end for end, hold in zip(ends, holds, strict=True) if hold is Hold.UNBOUNDED), default=_AFTER_ALL)
    late = [
        _Bound(int(own[min(count, own.size) - 1]), i)
        for i, (own, count) in enumerate(zip(keys, overdue, strict=True))
        if count
    ]
    bound = min(max([certain, *late]), unbounded)
    counts = bound.counts(keys)
    n_early = sum(counts) - sum(certain.counts(keys)) if bound > certain else 0
    if not sum(counts):
        return Merged(counts, np.empty(0, np.int64), 0)
    order = np.argsort(np.concatenate([own[:count] for own, count in zip(keys, counts, strict=True)]), kind="stable")
    if order.size > max_records:
        n = order.size
        order = order[:max_records]
        boundaries = np.cumsum([0, *counts])
        selected = np.sort(order)
        counts = np.diff(np.searchsorted(selected, boundaries)).tolist()
        # The remaining ones are the first of each partition; renumber them.
        order = np.searchsorted(selected, order)
        n_early = max(0, order.size - (n - n_early))
    return Merged(counts, order, n_early)
