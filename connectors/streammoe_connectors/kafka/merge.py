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


def merge(times: Sequence[IntArray], holds: Sequence[bool], most: int) -> Merged:
    """Select the next records, as far as their order is certain.

    Args:
        times: for each partition the timestamps of its fetched records, in the order of the log.
        holds: for each partition whether others must wait for records after its last one.
        most: largest number of records.
    """
    nothing = Merged([0] * len(times), np.empty(0, np.int64))
    if any(hold and not own.size for own, hold in zip(times, holds, strict=True)):
        return nothing
    # No partition can contribute more, and many more may have been fetched.
    holds = [hold or own.size > most for own, hold in zip(times, holds, strict=True)]
    times = [own[:most] for own in times]
    # A record waits for earlier records of its partition with later timestamps, so merging heads is a stable sort by
    # running maxima.
    keys = [np.maximum.accumulate(own) for own in times]
    bounds = [(int(own[-1]), i) for i, (own, hold) in enumerate(zip(keys, holds, strict=True)) if hold]
    if bounds:
        bound, last = min(bounds)
        counts = [int(np.searchsorted(own, bound, "right" if i <= last else "left")) for i, own in enumerate(keys)]
    else:
        counts = [own.size for own in keys]
    if not sum(counts):
        return nothing
    order = np.argsort(np.concatenate([own[:count] for own, count in zip(keys, counts, strict=True)]), kind="stable")
    if order.size > most:
        order = order[:most]
        borders = np.cumsum([0, *counts])
        kept = np.sort(order)
        counts = np.diff(np.searchsorted(kept, borders)).tolist()
        # The remaining ones are the first of each partition; renumber them.
        order = np.searchsorted(kept, order)
    return Merged(counts, order)
