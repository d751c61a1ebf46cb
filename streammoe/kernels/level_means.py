"""Means of the target by level, for categorical fields with more levels than columns; kept for a number of levels.

The slots of an identifier are in sets of `WAYS`, of which a level has one, by the CRC-32 of its text. A level that
comes when its set is full replaces the one that was seen least there. What is kept of the others is exact.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.kernels.compile import inline, jit
from streammoe.types import FloatArray, IntArray

SLOTS = 8192
"""Levels of an identifier that are kept, at most."""
WAYS = 4
"""Slots that a level may be in."""
MOST_COLUMNS = 20
"""Most levels of an identifier that have columns besides."""
SHRINKAGE = 5.0
"""How many events at the mean of all events a level is thought to have had before its first one."""
LONGEST = 1000.0
"""Number of events from which a mean forgets the oldest ones, as data move."""
EMPTY = -1.0
"""The key of a slot that is free."""


class Levels(NamedTuple):
    """Identifiers and what is known of their levels; kernels change the last four arrays."""

    fields: IntArray
    """(I,) places of the identifiers in raw rows."""
    codes: FloatArray
    """(I, L) codes that levels with columns would have without, NaN where there is none."""
    values: IntArray
    """(V,) the target, or the class, that each mean is of."""
    keys: FloatArray
    """(I, SLOTS) the CRC-32 of the level in each slot, `EMPTY` if there is none."""
    counts: FloatArray
    """(I, SLOTS) events of each, up to `LONGEST`."""
    means: FloatArray
    """(I, SLOTS, V) means of their targets, or shares of classes."""
    overall: FloatArray
    """(1 + V,) the number of all events, up to `LONGEST`, and the means of their targets."""


@inline
def _code_of(code: float, codes: FloatArray) -> float:
    """Return the code that a level would have without a column of its own."""
    if 0.0 <= code < codes.shape[0]:  # compared as floats: NaN has no integer
        return float(codes[int(code)])
    return code


@inline
def _slot_of(keys: FloatArray, code: float) -> int:
    """Return the slot of a level with this code, or −1."""
    if not code <= -2.0:  # NaN as well
        return -1
    key = -2.0 - code
    first = (int(key) % (SLOTS // WAYS)) * WAYS
    for slot in range(first, first + WAYS):
        if keys[slot] == key:
            return slot
    return -1


@inline
def _new_slot(keys: FloatArray, counts: FloatArray, means: FloatArray, code: float) -> int:
    """Return a slot for a level that has none: a free one, or that of the level seen least."""
    key = -2.0 - code
    first = (int(key) % (SLOTS // WAYS)) * WAYS
    found = first
    for slot in range(first, first + WAYS):
        if counts[slot] < counts[found]:
            found = slot
    keys[found], counts[found] = key, 0.0
    means[found] = 0.0
    return found


@inline
def write_means(
    row: FloatArray,
    first: int,
    limit: float,
    levels: Levels,
) -> None:
    """Write into a row, from field `first` on, how far the targets of its levels are from those of all, shrunk.

    A level that is missing, or was not seen before, has 0; all are within ± `limit`.
    """
    fields, codes, values, keys, counts, means, overall = levels
    V = values.shape[0]
    for j in range(fields.shape[0]):
        slot = _slot_of(keys[j], _code_of(row[fields[j]], codes[j]))
        for v in range(V):
            row[first + j * V + v] = 0.0
            if slot >= 0:
                n = counts[j, slot]
                apart = n * (means[j, slot, v] - overall[1 + v]) / (n + SHRINKAGE)
                row[first + j * V + v] = min(max(apart, -limit), limit)


@inline
def _value(target: FloatArray, v: int, is_metric: bool) -> float:
    if is_metric:
        return float(target[v])
    return 1.0 if target[0] == v else 0.0


@inline
def take_target(
    row: FloatArray,
    target: FloatArray,
    is_metric: bool,
    levels: Levels,
) -> None:
    """Move the means of the levels of a row, and of all events, by its targets, or by the index of its class."""
    fields, codes, values, keys, counts, means, overall = levels
    V = values.shape[0]
    overall[0] = min(overall[0] + 1.0, LONGEST)
    for v in range(V):
        overall[1 + v] += (_value(target, values[v], is_metric) - overall[1 + v]) / overall[0]
    for j in range(fields.shape[0]):
        code = _code_of(row[fields[j]], codes[j])
        if not code <= -2.0:
            continue
        slot = _slot_of(keys[j], code)
        if slot < 0:
            slot = _new_slot(keys[j], counts[j], means[j], code)
        counts[j, slot] = min(counts[j, slot] + 1.0, LONGEST)
        for v in range(V):
            means[j, slot, v] += (_value(target, values[v], is_metric) - means[j, slot, v]) / counts[j, slot]


@jit
def learn_rows(
    X: FloatArray,
    Y: FloatArray,
    is_metric: bool,
    first: int,
    limit: float,
    levels: Levels,
) -> None:
    """Write into each row the means before it, and move them by those that have a target.

    Args:
        X: (n, F) raw rows.
        Y: (n, T) targets or (n, 1) indexes of classes, NaN where there is none.
        is_metric: whether targets are numbers.
        first: the field of the first mean; those of an identifier are side by side.
        limit: largest size of a number.
        levels: of the identifiers.
    """
    for i in range(X.shape[0]):
        write_means(X[i], first, limit, levels)
        if not np.isnan(Y[i, 0]):
            take_target(X[i], Y[i], is_metric, levels)
