"""Committing of positions to the consumer group, and detection of other owners."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from streammoe.errors import SourceError
from streammoe.ports import Partition, Position
from streammoe_connectors.kafka.consumer import Cluster, Unanswered
from streammoe_connectors.kafka.offsets import CommittedOffset, offset_metadata, offsets_of
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_QUIET_SECONDS = 60.0
_RELEASE_MS = 1_500


class Ownership:
    """A committer of checkpointed positions with their owner, repeated regularly as a heartbeat."""

    def __init__(self, settings: ReadingSettings, owner: str, counters: Counter[str]) -> None:
        self._settings = settings
        self._owner = owner
        self._counters = counters
        self._offsets: dict[Partition, int] = {}
        self._generation = 0
        self._refresh_at = 0.0
        self._check_at = 0.0
        self._checks = 0
        self._warned_at = -_QUIET_SECONDS

    def check(self, cluster: Cluster, partitions: Sequence[Partition]) -> None:
        """Check that no other daemon reads these partitions.

        Raises:
            SourceError: another one does.
            Unanswered: the cluster did not respond.
        """
        for partition in partitions:
            committed = cluster.committed(partition)
            if committed is not None and committed[1] is not None:
                self._judge(partition, committed[1])

    def commit(self, cluster: Cluster, position: Position, generation: int, *, answers: bool) -> None:
        """Commit the position of a durable checkpoint; arguments and errors are those of `tend`."""
        self._offsets, self._generation = offsets_of(position), generation
        self._check_and_commit(cluster, answers=answers)

    def tend(self, cluster: Cluster, *, answers: bool) -> None:
        """Report failed commits and renew the heartbeat; to be called about once a second.

        Args:
            cluster: of the group.
            answers: whether the cluster responds. If not, requests would only block.

        Raises:
            SourceError: another daemon has taken over a partition.
        """
        for reason in cluster.failed_commits():
            self._counters["mirror_failed"] += 1
            if time.monotonic() - self._warned_at >= _QUIET_SECONDS:
                self._warned_at = time.monotonic()
                _LOGGER.warning(
                    "the position could not be committed to group %s (%s); reading continues, only lag tools are "
                    "misled",
                    self._settings.group,
                    reason,
                )
        if self._offsets and answers and time.monotonic() >= self._refresh_at:
            self._check_and_commit(cluster, answers=True)

    def release(self, cluster: Cluster) -> None:
        """Release the partitions, so that others can take over at once."""
        if self._offsets:
            cluster.commit(self._offsets, offset_metadata("", self._generation, time.time()), wait_ms=_RELEASE_MS)

    def _check_and_commit(self, cluster: Cluster, *, answers: bool) -> None:
        """Commit with our mark, after checking for marks of others: in all partitions at first, then in turn."""
        now = time.monotonic()
        if self._offsets and answers and now >= self._check_at:
            partitions = list(self._offsets)
            at = self._checks % len(partitions)
            try:
                self.check(cluster, partitions[at : at + 1] if self._checks else partitions)
            except Unanswered:
                self._counters["mirror_failed"] += 1
            self._checks += 1
            self._check_at = now + self._settings.owner_seconds / 3
        cluster.commit(self._offsets, offset_metadata(self._owner, self._generation, time.time()))
        self._refresh_at = now + self._settings.owner_seconds / 3

    def _judge(self, partition: Partition, mirror: CommittedOffset) -> None:
        now = time.time()
        if mirror.is_held_by_another(self._owner, now, self._settings.owner_seconds):
            raise SourceError(
                f"Kafka group {self._settings.group}: topic {partition.topic}, partition {partition.partition} is read "
                f"by another daemon ({mirror.owner}), which was alive {max(0.0, now - mirror.at):.0f} s ago; stop that "
                "one, give this one its own source.group, or let each read its own source.shard. If it has crashed, "
                f"start again in {self._settings.owner_seconds:.0f} s"
            )
