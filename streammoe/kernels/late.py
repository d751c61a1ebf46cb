"""Rank-1 updates of Gram matrices and of their inverses, made as late as possible.

An event adds a multiple of x xᵀ to a Gram matrix, which nothing reads for many events, and one of v vᵀ to its inverse,
which is read by the next event. Reading and writing a matrix that does not fit into the nearest cache takes longer than
the arithmetic: so many events enter a Gram matrix together, and the update of an inverse is made on the way of the next
product with it. Each entry goes through the same operations in the same order as by one update after the other, so that
no bit depends on when they are made.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streammoe.kernels.compile import allocating, inline, part
from streammoe.kernels.linalg import add_outer, add_outers_in_turn, symmetric_product, updated_product
from streammoe.types import FloatArray, IntArray

WIDE = 32
"""Features from which updates wait; noting those of narrower matrices would take as long as making them."""
TOGETHER = 64
"""Most events that enter a Gram matrix together."""


class Late(NamedTuple):
    """What has yet to be added to m Gram matrices, (p, p) or smaller, and to their inverses.

    m is 0 for narrow matrices, which are updated at once.
    """

    counts: IntArray
    """(m,) how many events wait for the Gram matrix."""
    rows: IntArray
    """(m, n) which rows they are; n is the most that can wait."""
    weights: FloatArray
    """The same shape: their weights."""
    gains: FloatArray
    """(m, p) v, the inverse's product with the last event."""
    factors: FloatArray
    """(m,) what v vᵀ is to be multiplied by, 0 where nothing waits."""


@allocating
def late_of(m: int, n: int, p: int) -> Late:
    """Return room for m matrices of at most p features, in a call with n events; `begin` clears it."""
    if p < WIDE:
        m = n = p = 0
    n = min(n, TOGETHER)
    weights = np.empty((m, n))
    gains = np.empty((m, p)) if p else weights
    return Late(np.empty(m, dtype=np.int64), np.empty((m, n), dtype=np.int64), weights, gains, np.empty(m))


@inline
def begin(late: Late) -> None:
    """Let nothing wait."""
    for k in range(late.counts.shape[0]):
        late.counts[k] = 0
        late.factors[k] = 0.0


@inline
def multiply(late: Late, k: int, inverse: FloatArray, x: FloatArray, gain: FloatArray) -> float:
    """Write ``inverse @ x`` to `gain` and return ``x @ inverse @ x``, after making the update that waits."""
    if late.gains.shape[0] == 0 or late.factors[k] == 0.0:
        return float(symmetric_product(inverse, x, gain))
    return float(_multiply_updated(late, k, inverse, x, gain))


@part
def _multiply_updated(late: Late, k: int, inverse: FloatArray, x: FloatArray, gain: FloatArray) -> float:
    factor = late.factors[k]
    late.factors[k] = 0.0
    return float(updated_product(inverse, late.gains[k], factor, x, gain))


@inline
def lessen(late: Late, k: int, inverse: FloatArray, gain: FloatArray, factor: float) -> None:
    """Add ``factor * outer(gain, gain)`` to inverse k, later if it is wide; `multiply` has made what waited before."""
    if late.gains.shape[0] == 0:
        add_outer(inverse, gain, factor)
        return
    late.factors[k] = factor
    for j in range(gain.shape[0]):
        late.gains[k, j] = gain[j]


@inline
def grow(late: Late, k: int, gram: FloatArray, row: int, x: FloatArray, weight: float) -> None:
    """Add ``weight * outer(x, x)`` to Gram matrix k, later if it is wide, x being row `row` of a call."""
    if late.gains.shape[0] == 0:
        add_outer(gram, x, weight)
        return
    at = late.counts[k]
    late.rows[k, at] = row
    late.weights[k, at] = weight
    late.counts[k] = at + 1


@inline
def is_full(late: Late, k: int) -> bool:
    """Whether no other event may wait for Gram matrix k."""
    return bool(late.gains.shape[0] > 0 and late.counts[k] == late.rows.shape[1])


@part
def grow_now(late: Late, k: int, gram: FloatArray, rows: FloatArray) -> None:
    """Add to Gram matrix k what waits for it."""
    if late.gains.shape[0] == 0:
        return
    n = late.counts[k]
    add_outers_in_turn(gram, rows, late.rows[k, :n], late.weights[k, :n], False)
    late.counts[k] = 0


@part
def lessen_now(late: Late, k: int, inverse: FloatArray) -> None:
    """Make the update of inverse k that waits."""
    if late.gains.shape[0] > 0 and late.factors[k] != 0.0:
        add_outer(inverse, late.gains[k, : inverse.shape[0]], late.factors[k])
        late.factors[k] = 0.0
