"""What decoders share: the values to take from records, one event at a time or in columns, and their checks."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from streammoe.errors import InvalidEvent, SourceError
from streammoe.model.checks import LARGEST_WEIGHT
from streammoe.pipeline.decoders.values import READERS, Kind, label, some_of
from streammoe.ports import DELIMITERS, Batch
from streammoe.text import shown
from streammoe.types import BoolArray, FloatArray, IntArray

Values = dict[str, object]
"""One record, raw, by name."""


class Slot(NamedTuple):
    """A value to take from each record."""

    name: str
    kind: Kind


class Wanted(NamedTuple):
    """What to take from each record."""

    fields: tuple[str, ...]
    """Names of the features, in the order of the columns of ``X``; one that a record lacks is missing."""
    targets: tuple[str, ...] = ()
    """Names of the targets that are numbers, in the order of the columns of ``Y``."""
    label: str | None = None
    """Name of the one target of a classifier."""
    weight: str | None = None
    """Name of the field that says how much an event counts; without it, or where it is missing, that is 1."""
    categorical: frozenset[str] = frozenset()
    """Names of features that are texts, columns that come late included."""
    timestamps: frozenset[str] = frozenset()
    """Names of features that are times, the same."""

    def kind(self, field: str) -> Kind:
        """How a feature is read."""
        return "text" if field in self.categorical else "time" if field in self.timestamps else "number"

    @property
    def slots(self) -> tuple[Slot, ...]:
        """All values to take, in this order: features, targets, label, weight."""
        return (
            *(Slot(name, self.kind(name)) for name in self.fields),
            *(Slot(name, "number") for name in self.targets),
            *(Slot(name, "text") for name in (self.label,) if name is not None),
            *(Slot(name, "number") for name in (self.weight,) if name is not None),
        )


class Rejected(NamedTuple):
    """A record that carries no event."""

    index: int  # type: ignore[assignment]  # nobody searches this tuple
    """Which record of the batch."""
    reason: str
    """One of `streammoe.errors.REASONS`."""
    detail: str
    """A sentence naming the field, the value and the rule."""


class Decoded(NamedTuple):
    """The events of a batch, in order."""

    rows: IntArray
    """Which record of the batch each event came from, shape (n,)."""
    X: FloatArray
    """Features, shape (n, P), C-contiguous; NaN where missing, and in columns of texts."""
    texts: dict[int, list[str | None]]
    """Of each column of texts the n values, by its index; ``None`` where missing."""
    Y: FloatArray
    """Targets, shape (n, Q), C-contiguous; a row of NaN where there is none. An event has all of them or none."""
    labels: list[str | None] | None
    """Of a classifier, the n labels; ``None`` where there is none."""
    weights: FloatArray
    """How much each event counts, shape (n,), from 0 to `LARGEST_WEIGHT`."""
    rejected: list[Rejected]
    """In the order of the records."""
    first_new: tuple[int, Values] | None = None
    """If columns may come late: the first good record to be learned with values under new names, and these, raw.
    Decoding has stopped before that record."""


class Decoder(Protocol):
    """One format. Holds no state that shapes a result."""

    def names(self, batch: Batch, i: int) -> Values:
        """The i-th record as names and raw values.

        Raises:
            InvalidEvent: the record is ``malformed``.
        """
        ...

    def decode(self, batch: Batch, wanted: Wanted, ignore: Collection[str] | None = None) -> Decoded:
        """All records of `batch`.

        Args:
            batch: the records.
            wanted: what to take from them.
            ignore: given where columns may come late: the names that never become one. Decoding then stops before the
                first good record that holds a value, not null, under a name that is neither wanted nor listed here,
                so that the caller can let its model grow and go on with ``batch.tail``. One without target or of
                weight 0, which lets no model grow, stops nothing. A record whose new values cannot be read as
                ``wanted.kind`` says is refused.

        Raises:
            SourceError: the header lacks a target.
        """
        ...


class Row(NamedTuple):
    """One event."""

    x: list[float]
    texts: dict[int, str | None]
    y: list[float]
    label: str | None
    weight: float


def to_row(values: Mapping[str, object], wanted: Wanted, *, text: bool = False) -> Row:
    """What one record holds: the exact path of every format. The parts are those of `Decoded`.

    Args:
        values: the record, raw; other names than those wanted are ignored.
        wanted: what to take.
        text: whether the format writes numbers as text, and missing values as empty text.

    Raises:
        InvalidEvent: a value is not of its kind, some but not all targets are missing, or a weight is out of range.

    >>> to_row({"x": 2, "y": None, "c": True}, Wanted(("x", "z", "c"), ("y",), categorical=frozenset("c")))
    Row(x=[2.0, nan, nan], texts={2: 'true'}, y=[nan], label=None, weight=1.0)
    """
    slots = wanted.slots
    numbers, texts = _read(values, slots, text)
    _check(wanted, numbers)
    P, Q = len(wanted.fields), len(wanted.targets)
    weight = 1.0 if wanted.weight is None or math.isnan(numbers[-1]) else numbers[-1]
    features = {j: value for j, value in texts.items() if j < P}
    return Row(numbers[:P], features, numbers[P : P + Q], texts.get(P + Q), weight)


class Sheet:
    """The events of a batch while they are being read: what the fast and the exact path of each format fill."""

    def __init__(self, n: int, wanted: Wanted) -> None:
        self.wanted = wanted
        self.slots = wanted.slots
        self.numbers: FloatArray = np.full((n, len(self.slots)), np.nan)
        """A column for each slot, NaN in those of texts."""
        self.texts: dict[int, list[str | None]] = {
            j: [None] * n for j, slot in enumerate(self.slots) if slot.kind == "text"
        }
        self._rejected: dict[int, Rejected] = {}

    def put(self, i: int, values: Mapping[str, object], *, text: bool) -> None:
        """Take record `i` on the exact path.

        Raises:
            InvalidEvent: it carries no event.
        """
        numbers, texts = _read(values, self.slots, text)
        self.numbers[i] = numbers
        for j, value in texts.items():
            self.texts[j][i] = value
        _check(self.wanted, numbers)

    def put_column(self, j: int, records: Iterable[int], values: Iterable[Any], *, text: bool) -> None:
        """Take what slot `j`, a time or a text, holds in these records, value by value."""
        name, kind = self.slots[j]
        numbers, texts = self.numbers[:, j], self.texts.get(j)
        for i, value in zip(records, values, strict=True):
            try:
                if texts is None:
                    numbers[i] = READERS[kind](name, value, text)
                else:
                    texts[i] = label(name, value, text)
            except InvalidEvent as error:
                self.reject(i, error)

    def reject(self, i: int, error: InvalidEvent) -> None:
        """Refuse record `i`; of several reasons the first one counts."""
        self._rejected.setdefault(i, Rejected(i, error.reason, str(error)))

    def judge(self, start: int, stop: int) -> None:
        """Refuse those among the records from `start` to `stop`, from the fast path, that are no events as a whole."""
        for i in start + np.flatnonzero(_is_odd(self.wanted, self.numbers[start:stop])):
            try:
                _check(self.wanted, self.numbers[i].tolist())
            except InvalidEvent as error:
                self.reject(int(i), error)

    def check_new(self, i: int, values: Mapping[str, object], *, text: bool) -> Values:
        """New values of record `i`, which has been read; those that are missing, or will not be learned, left out.

        Raises:
            InvalidEvent: one cannot be read as a feature.
        """
        held: Values = {}
        for name in sorted(values):
            taken = READERS[self.wanted.kind(name)](name, values[name], text)
            if taken is not None and taken == taken:  # noqa: PLR0124 - NaN, that is, missing, differs from itself
                held[name] = values[name]
        return held if held and self._is_learned(i) else {}

    def _is_learned(self, i: int) -> bool:
        """Whether record `i` has what it takes: targets, and a weight above 0."""
        wanted, numbers = self.wanted, self.numbers[i]
        P, Q = len(wanted.fields), len(wanted.targets)
        without = (
            np.isnan(numbers[P : P + Q]).any()
            or (wanted.label is not None and self.texts[P + Q][i] is None)
            or (wanted.weight is not None and numbers[-1] == 0.0)
        )
        return not without

    def first_new(self, start: int, holds: BoolArray, read: Callable[[int], Values], *, text: bool) -> bool:
        """Find the first record from `start` on that may come with new columns.

        Args:
            start: the record that `holds` begins with.
            holds: which records have values under new names.
            read: these values of a record.
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
    """Where reading has to stop, see `Decoded.first_new`."""

    def finish(self) -> Decoded:
        """The events, less those rejected, up to the first one with new columns."""
        n = len(self.numbers) if self.new is None else self.new[0]
        rejected = [self._rejected[i] for i in sorted(self._rejected) if i < n]
        rows = np.delete(np.arange(n), [record.index for record in rejected])
        good = self.numbers[rows] if rejected else self.numbers[:n]
        texts = {j: [values[i] for i in rows.tolist()] if rejected else values[:n] for j, values in self.texts.items()}
        P, Q = len(self.wanted.fields), len(self.wanted.targets)
        weights = np.ones(len(rows))
        if self.wanted.weight is not None:
            given = ~np.isnan(good[:, -1])
            weights[given] = good[given, -1]
        return Decoded(
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
    """Cuts n records into runs that double: where reading may have to stop early, little is read in vain.

    >>> list(growing_runs(300))
    [(0, 64), (64, 192), (192, 300)]
    """
    start, length = 0, 64
    while start < n:
        yield start, min(start + length, n)
        start, length = start + length, 2 * length


def require_targets(origin: str, header: Sequence[str], wanted: Wanted) -> None:
    """Check that a header has all targets.

    Raises:
        SourceError: it lacks one.
    """
    for target in (*wanted.targets, *(name for name in (wanted.label,) if name is not None)):
        if target not in header:
            raise SourceError(
                f"{origin} has no column {target!r}, which the settings name as target; its columns are "
                f"{some_of(header)}{_hint(header)}"
            )


def _hint(header: Sequence[str]) -> str:
    """Say what a header that is none, or that another delimiter would divide, seems to want."""
    if len(header) == 1 and (found := [mark for mark in DELIMITERS if mark in header[0]]):
        return f"; it looks like csv with another delimiter: set source.delimiter to {json.dumps(found[0])}"
    if all(name.replace(".", "", 1).removeprefix("-").isdecimal() for name in header):
        return '; it looks like a record and no header: name the columns by source.header, such as ["a", "b", "y"]'
    return ""


def is_utf8(data: bytes) -> bool:
    """Whether `data` is well-formed UTF-8."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def readable(batch: Batch, i: int) -> bytes:
    """The i-th record of `batch`.

    Raises:
        InvalidEvent: the source itself could make nothing of it, though its bytes may look sound.
    """
    if i in batch.unreadable:
        reason, detail, _ = batch.unreadable[i]
        raise InvalidEvent(detail, reason=reason)
    return batch.record(i)


def text_of(record: bytes) -> str:
    """A record's text.

    Raises:
        InvalidEvent: it is not UTF-8.
    """
    try:
        return record.decode()
    except UnicodeDecodeError as error:
        raise malformed(record, f"must be UTF-8, and byte {error.start} is not") from None


def malformed(record: str | bytes, rule: str) -> InvalidEvent:
    """The error for a record that cannot be taken apart."""
    return InvalidEvent(f"record {shown(record)} {rule}", reason="malformed")


def _read(values: Mapping[str, object], slots: Sequence[Slot], text: bool) -> tuple[list[float], dict[int, str | None]]:
    """A number for each slot, NaN in those of texts; and these texts."""
    numbers, texts = [math.nan] * len(slots), {}
    for j, (name, kind) in enumerate(slots):
        value = values.get(name)
        if kind == "text":
            texts[j] = label(name, value, text)
        elif value is not None:
            numbers[j] = READERS[kind](name, value, text)  # type: ignore[assignment]  # only texts are no numbers
    return numbers, texts


def _is_odd(wanted: Wanted, numbers: FloatArray) -> BoolArray:
    """Which rows `_check` refuses."""
    P, Q = len(wanted.fields), len(wanted.targets)
    odd = np.zeros(len(numbers), np.bool_)
    if Q > 1:
        missing = np.isnan(numbers[:, P : P + Q])
        odd |= missing.any(axis=1) & ~missing.all(axis=1)
    if wanted.weight is not None:
        odd |= (numbers[:, -1] < 0.0) | (numbers[:, -1] > LARGEST_WEIGHT)
    return odd


def _check(wanted: Wanted, numbers: Sequence[float]) -> None:
    P, Q = len(wanted.fields), len(wanted.targets)
    missing = [name for name, value in zip(wanted.targets, numbers[P : P + Q], strict=True) if math.isnan(value)]
    if 0 < len(missing) < Q:
        message = f"target {missing[0]!r} is missing; an event must have all of its {Q} targets, or none of them"
        raise InvalidEvent(message, reason="partial_target", feature=missing[0])
    if wanted.weight is not None and not (math.isnan(numbers[-1]) or 0.0 <= numbers[-1] <= LARGEST_WEIGHT):
        message = f"weight {wanted.weight!r} is {numbers[-1]!r}; it must lie between 0 and {LARGEST_WEIGHT:g}"
        raise InvalidEvent(message, reason="out_of_range", feature=wanted.weight)
