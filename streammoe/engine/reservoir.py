"""A uniform sample of all events learned so far, kept beside the model: it affects nothing that is learned.

Algorithm R (Vitter, ACM TOMS 11, 1985): the first events fill the sample, and event n replaces a row of it with
probability size/n. Which row, if any, depends on nothing but the seed and n, so that the sample is the same however
events come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import NamedTuple

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.experts import Family
from streammoe.types import AnyArray, FloatArray

PREFIX = "reservoir."
"""Prefix of the names of its arrays."""
LEAST = 64
"""Number of rows for which there is room at first."""
AHEAD = 4096
"""Number of events for which it is found out at once which of them enter."""
FEW = 16
"""Up to so many rows are quicker one by one."""
WEYL = np.uint64(0x9E3779B97F4A7C15)
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""


class Sample(NamedTuple):
    """Rows of events, as they came."""

    X: FloatArray
    """(m, F) raw rows: numbers, codes of levels, seconds; NaN where missing."""
    Y: FloatArray
    """(m, Q) targets, or (m, 1) indexes of classes."""
    weights: FloatArray
    """(m,) weights."""


class Reservoir:
    """A uniform sample without replacement of all events that were added.

    Args:
        size: maximum number of rows.
        seed: of the choice.

    Attributes:
        seen: number of events added.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        self.seen = 0
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self._rows = np.empty((0, 1))
        """Rows of weight, targets and inputs, of which the first `count` are in use."""
        self._first = 1
        """Column of the first input."""
        self._numbers, self._places = np.array([1]), np.array([-1])
        """Which of the next events enter, and where; then the number of the first one of which that is not known. Never
        changed, only replaced."""
        self._at, self._next = 0, 1
        """The next of these, and its number."""
        self._copied: tuple[object, int] | None = None
        """A mark that this one and its latest copy share, and how many events they had seen; None if rows have moved
        since."""
        self._written: list[int] = []
        """Places written since then."""

    @property
    def count(self) -> int:
        """Number of rows."""
        return min(self.seen, self.size)

    def add(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Add rows in order, those without target excepted."""
        n = len(X)
        if n == 1:
            y = Y.item(0)
            if y == y:  # noqa: PLR0124 - not NaN, and quicker to ask so
                self.seen += 1
                if self.seen >= self._next:
                    self._add_next(X, Y, weights)
        elif n > FEW:
            self._add_many(X, Y, weights)
        else:
            for i in range(n):
                row = slice(i, i + 1)
                self.add(X[row], Y[row], weights[row])

    def add_one(self, row: FloatArray, target: Sequence[float], weight: float) -> None:
        """Add an event that has a target; the row, (1, F), is copied if it enters."""
        self.seen += 1
        if self.seen >= self._next:
            self._add_next(row, np.array([target]), np.array([weight]))

    def _add_next(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Let the event that was seen last enter, if it does."""
        place = self._places.item(self._at)
        if place < 0:
            self._look_ahead(self.seen)
            if self.seen < self._next:
                return
            place = self._places.item(0)
        self._at += 1
        self._next = self._numbers.item(self._at)
        first = self._first
        if self.seen <= self.size or first + X.shape[1] != self._rows.shape[1]:
            first = self._make_room(Y.shape[1], X.shape[1])
        row = self._rows[place]
        row[first:] = X
        row[1:first] = Y
        row[0] = weights.item(0)
        self._written.append(place)

    def _add_many(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        missing = np.isnan(Y[:, 0])
        if missing.any():
            X, Y, weights = X[~missing], Y[~missing], weights[~missing]
        start = 0
        while start < len(X):
            if self.seen + 1 == self._numbers.item(-1):
                self._look_ahead(self.seen + 1)
            stop = min(start + self._numbers.item(-1) - 1 - self.seen, len(X))
            end = int(np.searchsorted(self._numbers, self.seen + 1 + stop - start))
            entering = slice(self._at, end)
            rows, places = self._numbers[entering] + (start - 1 - self.seen), self._places[entering]
            self.seen += stop - start
            self._at, self._next, start = end, self._numbers.item(end), stop
            if len(rows):
                first = self._make_room(Y.shape[1], X.shape[1])
                # Of several rows for one place the last one stays.
                self._rows[places, 0] = weights[rows]
                self._rows[places, 1:first] = Y[rows]
                self._rows[places, first:] = X[rows]
                self._written += places.tolist()

    def _look_ahead(self, first: int) -> None:
        """Find out which of the next events enter, and where; `first` is the number of the first one."""
        numbers = np.arange(first, first + AHEAD, dtype=np.uint64)
        bits = self._key + numbers * WEYL
        bits = (bits ^ (bits >> np.uint64(30))) * MIX[0]
        bits = (bits ^ (bits >> np.uint64(27))) * MIX[1]
        bits ^= bits >> np.uint64(31)
        at_random = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53 * numbers
        places = np.where(numbers <= self.size, numbers - np.uint64(1), at_random).astype(np.int64)
        entering = np.flatnonzero(places < self.size)
        self._numbers = np.append(first + entering, first + AHEAD)
        self._places = np.append(places[entering], -1)
        self._at, self._next = 0, self._numbers.item(0)

    def _make_room(self, n_targets: int, n_fields: int) -> int:
        """Make room for the rows in use, with so many columns; return the column of the first input."""
        before, width = self._rows, 1 + n_targets + n_fields
        if self.count <= len(before) and width == before.shape[1]:
            return self._first
        capacity = len(before) if self.count <= len(before) else min(max(2 * self.count, LEAST), self.size)
        self._rows = np.full((capacity, width), np.nan)
        self._rows[: len(before), : before.shape[1]] = before
        self._first = 1 + n_targets
        self._copied = None
        return self._first

    def rows(self, n_fields: int) -> Sample:
        """Return a copy of the sample, with so many inputs."""
        rows, first = self._rows[: self.count], self._first
        X = np.full((len(rows), n_fields), np.nan)
        X[:, : rows.shape[1] - first] = rows[:, first:]
        return Sample(X, rows[:, 1:first].copy(), rows[:, 0].copy())

    def resized(self, size: int) -> Reservoir:
        """Return a sample of another size: a part of this one, or where events are missing, one that begins now."""
        other = Reservoir(size, self.seed)
        if size > self.size and self.seen > self.size:
            return other
        kept = self._rows[: self.count]
        if len(kept) > size:
            rng = np.random.default_rng((self.seed, self.seen))
            kept = kept[np.sort(rng.choice(len(kept), size, replace=False))]
        return other._holding(kept.copy(), self._first, self.seen)

    def copy(self, spare: Reservoir | None = None) -> Reservoir:
        """Return an independent copy; the array of `spare`, an obsolete one, may be reused.

        If that is the latest copy, only the rows written since are copied.
        """
        rows = None if spare is None else spare._as_copied(self._copied)  # noqa: SLF001 - of the same class
        if rows is None:
            rows = self._rows.copy()
        else:
            places = np.array(self._written, dtype=np.int64)
            rows[places] = self._rows[places]
        self._copied, self._written = (object(), self.seen), []
        other = copy(self)
        vars(other).update(_rows=rows, _written=[])
        return other

    def _as_copied(self, copied: tuple[object, int] | None) -> FloatArray | None:
        """Return the rows if they are still those of a copy that was made then."""
        return self._rows if copied is not None and (self._copied, self.seen) == (copied, copied[1]) else None

    def __deepcopy__(self, memo: dict[int, object]) -> Reservoir:
        return self.copy()

    def arrays(self, n_fields: int) -> dict[str, AnyArray]:
        """Return the sample as named arrays, with so many inputs."""
        found: dict[str, AnyArray] = {f"{PREFIX}{name}": array for name, array in self.rows(n_fields)._asdict().items()}
        return {**found, f"{PREFIX}seen": np.array([self.seen], dtype=np.int64)}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, AnyArray], family: Family, *, size: int, seed: int, n_fields: int, n_outputs: int
    ) -> Reservoir:
        """Restore a sample from the arrays that `arrays` returned.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values. Of X, whose meaning is not
                known here, only the shape is checked.
        """
        found = cls(size, seed)
        found.seen = int(array_of(arrays, f"{PREFIX}seen", "int64", (1,), least=0, most=LARGEST_COUNT)[0])
        m = found.count
        X = array_of(arrays, f"{PREFIX}X", "float64", (m, n_fields), finite=False)
        require(not np.isinf(X).any(), f"array {PREFIX}X holds infinities")
        Y = array_of(arrays, f"{PREFIX}Y", "float64", (m, family.n_targets(n_outputs) if m else None))
        weights = array_of(arrays, f"{PREFIX}weights", "float64", (m,), least=0.0)
        require((weights > 0.0).all(), f"array {PREFIX}weights holds weights that are not above 0")
        return found._holding(np.column_stack((weights, Y, X)), 1 + Y.shape[1], found.seen)

    def _holding(self, rows: FloatArray, first: int, seen: int) -> Reservoir:
        """Return the sample itself, which was empty, with these rows."""
        self._rows, self._first, self.seen = rows, first, seen
        self._look_ahead(seen + 1)
        return self
