"""How often targets have fallen into each part of the predictive distribution, and what that makes of the next one.

The parts are ranges of u = P(Y ≤ y) under the density s that all members serve, equally wide: where s is right, a
target falls into each of them as often. With h the part's share of the targets of late, times the number of parts, it
is s(y) (1 − w + w h(u)) that predicts, where w is how much s h has been better than s of late: Bayes' rule for the two,
with the memory that members have.

A histogram follows slowly, and says nothing of where within an outermost part targets are. So intervals are widened or
narrowed besides, on each side and at each of some levels: a target beyond an end moves it outwards, one that is not
moves it back a little, so that as many are beyond it as should be (adaptive conformal inference; Gibbs and Candès 2021,
arXiv 2106.00170). Ends are log-odds of the probability beyond them, which grow without limit where noise explodes.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.distributions.mixtures import FULL, LOG_ODDS, MOST_STRETCH
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
STRETCH_STEP = 0.02
"""By how much a target beyond an end moves it, in units of the log-odds that its level has."""
LEAST_STRETCH = 0.3
"""Least factor of log-odds, so that where one value recurs, intervals that hold it stay, and may hold too many."""
LEAST_TAIL = 1e-15
"""Least probability that is told from 0, above and below."""


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
def _log_odds(probability: float) -> float:
    """Return log p/(1 − p), of which p is held between `LEAST_TAIL` and its complement."""
    p = min(max(probability, LEAST_TAIL), 1.0 - LEAST_TAIL)
    return math.log(p / (1.0 - p))


@inline
def count_misses(
    counts: FloatArray, belief: float, stretch: FloatArray, rank: float, step: float, weight: float
) -> None:
    """Move the ends of intervals of one output by a target, before it is counted.

    Args:
        counts: (PARTS,) those of this output, and `belief` w.
        stretch: (2, L) factors of `LOG_ODDS`, of the lower and the upper ends; changed in place.
        rank: u.
        step: how far a target moves them; 0 leaves them as they are.
        weight: of the event.
    """
    at, total = part_of(rank), total_of(counts)
    even = (1.0 - belief) / PARTS
    before = even * at
    for b in range(at):
        before += belief * counts[b] / total
    own = even + belief * counts[at] / total
    inside = min(max(rank * PARTS - at, 0.0), 1.0)
    low, high = before + own * inside, 1.0 - before - own * inside
    if own * PARTS > FULL:  # which intervals take as a whole
        if at > 0:
            low = before + own
        if at < PARTS - 1:
            high = 1.0 - before
    for side in range(2):
        odds, end = _log_odds(low if side == 0 else high), 0.0
        for level in range(stretch.shape[1]):
            end = min(end, stretch[side, level] * LOG_ODDS[level])  # wider intervals contain the others
            missed = 1.0 if odds < end else 0.0
            expected = 1.0 / (1.0 + math.exp(-LOG_ODDS[level]))
            moved = stretch[side, level] + step * min(weight, 1.0) * (missed - expected)
            stretch[side, level] = min(max(moved, LEAST_STRETCH), MOST_STRETCH)


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
