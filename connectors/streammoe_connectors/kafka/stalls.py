"""Partitions that should make progress and do not."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable

from streammoe.ports import TopicPartition
from streammoe_connectors.kafka.partitions import PartitionBuffer
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")


class Stalls:
    """What is known of partitions that are held up."""

    def __init__(self, settings: ReadingSettings) -> None:
        self._settings = settings
        self.partitions: list[TopicPartition] = []
        """Those that have been held up for ``stall_seconds``, in order."""
        self._waiting_since: dict[TopicPartition, float] = {}
        self._open_transactions: dict[TopicPartition, int] = {}
        """Partitions that an open transaction has held up for so long that it was reported, and at which offset."""

    def check(
        self,
        buffers: Iterable[PartitionBuffer],
        waiting: Collection[TopicPartition],
        held_up_at: float,
        now: float,
    ) -> bool:
        """Find those that are held up, and report the ones that are new; return whether there are records to read.

        Args:
            buffers: of the partitions that are fetched.
            waiting: other partitions of which the cluster has not said yet where they begin and end.
            held_up_at: when something else last prevented all progress, in monotonic seconds.
            now: monotonic seconds.
        """
        longest = self._settings.stall_seconds
        self._waiting_since = {tp: self._waiting_since.get(tp, now) for tp in waiting}
        silent = {tp for tp, since in self._waiting_since.items() if now - max(since, held_up_at) >= longest}
        unread, transactions = set(), {}
        for buffer in buffers:
            if now - max(buffer.known_at, held_up_at) >= longest:
                silent.add(buffer.partition)
            elif buffer.is_behind and now - max(buffer.progress_at, held_up_at) >= longest:
                if buffer.stable_end > buffer.fetch_position:
                    unread.add(buffer.partition)
                else:
                    transactions[buffer.partition] = buffer.fetch_position
                    if self._open_transactions.get(buffer.partition) != buffer.fetch_position:
                        _report_open_transaction(buffer, now)
        before, self.partitions, self._open_transactions = self.partitions, sorted(silent | unread), transactions
        for found, message in (
            (silent, "no answer for %.0f s from the leader of %s, if it has one; it is tried on"),
            (unread, "no records for %.0f s from %s, although there are more to read"),
        ):
            if new := sorted(found.difference(before)):
                names = ", ".join(f"topic {topic}, partition {number}" for topic, number in new)
                _LOGGER.warning(message, longest, names)
        return bool(unread)


def _report_open_transaction(buffer: PartitionBuffer, now: float) -> None:
    (topic, number), offset = buffer.partition, buffer.fetch_position
    _LOGGER.warning(
        "topic %s, partition %d: a transaction has been open at offset %d for %.0f s, and %d records from there on "
        "wait until it ends. Find its producer by kafka-transactions.sh --bootstrap-server HOST:PORT "
        "describe-producers --topic %s --partition %d. If that is gone for good, end the transaction: the same with "
        "abort --topic %s --partition %d --start-offset %d",
        *(topic, number, offset, now - buffer.progress_at, buffer.end - offset),
        *(topic, number, topic, number, offset),
    )
