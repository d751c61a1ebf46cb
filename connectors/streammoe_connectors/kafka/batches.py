"""Batches of records as messages between the process that reads and the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streammoe.ports import Batch, Location, Locations, TopicPartition
from streammoe.types import IntArray
from streammoe_connectors.formats.events import numbered
from streammoe_connectors.kafka.frames import Fetched
from streammoe_connectors.kafka.order import Taken
from streammoe_connectors.kafka.values import Values


def packed(values: Values, taken: Taken, **progress: Any) -> Fetched:
    """Return the message with these records.

    Args:
        values: converts them.
        taken: the records.
        **progress: the position behind them, and how far that is.

    Raises:
        RetriableSourceError: the registry does not respond; the call may be repeated with the same records.
        SourceError: the registry denies access.
    """
    block, ends, rejected, records, origins, numbers, skipped = values.block(taken.records)
    keys, headers = records["key"].tolist(), records["headers"].tolist()
    return Fetched(
        block=block,
        ends=ends.tobytes(),
        offsets=records["offset"].tobytes(),
        timestamps=records["time"].tobytes(),
        partition_index=taken.partition_index[origins].tobytes(),
        partitions=taken.partitions,
        keys=None if keys.count(None) == len(keys) else keys,
        headers=headers if any(headers) else None,
        numbers=numbers,
        unreadable=rejected,
        skipped=taken.n_skipped + skipped,
        **progress,
    )


def unpacked(fetched: Fetched, values: Values, origin: str) -> Batch:
    """Return the batch of a message.

    Args:
        fetched: see `packed`.
        values: of the same settings.
        origin: of the batch.
    """
    ends, offsets, timestamps, partition_index = (
        np.frombuffer(column, np.int64)
        for column in (fetched.ends, fetched.offsets, fetched.timestamps, fetched.partition_index)
    )
    return Batch(
        block=fetched.block,
        ends=ends,
        format=values.format,
        columns=values.columns,
        origin=origin,
        locations=numbered(_locations(fetched.partitions, partition_index, offsets), fetched.numbers),
        end=fetched.end,
        skipped=fetched.skipped,
        timestamps=timestamps,
        keys=fetched.keys,
        headers=fetched.headers,
        unreadable=fetched.unreadable,
    )


def _locations(
    partitions: Sequence[TopicPartition], partition_index: IntArray, offsets: IntArray
) -> Sequence[Location]:
    topics = {partitions[index].topic for index in np.unique(partition_index)}
    if len(topics) == 1:
        numbers = np.array([partition for _, partition in partitions], np.int64)[partition_index]
        return Locations({"topic": topics.pop()}, {"partition": numbers, "offset": offsets})
    return [
        {"topic": partitions[index].topic, "partition": partitions[index].partition, "offset": offset}
        for index, offset in zip(partition_index.tolist(), offsets.tolist(), strict=True)
    ]
