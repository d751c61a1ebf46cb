"""Predictive intervals of many events at once."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streammoe.distributions import ExpertNoise
from streammoe.kernels.quantiles import CELL_BITS, OCTAVES, TERMS, mixture_ends
from streammoe.types import FloatArray

UNIT = 2.0
"""Width of the finest octave of a table, in scales of the noise; cells there are 1/64 wide."""
SMOOTH = 9.0
"""Distance beyond which no noise holds enough for a kink in its density to matter."""


class _Table(NamedTuple):
    """What a search for quantiles needs to know of a noise and a level."""

    tail: float
    score: float
    rate: float
    unit: float
    cells: FloatArray


def mixture_intervals(
    shares: FloatArray, means: FloatArray, variances: FloatArray, level: float, noise: ExpertNoise
) -> FloatArray:
    """Compute central predictive intervals of mixtures, output by output.

    The ends are the quantiles (1 ∓ level) / 2 of Σ_k g_k N(μ_kq, σ²_kq), or of another noise.

    Args:
        shares: (n, K) shares of the components, from 0 to 1; what else those without one have does not matter.
        means: (n, K, Q).
        variances: (n, K, Q), above 0; squared scales for other noise.
        level: probability of the interval, from 0 (the median, twice) to below 1.
        noise: noise of each component, at scale 1.

    Returns:
        (n, Q, 2) lower and upper ends, for levels up to 0.999999 accurate to about 1e-9 of the smallest deviation; NaN
        where an argument is, or no component has a share.

    >>> from streammoe.distributions import Gaussian
    >>> mixture_intervals(np.ones((1, 1)), np.zeros((1, 1, 1)), np.ones((1, 1, 1)), 0.9, Gaussian()).round(4).tolist()
    [[[-1.6449, 1.6449]]]
    """
    shares, means, variances = map(np.ascontiguousarray, (shares, means, variances))
    return mixture_ends(shares, means, variances, *_table(level, noise))


@lru_cache(maxsize=8)
def _table(level: float, noise: ExpertNoise) -> _Table:
    """Interpolate P(Z ≤ −z) by polynomials, in cells that the search finds without branches.

    A kink in the density is the end of a cell, for which the cells are stretched a little.
    """
    count = 1 << CELL_BITS
    octaves = np.repeat(2.0 ** np.arange(OCTAVES), count)
    begins = octaves * (1.0 + np.tile(np.arange(count) / count, OCTAVES))
    unit = UNIT
    if noise.kink < SMOOTH:
        unit = noise.kink / (begins[1:][np.abs(begins[1:] - 1.0 - noise.kink / UNIT).argmin()] - 1.0)
    nodes = 0.5 - 0.5 * np.cos(np.pi * (np.arange(TERMS) + 0.5) / TERMS)
    widths = octaves / count
    z = unit * (begins[:, None] + widths[:, None] * nodes - 1.0)
    cells = np.linalg.solve(np.vander(nodes, increasing=True), noise.cdf(-z).T).T / widths[:, None] ** np.arange(TERMS)
    tail = 0.5 * (1.0 - level)
    score = noise.quantile(np.array(tail))
    rate = float(noise.pdf(score)) / tail
    return _Table(tail, float(score), rate, unit, np.ascontiguousarray(cells))
