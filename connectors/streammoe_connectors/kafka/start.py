"""Offsets to start reading from: those of a checkpoint, or according to the settings."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streammoe.errors import SourceError
from streammoe.ports import Position, TopicPartition
from streammoe_connectors.kafka.consumer import AssignedConsumer
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")


def topics_of(consumer: AssignedConsumer, settings: ReadingSettings, known: Iterable[str]) -> list[str]:
    """Return the topics to read, whether they exist or not: those named, or all that match and those known before.

    Args:
        consumer: whose last response tells of the topics that exist.
        settings: of the source.
        known: topics that were read before.
    """
    if settings.topics is not None:
        return sorted(settings.topics)
    return sorted({topic for topic in (*consumer.topics(), *known) if settings.reads(topic)})


def partitions_of(consumer: AssignedConsumer, settings: ReadingSettings, topics: Iterable[str]) -> list[TopicPartition]:
    """Return the partitions of the shard, in the order of topics and numbers, as of the cluster's last response."""
    return [
        TopicPartition(topic, number)
        for topic in topics
        for number in consumer.partitions(topic) or ()
        if settings.is_in_shard(number)
    ]


def no_topic(settings: ReadingSettings, missing: Sequence[str]) -> str:
    """Return what to do about topics that do not exist."""
    if not missing:
        return (
            f"Kafka has no topic whose whole name matches source.topics_pattern = {settings.topics_pattern!r}; create "
            "one, correct the pattern, or allow this user to see them"
        )
    if settings.topics is None:
        return (
            f"Kafka no longer has topic {', '.join(missing)}, which the checkpoint has read. Set "
            'source.on_lost = "earliest" to continue with the others, or start over with --fresh'
        )
    return f"Kafka has no topic {', '.join(missing)}; create it, correct source.topics, or allow this user to see it"


def start_offsets(
    consumer: AssignedConsumer,
    settings: ReadingSettings,
    position: Position | None,
    partitions: Sequence[TopicPartition],
    counters: Counter[str],
) -> dict[TopicPartition, int]:
    """Return the first offset to read from each partition.

    Raises:
        SourceError: the records at a position are lost, and ``on_lost`` is ``fail``; or it is that of another shard.
        ClusterUnavailableError: the cluster did not respond.
    """
    if position is None:
        position = {"topics": {}, "shard": settings.shard}
    _check_shard(settings, position)
    known: Mapping[str, Any] = position["topics"]
    no_longer_read = sorted(
        f"{topic}/{number}"
        for topic, saved in known.items()
        for number in saved["partitions"]
        if not _is_read(settings, topic, number)
    )
    if no_longer_read:
        _LOGGER.warning(
            "no longer read, according to source.topics and source.shard: %s. Their positions are kept in case they "
            "are read again",
            ", ".join(no_longer_read),
        )
    existing = set(partitions)
    report_missing_partitions(
        settings,
        {
            partition: offset
            for partition, offset in offsets_of(position).items()
            if _is_read(settings, *partition) and partition not in existing
        },
    )
    beginnings = consumer.beginning_offsets(partitions)
    offsets: dict[TopicPartition, int] = {}
    without_position: list[TopicPartition] = []
    for partition in partitions:
        topic, number = partition.topic, str(partition.partition)
        before = [saved for saved in (known.get(topic), position.get("left", {}).get(topic)) if saved is not None]
        if not before and settings.topics_pattern is not None and position.get("pattern") == settings.topics_pattern:
            # Its topic did not exist when the position was taken.
            offsets[partition] = beginnings[partition]
            counters["partition_discovered"] += 1
            _LOGGER.info(
                "topic %s is new and matches source.topics_pattern, read from its first record", partition.topic
            )
            continue
        if not before:
            without_position.append(partition)
            continue
        saved = next((saved for saved in before if number in saved["partitions"]), before[0])
        wanted = saved["partitions"].get(number)
        topic_id = consumer.topic_id(topic)
        recreated = None not in {saved["id"], topic_id} and saved["id"] != topic_id
        if wanted is None:
            # Its topic was read before, so it is new, or always belonged to another shard.
            offsets[partition] = beginnings[partition]
            counters["partition_discovered"] += 1
            _LOGGER.info("topic %s has a new partition %d, read from its first record", *partition)
        elif recreated or wanted < beginnings[partition]:
            # An offset beyond the end is detected by the first fetch; here open transactions would look the same.
            offsets[partition] = reset_offset(consumer, settings, partition, wanted, counters, recreated=recreated)
        else:
            offsets[partition] = wanted
    offsets |= _initial_offsets(consumer, settings, without_position, beginnings)
    return offsets


def _check_shard(settings: ReadingSettings, position: Position) -> None:
    """Raise `SourceError` if a position is that of another shard of the same division."""
    shard = position["shard"]
    if shard != settings.shard and shard.partition("/")[2] == settings.shard.partition("/")[2]:
        raise SourceError(
            f"the checkpoint is that of shard {shard}, and source.shard is {settings.shard!r}: its partitions would be "
            "read from their first records, though another checkpoint has their positions. Correct source.shard or "
            "checkpoint.dir, or start over with --fresh"
        )


def unassigned_offsets(settings: ReadingSettings, position: Position | None) -> dict[str, Any]:
    """Return the positions of partitions that are no longer read, in the form of a position's topics.

    Positions include them, so that nothing is learned twice when they are read again.
    """
    unassigned: dict[str, Any] = {}
    for topics in () if position is None else (position.get("left", {}), position["topics"]):
        for topic, saved in topics.items():
            unread = {
                number: offset
                for number, offset in saved["partitions"].items()
                if not _is_read(settings, topic, number)
            }
            before = unassigned.get(topic, {"id": saved["id"], "partitions": {}})
            if before["id"] != saved["id"]:  # the topic was recreated in between
                before = {"id": saved["id"], "partitions": {}}
            if unread:
                unassigned[topic] = {**before, "partitions": {**before["partitions"], **unread}}
    return unassigned


def _is_read(settings: ReadingSettings, topic: str, number: int | str) -> bool:
    return settings.reads(topic) and settings.is_in_shard(int(number))


def report_missing_partitions(settings: ReadingSettings, offsets: Mapping[TopicPartition, int]) -> None:
    """Report partitions, with their next offsets, that are gone because their topic was recreated with fewer.

    Raises:
        SourceError: there are some, and ``on_lost`` is ``fail``.
    """
    if not offsets:
        return
    names = ", ".join(
        f"{topic}/{number} (offset {offset} was next)" for (topic, number), offset in sorted(offsets.items())
    )
    if settings.on_lost == "fail":
        raise SourceError(
            f"Kafka no longer has {names}: the topic was deleted, or recreated with fewer partitions, and the next "
            'records are lost. Set source.on_lost = "earliest" or "latest" to continue with the others, or start over '
            "with --fresh"
        )
    _LOGGER.warning(
        "no longer read, since the topic was deleted, or recreated with fewer partitions: %s. Continuing with the "
        "others, according to source.on_lost",
        names,
    )


def reset_offset(
    consumer: AssignedConsumer,
    settings: ReadingSettings,
    partition: TopicPartition,
    wanted: int,
    counters: Counter[str],
    *,
    recreated: bool = False,
) -> int:
    """Choose the offset at which to continue in a partition that no longer holds the wanted one.

    Raises:
        SourceError: ``on_lost`` is ``fail``.
        ClusterUnavailableError: the cluster did not respond.
    """
    first, end = consumer.beginning_offsets([partition])[partition], consumer.end_offsets([partition])[partition]
    contents = f"it holds {first} to {end - 1}" if end > first else f"it is empty, and continues at {end}"
    what = "was recreated, and offset %d was next in the previous one" if recreated else "no longer has offset %d"
    what %= wanted
    if settings.on_lost == "fail":
        raise SourceError(
            f"Kafka topic {partition.topic}, partition {partition.partition} {what}; {contents}. The next records are "
            'lost. Set source.on_lost = "earliest" or "latest" to continue there, or start over with --fresh'
        )
    chosen = first if settings.on_lost == "earliest" else end
    counters["offset_reset"] += 1
    _LOGGER.warning(
        "topic %s, partition %d %s; %s. Continuing at %d, according to source.on_lost",
        *partition,
        what,
        contents,
        chosen,
    )
    return chosen


def _initial_offsets(
    consumer: AssignedConsumer,
    settings: ReadingSettings,
    partitions: Sequence[TopicPartition],
    beginnings: Mapping[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets at which partitions without a position start."""
    timestamp_ms = settings.start_timestamp_ms
    if timestamp_ms is not None:
        return consumer.offsets_for_time(partitions, timestamp_ms) if partitions else {}
    if settings.start == "latest":
        return consumer.end_offsets(partitions)
    if settings.start == "committed":
        offsets = {}
        for partition in partitions:
            committed = consumer.committed(partition)
            if committed is None:
                _LOGGER.info(
                    "group %s has committed nothing of topic %s, partition %d, which is read from its first record",
                    settings.group,
                    *partition,
                )
            offsets[partition] = beginnings[partition] if committed is None else committed[0]
        return offsets
    return {partition: beginnings[partition] for partition in partitions}
