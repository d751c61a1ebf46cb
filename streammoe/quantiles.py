"""Quantiles of univariate mixtures, exact to rounding; `streammoe.pipeline.intervals` has those of many events."""

from __future__ import annotations

import math

from streammoe.noise import Noise

MOST_STEPS = 400
"""Limit on Newton or bisection steps; bisection alone needs fewer."""


def lower_quantile(q: float, shares: list[float], means: list[float], scales: list[float], noise: Noise) -> float:
    """Return the y with P(Y ≤ y) = q ≤ ½, by Newton steps inside a bracket, or bisection if they do no better.

    All shares are above 0. Every component has less than q below the lowest of their quantiles, and more than q above
    the highest; these bracket y, up to rounding. It takes plain lists, since a NumPy call on arrays of two or three
    numbers costs more than the whole search.
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
