"""The order of records from several partitions: a merge by their time, as Kafka Streams does it.

Of the records at the partitions' heads the one with the smallest time comes first; of equal ones that of the first
partition. Within a partition the log's order stays, whatever the times say. What comes next depends on nothing but the
heads, so a restart between any two records goes on alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from streammoe.types import IntArray


class Merged(NamedTuple):
    """The records that are next."""

    counts: list[int]
    """How many of each partition."""
    order: IntArray
    """Which comes when: indices into what the first so many of each partition are when put one after the other."""


def merge(times: Sequence[IntArray], holds: Sequence[bool], most: int) -> Merged:
    """As many records as can be told to be next.

    Args:
        times: of each partition the times of the records that are at hand, in the log's order.
        holds: of each partition whether others must wait for what follows behind its last one.
        most: records in all.
    """
    nothing = Merged([0] * len(times), np.empty(0, np.int64))
    if any(hold and not own.size for own, hold in zip(times, holds, strict=True)):
        return nothing
    # No partition gives more than that, and there may be many at hand.
    holds = [hold or own.size > most for own, hold in zip(times, holds, strict=True)]
    times = [own[:most] for own in times]
    # Whoever stands behind a later time in its own partition waits with it: the merge of running maxima is that of
    # heads, and a stable sort.
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
        # Those that are kept are the first ones of each partition; number them anew without the others.
        order = np.searchsorted(kept, order)
    return Merged(counts, order)
