"""A compact summary of a long series of numbers."""

from __future__ import annotations

import numpy as np

from streammoe.types import FloatArray

BINS = 4096
"""Maximum number of bins of a curve; at least half of them are used once there are that many values."""


class Curve:
    """Sums of rows over bins of equal width, which doubles whenever there are too many bins.

    Args:
        width: number of values in a row.

    >>> curve = Curve()
    >>> curve.add(np.arange(4.0)[:, None])
    >>> float(curve.mean()[0]), float(curve.mean(last=0.25)[0])
    (1.5, 3.0)
    """

    def __init__(self, width: int = 1) -> None:
        self.width = width
        self.per_bin = 1
        """Number of rows in a full bin."""
        self.count = 0
        self._sums = np.zeros((BINS, width))

    def add(self, rows: FloatArray) -> None:
        """Add rows, (n, width), in order."""
        start = 0
        while start < len(rows):
            if self.count == BINS * self.per_bin:
                self._sums[: BINS // 2] = self._sums[0::2] + self._sums[1::2]
                self._sums[BINS // 2 :] = 0.0
                self.per_bin *= 2
            piece = rows[start : start + BINS * self.per_bin - self.count]
            np.add.at(self._sums, (self.count + np.arange(len(piece))) // self.per_bin, piece)
            self.count += len(piece)
            start += len(piece)

    def mean(self, last: float = 1.0) -> FloatArray:
        """Return the (width,) means over the `last` share of the rows, rounded to whole bins; NaN without any."""
        first = int(self.count * (1.0 - last)) // self.per_bin
        rows = self.count - first * self.per_bin
        means: FloatArray = self._sums[first:].sum(axis=0) / rows if rows else np.full(self.width, np.nan)
        return means

    def windows(self, first: int = 0, points: int = 60) -> tuple[FloatArray, FloatArray]:
        """Return means over windows of equal length: the end of each, (m,), and the means, (m, width).

        A remainder of less than half a window is added to the last one.

        Args:
            first: row to start with, rounded to whole bins.
            points: maximum number of windows.
        """
        bins = -(-self.count // self.per_bin)
        skip = min(-(-first // self.per_bin), bins)
        together = max(1, -(-(bins - skip) // points))
        starts = np.arange(skip, bins, together)
        if not len(starts):
            return np.empty(0), np.empty((0, self.width))
        if len(starts) > 1 and 2 * (bins - starts[-1]) < together:
            starts = starts[:-1]
        edges = np.minimum(np.append(starts, bins) * self.per_bin, self.count)
        sums = np.add.reduceat(self._sums[:bins], starts, axis=0)
        return edges[1:].astype(np.float64), sums / np.diff(edges)[:, None]
