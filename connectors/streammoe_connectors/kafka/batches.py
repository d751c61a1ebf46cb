"""Batches of records as messages between the process that reads and the daemon."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from streammoe.ports import Batch, Location, Locations, Position
from streammoe_connectors.formats.events import numbered
from streammoe_connectors.kafka.frames import Fetched
from streammoe_connectors.kafka.records import Records
from streammoe_connectors.kafka.values import Values


def packed(values: Values, taken: Records, end: Position) -> Fetched:
    """Return the message with these records, and the position behind them.

    Raises:
        RetriableSourceError: the registry does not respond; the call may be repeated with the same records.
        SourceError: the registry denies access.
    """
    is_event = np.array([value is not None for value in taken["value"].tolist()], bool)
    block, ends, unreadable, records, numbers, skipped = values.block(taken if is_event.all() else taken[is_event])
    keys, headers, topics = (records[name].tolist() for name in ("key", "headers", "topic"))
    return Fetched(
        block=block,
        ends=ends.tobytes(),
        offsets=records["offset"].tobytes(),
        timestamps=records["time"].tobytes(),
        partitions=records["partition"].tobytes(),
        topics=topics if len(set(topics)) > 1 else topics[:1],
        keys=None if keys.count(None) == len(keys) else keys,
        headers=headers if any(headers) else None,
        numbers=numbers,
        unreadable=unreadable,
        skipped=len(taken) - int(is_event.sum()) + skipped,
        end=end,
    )


def unpacked(fetched: Fetched, values: Values, origin: str) -> Batch:
    """Return the batch of a message.

    Args:
        fetched: see `packed`.
        values: of the same settings.
        origin: of the batch.
    """
    ends, offsets, timestamps, partitions = (
        np.frombuffer(column, np.int64)
        for column in (fetched.ends, fetched.offsets, fetched.timestamps, fetched.partitions)
    )
    locations: Sequence[Location] = Locations(
        {"topic": fetched.topics[0] if fetched.topics else ""}, {"partition": partitions, "offset": offsets}
    )
    if len(fetched.topics) > 1:
        locations = [{**place, "topic": topic} for place, topic in zip(locations, fetched.topics, strict=True)]
    return Batch(
        block=fetched.block,
        ends=ends,
        format=values.format,
        columns=values.columns,
        origin=origin,
        locations=numbered(locations, fetched.numbers),
        end=fetched.end,
        skipped=fetched.skipped,
        timestamps=timestamps,
        keys=fetched.keys,
        headers=fetched.headers,
        unreadable=fetched.unreadable,
    )
