"""The next records of all partitions in their order, and how much of each is fetched ahead."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

import numpy as np

from streammoe.text import some_of
from streammoe_connectors.kafka.merge import Hold, merge
from streammoe_connectors.kafka.partitions import PartitionBuffer
from streammoe_connectors.kafka.records import Records
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_EARLY_LOG_INTERVAL_SECONDS = 600.0
"""Shortest time between two warnings of records that are passed although older ones may still come."""
_UNSURE_SECONDS = 0.05
"""Time without records after which a partition is asked whether there are any; open transactions end it earlier than
the high watermark, which is all that fetches tell."""


class Order:
    """Takes records from buffers in the order of their times."""

    def __init__(self, settings: ReadingSettings, counters: Counter[str]) -> None:
        self._settings = settings
        self._counters = counters
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
        room = settings.buffer_bytes / len(buffers)
        overdue = [buffer.count_overdue(now, settings.order_wait_ms / 1000, room) for buffer in buffers]
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
            _LOGGER.warning(
                "records of %s have waited %g s for older ones of other partitions, and are learned before those: "
                "their timestamps are ahead of the others', or another partition is stalled. Compare the clocks of the "
                "producers, or set message.timestamp.type=LogAppendTime; source.order_wait_ms is how long records wait",
                some_of(
                    (f"topic {topic}, partition {number}" for topic, number in (b.partition for b in overdue)), str
                ),
                self._settings.order_wait_ms / 1000,
                extra={"interval": _EARLY_LOG_INTERVAL_SECONDS},
            )
