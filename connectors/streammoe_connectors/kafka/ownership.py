"""Commits of positions to the consumer group, and detection of other owners."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from streammoe.errors import SourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.consumer import AssignedConsumer, ClusterUnavailableError
from streammoe_connectors.kafka.offsets import OffsetMetadata, offsets_of
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_LOG_INTERVAL_SECONDS = 60.0
_RELEASE_TIMEOUT_MS = 1_500


class Ownership:
    """Commits of checkpointed positions that name their owner, repeated as a heartbeat."""

    def __init__(self, settings: ReadingSettings, owner: str, counters: Counter[str]) -> None:
        self._settings = settings
        self._owner = owner
        self._counters = counters
        self._offsets: dict[TopicPartition, int] = {}
        self._checkpoint_generation = 0
        self._next_commit_at = 0.0
        self._next_check_at = 0.0
        self._n_checks = 0
        self._last_warning_at = -_LOG_INTERVAL_SECONDS

    def check(self, consumer: AssignedConsumer, partitions: Sequence[TopicPartition]) -> None:
        """Check that no other daemon reads these partitions.

        Raises:
            SourceError: another daemon reads one of them.
            ClusterUnavailableError: the cluster did not respond.
        """
        for partition in partitions:
            committed = consumer.committed(partition)
            if committed is not None and committed[1] is not None:
                self._reject_other_owner(partition, committed[1])

    def commit(
        self, consumer: AssignedConsumer, position: Position, checkpoint_generation: int, *, is_connected: bool
    ) -> None:
        """Commit the position of a durable checkpoint; arguments and errors are those of `heartbeat`."""
        self._offsets, self._checkpoint_generation = offsets_of(position), checkpoint_generation
        self._check_and_commit(consumer, is_connected=is_connected)

    def heartbeat(self, consumer: AssignedConsumer, *, is_connected: bool) -> None:
        """Log failed commits and renew the heartbeat; called about once a second.

        Args:
            consumer: the consumer of this group.
            is_connected: whether the cluster responds. If not, requests would only block.

        Raises:
            SourceError: another daemon has taken over a partition.
        """
        for reason in consumer.failed_commits():
            self._counters["mirror_failed"] += 1
            if time.monotonic() - self._last_warning_at >= _LOG_INTERVAL_SECONDS:
                self._last_warning_at = time.monotonic()
                _LOGGER.warning(
                    "the position could not be committed to group %s (%s); reading continues, but tools that show the "
                    "group's lag see an old position",
                    self._settings.group,
                    reason,
                )
        if self._offsets and is_connected and time.monotonic() >= self._next_commit_at:
            self._check_and_commit(consumer, is_connected=True)

    def release(self, consumer: AssignedConsumer) -> None:
        """Release the partitions, so that others can take over at once."""
        if self._offsets:
            consumer.commit(self._offsets, self._metadata(owner=""), wait_ms=_RELEASE_TIMEOUT_MS)

    def _check_and_commit(self, consumer: AssignedConsumer, *, is_connected: bool) -> None:
        """Commit, after checking for other owners: first in all partitions, then in one at a time."""
        now = time.monotonic()
        if self._offsets and is_connected and now >= self._next_check_at:
            partitions = list(self._offsets)
            index = self._n_checks % len(partitions)
            try:
                self.check(consumer, partitions[index : index + 1] if self._n_checks else partitions)
            except ClusterUnavailableError:
                self._counters["mirror_failed"] += 1
            self._n_checks += 1
            self._next_check_at = now + self._settings.owner_seconds / 3
        consumer.commit(self._offsets, self._metadata(self._owner))
        self._next_commit_at = now + self._settings.owner_seconds / 3

    def _metadata(self, owner: str) -> str:
        return OffsetMetadata(owner, time.time(), self._checkpoint_generation).encode()

    def _reject_other_owner(self, partition: TopicPartition, metadata: OffsetMetadata) -> None:
        now = time.time()
        if metadata.is_held_by_another(self._owner, now, self._settings.owner_seconds):
            raise SourceError(
                f"Kafka group {self._settings.group}: topic {partition.topic}, partition {partition.partition} is read "
                f"by another daemon ({metadata.owner}), which was alive {max(0.0, now - metadata.committed_at):.0f} s "
                "ago; stop that one, give this one its own source.group, or let each read its own source.shard. If it "
                f"has crashed, start again in {self._settings.owner_seconds:.0f} s"
            )
