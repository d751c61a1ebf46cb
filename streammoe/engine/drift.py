"""Whether the relation has changed: a test on the prequential losses, and what it remembers, as arrays.

Losses are averaged over blocks of `BLOCK` learned events. Each mean is held against the usual one, in the standard
deviations that such means have (`kernels/drift.py`), and a Page-Hinkley test adds up how far they lie above.
What is found depends on the events and not on how they came in batches, and only at the end of a block.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.engine.page_hinkley import PageHinkley
from streammoe.kernels.drift import hold_against_usual
from streammoe.types import AnyArray, FloatArray

DETECTORS = ("off", "page_hinkley")
BLOCK = 32
"""Learned events that one mean is made of."""
CALIBRATION = 16
"""Blocks that only say what is usual, before any is judged."""
THRESHOLD = 70.0
"""Standard deviations of blocks, added up, that are a change. No block counts for more than 16."""
TOLERANCE = 2.0
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
        """Losses of the open block, then what is left of the one before."""
        self._counts = np.zeros(4, dtype=np.int64)
        """Losses in the open block; blocks closed since the last change; changes; n at the last one."""
        self._usual = np.zeros(4)
        self._last = np.zeros(2)
        """Mean losses before and after the last change."""
        self._test = _test()

    @property
    def drifts(self) -> int:
        """Changes found so far."""
        return int(self._counts[2])

    @property
    def last(self) -> Drift | None:
        """The latest change."""
        return Drift(int(self._counts[3]), float(self._last[0]), float(self._last[1])) if self.drifts else None

    @property
    def to_come(self) -> int:
        """Learned events until the open block is full."""
        return BLOCK - int(self._counts[0])

    def take(self, losses: FloatArray, n: int) -> Drift | None:
        """Take losses (m,) up to the first change; those behind it are not looked at.

        Args:
            losses: of the next learned events.
            n: events learned before them.
        """
        ends = n + self.to_come
        closed = np.empty((len(losses) // BLOCK + 1, 3))
        judged = int(self._counts[1])
        for block in range(hold_against_usual(losses, self._block, self._counts, self._usual, closed)):
            judged += 1
            if judged > CALIBRATION and self._test.rises(float(closed[block, 0])):
                self._counts[:] = 0, 0, self.drifts + 1, ends + block * BLOCK
                self._last[:] = closed[block, 1:]
                # What is usual from here on nobody knows.
                self._block[:], self._usual[:], self._test = 0.0, 0.0, _test()
                return self.last
        return None

    def copy(self) -> DriftWatch:
        """One that shares nothing with this one."""
        other = DriftWatch()
        other._set(self.arrays())
        return other

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
            "drift.sums": np.array(self._test.sums),
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> DriftWatch:
        """The inverse of `arrays`.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds what no watch can.
        """
        watch = cls()
        found: dict[str, AnyArray] = {}
        for name, own in watch.arrays().items():
            counts = name == "drift.counts"
            least, most = (0.0, LARGEST_COUNT) if counts else (-np.inf, np.inf)
            found[name] = array_of(arrays, name, str(own.dtype), own.shape, least=least, most=most)
        filled = int(found["drift.counts"][0])
        require(filled < BLOCK, f"array drift.counts has {filled} losses in a block of {BLOCK}")
        require((found["drift.usual"][1:3] >= 0.0).all(), "array drift.usual holds deviations below 0")
        watch._set(found)
        return watch

    def _set(self, arrays: Mapping[str, AnyArray]) -> None:
        self._block[:], self._counts[:] = arrays["drift.block"], arrays["drift.counts"]
        self._usual[:], self._last[:] = arrays["drift.usual"], arrays["drift.last"]
        self._test = _test(*arrays["drift.sums"].tolist())


def _test(total: float = 0.0, least: float = 0.0) -> PageHinkley:
    return PageHinkley(threshold=THRESHOLD, tolerance=TOLERANCE, total=total, least=least)
