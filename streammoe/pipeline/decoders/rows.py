"""The common part of all decoders: values to read from records, one by one or in columns, and their checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from streammoe.columns.kinds import ColumnKind, GivenKinds
from streammoe.errors import InvalidEvent, SourceError
from streammoe.model.checks import LARGEST_WEIGHT
from streammoe.notation import NUMBER, USUAL, Notation, Notations
from streammoe.pipeline.decoders.values import (
    IF_CATEGORY,
    OR_CATEGORY,
    OR_IGNORE,
    READ_AS,
    READERS,
    Kind,
    first_kind,
    label,
)
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import shown, some_of
from streammoe.types import BoolArray, FloatArray, IntArray

Values = dict[str, object]
"""One record, raw, by name."""


class Slot(NamedTuple):
    """A value to read from each record."""

    name: str
    kind: Kind
    notation: Notation = USUAL


class FieldRoles(NamedTuple):
    """The names of the values to read from each record, by their roles."""

    fields: tuple[str, ...]
    """Names of the features, in the order of the columns of ``X``; a record may lack some."""
    targets: tuple[str, ...] = ()
    """Names of the targets that are numbers, in the order of the columns of ``Y``."""
    label: str | None = None
    """Name of the target of a classifier."""
    weight: str | None = None
    """Name of the field with the weight of an event; 1 if missing."""
    categorical: frozenset[str] = frozenset()
    """Names of features that are texts, including late columns."""
    timestamps: frozenset[str] = frozenset()
    """Names of features that are times, including late columns."""
    numeric: frozenset[str] = frozenset()
    """Names of late columns that are numbers; of others in none of these sets the first value decides."""
    lagged: frozenset[str] = frozenset()
    """Names of features that are numbers since some features are their earlier values."""
    notations: Notations = Notations()
    """How the values are written."""
    typed: frozenset[str] = frozenset()
    """Names of columns that are categories by their type, unless a setting says otherwise; see `Batch.categorical`."""

    def kind(self, field: str) -> Kind:
        """Return how to read a feature."""
        return "text" if field in self.categorical else "time" if field in self.timestamps else "number"

    def first_kind(self, field: str, value: object, *, text: bool) -> ColumnKind | None:
        """Return what a late column holds whose first value is this one; None if that is missing."""
        by_type: ColumnKind | None = "category" if field in self.typed else None
        return self.given_kinds.kind(field) or by_type or first_kind(value, text, self.notations.of(field))

    @property
    def given_kinds(self) -> GivenKinds:
        """Columns whose kind does not depend on their first value."""
        return GivenKinds(self.categorical, self.timestamps, self.numeric, self.lagged)

    def explained(self, error: InvalidEvent) -> InvalidEvent:
        """Return the error of a value with the advice that its role requires."""
        name = error.feature
        if error.reason != "wrong_type" or name not in (*self.targets, self.label, self.weight, *self.lagged):
            return error
        message = str(error).replace(OR_CATEGORY, "").replace(OR_IGNORE, "")
        if name in self.targets and message == str(error):
            message += '; for classes set model.kind = "classifier"'
        message = message.replace(IF_CATEGORY, "")
        return self.given_kinds.explained(InvalidEvent(message, reason=error.reason, feature=name))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All values to read, in this order: features, targets, label, weight."""
        return (
            *(Slot(name, self.kind(name), self.notations.of(name)) for name in self.fields),
            *(Slot(name, "number", self.notations.of(name)) for name in self.targets),
            *(Slot(name, "text", self.notations.of_label(name)) for name in (self.label,) if name is not None),
            *(Slot(name, "number", self.notations.of(name)) for name in (self.weight,) if name is not None),
        )


class Rejected(NamedTuple):
    """A record that is not a valid event."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which is never used
    """Index of the record in the batch."""
    reason: str
    """One of `streammoe.errors.REASONS`."""
    detail: str
    """A sentence naming the field, the value and the rule."""


class DecodedBatch(NamedTuple):
    """The events of a batch, in order."""

    rows: IntArray
    """Index in the batch of each event's record, shape (n,)."""
    X: FloatArray
    """Features, shape (n, P), C-contiguous; NaN where missing, and in columns of texts."""
    texts: dict[int, list[str | None]]
    """The n values of each column of texts, by its index; ``None`` where missing."""
    Y: FloatArray
    """Targets, shape (n, Q), C-contiguous; a row of NaN if there is none. An event has all targets or none."""
    labels: list[str | None] | None
    """The n labels for a classifier; ``None`` where missing."""
    weights: FloatArray
    """Weight of each event, shape (n,), from 0 to `LARGEST_WEIGHT`."""
    rejected: list[Rejected]
    """In the order of the records."""
    first_new: tuple[int, Values] | None = None
    """With late columns: the index of the first good record with values for new columns, and these values, raw.
    Decoding has stopped before that record."""


class Decoder(Protocol):
    """A decoder for one format, without state that could affect a result."""

    def names(self, batch: Batch, i: int) -> Values:
        """Return the i-th record as names and raw values; raise `InvalidEvent` if the record is ``malformed``."""
        ...

    def names_beyond(self, batch: Batch, known: Collection[str], most: int) -> set[str]:
        """Return names of fields that are not known, in all readable records; at most about so many."""
        ...

    def unsupported(self, batch: Batch) -> Mapping[str, str]:
        """Return the columns of types of which no value can be read, with the types; none if values have the types."""
        ...

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
        ...


class Row(NamedTuple):
    """A single event."""

    x: list[float]
    texts: dict[int, str | None]
    y: list[float]
    label: str | None
    weight: float


def to_row(values: Mapping[str, object], roles: FieldRoles, *, text: bool = False) -> Row:
    """Read an event from a record, on the exact path of all formats; the parts are those of `DecodedBatch`.

    Args:
        values: the raw record; names without a role are ignored.
        roles: the values to read.
        text: whether the format writes numbers as text.

    Raises:
        InvalidEvent: a value is not of its kind, some but not all targets are missing, or a weight is out of range.

    >>> to_row({"x": 2, "y": None, "c": True}, FieldRoles(("x", "z", "c"), ("y",), categorical=frozenset("c")))
    Row(x=[2.0, nan, nan], texts={2: 'true'}, y=[nan], label=None, weight=1.0)
    """
    slots = roles.slots
    numbers, texts = _read(values, slots, text)
    _check(roles, numbers)
    P, Q = len(roles.fields), len(roles.targets)
    weight = 1.0 if roles.weight is None or math.isnan(numbers[-1]) else numbers[-1]
    features = {j: value for j, value in texts.items() if j < P}
    return Row(numbers[:P], features, numbers[P : P + Q], texts.get(P + Q), weight)


class Sheet:
    """The events of a batch while the fast and the exact path of a decoder fill it."""

    def __init__(self, n: int, roles: FieldRoles) -> None:
        self.roles = roles
        self.slots = roles.slots
        self.numbers: FloatArray = np.full((n, len(self.slots)), np.nan)
        """One column per slot, NaN in those of texts."""
        self.texts: dict[int, list[str | None]] = {
            j: [None] * n for j, slot in enumerate(self.slots) if slot.kind == "text"
        }
        self._rejected: dict[int, Rejected] = {}

    def put(self, i: int, values: Mapping[str, object], *, text: bool) -> None:
        """Store record `i`, read on the exact path; raise `InvalidEvent` if it is not a valid event."""
        numbers, texts = _read(values, self.slots, text)
        self.numbers[i] = numbers
        for j, value in texts.items():
            self.texts[j][i] = value
        _check(self.roles, numbers)

    def put_column(self, j: int, records: Iterable[int], values: Iterable[Any], *, text: bool) -> None:
        """Store the values of slot `j`, a time or a text, in these records, one by one."""
        name, kind, notation = self.slots[j]
        numbers, texts = self.numbers[:, j], self.texts.get(j)
        for i, value in zip(records, values, strict=True):
            try:
                if texts is None:
                    numbers[i] = READERS[kind](name, value, text, notation)
                else:
                    texts[i] = label(name, value, text, notation)
            except InvalidEvent as error:
                self.reject(i, error)

    def reject(self, i: int, error: InvalidEvent) -> None:
        """Reject record `i`; the first of several reasons counts."""
        self._rejected.setdefault(i, Rejected(i, error.reason, str(self.roles.explained(error))))

    def check_rows(self, start: int, stop: int) -> None:
        """Take the codes out of records from `start` to `stop`, of the fast path, and reject invalid combinations."""
        for j, slot in enumerate(self.slots):
            if slot.notation.codes and slot.kind != "text":
                column = self.numbers[start:stop, j]
                column[np.isin(column, list(slot.notation.codes))] = math.nan
        for i in start + np.flatnonzero(_is_invalid(self.roles, self.numbers[start:stop])):
            try:
                _check(self.roles, self.numbers[i].tolist())
            except InvalidEvent as error:
                self.reject(int(i), error)

    def candidates(self, names: Iterable[str], ignore: Collection[str] | None, awaited: Collection[str]) -> list[str]:
        """Return those of the names that may become columns, see `Decoder.decode`, in order."""
        if ignore is None and not awaited:
            return []
        slots = {slot.name for slot in self.slots}
        return sorted(
            name for name in names if name not in slots and (name in awaited if ignore is None else name not in ignore)
        )

    def check_new(self, i: int, values: Mapping[str, object], *, text: bool) -> Values:
        """Return the new values of a stored record without missing ones; none if the record will not be learned.

        Raises:
            InvalidEvent: one cannot be read as a feature.
        """
        new_values: Values = {}
        for name in sorted(values):
            kind = self.roles.first_kind(name, values[name], text=text)
            if kind is None:
                continue
            taken = READERS[READ_AS[kind]](name, values[name], text, self.roles.notations.of(name))
            if taken is not None and taken == taken:  # noqa: PLR0124 - false for NaN, that is, missing
                new_values[name] = values[name]
        return new_values if new_values and self._is_learned(i) else {}

    def _is_learned(self, i: int) -> bool:
        """Whether record `i` has its targets and a weight above 0."""
        roles, numbers = self.roles, self.numbers[i]
        P, Q = len(roles.fields), len(roles.targets)
        without = (
            np.isnan(numbers[P : P + Q]).any()
            or (roles.label is not None and self.texts[P + Q][i] is None)
            or (roles.weight is not None and numbers[-1] == 0.0)
        )
        return not without

    def first_new(self, start: int, holds: BoolArray, read: Callable[[int], Values], *, text: bool) -> bool:
        """Find the first record from `start` on that adds columns; return whether there is one.

        Args:
            start: the index of the first record in `holds`.
            holds: which records have values under new names.
            read: returns these values of a record.
            text: see `to_row`.
        """
        for i in (start + np.flatnonzero(holds)).tolist():
            if i not in self._rejected:
                try:
                    values = self.check_new(i, read(i), text=text)
                except InvalidEvent as error:
                    self.reject(i, error)
                else:
                    if values:
                        self.new = (i, values)
                        return True
        return False

    new: tuple[int, Values] | None = None
    """See `DecodedBatch.first_new`."""

    def finish(self) -> DecodedBatch:
        """Return the events that were not rejected, up to the first one with new columns."""
        n = len(self.numbers) if self.new is None else self.new[0]
        rejected = [self._rejected[i] for i in sorted(self._rejected) if i < n]
        rows = np.delete(np.arange(n), [record.index for record in rejected])
        good = self.numbers[rows] if rejected else self.numbers[:n]
        texts = {j: [values[i] for i in rows.tolist()] if rejected else values[:n] for j, values in self.texts.items()}
        P, Q = len(self.roles.fields), len(self.roles.targets)
        weights = np.ones(len(rows))
        if self.roles.weight is not None:
            given = ~np.isnan(good[:, -1])
            weights[given] = good[given, -1]
        return DecodedBatch(
            rows,
            np.ascontiguousarray(good[:, :P]),
            {j: values for j, values in texts.items() if j < P},
            np.ascontiguousarray(good[:, P : P + Q]),
            texts.get(P + Q),
            weights,
            rejected,
            self.new,
        )


def growing_runs(n: int) -> Iterator[tuple[int, int]]:
    """Divide n records into runs of doubling length, so that little is read in vain if decoding stops early.

    >>> list(growing_runs(300))
    [(0, 64), (64, 192), (192, 300)]
    """
    start, length = 0, 64
    while start < n:
        yield start, min(start + length, n)
        start, length = start + length, 2 * length


def require_targets(
    origin: str, header: Sequence[str], roles: FieldRoles, guess: Callable[[], str] = lambda: ""
) -> None:
    """Raise `SourceError` if a header lacks a target, with advice; a guess, if there is one, says where it might be."""
    named = [*filter(None, header)]
    for target in (*roles.targets, *(name for name in (roles.label,) if name is not None)):
        if target not in header:
            raise SourceError(
                f"{origin} has no column {target!r}, which is the target in the settings; its columns are "
                f"{some_of(named)}{guess() or _hint(named)}"
            )


def _hint(header: Sequence[str]) -> str:
    """Suggest a setting for a header that looks like a record, or like csv with another delimiter."""
    if len(header) == 1 and (delimiters := [mark for mark in DELIMITERS if mark in header[0]]):
        return f"; it looks like csv with another delimiter: set source.delimiter to {json.dumps(delimiters[0])}"
    numbers = [name for name in header if NUMBER.fullmatch(name.replace(",", "."))]
    if len(numbers) == len(header) or not all(map(str.isdecimal, numbers)):  # years, such as 2024, may be columns
        return '; it looks like a record, not a header: name the columns by source.header, such as ["a", "b", "y"]'
    return ""


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


def _read(values: Mapping[str, object], slots: Sequence[Slot], text: bool) -> tuple[list[float], dict[int, str | None]]:
    """Read a number for each slot, NaN in those of texts, and these texts."""
    numbers, texts = [math.nan] * len(slots), {}
    for j, (name, kind, notation) in enumerate(slots):
        value = values.get(name)
        if kind == "text":
            texts[j] = label(name, value, text, notation)
        elif value is not None:
            numbers[j] = READERS[kind](name, value, text, notation)  # type: ignore[assignment]  # texts apart
    return numbers, texts


def _is_invalid(roles: FieldRoles, numbers: FloatArray) -> BoolArray:
    """Return which rows `_check` rejects."""
    P, Q = len(roles.fields), len(roles.targets)
    invalid = np.zeros(len(numbers), np.bool_)
    if Q > 1:
        missing = np.isnan(numbers[:, P : P + Q])
        invalid |= missing.any(axis=1) & ~missing.all(axis=1)
    if roles.weight is not None:
        invalid |= (numbers[:, -1] < 0.0) | (numbers[:, -1] > LARGEST_WEIGHT)
    return invalid


def _check(roles: FieldRoles, numbers: Sequence[float]) -> None:
    P, Q = len(roles.fields), len(roles.targets)
    missing = [name for name, value in zip(roles.targets, numbers[P : P + Q], strict=True) if math.isnan(value)]
    if 0 < len(missing) < Q:
        message = f"target {missing[0]!r} is missing; an event must have all of its {Q} targets, or none of them"
        raise InvalidEvent(message, reason="partial_target", feature=missing[0])
    if roles.weight is not None and not (math.isnan(numbers[-1]) or 0.0 <= numbers[-1] <= LARGEST_WEIGHT):
        message = f"weight {roles.weight!r} is {numbers[-1]!r}; it must lie between 0 and {LARGEST_WEIGHT:g}"
        raise InvalidEvent(message, reason="out_of_range", feature=roles.weight)
