"""The decoder of a batch: columns where its format gives them, and single records where these cannot be told."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streammoe.errors import InvalidEvent, SourceError
from streammoe.notation import NUMBER
from streammoe.pipeline.decoders.columns import has_value
from streammoe.pipeline.decoders.rows import DecodedBatch, FieldRoles, NewNames, Sheet, Slot, Values
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import shown, some_of
from streammoe.types import IntArray

NO_OTHERS = NewNames()
_RUN = 2048  # records that are decoded together, since those behind the first one with a new column are in vain


class Found(NamedTuple):
    """What several records hold, but for those to be read alone."""

    rows: IntArray
    """Indexes of the records."""
    columns: Mapping[str, Any]
    """Their values by name, as `read_column` takes them; those under new names, too, if records are typed or csv."""
    unknown: Collection[str] = ()
    """Names that are not known, also of records to be read alone."""


class Decoder(ABC):
    """A decoder for one format, without state that could affect a result."""

    def header(self, batch: Batch) -> tuple[str, ...] | None:
        """Return the names of the columns, empty for one without a name; None if records name their values."""
        return None

    @abstractmethod
    def names(self, batch: Batch, i: int) -> Values:
        """Return the i-th record as names and raw values; raise `InvalidEvent` if the record is ``malformed``."""

    @abstractmethod
    def find(self, batch: Batch, start: int, stop: int, slots: tuple[Slot, ...], names: NewNames) -> Found | None:
        """Return what records from `start` to `stop` hold; None if nothing can be told of so many at once."""

    def reader(self, batch: Batch, rows: IntArray, names: Collection[str]) -> Callable[[int], Values]:
        """Return what reads the record at an index in `rows`, at least its values of these names, like `names`."""
        return lambda at: self.names(batch, int(rows[at]))

    def require_targets(self, batch: Batch, roles: FieldRoles) -> None:
        """Raise `SourceError` if a header lacks a target, with advice."""
        header = self.header(batch)
        named = [*filter(None, header or ())]
        for target in roles.schema.targets:
            if header is not None and target not in header:
                raise SourceError(
                    f"{batch.origin} has no column {target!r}, which is the target in the settings; its columns are "
                    f"{some_of(named)}{_hint(named, target)}"
                )

    def decode(self, batch: Batch, roles: FieldRoles, names: NewNames = NO_OTHERS) -> DecodedBatch:
        """Decode the records of `batch`.

        Decoding stops before the first good record with a value for a new column, so that the caller can widen its
        model and continue with ``batch.tail``. Records without target or with weight 0 do not stop it, since they add
        no columns. A record whose new values cannot be read as ``roles.first_kinds`` says is rejected.

        Raises:
            SourceError: the header lacks a target.
        """
        self.require_targets(batch, roles)
        sheet, header = Sheet(len(batch), roles.in_batch(batch)), self.header(batch)
        taken = frozenset(slot.name for slot in sheet.slots)
        known = None if names.known is None else names.known | taken
        names = names._replace(known=known, awaited=names.awaited - taken)
        new = [] if header is None else [name for name in header if name and names.has(name)]
        sheet.unknown = names.unknown(header or ())
        step = _RUN if new or (header is None and (names.late or names.awaited)) else max(len(batch), 1)
        for start in range(0, len(batch), step):
            stop = min(start + step, len(batch))
            odd = np.ones(stop - start, np.bool_)
            if (found := self.find(batch, start, stop, sheet.slots, names)) is not None:
                sheet.unknown.update(found.unknown)
                odd[found.rows - start] = sheet.fill(found.rows, found.columns)
                for name in found.columns.keys() & new:
                    odd[found.rows - start] |= has_value(found.columns[name], roles.schema.notations.of(name))
            rows = start + np.flatnonzero(odd)
            self._read_alone(rows, self.reader(batch, rows, taken.union(new)), sheet, names)
            if sheet.new is not None:
                break
        return sheet.finish()

    def _read_alone(self, rows: IntArray, read: Callable[[int], Values], sheet: Sheet, names: NewNames) -> None:
        """Read records one by one, until one of them adds columns."""
        taken = {slot.name for slot in sheet.slots}
        for at, i in enumerate(rows.tolist()):
            try:
                values = read(at)
                sheet.unknown |= names.unknown(values)
                sheet.put(i, values)
                sheet.check_new(i, {name: values[name] for name in values if name not in taken and names.has(name)})
            except InvalidEvent as error:
                sheet.reject(i, error)
            if sheet.new is not None:
                return


def _hint(header: Sequence[str], target: str) -> str:
    """Suggest a setting for several targets in one text, a header like a record, or csv with another delimiter."""
    if len(several := [part.strip() for part in target.split(",")]) > 1 and set(several) <= set(header):
        listed = json.dumps(several, ensure_ascii=False)
        return f"; if several are meant, set schema.target to {listed} (of evaluate and fit: --target once for each)"
    if len(header) == 1 and (delimiters := [mark for mark in DELIMITERS if mark in header[0]]):
        return f"; it looks like csv with another delimiter: set source.delimiter to {json.dumps(delimiters[0])}"
    numbers = [name for name in header if NUMBER.fullmatch(name.replace(",", "."))]
    if len(numbers) == len(header) or not all(map(str.isdecimal, numbers)):  # years, such as 2024, may be columns
        return '; it looks like a record, not a header: name the columns by source.header, such as ["a", "b", "y"]'
    return "; lines before the header are left out by source.skip_lines"


# -- Records as texts --------------------------------------------------------------------------------------------------


def is_utf8(data: bytes) -> bool:
    """Whether `data` is well-formed UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def readable(batch: Batch, i: int) -> bytes:
    """Return the i-th record of `batch`; raise `InvalidEvent` if the source could not decode it."""
    if i in batch.unreadable:
        reason, detail, _ = batch.unreadable[i]
        raise InvalidEvent(detail, reason=reason)
    return batch.record(i)


_NOT_UTF8 = 'must be UTF-8, and byte {} is not; name the encoding of files by source.encoding, such as "latin-1"'


def text_of(record: bytes) -> str:
    """Decode a record as UTF-8; raise `InvalidEvent` if it is not."""
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise malformed(record, _NOT_UTF8.format(error.start)) from None


def malformed(record: str | bytes, rule: str) -> InvalidEvent:
    """Return the error for a record that cannot be parsed."""
    return InvalidEvent(f"record {shown(record)} {rule}", reason="malformed")
