"""Weights of those that predict together: above 0, and they add up to 1."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from streammoe.checked import array_of, require
from streammoe.kernels.portfolio import LEAST_WEIGHT, MOST_REMEMBERED
from streammoe.types import AnyArray, FloatArray

LEAST_SAVED = 0.25 * LEAST_WEIGHT
"""Least weight in a checkpoint: members that have just come have taken their share of all others."""
SUM_TOLERANCE = 1e-9
"""Tolerance for the sum of the weights in a checkpoint."""


def beginning(count: int, *, trusted: bool) -> FloatArray:
    """Return equal weights, or nearly all of it for the first one if that is `trusted`.

    >>> beginning(4, trusted=False).tolist()
    [0.25, 0.25, 0.25, 0.25]
    """
    others = LEAST_WEIGHT if trusted else 1.0 / count
    weights = np.full(count, others)
    weights[0] = 1.0 - others * (count - 1)
    return weights


def with_another(weights: FloatArray, at: int, share: float) -> FloatArray:
    """Return weights with a further one at an index, which gets this share of all.

    >>> with_another(np.array([0.75, 0.25]), 1, 0.2).tolist()
    [0.6000000000000001, 0.2, 0.2]
    """
    return np.insert((1.0 - share) * weights, at, share)


def without(weights: FloatArray, at: int) -> FloatArray:
    """Return weights without the one at an index.

    >>> without(np.array([0.6, 0.2, 0.2]), 0).tolist()
    [0.5, 0.5]
    """
    left = np.delete(weights, at)
    found: FloatArray = left / left.sum()
    return found


def restored(arrays: Mapping[str, AnyArray], name: str, count: int) -> FloatArray:
    """Return the weights that a checkpoint holds.

    Raises:
        CheckpointError: they are missing, are not so many, or are no weights.
    """
    weights = array_of(arrays, name, "float64", (count,), least=LEAST_SAVED, most=1.0)
    total = float(weights.sum())
    require(abs(total - 1.0) <= SUM_TOLERANCE, f"array {name} adds up to {total}; weights add up to 1")
    return weights.copy()


def restored_surprise(arrays: Mapping[str, AnyArray], name: str) -> FloatArray:
    """Return the nats that a checkpoint holds besides the weights, see `kernels.portfolio.combine`.

    Raises:
        CheckpointError: they are missing, or invalid.
    """
    return array_of(arrays, name, "float64", (1,), least=0.0, most=MOST_REMEMBERED).copy()
