"""Binned sums: a summary of bounded size of a long series of numbers."""

from __future__ import annotations

import numpy as np

from streammoe.types import FloatArray

MAX_BINS = 4096
"""Maximum number of bins; at least half of them are used once there are that many values."""


class BinnedSums:
    """Sums of rows over bins of equally many rows, a number that doubles whenever there are too many bins.

    Args:
        n_columns: number of values in a row.

    >>> sums = BinnedSums()
    >>> sums.add(np.arange(4.0)[:, None])
    >>> float(sums.mean()[0]), float(sums.mean(tail_fraction=0.25)[0])
    (1.5, 3.0)
    """

    def __init__(self, n_columns: int = 1) -> None:
        self.n_columns = n_columns
        self.rows_per_bin = 1
        """Number of rows in a full bin."""
        self.count = 0
        self._sums = np.zeros((MAX_BINS, n_columns))

    def add(self, rows: FloatArray) -> None:
        """Add rows, (n, n_columns), in order."""
        start = 0
        while start < len(rows):
            if self.count == MAX_BINS * self.rows_per_bin:
                self._sums[: MAX_BINS // 2] = self._sums[0::2] + self._sums[1::2]
                self._sums[MAX_BINS // 2 :] = 0.0
                self.rows_per_bin *= 2
            piece = rows[start : start + MAX_BINS * self.rows_per_bin - self.count]
            np.add.at(self._sums, (self.count + np.arange(len(piece))) // self.rows_per_bin, piece)
            self.count += len(piece)
            start += len(piece)

    def mean(self, tail_fraction: float = 1.0) -> FloatArray:
        """Return the (n_columns,) means over the last rows, rounded to whole bins; NaN without any.

        Args:
            tail_fraction: fraction of all rows.
        """
        first = int(self.count * (1.0 - tail_fraction)) // self.rows_per_bin
        rows = self.count - first * self.rows_per_bin
        means: FloatArray = self._sums[first:].sum(axis=0) / rows if rows else np.full(self.n_columns, np.nan)
        return means

    def windows(self, first: int = 0, points: int = 60) -> tuple[FloatArray, FloatArray]:
        """Return means over windows of equal length: the end of each, (m,), and the means, (m, n_columns).

        A remainder of less than half a window is added to the last one.

        Args:
            first: row to start with, rounded to whole bins.
            points: maximum number of windows.
        """
        bins = -(-self.count // self.rows_per_bin)
        skip = min(-(-first // self.rows_per_bin), bins)
        bins_per_window = max(1, -(-(bins - skip) // points))
        starts = np.arange(skip, bins, bins_per_window)
        if not len(starts):
            return np.empty(0), np.empty((0, self.n_columns))
        if len(starts) > 1 and 2 * (bins - starts[-1]) < bins_per_window:
            starts = starts[:-1]
        edges = np.minimum(np.append(starts, bins) * self.rows_per_bin, self.count)
        sums = np.add.reduceat(self._sums[:bins], starts, axis=0)
        return edges[1:].astype(np.float64), sums / np.diff(edges)[:, None]
