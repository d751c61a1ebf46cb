"""How often targets have fallen into each part of the predictive distribution, and what that makes of the next one.

The parts are ranges of u = P(Y ≤ y) under the density s that all members serve, equally wide: where s is right, a
target falls into each of them as often. With h the part's share of the targets of late, times the number of parts, it
is s(y) (1 − w + w h(u)) that predicts, where w is how much s h has been better than s of late: Bayes' rule for the two,
with the memory that members have.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit
from streammoe.kernels.portfolio import DISCOUNT
from streammoe.kernels.quantiles import below
from streammoe.kernels.shared import variance_of
from streammoe.types import FloatArray

PARTS = 41
"""Number of parts; odd, so that a target that all members expect is in the middle of one."""
PRIOR = 100.0
"""Number of events, spread evenly over the parts, that are counted before the first one, and never forgotten."""
MEMORY = 2000.0
"""About how many events are remembered."""
DOUBT = 0.3
"""The weight w at first."""
LEAST = 1e-3
"""The least weight, of both."""
NEGLIGIBLE = 1e-12
"""Components of less weight are left out."""


@inline
def add_ranks(
    weight: float,
    weight_beside: float,
    shares: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    z: FloatArray,
    unit: float,
    cells: FloatArray,
    ranks: FloatArray,
) -> None:
    """Add a member's part to P(Y ≤ z) of each output by two sets of weights.

    Args:
        weight: of the member, and `weight_beside` the other one.
        shares: (K,) of its components, of which `means` is (K, Q).
        variances: (K, Q) or (K, Q, Q).
        z: (Q,) targets.
        unit, cells: the table of the noise, see `kernels.quantiles`.
        ranks: (2, Q), changed in place.
    """
    for k in range(shares.shape[0]):
        share, beside = weight * shares[k], weight_beside * shares[k]
        if max(share, beside) < NEGLIGIBLE:
            continue
        for q in range(z.shape[0]):
            score = (z[q] - means[k, q]) / math.sqrt(variance_of(variances, k, q))
            tail, _ = below(cells, 1.0 + abs(score) / unit)
            probability = 1.0 - tail if score > 0.0 else tail
            ranks[0, q] += share * probability
            ranks[1, q] += beside * probability


@inline
def part_of(rank: float) -> int:
    """Return the part that a probability from 0 to 1 is in; of what is no number the first one, which there is."""
    if not rank > 0.0:
        return 0
    return min(int(rank * PARTS), PARTS - 1) if rank < 1.0 else PARTS - 1


@inline
def total_of(counts: FloatArray) -> float:
    """Return the number of targets of late, those of the prior included, of counts (PARTS,)."""
    total = 0.0
    for b in range(PARTS):
        total += counts[b]
    return total


@inline
def height_of(counts: FloatArray, rank: float) -> float:
    """Return h(u) of a target, given counts (PARTS,); NaN if u is no number."""
    if not 0.0 <= rank < math.inf:
        return math.nan
    height: float = PARTS * counts[part_of(rank)] / total_of(counts)
    return height


@inline
def gain_of(height: float, belief: float) -> float:
    """Return log (1 − w + w h(u)), given h(u) and w."""
    return math.log(1.0 - belief + belief * height)


@inline
def count_rank(counts: FloatArray, belief: FloatArray, q: int, rank: float, height: float, weight: float) -> None:
    """Count a target of output q, with its weight, but as one at most; the others count a little less then.

    Args:
        counts: (PARTS,) those of this output, and `belief` (Q,) w of each; both change in place.
        rank: u, and `height` h(u).
        weight: of the event.
    """
    share, w = min(weight, 1.0), belief[q]
    ahead = DISCOUNT * math.log(w / (1.0 - w)) + share * math.log(height)
    belief[q] = min(max(1.0 / (1.0 + math.exp(-ahead)), LEAST), 1.0 - LEAST)
    for b in range(PARTS):
        counts[b] += share / MEMORY * (PRIOR / PARTS - counts[b])
    counts[part_of(rank)] += share


@inline
def write_shares(counts: FloatArray, belief: float, out: FloatArray) -> None:
    """Write the probability of each part, (PARTS,)."""
    total = total_of(counts)
    for b in range(PARTS):
        out[b] = (1.0 - belief) / PARTS + belief * counts[b] / total


@jit
def shares_of(counts: FloatArray, belief: FloatArray) -> FloatArray:
    """Return the probability of each part, (Q, PARTS), of each output."""
    found = np.empty(counts.shape)
    for q in range(len(counts)):
        write_shares(counts[q], belief[q], found[q])
    return found


@jit
def gains_of(counts: FloatArray, belief: float, ranks: FloatArray) -> FloatArray:
    """Return `gain_of` each of n targets, (n,)."""
    found = np.empty(len(ranks))
    for i in range(len(ranks)):
        found[i] = gain_of(height_of(counts, ranks[i]), belief)
    return found
