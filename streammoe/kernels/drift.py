"""Losses in blocks, each held against what is usual: what a drift detector is given."""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import allocating, jit, part
from streammoe.types import FloatArray, IntArray

CLIP = 8.0
"""A loss counts as no further from the usual one than so many mean deviations: one event decides nothing."""
LARGEST = 16.0
"""A block counts as no further from the usual one than so many standard deviations of blocks: nor does one block."""
HORIZON = 100.0
"""Blocks over which what is usual is averaged."""
LEAST_DEVIATION = 0.1
"""Mean deviation of losses, in nats, below which a loss is not worth telling from the usual one."""
LEAST_SPREAD = 0.01
"""The same for the standard deviation of blocks."""
NORMAL = 1.4826
"""Standard deviation of a normal variable in units of its median deviation."""


@part
def exceeds(sums: FloatArray, excess: float, tolerance: float, threshold: float) -> bool:
    """Test for an increase of the mean of values, normally 0, by the cumulative sum of Page and Hinkley.

    For values x_1, x_2, … and a tolerance δ let S_t = Σ_{i ≤ t} (x_i − δ). A change is detected at the first t at which
    S_t − min_{s ≤ t} S_s exceeds the threshold.

    Source: E. S. Page, "Continuous inspection schemes", Biometrika 41 (1954), 100–115, doi:10.1093/biomet/41.1-2.100;
    with a running minimum as in J. Gama, R. Sebastião and P. P. Rodrigues, "On evaluating stream learning algorithms",
    Machine Learning 90 (2013), 317–346.

    Args:
        sums: (2,) S and its minimum so far, changed in place.
        excess: the next value.
        tolerance: δ.
        threshold: see above.
    """
    sums[0] = sums[0] + excess - tolerance
    sums[1] = min(sums[1], sums[0])
    return bool(sums[0] - sums[1] > threshold)


@jit
def hold_against_usual(
    losses: FloatArray, block: FloatArray, counts: IntArray, usual: FloatArray, closed: FloatArray
) -> int:
    """Take losses in order, and say of each block that they fill how it compares with those before.

    Args:
        losses: (n,) of events that were learned.
        block: (B,) the losses of the open block, changed in place.
        counts: (≥ 2,) how many of these there are, and blocks closed so far; changed in place.
        usual: (4,) mean of the losses, their mean deviation, the variance of a block's mean, and the mean of the latest
            block; changed in place.
        closed: (≥ n/B + 1, 3) written: for each block the excess of its mean in standard deviations, in
            ±`LARGEST`; the usual mean before it; its own mean.

    Returns:
        How many blocks were closed.
    """
    found = 0
    for i in range(losses.shape[0]):
        block[counts[0]] = losses[i]
        counts[0] += 1
        if counts[0] == block.shape[0]:
            counts[0] = 0
            counts[1] += 1
            _close(block, counts[1], usual, closed[found])
            found += 1
    return found


@allocating
def _close(block: FloatArray, number: int, usual: FloatArray, out: FloatArray) -> None:
    size = block.shape[0]
    if number == 1:
        # Medians, since nothing is known yet by which a single absurd loss could be told.
        ordered = np.empty(size)
        usual[0] = _median(block, 0.0, False, ordered)
        usual[1] = NORMAL * _median(block, usual[0], True, ordered)
        usual[2] = max(usual[1], LEAST_DEVIATION) ** 2 / size
    level = usual[0]
    reach = CLIP * max(usual[1], LEAST_DEVIATION)
    total = 0.0
    deviations = 0.0
    for i in range(size):
        excess = min(max(block[i] - level, -reach), reach)
        total += excess
        deviations += abs(excess)
    mean = level + total / size
    limit = LARGEST * max(math.sqrt(usual[2]), LEAST_SPREAD)
    counted = min(max(mean - level, -limit), limit)
    out[0] = LARGEST * counted / limit
    out[1] = level
    out[2] = mean
    share = max(1.0 / number, 1.0 / HORIZON)
    usual[0] += share * counted
    usual[1] += share * (deviations / size - usual[1])
    if number > 1:
        # By what neighbours differ, so that a model that is still improving does not seem to vary by itself.
        step = min(max((mean - usual[3]) / math.sqrt(2.0), -limit), limit)
        usual[2] += share * (step * step - usual[2])
    usual[3] = mean


@part
def _median(values: FloatArray, centre: float, absolute: bool, ordered: FloatArray) -> float:
    """The median of ``values - centre``, or of how large these are; `ordered` is scratch of the same length.

    That of NumPy takes a second to compile.
    """
    n = values.shape[0]
    for i in range(n):
        value = values[i] - centre
        if absolute:
            value = abs(value)
        at = i
        while at > 0 and ordered[at - 1] > value:
            ordered[at] = ordered[at - 1]
            at -= 1
        ordered[at] = value
    if n % 2:
        middle: float = ordered[n // 2]
        return middle
    middle = (ordered[n // 2 - 1] + ordered[n // 2]) / 2
    return middle
