"""How often targets have fallen into each part of the predictive distribution, and what that makes of the next one.

The parts are ranges of u = P(Y ≤ y) under the density s that all members serve, equally wide: where s is right, a
target falls into each of them as often. It is s(y) h(u) that predicts, with h the part's share of the targets of late,
times the number of parts.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit
from streammoe.kernels.quantiles import below
from streammoe.kernels.shared import variance_of
from streammoe.types import FloatArray

PARTS = 40
"""Number of parts: with 40, the ends of a 95 % interval are those of parts."""
PRIOR = 100.0
"""Number of events, spread evenly over the parts, that are counted before the first one, and never forgotten."""
MEMORY = 2000.0
"""About how many events are remembered."""
NEGLIGIBLE = 1e-12
"""Components of less weight are left out."""


@inline
def add_ranks(
    weight: float,
    shares: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    z: FloatArray,
    unit: float,
    cells: FloatArray,
    ranks: FloatArray,
) -> None:
    """Add a member's part to P(Y ≤ z) of each output, (Q,).

    Args:
        weight: of the member.
        shares: (K,) of its components, of which `means` is (K, Q).
        variances: (K, Q) or (K, Q, Q).
        z: (Q,) targets.
        unit, cells: the table of the noise, see `kernels.quantiles`.
        ranks: (Q,), changed in place.
    """
    for k in range(shares.shape[0]):
        share = weight * shares[k]
        if share < NEGLIGIBLE:
            continue
        for q in range(ranks.shape[0]):
            score = (z[q] - means[k, q]) / math.sqrt(variance_of(variances, k, q))
            tail, _ = below(cells, 1.0 + abs(score) / unit)
            ranks[q] += share * (1.0 - tail if score > 0.0 else tail)


@inline
def part_of(rank: float) -> int:
    """Return the part that a probability from 0 to 1 is in."""
    return min(int(rank * PARTS), PARTS - 1)


@inline
def gain_of(counts: FloatArray, rank: float) -> float:
    """Return log h(u) of a target, given how many have fallen into each part, (PARTS,); NaN if u is no number."""
    if not 0.0 <= rank < math.inf:
        return math.nan
    total = 0.0
    for b in range(PARTS):
        total += counts[b]
    return math.log(PARTS * counts[part_of(rank)] / total)


@inline
def count_rank(counts: FloatArray, rank: float, weight: float) -> None:
    """Count a target, with its weight, but as one at most; the others count a little less then."""
    share = min(weight, 1.0)
    for b in range(PARTS):
        counts[b] += share / MEMORY * (PRIOR / PARTS - counts[b])
    counts[part_of(rank)] += share


@jit
def gains_of(counts: FloatArray, ranks: FloatArray) -> FloatArray:
    """Return log h(u) of each of n targets, (n,)."""
    found = np.empty(len(ranks))
    for i in range(len(ranks)):
        found[i] = gain_of(counts, ranks[i])
    return found
