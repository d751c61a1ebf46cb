"""What is learned once and kept for good must not hang on one absurd value."""

from __future__ import annotations

import numpy as np

from streammoe.kernels.compile import jit
from streammoe.types import FloatArray

FAR = 20.0
"""Median deviations from the median beyond which a value says nothing about the size of its column: 13 standard
deviations of normal numbers."""

RARE = 0.01
"""Most values, as a part of all, that may be far out and absurd."""


def winsorised(values: FloatArray) -> FloatArray:
    """Columns (n, p) with the few values that are far out moved to the edge; else the same bits. NaN stays NaN.

    The median deviation is that of the values that differ from the median, so that columns which are mostly one value,
    as categories and counts are, keep the others.

    >>> winsorised(np.array([[0.0], [1.0], [2.0], [3.0], [1e9]])).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 32.0]
    """
    found = np.ascontiguousarray(values, dtype=np.float64).copy()
    _winsorise(found)
    return found


@jit
def _winsorise(values: FloatArray) -> None:
    for j in range(values.shape[1]):
        column = values[:, j]
        known = column[~np.isnan(column)]
        if known.shape[0] == 0:
            continue
        middle = np.median(known)
        apart = np.abs(known - middle)
        apart = apart[apart > 0.0]
        if apart.shape[0] == 0:
            continue
        reach = FAR * np.median(apart)
        # More of them are no accident, but the other half of what the column holds.
        if np.sum(apart > reach) > max(1.0, RARE * known.shape[0]):
            continue
        for i in range(values.shape[0]):
            if values[i, j] > middle + reach:
                values[i, j] = middle + reach
            elif values[i, j] < middle - reach:
                values[i, j] = middle - reach
