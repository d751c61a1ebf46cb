"""Quantiles of mixtures of one number, by Newton's method inside a bracket.

`lower_quantile` is exact to rounding and takes plain lists, since one call with arrays of two or three numbers costs
more in NumPy than the whole search; `mixture_intervals` serves thousands of events at once.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.noise import NORMAL, Noise
from streammoe.types import FloatArray

MOST_STEPS = 400
MOST_ROUNDS = 200
"""Bisection alone needs fewer of either."""


def lower_quantile(q: float, shares: list[float], means: list[float], scales: list[float], noise: Noise) -> float:
    """The y with P(Y ≤ y) = q ≤ ½, by Newton's steps inside a bracket, halved where they do not do better.

    All shares are above 0. Below the lowest of the components' own quantiles each has less than q, above the highest
    more: a bracket that needs no search, but for the rounding of its ends.
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
            # On the logarithm, which is nearly straight far out, where the probability itself bends sharply.
            following = y - math.log(probability / q) * (probability / density)
        if not (low <= following <= high and abs(following - y) < 0.5 * step):
            following = low + 0.5 * (high - low)
        step = abs(following - y)
        y = following
        if step <= finest + math.ulp(y):
            break
    return y


def mixture_intervals(
    shares: FloatArray, means: FloatArray, variances: FloatArray, level: float, noise: Noise = NORMAL
) -> FloatArray:
    """Central predictive intervals of mixtures, output by output.

    The ends are the quantiles (1 ∓ level) / 2 of Σ_k g_k N(μ_kq, σ²_kq), or of another noise, found by Newton's method
    on its distribution function, inside a bracket that starts with the same quantiles of the single components and is
    halved wherever a Newton step leaves it or gains too little.

    Args:
        shares: (n, K) of the components, from 0 to 1.
        means: (n, K, Q).
        variances: (n, K, Q), above 0; of another noise the squared scales.
        level: probability of the interval, from 0 (the median, twice) to below 1.
        noise: of each component, at scale 1.

    Returns:
        (n, Q, 2) lower and upper ends, to about 1e-9 of the smallest deviation; NaN where an argument is.

    >>> mixture_intervals(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)), 0.9).round(4).tolist()
    [[[-1.6449, 1.6449]]]
    """
    n, K, Q = means.shape
    # One problem for each event, output and end.
    weights = np.repeat(shares, 2 * Q, axis=0)
    centers = np.repeat(means.transpose(0, 2, 1).reshape(n * Q, K), 2, axis=0)
    widths = np.repeat(np.sqrt(variances).transpose(0, 2, 1).reshape(n * Q, K), 2, axis=0)
    tails = np.tile([(1.0 - level) / 2.0, (1.0 + level) / 2.0], n * Q)
    ends = centers + noise.quantile(tails)[:, None] * widths
    low = np.where(weights > 0.0, ends, math.inf).min(axis=1, initial=math.inf)
    high = np.where(weights > 0.0, ends, -math.inf).max(axis=1, initial=-math.inf)
    tolerances = 1e-9 * widths.min(axis=1, initial=math.inf) + 4e-16 * np.maximum(np.abs(low), np.abs(high))
    found = np.clip((weights * ends).sum(axis=1), low, high)
    moved = high - low
    active = np.flatnonzero(moved > tolerances)
    for _ in range(MOST_ROUNDS):
        if not active.size:
            break
        x, weight, width = found[active], weights[active], widths[active]
        z = (x[:, None] - centers[active]) / width
        excess = (weight * noise.cdf(z)).sum(axis=1) - tails[active]
        density = (weight / width * noise.pdf(z)).sum(axis=1)
        below = excess < 0.0
        low[active] = np.where(below, x, low[active])
        high[active] = np.where(below, high[active], x)
        good = np.abs(excess) < 0.5 * moved[active] * density
        proposed = x - np.divide(excess, density, out=np.zeros_like(x), where=good)
        good &= (low[active] <= proposed) & (proposed <= high[active])
        found[active] = np.where(good, proposed, 0.5 * (low[active] + high[active]))
        moved[active] = np.abs(found[active] - x)
        active = active[moved[active] > tolerances[active]]
    quantiles: FloatArray = found.reshape(n, Q, 2)
    return quantiles
