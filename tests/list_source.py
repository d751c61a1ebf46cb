"""A scripted in-memory source, with cuts, pauses and failures."""

from __future__ import annotations

from itertools import accumulate

import numpy as np

from streammoe.errors import SourceError
from streammoe.ports import Batch, Locations, Position, Source
from streammoe.types import IntArray

KIND = "list"
ORIGIN = "the list"


class ListSource(Source):
    """A source of the records in a list, in batches of chosen sizes; `seeks`, `commits` and `closed` record the calls.

    The script refers to records by their index, so that it means the same wherever reading starts.

    Args:
        records: without their line ends.
        format: the decoder's name, ``jsonl`` or ``csv``.
        columns: column names of csv.
        sizes: records in the first, second, ... batch, repeated cyclically; without it all are in one batch.
        failures: a poll that would begin with this record raises this error instead, once. A batch ends before it.
        pauses: a poll that would begin with this record returns ``None`` instead, once. A batch ends before it.
        blank: blank lines before a record, counted in the batch that holds it.
        endless: never finished; polls beyond the last record return ``None``.
        before_poll: called at each poll with the index of the next record.
    """

    def __init__(
        self, records, *, format="jsonl", columns=None, sizes=(), failures=None, pauses=(), blank=None, endless=False,
        before_poll=None,
    ):  # fmt: skip
        self.seeks: list[Position | None] = []
        self.commits: list[Position] = []
        self.closed = False
        self._records = list(records)
        self._format = format
        self._columns = columns
        self._sizes = list(sizes) or [max(len(records), 1)]
        self._failures = dict(failures or {})
        self._pauses = set(pauses)
        self._blank = dict(blank or {})
        self._endless = endless
        self._before_poll = before_poll
        self._at = 0
        self._polled = 0

    def seek(self, position: Position | None) -> None:
        self.seeks.append(position)
        if position is None:
            return
        at = position.get("next")
        if position.get("kind") != KIND or not isinstance(at, int):
            raise SourceError(f"{ORIGIN} cannot seek to {position!r}; pass one of its own positions")
        if not 0 <= at <= len(self._records):
            raise SourceError(f"{ORIGIN} has {len(self._records)} records, but {at} had been read; pass all of them")
        self._at = at

    def poll(self, timeout: float) -> Batch | None:
        if self._before_poll is not None:
            self._before_poll(self._at)
        if self._at in self._failures:
            raise self._failures.pop(self._at)
        if self._at in self._pauses:
            self._pauses.remove(self._at)
            return None
        first, last = self._at, len(self._records)
        if first == last:
            return None
        size = self._sizes[self._polled % len(self._sizes)]
        self._polled += 1
        stop = min([first + size, last, *(at for at in (*self._failures, *self._pauses) if at > first)])
        lines = [record + b"\n" for record in self._records[first:stop]]
        ends: IntArray = np.array(list(accumulate(map(len, lines))), dtype=np.int64)
        self._at = stop
        return Batch(
            block=b"".join(lines),
            ends=ends,
            format=self._format,
            columns=self._columns,
            origin=ORIGIN,
            locations=Locations({"list": ORIGIN}, {"index": np.arange(first, stop)}),
            end={"kind": KIND, "next": stop},
            skipped=sum(self._blank.get(at, 0) for at in range(first, stop)),
        )

    @property
    def finished(self) -> bool:
        return not self._endless and self._at == len(self._records)

    def commit(self, position: Position, generation: int) -> None:
        self.commits.append(position)

    def progress(self) -> tuple[int, int] | None:
        return None if self._endless else (self._at, len(self._records))

    def close(self) -> None:
        self.closed = True
