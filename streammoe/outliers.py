"""Clipping of outliers, before statistics that are estimated once and kept."""

from __future__ import annotations

import numpy as np

from streammoe.types import FloatArray

MAX_DEVIATIONS = 20.0
"""Median deviations from the median beyond which a value says nothing about the size of its column: 13 standard
deviations of normal numbers."""

MAX_OUTLIER_SHARE = 0.01
"""Most values, as a part of all, that are taken for errors; more of them are the other half of what a column holds."""


def winsorised(values: FloatArray) -> FloatArray:
    """Move the few values of each column, (n, p), that are far out to the edge; else return the same bits.

    NaN stays NaN. The median deviation is that of the values that differ from the median, so that columns which are
    mostly one value, as categories and counts are, keep the others.

    >>> winsorised(np.array([[0.0], [1.0], [2.0], [3.0], [1e9]])).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 32.0]
    """
    clipped = np.ascontiguousarray(values, dtype=np.float64).copy()
    for column in clipped.T:
        known = column[~np.isnan(column)]
        if not known.size:
            continue
        middle = np.median(known)
        deviations = np.abs(known - middle)
        deviations = deviations[deviations > 0.0]
        if not deviations.size:
            continue
        reach = MAX_DEVIATIONS * np.median(deviations)
        if np.count_nonzero(deviations > reach) <= max(1.0, MAX_OUTLIER_SHARE * known.size):
            column[column > middle + reach] = middle + reach
            column[column < middle - reach] = middle - reach
    return clipped
