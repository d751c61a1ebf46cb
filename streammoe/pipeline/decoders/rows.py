"""The values to read from records, and the events that they make."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streammoe.columns.kinds import ColumnKind
from streammoe.columns.values import IF_CATEGORY, OR_CATEGORY, OR_IGNORE, READERS, kind_of
from streammoe.errors import InvalidEvent
from streammoe.model.checks import LARGEST_WEIGHT
from streammoe.notation import USUAL, Notation
from streammoe.pipeline.decoders.columns import read_column
from streammoe.pipeline.schema import Schema
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
    """The values to read from each record, by their roles."""

    kinds: Mapping[str, ColumnKind]
    """The features, in the order of the columns of ``X``, with what they hold; a record may lack some."""
    schema: Schema
    """The other fields, and what is known of columns that come late."""
    classify: bool = False
    """Whether the target is a label."""
    typed: frozenset[str] = frozenset()
    """Names of columns that are categories by their type, unless a setting says otherwise; see `Batch.categorical`."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The names of the features."""
        return tuple(self.kinds)

    @property
    def targets(self) -> tuple[str, ...]:
        """The names of the targets that are numbers, in the order of the columns of ``Y``."""
        return () if self.classify else self.schema.targets

    def in_batch(self, batch: Batch) -> FieldRoles:
        """Return the roles in the format of a batch, with what the types of its columns say."""
        notations = replace(self.schema.notations, decimal=batch.decimal if batch.format == "csv" else "")
        return self._replace(schema=self.schema._replace(notations=notations), typed=batch.categorical)

    def first_kinds(self, names: Iterable[str], values: Mapping[str, object]) -> dict[str, ColumnKind]:
        """Return what new columns hold with these first values, but for those whose value is missing."""
        kinds: dict[str, ColumnKind] = {}
        for name in names:
            by_type: ColumnKind | None = "category" if name in self.typed else None
            kind = self.schema.given_kinds.kind(name) or by_type
            if kind := kind or kind_of(values.get(name), self.schema.notations.of(name)):
                kinds[name] = kind
        return kinds

    def explained(self, error: InvalidEvent) -> InvalidEvent:
        """Return the error of a value with the advice that its role requires."""
        name, schema = error.feature, self.schema
        if error.reason != "wrong_type" or name not in (*schema.targets, schema.weight, *schema.lagged):
            return error
        message = str(error).replace(OR_CATEGORY, "").replace(OR_IGNORE, "")
        if name in self.targets and message == str(error):
            message += '; for classes set model.kind = "classifier"'
        message = message.replace(IF_CATEGORY, "")
        return schema.given_kinds.explained(InvalidEvent(message, reason=error.reason, feature=name))

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All values to read, in this order: features, targets or label, weight."""
        schema, of = self.schema, self.schema.notations
        return (
            *(Slot(name, "number" if kind == "boolean" else kind, of.of(name)) for name, kind in self.kinds.items()),
            *(
                Slot(name, "category", of.of_label(name)) if self.classify else Slot(name, "number", of.of(name))
                for name in schema.targets
            ),
            *(Slot(name, "number", of.of(name)) for name in (schema.weight,) if name is not None),
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
        self._P, self._Q = len(roles.kinds), len(roles.targets)

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
        for name, kind in self.roles.first_kinds(sorted(values), values).items():
            found = READERS[kind](values[name], name, notation=self.roles.schema.notations.of(name))
            if found is not None and found == found:  # noqa: PLR0124 - false for NaN, that is, missing
                new[name] = values[name]
        if new and self._is_learned(i):
            self.new = (i, new)

    def _is_learned(self, i: int) -> bool:
        """Whether record `i` has its targets and a weight above 0."""
        numbers, texts, P = self._numbers[i], self._texts, self._P
        if np.isnan(numbers[P : P + self._Q]).any() or (self.roles.classify and texts[P][i] is None):
            return False
        return self.roles.schema.weight is None or bool(numbers[-1] != 0.0)

    def _are_invalid(self) -> BoolArray:
        """Return which records have a `_problem`."""
        invalid = np.zeros(len(self._numbers), np.bool_)
        if self._Q > 1:
            missing = np.isnan(self._numbers[:, self._P : self._P + self._Q])
            invalid |= missing.any(axis=1) & ~missing.all(axis=1)
        if self.roles.schema.weight is not None:
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
        P, Q = self._P, self._Q
        weights = np.ones(len(rows))
        if self.roles.schema.weight is not None:
            given = ~np.isnan(good[:, -1])
            weights[given] = good[given, -1]
        return DecodedBatch(
            rows,
            np.ascontiguousarray(good[:, :P]),
            {j: values for j, values in texts.items() if j < P},
            np.ascontiguousarray(good[:, P : P + Q]),
            texts[P] if self.roles.classify else None,
            weights,
            rejected,
            self.new,
            frozenset(self.unknown),
        )


def event_of(values: Mapping[str, object], roles: FieldRoles) -> DecodedBatch:
    """Return the event that a single record holds, see `Sheet.put`; names without a role are ignored.

    >>> event_of({"x": 2, "y": None, "c": True}, FieldRoles({"x": "number", "c": "category"}, Schema(("y",))))[1:5]
    (array([[ 2., nan]]), {1: ['true']}, array([[nan]]), None)
    """
    sheet = Sheet(1, roles)
    sheet.put(0, values)
    return sheet.finish()


def _problem(roles: FieldRoles, numbers: Sequence[float]) -> InvalidEvent | None:
    """Return what is wrong with the values of a record together."""
    P, Q, weight = len(roles.kinds), len(roles.targets), roles.schema.weight
    missing = [name for name, value in zip(roles.targets, numbers[P : P + Q], strict=True) if math.isnan(value)]
    if 0 < len(missing) < Q:
        message = f"target {missing[0]!r} is missing; an event must have all of its {Q} targets, or none of them"
        return InvalidEvent(message, reason="partial_target", feature=missing[0])
    if weight is not None and not (math.isnan(numbers[-1]) or 0.0 <= numbers[-1] <= LARGEST_WEIGHT):
        message = f"weight {weight!r} is {numbers[-1]!r}; it must lie between 0 and {LARGEST_WEIGHT:g}"
        return InvalidEvent(message, reason="out_of_range", feature=weight)
    return None
