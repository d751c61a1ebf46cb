"""The partitions to read, and the offset from which each is read.

Reading of a partition begins once its first and end offsets are known; until then the others are read without it, and
positions hold the offset that an earlier run has left. If its next records are gone, it is settled again in that way.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from streammoe.errors import SourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.contract import TopicDescription
from streammoe_connectors.kafka.order import Limits, PartitionBuffer
from streammoe_connectors.kafka.position import KIND, check_shard, offsets_left, offsets_of
from streammoe_connectors.kafka.settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")
_MISSING_RESPONSES = 4
"""Consecutive descriptions without a topic after which it counts as missing; brokers may not know a new one yet."""
Committed = Mapping[TopicPartition, tuple[int, object]]
"""Offsets that the group has committed, with their metadata."""


class Assignment:
    """Partitions that a daemon reads, and buffers for those that it has started to read."""

    def __init__(
        self, settings: ReadingSettings, position: Position | None, owner: str, counters: Counter[str]
    ) -> None:
        self._settings = settings
        self._owner = owner
        self._counters = counters
        self._saved: Position = {"topics": {}, "shard": settings.shard} if position is None else position
        check_shard(settings, self._saved)
        self._left = offsets_left(settings, self._saved)  # of partitions no longer read, by topic
        self.buffers: dict[TopicPartition, PartitionBuffer] = {}
        """By partition, in order, for those that it has started to read."""
        self.waiting: set[TopicPartition] = set()
        """Partitions that it has not started to read."""
        self.lost: dict[TopicPartition, bool] = {}
        """Partitions whose next offset is gone, and whether their topic was recreated."""
        self._described: dict[str, TopicDescription] = {}
        self._ids: dict[str, str | None] = {topic: saved["id"] for topic, saved in self._saved["topics"].items()}
        """The topic id to which the offsets in positions belong, by the name of the topic; None if unknown."""
        found = offsets_of(self._saved)
        self._offsets = {tp: at for tp, at in found.items() if settings.reads_partition(*tp)}
        """Offsets from which to resume the partitions that it has not started to read."""
        self._at_start: set[TopicPartition] = set()  # partitions when all topics were first described
        self.is_known = False
        """Whether all topics have been described."""
        self._n_missing = 0
        self.gone: set[str] = set()
        """Topics that were read and are missing."""
        if unread := sorted(f"{topic}/{number}" for topic, number in found.keys() - self._offsets.keys()):
            _LOGGER.warning(
                "no longer read, according to source.topics and source.shard: %s. Their positions are kept in case "
                "they are read again",
                ", ".join(unread),
            )

    @property
    def wanted(self) -> set[TopicPartition]:
        """Partitions whose first and end offsets are needed."""
        return self.waiting | self.lost.keys()

    @property
    def finished(self) -> bool:
        """Whether everything before the stop offsets was taken from the buffers."""
        return not self.waiting and all(b.reached_stop and not len(b.records) for b in self.buffers.values())

    def see(self, described: Mapping[str, TopicDescription]) -> bool:
        """Compare what the cluster says of the topics with what is known of them; return whether all were found."""
        settings = self._settings
        topics = set(settings.topics or ()) or {*described, *(topic for topic in self._ids if settings.reads(topic))}
        missing = ", ".join(sorted(topic for topic in topics if topic not in described))
        if missing or not topics:
            self._n_missing += 1
            if self._n_missing < _MISSING_RESPONSES or (self.is_known and self._n_missing > _MISSING_RESPONSES):
                return False
            self._report_missing(missing, any_found=bool(described))
            if self.is_known:
                self.gone = topics - described.keys()
                return False
        self._n_missing = 0
        self.gone = set()
        self._described = {topic: described[topic] for topic in sorted(topics) if topic in described}
        if not self.is_known:
            self._drop(tp for tp in self._offsets if tp.topic not in self._described)
            self._ids = {topic: self._ids.get(topic) for topic in self._described}
        for topic, now in self._described.items():
            self.see_id(topic, now.id)
            found = {TopicPartition(topic, number) for number in now.leaders if settings.reads_partition(topic, number)}
            if not self.is_known or self._is_recreated(topic):
                self._drop(tp for tp in {*self._offsets, *self.buffers} - found if tp.topic == topic)
            if not self._is_recreated(topic):
                self._ids[topic] = now.id or self._ids.get(topic)
            if not self.is_known or settings.until == "never":
                self.waiting |= found - self.buffers.keys()
        if not self.is_known:
            self._at_start, self.is_known = set(self.waiting), True
        return True

    def see_id(self, topic: str, topic_id: str | None) -> None:
        """Notice that a topic was deleted and recreated, if it has another id than before."""
        if _differ(self._ids.get(topic), topic_id):
            self.lost |= {partition: True for partition in self.buffers if partition.topic == topic}

    def settle(self, limits: Mapping[TopicPartition, Limits], committed: Committed) -> list[TopicPartition]:
        """Begin waiting partitions, and reset the offsets of lost ones, as far as limits are known.

        All partitions of a topic that was recreated are settled together, since a position cannot hold offsets of two
        topics. So are those of a topic without a position, unless it is read from its first records: what the first
        start decides must be in a checkpoint, so that no later start decides otherwise.

        Args:
            limits: first and end offsets of `wanted` partitions.
            committed: offsets of the group, for partitions that begin there.

        Returns:
            The partitions begun or reset.
        """
        recreated = {topic for topic in self._described if self._is_recreated(topic)}
        unseen = {tp.topic for tp, is_recreated in self.lost.items() if is_recreated} - recreated
        together = recreated | self._undecided()
        incomplete = unseen | {tp.topic for tp in self.wanted - limits.keys() if tp.topic in together}
        settled = sorted(tp for tp in self.wanted & limits.keys() if tp.topic not in incomplete)
        for partition in settled:
            if partition in self.lost:
                self._go_on_elsewhere(self.buffers[partition], limits[partition], recreated=self.lost.pop(partition))
            else:
                self._begin(partition, limits[partition], committed)
        self.waiting.difference_update(settled)
        self._ids |= {topic: self._described[topic].id for topic in recreated - incomplete}
        self.buffers = dict(sorted(self.buffers.items()))
        return settled

    def position(self) -> Position:
        """Return the position for a checkpoint."""
        settings, undecided = self._settings, self._undecided()
        topics: dict[str, Any] = {
            topic: {"id": self._ids.get(topic), "partitions": {}} for topic in self._described if topic not in undecided
        }
        offsets = self._offsets | {tp: buffer.next_offset for tp, buffer in self.buffers.items()}
        for (topic, number), offset in sorted(offsets.items()):
            topics[topic]["partitions"][str(number)] = offset
        return {
            "kind": KIND,
            "group": settings.group,
            "owner": self._owner,
            "shard": settings.shard,
            **({"pattern": settings.topics_pattern} if settings.topics_pattern is not None else {}),
            "topics": topics,
            **({"left": self._left} if self._left else {}),
        }

    def _undecided(self) -> set[str]:
        """Return the topics whose initial offsets are not decided yet; none if they begin at the first records."""
        if self._settings.start == "earliest":
            return set()
        return {topic for topic, _ in self.waiting & self._at_start if not self._known(topic)}

    def _known(self, topic: str) -> list[Any]:
        """Return what earlier runs have left of a topic."""
        return [topics[topic] for topics in (self._saved["topics"], self._saved.get("left", {})) if topic in topics]

    def _is_recreated(self, topic: str) -> bool:
        return _differ(self._ids.get(topic), self._described[topic].id)

    def _begin(self, partition: TopicPartition, limits: Limits, committed: Committed) -> None:
        offset = self._first_offset(partition, limits, committed)
        stop = max(limits.stable_end, offset) if self._settings.until == "end" else None
        buffer = self.buffers[partition] = PartitionBuffer(partition, offset, stop)
        buffer.end, buffer.stable_end = limits.end, limits.stable_end
        self._offsets.pop(partition, None)

    def _first_offset(self, partition: TopicPartition, limits: Limits, committed: Committed) -> int:
        topic, number, pattern = partition.topic, str(partition.partition), self._settings.topics_pattern
        known = self._known(topic)
        saved = next((saved for saved in known if number in saved["partitions"]), None)
        if saved is not None:
            wanted, recreated = int(saved["partitions"][number]), _differ(saved["id"], self._described[topic].id)
            if recreated or wanted < limits.first:
                # The first fetch detects an offset beyond the end; here it cannot be told from an open transaction.
                return self._reset(partition, wanted, limits, recreated=recreated)
            return wanted
        was_there = partition in self._at_start
        if was_there and not known and (pattern is None or self._saved.get("pattern") != pattern):
            return self._initial_offset(partition, limits, committed)
        # It did not exist when the position was taken, or always belonged to another shard.
        self._counters["partition_discovered"] += 1
        _LOGGER.info("topic %s, partition %d is new, and read from its first record", *partition)
        return limits.first

    def _initial_offset(self, partition: TopicPartition, limits: Limits, committed: Committed) -> int:
        """Return the offset at which a partition without a position starts."""
        settings = self._settings
        if settings.start_timestamp_ms is not None:
            return limits.at_time
        if settings.start == "committed" and partition in committed:
            return committed[partition][0]
        return limits.stable_end if settings.start == "latest" else limits.first

    def _go_on_elsewhere(self, buffer: PartitionBuffer, limits: Limits, *, recreated: bool) -> None:
        if buffer.seek_pending and not recreated and limits.first <= buffer.fetch_position <= limits.stable_end:
            return  # the client has reported the previous offset late
        # A position cannot hold offsets of two topics, so records fetched from the old one are discarded.
        wanted = buffer.next_offset if recreated else buffer.fetch_position
        offset = self._reset(buffer.partition, wanted, limits, recreated=recreated)
        buffer.seek(offset, discard=recreated)
        if buffer.stop_offset is not None:
            buffer.stop_offset = max(offset, limits.stable_end)

    def _drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that are gone because their topic was deleted, or recreated with fewer partitions."""
        gone = {
            tp: self.buffers[tp].next_offset if tp in self.buffers else self._offsets[tp] for tp in list(partitions)
        }
        if gone:
            names = ", ".join(
                f"{topic}/{number} (offset {at} was next)" for (topic, number), at in sorted(gone.items())
            )
            what = f"Kafka no longer has {names}: the topic was deleted, or recreated with fewer partitions"
            self._report_lost(what, "with the others")
        for partition in gone:
            for known in (self.buffers, self.lost, self._offsets):
                known.pop(partition, None)

    def _report_missing(self, topics: str, *, any_found: bool) -> None:
        """Raise `SourceError` for topics that are missing, unless the settings say to go on without them."""
        settings = self._settings
        if self.is_known:
            self._report_lost(f"Kafka no longer has topic {topics}", "with a new one of that name")
        elif settings.topics is not None:
            raise SourceError(
                f"Kafka has no topic {topics}; create it, correct source.topics, or allow this user to see it"
            )
        elif not any_found:
            raise SourceError(
                "Kafka has no topic whose whole name matches source.topics_pattern = "
                f"{settings.topics_pattern!r}; create one, correct the pattern, or allow this user to see them"
            )

    def _reset(self, partition: TopicPartition, wanted: int, limits: Limits, *, recreated: bool) -> int:
        """Return the offset at which to continue in a partition that no longer holds the wanted one."""
        first, end, on_lost = limits.first, limits.stable_end, self._settings.on_lost
        contents = f"it holds {first} to {end - 1}" if end > first else f"it is empty, and continues at {end}"
        what = "was recreated, and offset %d was next in the previous one" if recreated else "no longer has offset %d"
        what = f"Kafka topic {partition.topic}, partition {partition.partition} {what % wanted}; {contents}"
        chosen = first if on_lost == "earliest" else end
        self._report_lost(what, "there" if on_lost == "fail" else f"at {chosen}")
        self._counters["offset_reset"] += 1
        return chosen

    def _report_lost(self, what: str, go_on: str) -> None:
        """Report that the next records are lost, which is a `SourceError` if ``on_lost`` is ``fail``."""
        if self._settings.on_lost == "fail":
            raise SourceError(
                f'{what}. The next records are lost. Set source.on_lost = "earliest" or "latest" to continue {go_on}, '
                "or start over with --fresh"
            )
        _LOGGER.warning("%s. Continuing %s, according to source.on_lost", what, go_on, extra={"event": "records_lost"})


def _differ(one: str | None, other: str | None) -> bool:
    """Whether two ids of a topic, of which either may be unknown, are those of different topics."""
    return None not in {one, other} and one != other
