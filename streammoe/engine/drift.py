"""Whether the relation has changed: a test on the prequential losses, and what it remembers, as arrays.

Losses are averaged over blocks of `BLOCK` learned events. Each mean is held against the usual one, in the standard
deviations that such means have (`kernels/drift.py`), and River's Page-Hinkley test adds up how far they lie above.
What is found depends on the events and not on how they came in batches, and only at the end of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from streammoe.kernels.drift import hold_against_usual
from streammoe.restoring import LARGEST_COUNT, array_of, must_be
from streammoe.types import AnyArray, FloatArray

if TYPE_CHECKING:
    from streammoe.engine.page_hinkley import KeptPageHinkley

DETECTORS = ("off", "page_hinkley")
BLOCK = 32
"""Learned events that one mean is made of."""
CALIBRATION = 16
"""Blocks that only say what is usual, before any is judged."""
THRESHOLD = 15.0
"""Standard deviations of blocks, added up, that are a change. No block counts for more than five."""
TOLERANCE = 0.5
"""What is taken off each of them: a block that is above the mean by less is none the worse."""


class Drift(NamedTuple):
    """The relation has changed."""

    n: int
    """Events learned when that was found; it began earlier."""
    before: float
    """Mean of the losses that was usual until then, −log s(y|x), single events clipped."""
    after: float
    """Mean of the latest block."""


class DriftWatch:
    """Takes the losses of learned events in order."""

    def __init__(self) -> None:
        self._block = np.zeros(BLOCK)
        self._counts = np.zeros(5, dtype=np.int64)
        """Losses in the open block; blocks closed since the last change; changes; n at the last one; events that the
        steps have begun anew from there with."""
        self._usual = np.zeros(3)
        self._last = np.zeros(2)
        """Mean losses before and after the last change."""
        self._sums = np.zeros(4)
        """Of the test, as far as it is not under way."""
        self._test: KeptPageHinkley | None = None

    @property
    def drifts(self) -> int:
        """Changes found so far."""
        return int(self._counts[2])

    @property
    def last(self) -> Drift | None:
        """The latest change."""
        return Drift(int(self._counts[3]), float(self._last[0]), float(self._last[1])) if self.drifts else None

    @property
    def seen(self) -> int:
        """Events that steps have counted since the last change as if they had been before it."""
        return int(self._counts[4])

    @property
    def to_come(self) -> int:
        """Learned events until the open block is full."""
        return BLOCK - int(self._counts[0])

    def take(self, losses: FloatArray, n: int, seen: int) -> Drift | None:
        """Take losses (m,) up to the first change; those behind it are not looked at.

        Args:
            losses: of the next learned events.
            n: events learned before them.
            seen: events that steps are to begin anew with from a change on.
        """
        ends = self.to_come
        closed = np.empty((len(losses) // BLOCK + 1, 3))
        judged = int(self._counts[1])
        for block in range(hold_against_usual(losses, self._block, self._counts, self._usual, closed)):
            judged += 1
            if judged > CALIBRATION and self._rises(float(closed[block, 0])):
                self._counts[:] = 0, 0, self.drifts + 1, n + ends + block * BLOCK, seen
                self._last[:] = closed[block, 1:]
                # What is usual from here on nobody knows.
                self._block[:], self._usual[:], self._sums[:], self._test = 0.0, 0.0, 0.0, None
                return self.last
        # So that equal futures have equal bytes.
        self._block[self._counts[0] :] = 0.0
        return None

    def _rises(self, excess: float) -> bool:
        """Whether the test finds a change with one more value."""
        from streammoe.engine.page_hinkley import KeptPageHinkley

        if self._test is None:
            self._test = KeptPageHinkley(threshold=THRESHOLD, tolerance=TOLERANCE, least=CALIBRATION, sums=self._sums)
        self._test.update(excess)
        self._test.read(self._sums)
        return self._test.drift_detected

    def copy(self) -> DriftWatch:
        """One that shares nothing with this one."""
        return DriftWatch.from_arrays({name: array.copy() for name, array in self.arrays().items()})

    def __deepcopy__(self, memo: dict[int, object]) -> DriftWatch:
        return self.copy()

    def __reduce__(self) -> tuple[object, tuple[object]]:
        return DriftWatch.from_arrays, (self.arrays(),)

    def arrays(self) -> dict[str, AnyArray]:
        """All of it, by name."""
        return {
            "drift.block": self._block,
            "drift.counts": self._counts,
            "drift.usual": self._usual,
            "drift.last": self._last,
            "drift.sums": self._sums,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> DriftWatch:
        """The inverse of `arrays`.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds what no watch can.
        """
        watch = cls()
        for name, own in watch.arrays().items():
            counts = name == "drift.counts"
            most = LARGEST_COUNT if counts else np.inf
            own[:] = array_of(
                arrays, name, str(own.dtype), own.shape, least=0.0 if counts else -np.inf, most=most
            )
        must_be(watch._counts[0] < BLOCK, f"array drift.counts has {watch._counts[0]} losses in a block of {BLOCK}")
        must_be((watch._usual[1:] >= 0.0).all(), "array drift.usual holds deviations below 0")
        must_be(watch._sums[0] >= 0.0, "array drift.sums counts values below 0")
        return watch
