"""Quantiles of mixtures of one noise, moved and scaled, for many events.

The noise comes as a table of polynomials, so that one search serves every noise: functions such as erf, or an
incomplete beta function, would take longer than all else. `streammoe.engine.intervals` makes it.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import inline, jit, part
from streammoe.types import FloatArray

CELL_BITS = 7
"""Cells of an octave, as a power of 2."""
OCTAVES = 32
N_CELLS = OCTAVES << CELL_BITS
TERMS = 6
"""Coefficients of each cell."""
_SHIFT = 52 - CELL_BITS
_FIRST = 1023 << CELL_BITS
_END = math.nextafter(2.0**OCTAVES, 0.0)

MOST_ROUNDS = 200
"""Limit on steps; halving the bracket alone needs fewer."""
FINEST = 1e-9
"""Halving a bracket ends when it is this part of the smallest deviation."""
LAST_STEP = 1e-6
"""Newton's method ends with such a step: the next one would be about as small as the square of it."""
NEGLIGIBLE = 1e-15
"""Components with less than this part of the probability sought are left out: it is not above rounding."""
GUESSES = 4
"""Limit on groups of components that a start is looked for in."""
REACH = 1.5
"""Deviations within which components count as one group."""


@inline
def below(cells: FloatArray, u: float) -> tuple[float, float]:
    """P(Z ≤ −|z|) and its slope in u = 1 + |z| / unit; of the slope the terms that a Newton step needs."""
    u = u if u < _END else _END  # noqa: FURB136 - which is that of NaN, too
    bits = np.float64(u).view(np.int64) >> _SHIFT
    step = u - np.int64(bits << _SHIFT).view(np.float64)
    at = np.uint64(bits - _FIRST)  # unsigned, since a signed one might count from the end
    c1, c2, c3 = cells[at, 1], cells[at, 2], cells[at, 3]
    probability = cells[at, 0] + step * (c1 + step * (c2 + step * (c3 + step * (cells[at, 4] + step * cells[at, 5]))))
    return probability, c1 + step * (2.0 * c2 + step * (3.0 * c3))


@part
def _start(work: FloatArray, K: int, sign: float, tail: float, score: float, rate: float) -> float:
    """A guess of the quantile of sign · Y: that of the group of components that it should be in.

    Begins with the group of the largest share, and continues on the side of it where the probability is found.
    """
    share, mean, deviation = work[0], work[1], work[2]
    at = 0
    for k in range(K):
        if share[k] > share[at]:
            at = k
    bottom, top = -math.inf, math.inf
    center = below = within = moment = 0.0
    for _ in range(GUESSES):
        center, reach = sign * mean[at], REACH * deviation[at]
        below = within = moment = 0.0
        for k in range(K):
            x = sign * mean[k]
            below += share[k] if x < center - reach else 0.0
            own = share[k] if abs(x - center) <= reach else 0.0
            within += own
            moment += own * x
        if tail <= below:
            top = center - reach
        elif tail > below + within:
            bottom = center + reach
        else:
            break
        found = -1
        for k in range(K):
            x = sign * mean[k]
            if bottom < x < top and (found < 0 or share[k] > share[found]):
                found = k
        if found < 0:
            break
        at = found
    # Linear in the logarithm, of which the fraction is a bounded approximation.
    ratio = max(tail - below, 0.0) / (within * tail)
    return float(moment / within + deviation[at] * (score + 2.0 * (ratio - 1.0) / ((ratio + 1.0) * rate)))


@part
def _search(
    work: FloatArray,
    K: int,
    narrowest: float,
    tails: FloatArray,
    scores: FloatArray,
    rates: FloatArray,
    cells: FloatArray,
    state: FloatArray,
    found: FloatArray,
) -> None:
    """Find both ends of one mixture, the upper one as the lower one of −Y, so that neither loses precision.

    Steps of the two alternate, so that the processor need not wait for either.
    """
    share, mean, deviation, inverse, weight = work[0], work[1], work[2], work[3], work[4]
    lows, highs, ends, moves = state[0], state[1], state[2], state[3]
    for side in range(2):
        sign = 1.0 - 2.0 * side
        low, high = math.inf, -math.inf
        for k in range(K):
            own = sign * mean[k] + scores[side] * deviation[k]
            low, high = min(low, own), max(high, own)
        lows[side], highs[side], moves[side] = low, high, high - low
        start = _start(work, K, sign, tails[side], scores[side], rates[side])
        ends[side] = min(max(start, low), high)
    rounding = 4e-16 * max(abs(lows[0]), abs(highs[0]), abs(lows[1]), abs(highs[1]))
    for side in range(2):
        if moves[side] <= FINEST * narrowest + rounding:
            moves[side] = 0.0
    for _ in range(MOST_ROUNDS):
        if moves[0] == 0.0 and moves[1] == 0.0:
            break
        for side in range(2):
            if moves[side] == 0.0:
                continue
            sign, y, tail = 1.0 - 2.0 * side, ends[side], tails[side]
            probability = slope = 0.0
            for k in range(K):
                z = (y - sign * mean[k]) * inverse[k]
                beyond, change = below(cells, 1.0 + abs(z))
                probability += share[k] * (1.0 - beyond if z > 0.0 else beyond)
                slope -= weight[k] * change
            if probability < tail:
                lows[side] = y
            else:
                highs[side] = y
            # Newton on the logarithm: it is nearly linear in the tail, where the probability itself curves sharply.
            step = -math.log(probability / tail) * probability / slope
            following = y + step
            is_good = abs(step) < 0.5 * moves[side] and lows[side] <= following <= highs[side]
            if not is_good:
                following = 0.5 * (lows[side] + highs[side])
            moves[side] = abs(following - y)
            ends[side] = following
            if moves[side] <= (LAST_STEP if is_good else FINEST) * narrowest + rounding:
                moves[side] = 0.0
    found[0], found[1] = ends[0], -ends[1]


@part
def _ends(
    shares: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    tails: FloatArray,
    scores: FloatArray,
    rates: FloatArray,
    unit: float,
    cells: FloatArray,
    work: FloatArray,
    state: FloatArray,
    found: FloatArray,
) -> None:
    n, most = shares.shape
    for i in range(n):
        for q in range(means.shape[2]):
            K = 0
            narrowest, total = math.inf, 0.0
            least = NEGLIGIBLE * min(tails[i, q, 0], tails[i, q, 1])
            for k in range(most):
                share = shares[i, k]
                if share <= least:  # false for NaN
                    continue
                deviation = math.sqrt(variances[i, k, q])
                inverse = 1.0 / (unit * deviation)
                work[0, K], work[1, K], work[2, K] = share, means[i, k, q], deviation
                work[3, K], work[4, K] = inverse, share * inverse
                narrowest = min(narrowest, deviation)
                total += share + means[i, k, q] + deviation
                K += 1
            if K == 0 or math.isnan(total):
                found[i, q, 0] = found[i, q, 1] = math.nan
            else:
                _search(work, K, narrowest, tails[i, q], scores[i, q], rates[i, q], cells, state, found[i, q])


@jit
def mixture_ends(
    shares: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    tails: FloatArray,
    scores: FloatArray,
    rates: FloatArray,
    unit: float,
    cells: FloatArray,
) -> FloatArray:
    """Compute two quantiles of each mixture, output by output.

    Newton's method on the logarithm of the distribution function runs inside a bracket, which begins with the
    quantiles of the single components and is halved wherever a step leaves it or gains too little.

    Args:
        shares: (n, K) shares of the components; those without one may hold anything else.
        means: (n, K, Q).
        variances: (n, K, Q), above 0; squared scales.
        tails: (n, Q, 2) the probabilities below the lower one and above the upper one, between 0 and 1.
        scores: (n, Q, 2) the quantiles of the noise for these.
        rates: (n, Q, 2) the density of the noise there over the probability.
        unit: the distance by which the table takes distances from 0.
        cells: (`N_CELLS`, `TERMS`) the table: P(Z ≤ −z) by powers of what u = 1 + z / unit is above the
            beginning of its cell. Each octave of u from 1 on has cells of equal width.

    Returns:
        (n, Q, 2) lower and upper ends, accurate to about 1e-9 of the smallest deviation; NaN where no component has a
        share or an argument is NaN.
    """
    n, most = shares.shape
    found = np.empty((n, means.shape[2], 2))
    _ends(shares, means, variances, tails, scores, rates, unit, cells, np.empty((5, most)), np.empty((4, 2)), found)
    return found
