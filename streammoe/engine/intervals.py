"""Predictive intervals of many events at once."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streammoe.distributions import ExpertNoise
from streammoe.distributions.mixtures import outer_tails
from streammoe.kernels.quantiles import CELL_BITS, OCTAVES, TERMS, mixture_ends
from streammoe.types import FloatArray

UNIT = 2.0
"""Width of the finest octave of a table, in scales of the noise; cells there are 1/64 wide."""
SMOOTH = 9.0
"""Distance beyond which no noise holds enough for a kink in its density to matter."""


AT_ONCE = 4096
"""Distributions whose parts are in memory at once."""


class Table(NamedTuple):
    """P(Z ≤ −z) of a noise, which kernels look up; see `kernels.quantiles`."""

    unit: float
    cells: FloatArray


NO_NOISE = Table(1.0, np.empty((0, TERMS)))


def mixture_intervals(
    shares: FloatArray, means: FloatArray, variances: FloatArray, ranks: FloatArray, level: float, noise: ExpertNoise
) -> FloatArray:
    """Compute central predictive intervals of mixtures, output by output.

    The ends are the quantiles (1 ∓ level) / 2 of Σ_k g_k N(μ_kq, σ²_kq), or of another noise, calibrated.

    Args:
        shares: (n, K) shares of the components, from 0 to 1; what else those without one have does not matter.
        means: (n, K, Q).
        variances: (n, K, Q), above 0; squared scales for other noise.
        ranks: (n, Q, B) the probability of each of B parts of a distribution that are equally likely by the mixture;
            all 0, or B = 0, where it is to be taken as it is.
        level: probability of the interval, from 0 (the median, twice) to below 1.
        noise: noise of each component, at scale 1.

    Returns:
        (n, Q, 2) lower and upper ends, for levels up to 0.999999 accurate to about 1e-9 of the smallest deviation; NaN
        where an argument is, or no component has a share.

    >>> from streammoe.distributions import Gaussian
    >>> one, counts = np.ones((1, 1, 1)), np.ones((1, 1, 40))
    >>> mixture_intervals(one[0], 0.0 * one, one, counts, 0.9, Gaussian()).round(4).tolist()
    [[[-1.6449, 1.6449]]]
    """
    shares, means, variances = map(np.ascontiguousarray, (shares, means, variances))
    n, Q, tail, table = len(means), means.shape[2], 0.5 * (1.0 - level), table_of_noise(noise)
    found = np.empty((n, Q, 2))
    at_once = max(1, AT_ONCE // max(Q, 1))
    for start in range(0, n, at_once):
        rows = slice(start, start + at_once)
        parts = shares[rows], means[rows], variances[rows]
        tails = outer_tails(ranks[rows], tail) if ranks.size else np.full((len(parts[0]), Q, 2), tail)
        scores = noise.quantile(tails)
        found[rows] = mixture_ends(*parts, tails, scores, noise.pdf(scores) / tails, *table)
    return found


@lru_cache(maxsize=8)
def table_of_noise(noise: ExpertNoise) -> Table:
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
    return Table(unit, np.ascontiguousarray(cells))
