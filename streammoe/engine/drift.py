"""Drift detection: a test on prequential losses whose state is kept in arrays.

Losses are averaged over blocks of `BLOCK` learned events. Each mean is compared with the usual one, in standard
deviations of such means (`kernels/drift.py`), and a Page-Hinkley test accumulates the excess. A change is detected only
at the end of a block, and does not depend on how events were grouped into batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import NamedTuple

import numpy as np

from streammoe.checked import LARGEST_COUNT, array_of, require
from streammoe.types import AnyArray, FloatArray, IntArray

BLOCK = 32
"""Learned events per block."""
CALIBRATION = 16
"""Blocks that only establish the usual mean and deviation, before any is tested."""
THRESHOLD = 64.0
"""Accumulated standard deviations of block means that count as a change. No block contributes more than 16."""
TOLERANCE = 2.0
"""Standard deviations subtracted from each block: one that exceeds the usual mean by less does not count."""


class Drift(NamedTuple):
    """A change of the relation between features and targets."""

    n: int
    """Events learned when it was detected; it began earlier."""
    before: float
    """Usual mean of the losses −log s(y|x) until then, single events clipped; of a change that was declared, the loss
    of a model that need not be worse."""
    after: float
    """Mean of the latest block, or median of the events for which it was declared."""


class DriftDetector:
    """A detector that receives the losses of learned events in order."""

    def __init__(self) -> None:
        self._block = np.zeros(BLOCK)
        """Losses of the open block, then leftovers of the one before."""
        self._counts = np.zeros(4, dtype=np.int64)
        """Number of losses in the open block, blocks closed since the last change, changes, and n at the last one."""
        self._usual = np.zeros(4)
        self._last = np.zeros(2)
        """Mean losses before and after the last change."""
        self._sums = np.zeros(2)
        """Those of the cumulative test."""

    @property
    def drifts(self) -> int:
        """Number of changes detected so far."""
        return int(self._counts[2])

    @property
    def last(self) -> Drift | None:
        """The latest change, if any."""
        return Drift(int(self._counts[3]), float(self._last[0]), float(self._last[1])) if self.drifts else None

    @property
    def arrays_of_losses(self) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
        """Arrays that kernels change in place: losses of the open block, counts, usual losses, sums of the test."""
        return self._block, self._counts, self._usual, self._sums

    def declare(self, drift: Drift) -> Drift:
        """Count a change, found here or otherwise: the usual losses after it are not known yet. Return it."""
        self._counts[:] = 0, 0, self.drifts + 1, drift.n
        self._last[:] = drift.before, drift.after
        self._block[:], self._usual[:], self._sums[:] = 0.0, 0.0, 0.0
        return drift

    def copy(self) -> DriftDetector:
        """Return an independent copy."""
        return deepcopy(self)

    def arrays(self) -> dict[str, AnyArray]:
        """Return the whole state as named arrays."""
        return {
            "drift.block": self._block,
            "drift.counts": self._counts,
            "drift.usual": self._usual,
            "drift.last": self._last,
            "drift.sums": self._sums,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, AnyArray]) -> DriftDetector:
        """Restore a detector from the arrays that `arrays` returned.

        Raises:
            CheckpointError: an array is missing, has another shape, or holds invalid values.
        """
        detector = cls()
        for name, own in detector.arrays().items():
            least, most = (0.0, LARGEST_COUNT) if own is detector._counts else (-np.inf, np.inf)
            own[:] = array_of(arrays, name, str(own.dtype), own.shape, least=least, most=most)
        filled = int(detector._counts[0])
        require(filled < BLOCK, f"array drift.counts has {filled} losses in a block of {BLOCK}")
        require((detector._usual[1:3] >= 0.0).all(), "array drift.usual holds deviations below 0")
        return detector
