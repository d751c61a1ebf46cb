"""Offsets to start reading from: those of a checkpoint, or according to the settings."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from streammoe.errors import SourceError
from streammoe.ports import Partition, Position
from streammoe_connectors.kafka.consumer import Cluster
from streammoe_connectors.kafka.offsets import offsets_of
from streammoe_connectors.kafka.source_settings import ReadingSettings

_LOGGER = logging.getLogger("streammoe.source")


def partitions_of(cluster: Cluster, settings: ReadingSettings) -> list[Partition]:
    """Return the partitions of the shard, in the order of topics and numbers, as of the cluster's last response."""
    return [
        Partition(topic, number)
        for topic in sorted(settings.topics)
        for number in cluster.partitions(topic) or ()
        if settings.is_ours(number)
    ]


def start_offsets(
    cluster: Cluster,
    settings: ReadingSettings,
    position: Position | None,
    partitions: Sequence[Partition],
    counters: Counter[str],
) -> dict[Partition, int]:
    """Return the first offset to read from each partition.

    Raises:
        SourceError: the records at a position are lost, and ``on_lost`` is ``fail``.
        Unanswered: the cluster did not respond.
    """
    if position is None:
        position = {"topics": {}}
    known: Mapping[str, Any] = position["topics"]
    gone = sorted(
        f"{topic}/{number}"
        for topic, held in known.items()
        for number in held["partitions"]
        if not _is_read(settings, topic, number)
    )
    if gone:
        _LOGGER.warning(
            "no longer read, according to source.topics and source.shard: %s. Their positions are kept in case they "
            "are read again",
            ", ".join(gone),
        )
    there = set(partitions)
    report_vanished(
        settings,
        {
            partition: offset
            for partition, offset in offsets_of(position).items()
            if _is_read(settings, *partition) and partition not in there
        },
    )
    firsts = cluster.first_offsets(partitions)
    found: dict[Partition, int] = {}
    fresh: list[Partition] = []
    for partition in partitions:
        topic, number = partition.topic, str(partition.partition)
        before = [held for held in (known.get(topic), position.get("left", {}).get(topic)) if held is not None]
        if not before:
            fresh.append(partition)
            continue
        held = next((held for held in before if number in held["partitions"]), before[0])
        wanted = held["partitions"].get(number)
        topic_id = cluster.topic_id(topic)
        recreated = None not in {held["id"], topic_id} and held["id"] != topic_id
        if wanted is None:
            # Its topic was read before, so it is new, or always belonged to another shard.
            found[partition] = firsts[partition]
            counters["partition_discovered"] += 1
            _LOGGER.info("topic %s has a new partition %d, read from its first record", *partition)
        elif recreated or wanted < firsts[partition]:
            # An offset beyond the end is detected by the first fetch; here open transactions would look the same.
            found[partition] = reset_offset(cluster, settings, partition, wanted, counters, recreated=recreated)
        else:
            found[partition] = wanted
    found |= _fresh(cluster, settings, fresh, firsts)
    return found


def left_of(settings: ReadingSettings, position: Position | None) -> dict[str, Any]:
    """Return the positions of partitions that are no longer read, in the form of a position's topics.

    Positions include them, so that nothing is learned twice when they are read again.
    """
    left: dict[str, Any] = {}
    for topics in () if position is None else (position.get("left", {}), position["topics"]):
        for topic, held in topics.items():
            kept = {
                number: offset for number, offset in held["partitions"].items() if not _is_read(settings, topic, number)
            }
            before = left.get(topic, {"id": held["id"], "partitions": {}})
            if before["id"] != held["id"]:  # the topic was recreated in between
                before = {"id": held["id"], "partitions": {}}
            if kept:
                left[topic] = {**before, "partitions": {**before["partitions"], **kept}}
    return left


def _is_read(settings: ReadingSettings, topic: str, number: int | str) -> bool:
    return topic in settings.topics and settings.is_ours(int(number))


def report_vanished(settings: ReadingSettings, offsets: Mapping[Partition, int]) -> None:
    """Report partitions, with their next offsets, that are gone because their topic was recreated with fewer.

    Raises:
        SourceError: there are some, and ``on_lost`` is ``fail``.
    """
    if not offsets:
        return
    names = ", ".join(f"{topic}/{number} (offset {at} was next)" for (topic, number), at in sorted(offsets.items()))
    if settings.on_lost == "fail":
        raise SourceError(
            f"Kafka no longer has {names}: the topic was recreated with fewer partitions, and the next records are "
            'lost. Set source.on_lost = "earliest" or "latest" to continue with the others, or start over with --fresh'
        )
    _LOGGER.warning(
        "no longer read, since the topic was recreated with fewer partitions: %s. Continuing with the others, "
        "according to source.on_lost",
        names,
    )


def reset_offset(
    cluster: Cluster,
    settings: ReadingSettings,
    partition: Partition,
    wanted: int,
    counters: Counter[str],
    *,
    recreated: bool = False,
) -> int:
    """Choose the offset at which to continue in a partition that no longer holds the wanted one.

    Raises:
        SourceError: ``on_lost`` is ``fail``.
        Unanswered: the cluster did not respond.
    """
    first, end = cluster.first_offsets([partition])[partition], cluster.end_offsets([partition])[partition]
    holds = f"it holds {first} to {end - 1}" if end > first else f"it is empty, and continues at {end}"
    what = "was recreated, and offset %d was next in the previous one" if recreated else "no longer has offset %d"
    what %= wanted
    if settings.on_lost == "fail":
        raise SourceError(
            f"Kafka topic {partition.topic}, partition {partition.partition} {what}; {holds}. The next records are "
            'lost. Set source.on_lost = "earliest" or "latest" to continue there, or start over with --fresh'
        )
    chosen = first if settings.on_lost == "earliest" else end
    counters["offset_reset"] += 1
    _LOGGER.warning(
        "topic %s, partition %d %s; %s. Continuing at %d, according to source.on_lost", *partition, what, holds, chosen
    )
    return chosen


def _fresh(
    cluster: Cluster, settings: ReadingSettings, partitions: Sequence[Partition], firsts: Mapping[Partition, int]
) -> dict[Partition, int]:
    """Return the offsets at which partitions without a position start."""
    milliseconds = settings.start_milliseconds
    if milliseconds is not None:
        return cluster.offsets_at(partitions, milliseconds) if partitions else {}
    if settings.start == "latest":
        return cluster.end_offsets(partitions)
    if settings.start == "committed":
        found = {}
        for partition in partitions:
            committed = cluster.committed(partition)
            if committed is None:
                _LOGGER.info(
                    "group %s has committed nothing of topic %s, partition %d, which is read from its first record",
                    settings.group,
                    *partition,
                )
            found[partition] = firsts[partition] if committed is None else committed[0]
        return found
    return {partition: firsts[partition] for partition in partitions}
