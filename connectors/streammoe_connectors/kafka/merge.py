"""Merging of records from several partitions by their timestamps, as in Kafka Streams.

Among the heads of all partitions the record with the smallest timestamp is next; among equal ones that of the first
partition. Within a partition the order of the log is kept whatever the timestamps. The next record depends only on the
heads, so a restart between any two records continues with the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streammoe.types import IntArray


class Merged(NamedTuple):
    """The next records."""

    counts: list[int]
    """Number of records from each partition."""
    order: IntArray
    """Their order: indexes into the concatenation of the first records of all partitions."""


def merge(times: Sequence[IntArray], blocking: Sequence[bool], max_records: int) -> Merged:
    """Select the next records, as far as their order is certain.

    Args:
        times: for each partition the timestamps of its fetched records, in the order of the log.
        blocking: for each partition whether others must wait for records after its last one.
        max_records: limit of their total number.
    """
    empty = Merged([0] * len(times), np.empty(0, np.int64))
    if any(blocks and not own.size for own, blocks in zip(times, blocking, strict=True)):
        return empty
    # No partition can contribute more, and many more may have been fetched.
    blocking = [blocks or own.size > max_records for own, blocks in zip(times, blocking, strict=True)]
    times = [own[:max_records] for own in times]
    # A record waits for earlier records of its partition with later timestamps, so merging heads is a stable sort by
    # running maxima.
    keys = [np.maximum.accumulate(own) for own in times]
    bounds = [(int(own[-1]), i) for i, (own, blocks) in enumerate(zip(keys, blocking, strict=True)) if blocks]
    if bounds:
        bound, last = min(bounds)
        counts = [int(np.searchsorted(own, bound, "right" if i <= last else "left")) for i, own in enumerate(keys)]
    else:
        counts = [own.size for own in keys]
    if not sum(counts):
        return empty
    order = np.argsort(np.concatenate([own[:count] for own, count in zip(keys, counts, strict=True)]), kind="stable")
    if order.size > max_records:
        order = order[:max_records]
        boundaries = np.cumsum([0, *counts])
        selected = np.sort(order)
        counts = np.diff(np.searchsorted(selected, boundaries)).tolist()
        # The remaining ones are the first of each partition; renumber them.
        order = np.searchsorted(selected, order)
    return Merged(counts, order)
