"""The values to read from records, and the events that they make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streammoe.columns.kinds import ColumnKind, GivenKinds
from streammoe.columns.values import IF_CATEGORY, OR_CATEGORY, OR_IGNORE, READERS, kind_of
from streammoe.errors import InvalidEvent
from streammoe.model.checks import LARGEST_WEIGHT
from streammoe.notation import USUAL, Notation, Notations
from streammoe.pipeline.decoders.columns import read_column
from streammoe.ports import Batch
from streammoe.types import AnyArray, BoolArray, FloatArray, IntArray

Values = dict[str, object]
"""One record, raw, by name."""


class Slot(NamedTuple):
    """A value to read from each record."""

    name: str
    kind: ColumnKind
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

    def in_batch(self, batch: Batch) -> FieldRoles:
        """Return the roles in the format of a batch, with what the types of its columns say."""
        decimal = batch.decimal if batch.format == "csv" else ""
        return self._replace(notations=replace(self.notations, decimal=decimal), typed=batch.categorical)

    def kind(self, field: str) -> ColumnKind:
        """Return how to read a feature."""
        return "category" if field in self.categorical else "time" if field in self.timestamps else "number"

    def first_kind(self, field: str, value: object) -> ColumnKind | None:
        """Return what a late column holds whose first value is this one; None if that is missing."""
        by_type: ColumnKind | None = "category" if field in self.typed else None
        return self.given_kinds.kind(field) or by_type or kind_of(value, self.notations.of(field))

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
            *(Slot(name, "category", self.notations.of_label(name)) for name in (self.label,) if name is not None),
            *(Slot(name, "number", self.notations.of(name)) for name in (self.weight,) if name is not None),
        )


class NewNames(NamedTuple):
    """Which fields without a role matter."""

    known: frozenset[str] | None = None
    """Names that do not; if given, every other one is that of a new column, if these may come late, or noticed."""
    late: bool = False
    """Whether columns may come late."""
    awaited: frozenset[str] = frozenset()
    """If they may not: the only names of new columns."""

    def has(self, name: str) -> bool:
        """Return whether values under a name, which has no role, are those of a new column."""
        return name in self.awaited if not self.late else self.known is None or name not in self.known

    def unknown(self, names: Iterable[str]) -> set[str]:
        """Return those of some names that are to be noticed."""
        return set() if self.late or self.known is None else set(names) - self.known - self.awaited - {""}


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
    """The index of the first good record with values for new columns, and these values, raw; decoding has stopped
    before that record."""
    unknown: frozenset[str] = frozenset()
    """Names that are noticed."""


class Sheet:
    """The events of a batch while columns and single records fill it."""

    def __init__(self, n: int, roles: FieldRoles) -> None:
        self.roles = roles
        self.slots = roles.slots
        self.new: tuple[int, Values] | None = None
        """See `DecodedBatch.first_new`."""
        self.unknown: set[str] = set()
        self._numbers: FloatArray = np.full((n, len(self.slots)), np.nan)
        """One column per slot, NaN in those of texts."""
        self._texts: dict[int, AnyArray] = {
            j: np.full(n, None, np.object_) for j, slot in enumerate(self.slots) if slot.kind == "category"
        }
        self._rejected: dict[int, Rejected] = {}

    def fill(self, rows: IntArray, columns: Mapping[str, Any]) -> BoolArray:
        """Store the columns of some records, and return which of these have to be read one by one."""
        odd = np.zeros(len(rows), np.bool_)
        # A slice, where it can be one, is many times faster.
        at = slice(rows[0], rows[-1] + 1) if len(rows) and rows[-1] - rows[0] + 1 == len(rows) else rows
        for j, (name, kind, notation) in enumerate(self.slots):
            if name in columns:
                values, doubtful = read_column(columns[name], kind, notation)
                (self._texts[j] if kind == "category" else self._numbers[:, j])[at] = values
                odd |= doubtful
        return odd | self._are_invalid()[at]

    def put(self, i: int, values: Mapping[str, object]) -> None:
        """Store record `i`.

        Raises:
            InvalidEvent: a value is not of its kind, some but not all targets are missing, or a weight is out of range.
        """
        for j, (name, kind, notation) in enumerate(self.slots):
            found: Any = READERS[kind](values.get(name), name, notation=notation)
            (self._texts[j] if kind == "category" else self._numbers[:, j])[i] = found
        if problem := _problem(self.roles, self._numbers[i].tolist()):
            raise problem

    def reject(self, i: int, error: InvalidEvent) -> None:
        """Reject record `i`."""
        self._rejected[i] = Rejected(i, error.reason, str(self.roles.explained(error)))

    def check_new(self, i: int, values: Mapping[str, object]) -> None:
        """Take values of a stored record under new names as `new`, unless all are missing or it will not be learned.

        Raises:
            InvalidEvent: one cannot be read as a feature.
        """
        new: Values = {}
        for name in sorted(values):
            if kind := self.roles.first_kind(name, values[name]):
                found = READERS[kind](values[name], name, notation=self.roles.notations.of(name))
                if found is not None and found == found:  # noqa: PLR0124 - false for NaN, that is, missing
                    new[name] = values[name]
        if new and self._is_learned(i):
            self.new = (i, new)

    def _is_learned(self, i: int) -> bool:
        """Whether record `i` has its targets and a weight above 0."""
        P, Q = len(self.roles.fields), len(self.roles.targets)
        numbers = self._numbers[i]
        without = (
            np.isnan(numbers[P : P + Q]).any()
            or (self.roles.label is not None and self._texts[P + Q][i] is None)
            or (self.roles.weight is not None and numbers[-1] == 0.0)
        )
        return not without

    def _are_invalid(self) -> BoolArray:
        """Return which records have a `_problem`."""
        P, Q = len(self.roles.fields), len(self.roles.targets)
        invalid = np.zeros(len(self._numbers), np.bool_)
        if Q > 1:
            missing = np.isnan(self._numbers[:, P : P + Q])
            invalid |= missing.any(axis=1) & ~missing.all(axis=1)
        if self.roles.weight is not None:
            invalid |= (self._numbers[:, -1] < 0.0) | (self._numbers[:, -1] > LARGEST_WEIGHT)
        return invalid

    def finish(self) -> DecodedBatch:
        """Return the events that were not rejected, up to the first one with new columns."""
        n = len(self._numbers) if self.new is None else self.new[0]
        rejected = [self._rejected[i] for i in sorted(self._rejected) if i < n]
        rows = np.delete(np.arange(n), [record.index for record in rejected])
        kept = rows if rejected else slice(n)
        good = self._numbers[kept]
        texts: dict[int, list[str | None]] = {j: column[kept].tolist() for j, column in self._texts.items()}
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
            frozenset(self.unknown),
        )


def event_of(values: Mapping[str, object], roles: FieldRoles) -> DecodedBatch:
    """Return the event that a single record holds, see `Sheet.put`; names without a role are ignored.

    >>> event_of({"x": 2, "y": None, "c": True}, FieldRoles(("x", "z", "c"), ("y",), categorical=frozenset("c")))[1:5]
    (array([[ 2., nan, nan]]), {2: ['true']}, array([[nan]]), None)
    """
    sheet = Sheet(1, roles)
    sheet.put(0, values)
    return sheet.finish()


def _problem(roles: FieldRoles, numbers: Sequence[float]) -> InvalidEvent | None:
    """Return what is wrong with the values of a record together."""
    P, Q = len(roles.fields), len(roles.targets)
    missing = [name for name, value in zip(roles.targets, numbers[P : P + Q], strict=True) if math.isnan(value)]
    if 0 < len(missing) < Q:
        message = f"target {missing[0]!r} is missing; an event must have all of its {Q} targets, or none of them"
        return InvalidEvent(message, reason="partial_target", feature=missing[0])
    if roles.weight is not None and not (math.isnan(numbers[-1]) or 0.0 <= numbers[-1] <= LARGEST_WEIGHT):
        message = f"weight {roles.weight!r} is {numbers[-1]!r}; it must lie between 0 and {LARGEST_WEIGHT:g}"
        return InvalidEvent(message, reason="out_of_range", feature=roles.weight)
    return None
