"""When the mixture of a stream is fitted: at event counts that double, and when before that scales are taken anew."""

from __future__ import annotations

import sys

FIRST_FIT = 100
"""Events at which the mixture is first fitted, at the earliest; each further fit is at twice as many."""
ROWS_PER_FEATURE = 4
"""Rows of the first fit for each feature, at least: with fewer, a mixture predicts worse than one expert."""
SETTLED = 400
"""Events from which on scales stay as they are, once there was a fit; until then fits take them anew, and powers of two
do before the first fit."""


def first_fit(n_features: int, most: int, asked: int | None) -> int:
    """Return the event count of the first fit of a model of so many features, of which `most` rows are kept.

    >>> first_fit(11, 1600, None), first_fit(301, 3010, None), first_fit(785, 1334, None), first_fit(11, 1600, 50)
    (100, 1600, 800, 50)
    """
    if asked is not None:
        return asked
    least, count = min(ROWS_PER_FEATURE * n_features, most), FIRST_FIT
    while 2 * count <= most and count < least:
        count *= 2
    return count


def next_scaling(n: int, first: int) -> int:
    """Return the next count after n, below that of the first fit, at which scales are taken; fits take them as well.

    >>> [next_scaling(n, 1600) for n in (0, 3, 64)]
    [1, 4, 128]
    >>> next_scaling(256, 1600) > 10**9, next_scaling(32, 50) > 10**9
    (True, True)
    """
    found = 1 << n.bit_length()
    return found if found < first and found <= SETTLED else sys.maxsize


def next_fit(n: int, first: int) -> int:
    """Return the next count after n at which the mixture is fitted.

    >>> [next_fit(n, 100) for n in (0, 99, 100, 150, 200)]
    [100, 100, 200, 200, 400]
    """
    found = first
    while found <= n:
        found *= 2
    return found


def is_searched(n: int, first: int) -> bool:
    """Return whether the fit at a count, one of those that double, begins at new starts, too: every other one does.

    >>> [is_searched(n, 100) for n in (100, 200, 400, 800, 1600, 6400)]
    [True, False, True, False, True, True]
    """
    return (n // first).bit_length() % 2 == 1
