"""The decoder of a batch: columns where its format gives them, and single records where these cannot be told."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import InvalidEvent, SourceError
from streammoe.notation import NUMBER
from streammoe.pipeline.decoders.columns import has_value
from streammoe.pipeline.decoders.rows import DecodedBatch, FieldRoles, Sheet, Slot, Values
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import some_of
from streammoe.types import IntArray

_FEW = 256  # a run of so few records is decoded one by one rather than halved again
Columns = tuple[IntArray, Mapping[str, Any]]
"""Indexes of records, and their values by name, as `read_column` takes them."""


class Wanted(NamedTuple):
    """The values to take from records."""

    slots: tuple[Slot, ...]
    known: frozenset[str] | None
    """If given, all names but these are new;"""
    awaited: frozenset[str]
    """or else only these."""

    def is_new(self, name: str) -> bool:
        """Return whether values under a name are those of a new column."""
        if self.known is not None:
            return name not in self.known
        return name in self.awaited and all(name != slot.name for slot in self.slots)


class Decoder(ABC):
    """A decoder for one format, without state that could affect a result."""

    def header(self, batch: Batch) -> tuple[str, ...] | None:
        """Return the names of the columns, empty for one without a name; None if records name their values."""
        return None

    @abstractmethod
    def names(self, batch: Batch, i: int) -> Values:
        """Return the i-th record as names and raw values; raise `InvalidEvent` if the record is ``malformed``."""

    @abstractmethod
    def columns(self, batch: Batch, start: int, stop: int, wanted: Wanted) -> Columns | None:
        """Return what records from `start` to `stop` hold in the wanted columns, but for records to be read alone.

        None if nothing can be told of so many at once.
        """

    def names_beyond(self, batch: Batch, known: Collection[str], most: int) -> set[str]:
        """Return names of fields that are not known, in all readable records; at most about so many."""
        return set(sorted(set(self.header(batch) or ()) - set(known) - {""})[:most])

    def unsupported(self, batch: Batch) -> Mapping[str, str]:
        """Return the columns of types of which no value can be read, with the types; none if values have the types."""
        return {}

    def reader(self, batch: Batch, rows: IntArray, names: Collection[str]) -> Callable[[int], Values]:
        """Return what reads the record at an index in `rows`, at least its values of these names, like `names`."""
        return lambda at: self.names(batch, int(rows[at]))

    def guess(self, batch: Batch, roles: FieldRoles) -> str:
        """Say which other line might be the header; nothing if none does."""
        return ""

    def require_targets(self, batch: Batch, roles: FieldRoles) -> None:
        """Raise `SourceError` if a header lacks a target, with advice."""
        header = self.header(batch)
        named = [*filter(None, header or ())]
        for target in (*roles.targets, *filter(None, [roles.label])):
            if header is not None and target not in header:
                raise SourceError(
                    f"{batch.origin} has no column {target!r}, which is the target in the settings; its columns are "
                    f"{some_of(named)}{self.guess(batch, roles) or _hint(named)}"
                )

    def decode(
        self,
        batch: Batch,
        roles: FieldRoles,
        ignore: Collection[str] | None = None,
        awaited: Collection[str] = (),
    ) -> DecodedBatch:
        """Decode the records of `batch`.

        Args:
            batch: the records.
            roles: the values to read.
            ignore: given if columns may come late: the names that never become columns. Decoding then stops before the
                first good record with a non-null value under a name that neither has a role nor is listed here, so that
                the caller can widen its model and continue with ``batch.tail``. Records without target or with weight
                0 do not stop it, since they add no columns. A record whose new values cannot be read as
                ``roles.first_kind`` says is rejected.
            awaited: if `ignore` is not given: the only names that may become columns.

        Raises:
            SourceError: the header lacks a target.
        """
        self.require_targets(batch, roles)
        sheet = Sheet(len(batch), roles.in_batch(batch))
        names = {slot.name for slot in sheet.slots}
        known = None if ignore is None else frozenset(ignore).union(names)
        wanted = Wanted(sheet.slots, known, frozenset(awaited))
        header = self.header(batch)
        new = [] if header is None else [name for name in header if name and wanted.is_new(name)]
        grows = (ignore is not None or awaited) if header is None else new
        runs = list(growing_runs(len(batch)))[::-1] if grows else [(0, len(batch))] * bool(len(batch))
        while runs and sheet.new is None:
            start, stop = runs.pop()
            found = self.columns(batch, start, stop, wanted)
            if found is None and stop - start > _FEW:
                # Halving keeps a rare record with a stray quote from slowing down thousands of others.
                runs += [((start + stop) // 2, stop), (start, (start + stop) // 2)]
                continue
            odd = np.ones(stop - start, np.bool_)
            if found is not None:
                rows, columns = found
                odd[rows - start] = sheet.fill(rows, columns)
                for name in columns.keys() & new:
                    odd[rows - start] |= has_value(columns[name], roles.notations.of(name))
            self._read_alone(batch, start + np.flatnonzero(odd), sheet, wanted)
        return sheet.finish()

    def _read_alone(self, batch: Batch, rows: IntArray, sheet: Sheet, wanted: Wanted) -> None:
        """Read records one by one, until one of them adds columns."""
        names = {slot.name for slot in wanted.slots}.union(filter(wanted.is_new, self.header(batch) or ()))
        read = self.reader(batch, rows, names)
        for at, i in enumerate(rows.tolist()):
            try:
                values = read(at)
                sheet.put(i, values)
                sheet.check_new(i, {name: values[name] for name in values if wanted.is_new(name)})
            except InvalidEvent as error:
                sheet.reject(i, error)
            if sheet.new is not None:
                return


def growing_runs(n: int) -> Iterator[tuple[int, int]]:
    """Divide n records into runs of doubling length, so that little is read in vain if decoding stops early.

    >>> list(growing_runs(300))
    [(0, 64), (64, 192), (192, 300)]
    """
    start, length = 0, 64
    while start < n:
        yield start, min(start + length, n)
        start, length = start + length, 2 * length


def _hint(header: Sequence[str]) -> str:
    """Suggest a setting for a header that looks like a record, or like csv with another delimiter."""
    if len(header) == 1 and (delimiters := [mark for mark in DELIMITERS if mark in header[0]]):
        return f"; it looks like csv with another delimiter: set source.delimiter to {json.dumps(delimiters[0])}"
    numbers = [name for name in header if NUMBER.fullmatch(name.replace(",", "."))]
    if len(numbers) == len(header) or not all(map(str.isdecimal, numbers)):  # years, such as 2024, may be columns
        return '; it looks like a record, not a header: name the columns by source.header, such as ["a", "b", "y"]'
    return ""
