"""Rank-1 updates of wide Gram matrices, made for many events together.

An event adds a multiple of x xᵀ to a Gram matrix, which nothing reads for many events: steps need the inverse alone.
Reading and writing a matrix that does not fit into the nearest cache takes longer than the arithmetic, so that events
wait for each other. Each entry goes through the same operations in the same order as by one update after the other, and
no bit depends on when they are made. Those above the diagonal are those below, to the last bit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.kernels.compile import allocating, inline, part
from streammoe.kernels.linalg import add_outer, add_outer_evenly, add_outers_in_turn, mirror_lower
from streammoe.types import FloatArray, IntArray

WIDE = 32
"""Features from which updates wait; noting those of narrower matrices would take as long as making them."""
TOGETHER = 64
"""Most events that wait."""
MANY = 8
"""Events from which half of the matrix, and a copy of it for the other half, takes less time than all of it."""


class Late(NamedTuple):
    """What has yet to be added to m Gram matrices; m is 0 for narrow ones, which are updated at once."""

    counts: IntArray
    """(m,) how many events wait for the matrix."""
    rows: IntArray
    """(m, n) which rows they are; n is the most that can wait."""
    weights: FloatArray
    """The same shape: their weights."""


@allocating
def late_of(m: int, n: int, p: int) -> Late:
    """Return room for m matrices of at most p features, in a call with n events; nothing waits yet."""
    if p < WIDE:
        m = n = 0
    n = min(n, TOGETHER)
    return Late(np.zeros(m, dtype=np.int64), np.empty((m, n), dtype=np.int64), np.empty((m, n)))


@inline
def grow(late: Late, k: int, gram: FloatArray, row: int, x: FloatArray, weight: float) -> None:
    """Add ``weight * outer(x, x)`` to Gram matrix k, later if it is wide, x being row `row` of a call."""
    if late.counts.shape[0] == 0:
        add_outer(gram, x, weight)
        return
    at = late.counts[k]
    late.rows[k, at] = row
    late.weights[k, at] = weight
    late.counts[k] = at + 1


@inline
def is_full(late: Late, k: int) -> bool:
    """Whether no other event may wait for Gram matrix k."""
    return bool(late.counts.shape[0] > 0 and late.counts[k] == late.rows.shape[1])


@part
def grow_now(late: Late, k: int, gram: FloatArray, rows: FloatArray) -> None:
    """Add to Gram matrix k what waits for it."""
    if late.counts.shape[0] == 0:
        return
    n = late.counts[k]
    if n < MANY:
        for e in range(n):
            add_outer_evenly(gram, rows[late.rows[k, e]], late.weights[k, e])
    else:
        add_outers_in_turn(gram, rows, late.rows[k, :n], late.weights[k, :n], True)
        mirror_lower(gram)
    late.counts[k] = 0
