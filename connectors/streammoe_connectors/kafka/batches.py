"""Batches of records as frames between the process that reads and the daemon."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np

from streammoe.ports import Batch, Location, Locations, Position, Unreadable
from streammoe.types import IntArray
from streammoe_connectors.formats.events import numbered
from streammoe_connectors.formats.records import UNDECODABLE
from streammoe_connectors.kafka.frames import Frame, PackedHeaders, pack_headers
from streammoe_connectors.kafka.order import Taken
from streammoe_connectors.kafka.values import Values


def packed(values: Values, taken: Taken, **header: Any) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header and the body of a frame with these records.

    Args:
        values: converts them.
        taken: the records.
        **header: further content of the header.

    Raises:
        RetriableSourceError: the registry does not respond; the call may be repeated with the same records.
        SourceError: the registry denies access.
    """
    block, ends, rejected, records, origins, numbers, skipped = values.block(taken.records)
    raw = [block[int(ends[i - 1]) if i else 0 : int(ends[i]) - 1] for i in rejected]
    if rejected:
        block, ends = _replace_rejected(block, ends, rejected, UNDECODABLE[values.format] + b"\n")
    count = len(records)
    body = [records.offsets.tobytes(), records.times.tobytes(), ends.tobytes()]
    if records.keys is not None:
        lengths = np.fromiter((-1 if key is None else len(key) for key in records.keys), np.int64, count)
        body += [lengths.tobytes(), b"".join(filter(None, records.keys))]
    if records.headers is not None:
        body.append(pack_headers(records.headers))
    if taken.partition_index is not None:
        body.append(taken.partition_index[origins].tobytes())
    has_numbers = max(numbers, default=-1) >= 0
    if has_numbers:
        body.append(np.array(numbers, np.int64).tobytes())
    return {
        "type": "batch",
        "count": count,
        "sizes": [*map(len, body), *map(len, raw), len(block)],
        "keys": records.keys is not None,
        "headers": records.headers is not None,
        "partitions": taken.partitions,
        "numbers": has_numbers,
        "rejected": [[i, *why] for i, why in rejected.items()],
        "skipped": taken.n_skipped + skipped,
        **header,
    }, [*body, *raw, block]


def unpacked(frame: Frame, values: Values, origin: str) -> Batch:
    """Return the batch of a frame.

    Args:
        frame: see `packed`.
        values: of the same settings.
        origin: of the batch.
    """
    header, pieces, count = frame.header, _pieces(frame), frame.header["count"]
    offsets, times, ends = (np.frombuffer(next(pieces), np.int64) for _ in range(3))
    keys = _split_keys(np.frombuffer(next(pieces), np.int64), next(pieces)) if header["keys"] else None
    headers = PackedHeaders(bytes(next(pieces)), count) if header["headers"] else None
    partitions = header["partitions"]
    partition_index = np.frombuffer(next(pieces), np.int64) if len(partitions) > 1 else np.zeros(count, np.int64)
    numbers = np.frombuffer(next(pieces), np.int64).tolist() if header["numbers"] else [-1] * count
    unreadable = {i: Unreadable(reason, detail, bytes(next(pieces))) for i, reason, detail in header["rejected"]}
    end: Position = header["end"]
    return Batch(
        block=bytes(next(pieces)),
        ends=ends,
        format=values.format,
        columns=values.columns,
        origin=origin,
        locations=numbered(_locations(partitions, partition_index, offsets), numbers),
        end=end,
        skipped=header["skipped"],
        timestamps=times,
        keys=keys,
        headers=headers,
        unreadable=unreadable,
    )


def _replace_rejected(
    block: bytes, ends: IntArray, rejected: Collection[int], replacement: bytes
) -> tuple[bytes, IntArray]:
    """Replace the rejected records of a block; return it with the ends of its records."""
    starts = [0, *ends.tolist()]
    records = [replacement if i in rejected else block[starts[i] : starts[i + 1]] for i in range(len(ends))]
    return b"".join(records), np.cumsum(np.fromiter(map(len, records), np.int64, len(records)))


def _locations(
    partitions: Sequence[tuple[str, int]], partition_index: IntArray, offsets: IntArray
) -> Sequence[Location]:
    topics = {topic for topic, _ in partitions}
    if len(topics) == 1:
        numbers = np.array([partition for _, partition in partitions], np.int64)[partition_index]
        return Locations({"topic": topics.pop()}, {"partition": numbers, "offset": offsets})
    return [
        {"topic": topic, "partition": partition, "offset": offset}
        for (topic, partition), offset in zip(
            map(partitions.__getitem__, partition_index), offsets.tolist(), strict=True
        )
    ]


def _pieces(frame: Frame) -> Iterator[memoryview]:
    start = 0
    for size in frame.header["sizes"]:
        yield frame.body[start : start + size]
        start += size


def _split_keys(lengths: IntArray, joined: memoryview) -> list[bytes | None]:
    stops = np.cumsum(np.maximum(lengths, 0)).tolist()
    return [
        None if length < 0 else bytes(joined[stop - length : stop])
        for length, stop in zip(lengths.tolist(), stops, strict=True)
    ]
