"""Keeps the mirror of the position in the consumer group, and sees that nobody else does."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence

from streammoe.errors import SourceError
from streammoe.ports import Partition, Position
from streammoe_connectors.kafka.cluster import Cluster, Unanswered
from streammoe_connectors.kafka.offsets import CommittedOffset, offset_metadata, offsets_of
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_QUIET_SECONDS = 60.0
_RELEASE_MS = 1_500


class Ownership:
    """Commits what checkpoints hold, marked with their owner, and keeps the marks fresh.

    Args:
        settings: of the reading.
        owner: whose checkpoints they are.
        counters: where failures are counted.
    """

    def __init__(self, settings: ReadingSettings, owner: str, counters: Counter[str]) -> None:
        self._settings = settings
        self._owner = owner
        self._counters = counters
        self._offsets: dict[Partition, int] = {}
        self._generation = 0
        self._refresh_at = 0.0
        self._look_at = 0.0
        self._looked = 0
        self._complained_at = -_QUIET_SECONDS

    def check(self, cluster: Cluster, partitions: Sequence[Partition]) -> None:
        """See that nobody else reads these partitions.

        Raises:
            SourceError: somebody does.
            Unanswered: the cluster must be asked again.
        """
        for partition in partitions:
            committed = cluster.committed(partition)
            if committed is not None and committed[1] is not None:
                self._judge(partition, committed[1])

    def commit(self, cluster: Cluster, position: Position, generation: int, *, answers: bool) -> None:
        """A checkpoint of this generation holds `position`, durably.

        Args:
            cluster: where the group is.
            position: what to commit.
            generation: of the checkpoint.
            answers: see `tend`.

        Raises:
            SourceError: somebody else has taken a partition.
        """
        self._offsets, self._generation = offsets_of(position), generation
        self._look_and_write(cluster, answers=answers)

    def tend(self, cluster: Cluster, *, answers: bool) -> None:
        """To be called about once a second.

        Args:
            cluster: where the group is.
            answers: whether it does. If not, nothing is asked, which would only be waited for.

        Raises:
            SourceError: somebody else has taken a partition.
        """
        for reason in cluster.failed_commits():
            self._counters["mirror_failed"] += 1
            if time.monotonic() - self._complained_at >= _QUIET_SECONDS:
                self._complained_at = time.monotonic()
                _LOGGER.warning(
                    "the position could not be shown in group %s (%s); reading goes on, only lag tools are misled",
                    self._settings.group,
                    reason,
                )
        if self._offsets and answers and time.monotonic() >= self._refresh_at:
            self._look_and_write(cluster, answers=True)

    def release(self, cluster: Cluster) -> None:
        """Let others take over at once."""
        if self._offsets:
            cluster.commit(self._offsets, offset_metadata("", self._generation, time.time()), wait_ms=_RELEASE_MS)

    def _look_and_write(self, cluster: Cluster, *, answers: bool) -> None:
        """Write our mark, and see before that whether another one's has taken its place, all at first, then in turn."""
        now = time.monotonic()
        if self._offsets and answers and now >= self._look_at:
            partitions = list(self._offsets)
            at = self._looked % len(partitions)
            try:
                self.check(cluster, partitions[at : at + 1] if self._looked else partitions)
            except Unanswered:
                self._counters["mirror_failed"] += 1
            self._looked += 1
            self._look_at = now + self._settings.owner_seconds / 3
        cluster.commit(self._offsets, offset_metadata(self._owner, self._generation, time.time()))
        self._refresh_at = now + self._settings.owner_seconds / 3

    def _judge(self, partition: Partition, mirror: CommittedOffset) -> None:
        now = time.time()
        if mirror.is_held_by_another(self._owner, now, self._settings.owner_seconds):
            raise SourceError(
                f"Kafka group {self._settings.group}: topic {partition.topic}, partition {partition.partition} is read "
                f"by another daemon ({mirror.owner}), which gave a sign of life {max(0.0, now - mirror.at):.0f} s ago; "
                "stop that one, give this one a source.group of its own, or let each read its own source.shard. If it "
                f"has crashed, start again in {self._settings.owner_seconds:.0f} s"
            )
