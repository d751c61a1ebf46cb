"""Commits of positions to the consumer group, and detection of other daemons that read the same partitions."""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Mapping

from streammoe.errors import SourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.contract import AssignedConsumer, ClientError
from streammoe_connectors.kafka.link import Seldom
from streammoe_connectors.kafka.position import OffsetMetadata, offsets_of
from streammoe_connectors.kafka.settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")


class Ownership:
    """Commits of checkpointed positions, repeated as a heartbeat, each with a mark: metadata that name the owner.

    A partition belongs to somebody else if its mark is renewed between two looks. So clocks of other machines matter
    only for a mark that seems to be old, whose renewal is not waited for.
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
        self._failed = Seldom("mirror_failed", 60.0)
        self._quiet_until = 0.0
        """Until when nothing is committed, so that a twin which reads the same checkpoint does not notice this one."""
        self._next_commit_at = 0.0
        self._next_check_at = 0.0
        self._n_checks = 0

    def check(self, marks: Mapping[TopicPartition, OffsetMetadata | None]) -> bool:
        """Return whether these partitions may be read; if not, it has to be asked again whether a mark has changed."""
        free = [self._is_free(partition, mark) for partition, mark in marks.items()]
        return all(free)

    def note(self, position: Position, checkpoint_generation: int) -> None:
        """Note the position of a durable checkpoint, to be committed with the next heartbeat."""
        self._offsets, self._checkpoint_generation = offsets_of(position), checkpoint_generation
        self._next_commit_at = 0.0

    def heartbeat(self, consumer: AssignedConsumer) -> None:
        """Log failed commits, and commit what is new or was committed a while ago, after looking for other owners."""
        while consumer.failed_commits:
            reason = consumer.failed_commits.popleft()
            self._counters["mirror_failed"] += 1
            self._failed.warn(
                "the position could not be committed to group %s (%s); reading continues, but tools that show the "
                "group's lag see an old position",
                self._settings.group,
                reason,
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
                if not self.check({partition: mark for partition, (_, mark) in found.items()}):
                    return
            except ClientError:
                self._counters["mirror_failed"] += 1
            self._n_checks, self._next_check_at = self._n_checks + 1, now + interval
        self._next_commit_at = now + interval
        if now >= self._quiet_until:
            self._written.append(self._mark(self._owner))
            consumer.commit(self._offsets, self._written[-1].encode())

    def release(self, consumer: AssignedConsumer) -> None:
        """Release the partitions, so that others can take over at once where this daemon has ended."""
        if not self._offsets or time.monotonic() < self._quiet_until:
            return
        consumer.failed_commits.clear()
        consumer.commit(self._offsets, self._mark("").encode(), wait=True)
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
        """Return whether nobody else reads a partition, as far as its mark tells by now; raise if somebody does."""
        now, longest = time.monotonic(), self._settings.owner_seconds
        before, since = self._seen.get(partition, (mark, None))
        has_changed = before != mark
        self._seen[partition] = mark, now if has_changed or since is None else since
        if mark is None or not mark.owner or mark in self._written:
            return True
        is_own, age = mark.owner == self._owner, time.time() - mark.committed_at  # noqa: TID251 - of another machine
        if has_changed:
            who = f"another daemon ({mark.owner})"
            advice = "give this one its own source.group, or let each read its own source.shard"
            if is_own:
                who = "another daemon with a copy of this checkpoint folder"
                advice = "or start this one with --fresh and a source.group of its own"
            raise SourceError(
                f"Kafka group {self._settings.group}: topic {partition.topic}, partition {partition.partition} is read "
                f"by {who}, at generation {mark.checkpoint_generation} of its checkpoints; stop that one, {advice}"
            )
        if is_own:
            # A daemon that was killed has left it, or one that runs with a copy of this folder, which will renew it.
            self._quiet_until = self._seen[partition][1] + longest
            return True
        if since is None and age < longest:
            _LOGGER.info(
                "group %s: topic %s, partition %d has the mark of another daemon (%s); waiting up to %g s to see "
                "whether that renews it",
                self._settings.group,
                *partition,
                mark.owner,
                longest,
            )
        return age >= longest or now - self._seen[partition][1] >= longest
