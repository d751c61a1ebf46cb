"""Records of Kafka as columns, in which both clients return them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Self, TypeVar

import numpy as np

from streammoe.types import IntArray

Headers = Sequence[tuple[str, bytes | None]]
Cell = TypeVar("Cell")


@dataclass(frozen=True, slots=True)
class Records:
    """Records, in order."""

    offsets: IntArray
    """(n,) each within its partition."""
    times: IntArray
    """(n,) timestamps in milliseconds since 1970; -1 if unknown."""
    values: list[bytes | None]
    """``None`` for a tombstone."""
    keys: list[bytes | None] | None
    """``None`` if no record has one."""
    headers: list[Headers] | None
    """``None`` if no record has any."""

    @classmethod
    def of(cls, rows: Sequence[Any]) -> Self:
        """Return these records, which have the attributes of kafka-python's ``ConsumerRecord``, as columns."""
        count = len(rows)
        keys = [row.key for row in rows]
        headers = [row.headers for row in rows]
        return cls(
            np.fromiter((row.offset for row in rows), np.int64, count),
            np.fromiter((-1 if row.timestamp is None else row.timestamp for row in rows), np.int64, count),
            [row.value for row in rows],
            keys if any(key is not None for key in keys) else None,
            headers if any(headers) else None,
        )

    def __len__(self) -> int:
        return len(self.values)

    def part(self, chosen: slice) -> Records:
        """Return the records of a slice."""
        return Records(
            self.offsets[chosen],
            self.times[chosen],
            self.values[chosen],
            None if self.keys is None else self.keys[chosen],
            None if self.headers is None else self.headers[chosen],
        )

    def take(self, indexes: IntArray) -> Records:
        """Return the records at these indexes, in their order."""
        chosen = indexes.tolist()
        return Records(
            self.offsets[indexes],
            self.times[indexes],
            _pick(self.values, chosen),
            None if self.keys is None else _pick(self.keys, chosen),
            None if self.headers is None else _pick(self.headers, chosen),
        )


NONE = Records(np.empty(0, np.int64), np.empty(0, np.int64), [], None, None)
"""No record."""


def concatenate(parts: Sequence[Records]) -> Records:
    """Return the records of all parts, one part after the other."""
    parts = [part for part in parts if len(part)]
    if len(parts) <= 1:
        return parts[0] if parts else NONE
    keys: Iterable[list[bytes | None]] = (part.keys or [None] * len(part) for part in parts)
    headers: Iterable[list[Headers]] = (part.headers or [()] * len(part) for part in parts)
    return Records(
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.times for part in parts]),
        list(chain.from_iterable(part.values for part in parts)),
        list(chain.from_iterable(keys)) if any(part.keys for part in parts) else None,
        list(chain.from_iterable(headers)) if any(part.headers for part in parts) else None,
    )


def _pick(cells: list[Cell], indexes: list[int]) -> list[Cell]:
    return [cells[i] for i in indexes]
