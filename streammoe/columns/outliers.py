"""Clipping of outliers, before statistics that are estimated once and kept."""

from __future__ import annotations

import numpy as np

from streammoe.types import FloatArray

MAX_DEVIATIONS = 20.0
"""Median deviations from the median beyond which a value says nothing about the size of its column: 13 standard
deviations of normal numbers."""

MAX_OUTLIER_SHARE = 0.01
"""Most values, as a part of all, that are taken for errors; more of them are the other half of what a column holds."""

MAX_ERROR_SHARE = 0.025
"""The same of targets, of which only few are known when an error may already have come several times in a row."""

MAX_CODE_SHARE = 0.25
"""The same of inputs that are all equal, on either side: a code such as −99999 for what is missing."""


def winsorised(
    values: FloatArray, *, share: float = MAX_OUTLIER_SHARE, codes: bool = False, most: float = MAX_DEVIATIONS
) -> FloatArray:
    """Move the few values of each column, (n, p), that are far out to the edge; else return the same bits.

    NaN stays NaN. The median deviation is that of the values that differ from the median, so that columns which are
    mostly one value, as categories and counts are, keep the others.

    Args:
        values: the columns.
        share: the part of all values that may be taken for errors.
        codes: whether equal ones may be more.
        most: how many median deviations from the median others are at most.

    >>> winsorised(np.array([[0.0], [1.0], [2.0], [3.0], [1e9]])).ravel().tolist()
    [0.0, 1.0, 2.0, 3.0, 32.0]
    """
    clipped = np.ascontiguousarray(values, dtype=np.float64).copy()
    for column in clipped.T:
        known = column[~np.isnan(column)]
        if not known.size:
            continue
        middle = median(known)
        deviations = np.abs(known - middle)
        deviations = deviations[deviations > 0.0]
        if not deviations.size:
            continue
        reach = most * median(deviations)
        outer = known[np.abs(known - middle) > reach]
        few = max(1.0, share * known.size)
        if outer.size > few and codes:
            outer = _without_codes(outer, middle, MAX_CODE_SHARE * known.size)
        if outer.size <= few:
            column[column > middle + reach] = middle + reach
            column[column < middle - reach] = middle - reach
    return clipped


def median(values: FloatArray) -> float:
    """Return the median of numbers, of which there are some, as `np.median` does at several times the fixed cost.

    >>> median(np.array([3.0, 1.0, 2.0])), median(np.array([4.0, 1.0, 2.0, 3.0]))
    (2.0, 2.5)
    """
    half = len(values) // 2
    if len(values) % 2:
        return float(np.partition(values, half)[half])
    low, high = np.partition(values, (half - 1, half))[half - 1 : half + 1]
    return float(low + high) / 2.0


def code_of(values: FloatArray) -> tuple[float, int] | None:
    """Return an extreme value of a column that may stand for a missing one, and how often it occurs; None if none may.

    It occurs at least 3 times, in at most half of the column, and further from the others than their standard
    deviation, while these are mostly different: neither a class, nor a count, nor the end of a range.

    >>> code_of(np.array([*range(9), np.nan, -999.0, -999.0, -999.0])), code_of(np.array([0.0, 1.0] * 9))
    ((-999.0, 3), None)
    """
    known = values[~np.isnan(values)]
    for code in (known.min(initial=np.inf), known.max(initial=-np.inf)):
        rest = known[known != code]
        count = known.size - rest.size
        if 3 <= count <= rest.size < 2 * np.unique(rest).size:
            with np.errstate(over="ignore"):
                if np.abs(rest - code).min() > rest.std():
                    return float(code), count
    return None


def _without_codes(outer: FloatArray, middle: float, most: float) -> FloatArray:
    """Return values far out without the commonest on either side of the middle, unless these are more than `most`."""
    rest = []
    n_codes = 0
    for side in (outer[outer < middle], outer[outer > middle]):
        found, counts = np.unique(side, return_counts=True)
        code = found[counts.argmax()] if side.size else np.nan
        n_codes += int(counts.max(initial=0))
        rest.append(side[side != code])
    return outer if n_codes > most else np.concatenate(rest)
