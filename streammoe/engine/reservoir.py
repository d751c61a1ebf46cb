"""A uniform sample of all events learned so far, kept beside the model: it affects nothing that is learned.

Algorithm R (Vitter, ACM TOMS 11, 1985): the first events fill the sample, and event n replaces a row of it with
probability size/n. Which row, if any, depends on nothing but the seed and n, so that the sample is the same however
events come.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.recent import Rows
from streammoe.experts import Family
from streammoe.types import AnyArray, FloatArray

PREFIX = "reservoir."
"""Prefix of the names of its arrays."""
AHEAD = 4096
"""Number of events for which it is found out at once which of them enter."""
WEYL = np.uint64(0x9E3779B97F4A7C15)
MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))
"""Constants of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""


class Reservoir:
    """A uniform sample without replacement of all events that were added.

    Args:
        size: maximum number of rows.
        seed: of the choice.
        rows: those that it begins with.
        seen: number of events that they are a sample of.

    Attributes:
        seen: number of events added.
    """

    def __init__(self, size: int, seed: int, rows: Rows | None = None, seen: int = 0) -> None:
        self.size = size
        self.seed = seed
        self.seen = seen
        X, Y, weights = rows or Rows(np.empty((0, 0)), np.empty((0, 0)), np.empty(0))
        self._key = np.random.SeedSequence(seed).generate_state(1, np.uint64)[0]
        self._rows: list[FloatArray] = [*np.column_stack((weights, Y, X))]
        """Weight, targets and inputs of each event in the sample; rows are never changed."""
        self._is_shared = False
        """Whether copies have the same list, so that it must not be changed either."""
        self._first = 1 + Y.shape[1]
        """Place of the first input in a row."""
        self._at, self._next = 0, 0
        """The next event that enters, among those that are known, and its number."""
        self._look_ahead(seen + 1)

    def add(self, X: FloatArray, Y: FloatArray, weights: FloatArray) -> None:
        """Add rows in order, those without target excepted."""
        known, before = np.flatnonzero(~np.isnan(Y[:, 0])), self.seen
        self.seen += len(known)
        while self._next <= self.seen:
            at = known[self._next - before - 1]
            self._consider(X[at], Y[at], weights[at])

    def add_one(self, row: FloatArray, target: Sequence[float], weight: float) -> None:
        """Add an event that has a target; the row, (1, F), is copied if it enters."""
        self.seen += 1
        while self._next <= self.seen:
            self._consider(row[0], target, weight)

    def _consider(self, x: FloatArray, target: Sequence[float] | FloatArray, weight: float) -> None:
        """Let the event that is the next to enter do so, unless it is only the first one of which that is not known."""
        place = self._places.item(self._at)
        if place < 0:
            self._look_ahead(self._next)
            return
        if self._is_shared:
            self._rows, self._is_shared = self._rows.copy(), False
        first = self._first = 1 + len(target)
        row = np.empty(first + len(x))
        row[0], row[1:first], row[first:] = weight, target, x
        self._rows[place : place + 1] = [row]
        self._at += 1
        self._next = self._numbers.item(self._at)

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
        self._numbers, self._places = np.append(first + entering, first + AHEAD), np.append(places[entering], -1)
        """These; then the number of the first one of which that is not known."""
        self._at, self._next = 0, self._numbers.item(0)

    def rows(self, n_fields: int) -> Rows:
        """Return a copy of the sample, with so many inputs."""
        first = self._first
        found = np.full((len(self._rows), first + n_fields), np.nan)
        for held, row in zip(found, self._rows, strict=True):
            held[: len(row)] = row
        return Rows(found[:, first:].copy(), found[:, 1:first].copy(), found[:, 0].copy())

    def resized(self, size: int) -> Reservoir:
        """Return a sample of another size: a part of this one, or where events are missing, one that begins now."""
        if size > self.size and self.seen > self.size:
            return Reservoir(size, self.seed)
        rows = self.rows(max(map(len, self._rows), default=self._first) - self._first)
        if len(self._rows) > size:
            rng = np.random.default_rng((self.seed, self.seen))
            rows = rows.part(np.sort(rng.choice(len(self._rows), size, replace=False)))
        return Reservoir(size, self.seed, rows, self.seen)

    def copy(self) -> Reservoir:
        """Return an independent copy."""
        self._is_shared = True
        return copy(self)

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
        seen = int(array_of(arrays, f"{PREFIX}seen", "int64", (1,), least=0, most=LARGEST_COUNT)[0])
        m = min(seen, size)
        X = array_of(arrays, f"{PREFIX}X", "float64", (m, n_fields), finite=False)
        require(not np.isinf(X).any(), f"array {PREFIX}X holds infinities")
        Y = array_of(arrays, f"{PREFIX}Y", "float64", (m, family.n_targets(n_outputs) if m else None))
        weights = array_of(arrays, f"{PREFIX}weights", "float64", (m,), least=0.0)
        require((weights > 0.0).all(), f"array {PREFIX}weights holds weights that are not above 0")
        return cls(size, seed, Rows(X, Y, weights), seen)
