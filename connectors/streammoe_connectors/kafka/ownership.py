"""Commits of positions to the consumer group, and detection of other daemons that read the same partitions."""

from __future__ import annotations

import logging
import os
import time
from collections import Counter, deque
from collections.abc import Mapping

from streammoe.errors import SourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.consumer import AssignedConsumer, ClusterUnavailableError
from streammoe_connectors.kafka.offsets import OffsetMetadata, offsets_of
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_LOG_INTERVAL_SECONDS = 60.0
_RELEASE_TIMEOUT_MS = 5_000


class Ownership:
    """Commits of checkpointed positions that name their owner, repeated as a heartbeat.

    What a mark of somebody else means depends on clocks only while it is recent; one whose clock is ahead, and one of
    the same owner, count if they change while one looks.
    """

    def __init__(self, settings: ReadingSettings, owner: str, counters: Counter[str]) -> None:
        self._settings = settings
        self._owner = owner
        self._counters = counters
        self._offsets: dict[TopicPartition, int] = {}
        self._checkpoint_generation = 0
        self._written: deque[OffsetMetadata] = deque(maxlen=1_000)
        """Marks of this run."""
        self._seen: dict[TopicPartition, tuple[OffsetMetadata | None, float]] = {}
        """The mark of each partition at the latest look, and since when (monotonic seconds) it has been that."""
        self._parent = os.getppid()
        self._quiet_until = 0.0
        """Until when nothing is committed, so that a twin which reads the same checkpoint does not notice this one."""
        self._next_commit_at = 0.0
        self._next_check_at = 0.0
        self._n_checks = 0

    def check(self, marks: Mapping[TopicPartition, OffsetMetadata | None]) -> bool:
        """Return whether these partitions may be read; if not, it has to be asked again whether a mark has changed.

        Raises:
            SourceError: another daemon reads one of them.
        """
        free = [self._is_free(partition, mark) for partition, mark in marks.items()]
        return all(free)

    def note(self, position: Position, checkpoint_generation: int) -> None:
        """Note the position of a durable checkpoint, to be committed with the next heartbeat."""
        self._offsets, self._checkpoint_generation = offsets_of(position), checkpoint_generation
        self._next_commit_at = 0.0

    def heartbeat(self, consumer: AssignedConsumer) -> None:
        """Log failed commits, and commit what is new or was committed a while ago, after looking for other owners.

        Raises:
            SourceError: another daemon has taken over a partition.
        """
        while consumer.failed_commits:
            reason = consumer.failed_commits.popleft()
            self._counters["mirror_failed"] += 1
            _LOGGER.warning(
                "the position could not be committed to group %s (%s); reading continues, but tools that show the "
                "group's lag see an old position",
                self._settings.group,
                reason,
                extra={"interval": _LOG_INTERVAL_SECONDS},
            )
        now, interval = time.monotonic(), self._settings.owner_seconds / 3
        if not self._offsets or now < self._next_commit_at:
            return
        if now >= self._next_check_at:
            partitions = list(self._offsets)
            if self._written:  # one at a time, since clients ask for each by itself
                index = self._n_checks % len(partitions)
                partitions = partitions[index : index + 1]
            try:
                found = consumer.committed(partitions)
                self.check({partition: mark for partition, (_, mark) in found.items()})
            except ClusterUnavailableError:
                self._counters["mirror_failed"] += 1
            self._n_checks, self._next_check_at = self._n_checks + 1, now + interval
        self._next_commit_at = now + interval
        # The daemon may have been killed meanwhile: to its next run a later mark would be that of a twin.
        if now >= self._quiet_until and os.getppid() == self._parent:
            self._written.append(self._mark(self._owner))
            consumer.commit(self._offsets, self._written[-1].encode())

    def release(self, consumer: AssignedConsumer) -> None:
        """Release the partitions, so that others can take over at once where this daemon has ended."""
        if not self._offsets or time.monotonic() < self._quiet_until:
            return
        consumer.failed_commits.clear()
        consumer.commit(self._offsets, self._mark("").encode(), wait_ms=_RELEASE_TIMEOUT_MS)
        for reason in consumer.failed_commits:
            _LOGGER.warning(
                "the last position could not be committed to group %s (%s): daemons that begin with start = "
                '"committed" would learn some events again; start this one once more, and stop it',
                self._settings.group,
                reason,
            )

    def _mark(self, owner: str) -> OffsetMetadata:
        at = time.time()  # noqa: TID251 - as other machines see it
        return OffsetMetadata(owner, round(at, 3), self._checkpoint_generation)

    def _is_free(self, partition: TopicPartition, mark: OffsetMetadata | None) -> bool:
        now = time.monotonic()
        age = 0.0 if mark is None else time.time() - mark.committed_at  # noqa: TID251 - of another machine
        before, since = self._seen.get(partition, (mark, now))
        has_changed = before != mark
        self._seen[partition] = mark, now if has_changed else since
        longest = self._settings.owner_seconds
        if mark is None or not mark.owner or mark in self._written or (age >= longest and not has_changed):
            return True
        is_own = mark.owner == self._owner
        if is_own and not has_changed:
            # A daemon that was killed has left it, or one that runs with a copy of this folder, which will renew it.
            self._quiet_until = since + longest
            return True
        if is_own or age >= 0 or has_changed:
            who = f"another daemon ({mark.owner})"
            advice = (
                "give this one its own source.group, or let each read its own source.shard. If it has crashed, start "
                f"again in {longest:.0f} s"
            )
            if is_own:
                who = "another daemon with a copy of this checkpoint folder"
                advice = "or start this one with --fresh and a source.group of its own"
            raise SourceError(
                f"Kafka group {self._settings.group}: topic {partition.topic}, partition {partition.partition} is read "
                f"by {who}, which was alive {max(0.0, age):.0f} s ago, at generation {mark.checkpoint_generation} of "
                f"its checkpoints; stop that one, {advice}"
            )
        if now == since:
            _LOGGER.warning(
                "group %s: the mark of another daemon (%s) on topic %s, partition %d is %.0f s ahead of this clock; "
                "waiting %g s to see whether it is renewed. Compare the clocks",
                self._settings.group,
                mark.owner,
                *partition,
                -age,
                longest,
            )
        return now - since >= longest
