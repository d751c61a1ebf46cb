"""Quantiles of univariate mixtures, by Newton's method inside a bracket.

`lower_quantile` is exact to rounding and takes plain lists, since a NumPy call on arrays of two or three numbers costs
more than the whole search; `mixture_intervals` handles thousands of events at once.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.noise import Noise
from streammoe.types import FloatArray

MOST_STEPS = 400
MOST_ROUNDS = 200
"""Limit on Newton or bisection steps; bisection alone needs fewer."""
FINEST = 1e-9
"""Halving a bracket ends when it is this part of the smallest deviation."""
LAST_STEP = 1e-6
"""Newton's method ends with such a step: the next one would be about as small as the square of it."""


def lower_quantile(q: float, shares: list[float], means: list[float], scales: list[float], noise: Noise) -> float:
    """Return the y with P(Y ≤ y) = q ≤ ½, by Newton steps inside a bracket, or bisection if they do no better.

    All shares are above 0. Every component has less than q below the lowest of their quantiles, and more than q above
    the highest; these bracket y, up to rounding.
    """
    score = noise.quantile_at(q)
    own = [mean + scale * score for mean, scale in zip(means, scales, strict=True)]
    low, high = min(own), max(own)
    low, high = low - 4.0 * math.ulp(low), high + 4.0 * math.ulp(high)
    finest = 1e-13 * min(scales)
    y = sum(share * each for share, each in zip(shares, own, strict=True))
    step = high - low
    for _ in range(MOST_STEPS):
        probability = density = 0.0
        for share, mean, scale in zip(shares, means, scales, strict=True):
            z = (y - mean) / scale
            probability += share * noise.cdf_at(z)
            density += share * noise.pdf_at(z) / scale
        if probability == q:
            break
        low, high = (y, high) if probability < q else (low, y)
        following = math.inf
        if density > 0.0 and probability > 0.0:
            # Newton on the logarithm: it is nearly linear in the tail, where the probability itself curves sharply.
            following = y - math.log(probability / q) * (probability / density)
        if not (low <= following <= high and abs(following - y) < 0.5 * step):
            following = low + 0.5 * (high - low)
        step = abs(following - y)
        y = following
        if step <= finest + math.ulp(y):
            break
    return y


def mixture_intervals(
    shares: FloatArray, means: FloatArray, variances: FloatArray, level: float, noise: Noise
) -> FloatArray:
    """Compute central predictive intervals of mixtures, output by output.

    The ends are the quantiles (1 ∓ level) / 2 of Σ_k g_k N(μ_kq, σ²_kq), or of another noise, found by Newton's method
    on the logarithm of the distribution function, inside a bracket that starts with the quantiles of the single
    components and is halved wherever a Newton step leaves it or gains too little.

    Args:
        shares: (n, K) shares of the components, from 0 to 1.
        means: (n, K, Q).
        variances: (n, K, Q), above 0; squared scales for other noise.
        level: probability of the interval, from 0 (the median, twice) to below 1.
        noise: noise of each component, at scale 1.

    Returns:
        (n, Q, 2) lower and upper ends, accurate to about 1e-9 of the smallest deviation; NaN where an argument is.

    >>> from streammoe.distributions import Gaussian
    >>> mixture_intervals(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)), 0.9, Gaussian()).round(4).tolist()
    [[[-1.6449, 1.6449]]]
    """
    used = (shares != 0.0).any(axis=0)  # rows are padded to the most components that there may be
    if used.any():
        shares, means, variances = shares[:, used], means[:, used], variances[:, used]
    n, K, Q = means.shape
    # One problem per event, output and end.
    weights = np.repeat(shares, 2 * Q, axis=0)
    centers = np.repeat(means.transpose(0, 2, 1).reshape(n * Q, K), 2, axis=0)
    widths = np.repeat(np.sqrt(variances).transpose(0, 2, 1).reshape(n * Q, K), 2, axis=0)
    both = np.array([(1.0 - level) / 2.0, (1.0 + level) / 2.0])
    tails, is_upper = np.tile(both, n * Q), np.tile([False, True], n * Q)
    ends = centers + np.tile(noise.quantile(both), n * Q)[:, None] * widths
    low = np.where(weights > 0.0, ends, math.inf).min(axis=1, initial=math.inf)
    high = np.where(weights > 0.0, ends, -math.inf).max(axis=1, initial=-math.inf)
    narrowest = widths.min(axis=1, initial=math.inf)
    rounding = 4e-16 * np.maximum(np.abs(low), np.abs(high))
    found = ends[np.arange(len(ends)), weights.argmax(axis=1)]
    moved = high - low
    active = np.flatnonzero(moved > FINEST * narrowest + rounding)
    for _ in range(MOST_ROUNDS):
        if not active.size:
            break
        x, weight, width, tail = found[active], weights[active], widths[active], tails[active]
        z = (x[:, None] - centers[active]) / width
        probability = _in_order(weight * noise.cdf(z))
        density = _in_order(weight / width * noise.pdf(z))
        below = probability < tail
        low[active] = np.where(below, x, low[active])
        high[active] = np.where(below, high[active], x)
        # Newton on the logarithm of the smaller side, as above.
        side = np.where(is_upper[active], 1.0 - probability, probability)
        with np.errstate(divide="ignore", invalid="ignore"):  # where there is nothing, the bracket is halved
            step = np.log(side / both[0]) * side / density
        step = np.where(is_upper[active], step, -step)
        good = np.abs(step) < 0.5 * moved[active]
        proposed = x + np.where(good, step, 0.0)
        good &= (low[active] <= proposed) & (proposed <= high[active])
        found[active] = np.where(good, proposed, 0.5 * (low[active] + high[active]))
        moved[active] = np.abs(found[active] - x)
        finest = np.where(good, LAST_STEP, FINEST) * narrowest[active] + rounding[active]
        active = active[moved[active] > finest]
    quantiles: FloatArray = found.reshape(n, Q, 2)
    return quantiles


def _in_order(terms: FloatArray) -> FloatArray:
    """Sum each row of (n, K) terms, one component after the other.

    A component of share 0 then changes nothing, wherever it stands. `np.sum` adds in an order that depends on K, and
    how much padding a row has depends on the other rows of its batch.
    """
    total = np.zeros(len(terms))
    for column in terms.T:
        total += column
    return total
