"""Predictive intervals of many events at once, and a score of predicted distributions."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from streammoe.distributions import ExpertNoise
from streammoe.distributions.mixtures import LEVELS, outer_tails, stretched_tails
from streammoe.kernels.calibration import PARTS
from streammoe.kernels.quantiles import CELL_BITS, OCTAVES, TERMS, mixture_ends
from streammoe.kernels.state import Trace
from streammoe.types import FloatArray

UNIT = 2.0
"""Width of the finest octave of a table, in scales of the noise; cells there are 1/64 wide."""
SMOOTH = 9.0
"""Distance beyond which no noise holds enough for a kink in its density to matter."""


AT_ONCE = 4096
"""Distributions whose parts are in memory at once."""
NODES = (
    np.concatenate([2.0 ** -np.arange(8.0, 0.0, -1.0), np.arange(1.0, 4.0, 0.25), np.arange(4.0, PARTS / 2.0)]) / PARTS
)
"""Probabilities below the lower half of the points by which `crps` knows a distribution."""


class Table(NamedTuple):
    """P(Z ≤ −z) of a noise, which kernels look up; see `kernels.quantiles`."""

    unit: float
    cells: FloatArray


NO_NOISE = Table(1.0, np.empty((0, TERMS)))


def mixture_intervals(
    shares: FloatArray,
    means: FloatArray,
    variances: FloatArray,
    ranks: FloatArray,
    stretch: FloatArray,
    level: float,
    noise: ExpertNoise,
) -> FloatArray:
    """Compute central predictive intervals of mixtures, output by output.

    The ends are the quantiles (1 ∓ level) / 2 of Σ_k g_k N(μ_kq, σ²_kq), or of another noise, calibrated.

    Args:
        shares: (n, K) shares of the components, from 0 to 1; what else those without one have does not matter.
        means: (n, K, Q).
        variances: (n, K, Q), above 0; squared scales for other noise.
        ranks: (n, Q, B) the probability of each of B parts of a distribution that are equally likely by the mixture;
            all 0, or B = 0, where it is to be taken as it is.
        stretch: (n, Q, 2, L) factors by which ends are moved, see `distributions.mixtures`; L = 0 where they are not.
        level: probability of the interval, from 0 (the median, twice) to below 1.
        noise: noise of each component, at scale 1.

    Returns:
        (n, Q, 2) lower and upper ends, for levels up to 0.999999 accurate to about 1e-9 of the smallest deviation; NaN
        where an argument is, or no component has a share.

    >>> from streammoe.distributions import Gaussian
    >>> one, counts = np.ones((1, 1, 1)), np.ones((1, 1, 40))
    >>> mixture_intervals(one[0], 0.0 * one, one, counts, np.ones((1, 1, 2, 4)), 0.9, Gaussian()).round(4).tolist()
    [[[-1.6449, 1.6449]]]
    """
    shares, means, variances = map(np.ascontiguousarray, (shares, means, variances))
    n, Q, tail, table = len(means), means.shape[2], 0.5 * (1.0 - level), table_of_noise(noise)
    found = np.empty((n, Q, 2))
    at_once = max(1, AT_ONCE // max(Q, 1))
    for start in range(0, n, at_once):
        rows = slice(start, start + at_once)
        parts = shares[rows], means[rows], variances[rows]
        tails = np.full((len(parts[0]), Q, 2), tail)
        if stretch.size:
            tails[:] = stretched_tails(stretch[rows], tail)
        if ranks.size:
            tails = outer_tails(ranks[rows], tails)
        scores = noise.quantile(tails)
        found[rows] = mixture_ends(*parts, tails, scores, noise.pdf(scores) / tails, *table)
    return found


def level_intervals(trace: Trace, noise: ExpertNoise) -> FloatArray:
    """Compute the intervals of each of `LEVELS` at once, (n, Q, L, 2); see `mixture_intervals`."""
    return np.stack([mixture_intervals(*trace, level, noise) for level in LEVELS], axis=2)


def crps(trace: Trace, targets: FloatArray, noise: ExpertNoise) -> FloatArray:
    """Compute the continuous ranked probability score ∫ (F(t) − 1[y ≤ t])² dt of each event and output, (n, Q).

    F is the distribution that is served (Gneiting and Raftery 2007, eq. 20). The mixture's quantiles at the ends of the
    parts that calibrate it, and further ones in its tails, are found, F is taken for linear in between, and the
    integral has a closed form then: one way for every noise. Means over events are within some 0.1 % of their value.

    Args:
        trace: of the events, with all that calibrates them.
        targets: (n, Q).
        noise: noise of each component.
    """
    found = np.empty(targets.shape)
    for start in range(0, len(targets), AT_ONCE):
        rows = slice(start, start + AT_ONCE)
        parts = Trace(*(part[rows] for part in trace))
        plain = parts._replace(ranks=parts.ranks[:, :, :0], stretch=parts.stretch[..., :0])
        pairs = [mixture_intervals(*plain, 1.0 - 2.0 * below, noise) for below in NODES]
        ends = np.stack([each[..., 0] for each in pairs] + [each[..., 1] for each in reversed(pairs)], axis=-1)
        nominal = np.concatenate([NODES, 1.0 - NODES[::-1]])
        probabilities = np.broadcast_to(nominal, ends.shape)
        if parts.ranks.size:
            B = parts.ranks.shape[-1]
            at = np.minimum((nominal * B + 1e-9).astype(np.int64), B - 1)
            below = np.cumsum(parts.ranks, axis=-1) - parts.ranks
            probabilities = below[..., at] + (nominal * B - at) * parts.ranks[..., at]
        found[rows] = _piecewise_crps(ends, probabilities, targets[rows])
    return found


def _piecewise_crps(ends: FloatArray, probabilities: FloatArray, y: FloatArray) -> FloatArray:
    """Return the CRPS of distributions whose F is linear between (..., J) points, 0 before and 1 behind them."""
    widths, from_below, slopes = np.diff(ends), probabilities[..., :-1], np.diff(probabilities)
    # The share of each piece that is below y, and the integrals of F² up to there and of (1 − F)² from there on.
    share = np.clip(
        np.divide(y[..., None] - ends[..., :-1], widths, out=np.zeros_like(widths), where=widths > 0.0), 0, 1
    )
    middle, to_above = from_below + share * slopes, from_below + slopes
    lower = share * (from_below**2 + from_below * middle + middle**2) / 3.0
    p, q = 1.0 - middle, 1.0 - to_above
    upper = (1.0 - share) * (p**2 + p * q + q**2) / 3.0
    outside = np.maximum(ends[..., 0] - y, 0.0) + np.maximum(y - ends[..., -1], 0.0)
    return np.asarray((widths * (lower + upper)).sum(axis=-1) + outside)


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
