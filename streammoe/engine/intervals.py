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
        ranks: (n, Q, B) how often targets fell into each of B equal parts of the distribution; all 0, or B = 0, where
            it is to be taken as it is.
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
    tails = _tails(ranks, 0.5 * (1.0 - level), (len(means), means.shape[2]))
    scores = noise.quantile(tails)
    rates = noise.pdf(scores) / tails
    return mixture_ends(shares, means, variances, tails, scores, rates, *table_of_noise(noise))


def _tails(ranks: FloatArray, tail: float, shape: tuple[int, ...]) -> FloatArray:
    """Return the probabilities, (n, Q, 2), that become `tail` below and above when distributions are calibrated."""
    if not ranks.size:
        return np.full((*shape, 2), tail)
    known = np.where(ranks.sum(axis=-1, keepdims=True) > 0.0, ranks, 1.0)
    both = np.stack([known, known[..., ::-1]], axis=-2)
    ends = np.cumsum(both, axis=-1) / both.sum(axis=-1, keepdims=True)
    at = np.minimum((ends <= tail).sum(axis=-1, keepdims=True), ends.shape[-1] - 1)
    end, before = np.take_along_axis(ends, at, -1), np.take_along_axis(ends, np.maximum(at - 1, 0), -1)
    before[at == 0] = 0.0
    return np.asarray(((at + (tail - before) / (end - before)) / ends.shape[-1])[..., 0])


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
