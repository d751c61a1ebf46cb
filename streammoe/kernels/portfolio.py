"""The prediction of several members, each trusted by how well it has predicted of late.

The served density is Σ_i w_i s_i(y|x). After each event w_i ← w_i^λ s_i(y|x), normalised: Bayes' rule with a memory of
1/(1 − λ) events, by which a member that was wrong for long can come back at once.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import jit
from streammoe.types import FloatArray

DISCOUNT = 0.998
"""The power λ to which weights are raised at each event."""
LEAST_WEIGHT = 1e-8
"""No weight is smaller, but for rounding."""


@jit
def combine(
    weights: FloatArray,
    counts: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    served_losses: FloatArray,
    served_predictions: FloatArray,
    shares: FloatArray,
) -> None:
    """Combine what members say of rows, in order, and after each row trust those more that have predicted it.

    Args:
        weights: (m,) above 0 that add up to 1; changed in place.
        counts: (n,) how much each row counts; if empty, nothing is learned from the rows.
        losses: (m, n) −log s_i(y|x) of each member, NaN where there is no target.
        predictions: (m, n, M), likewise.
        served_losses, served_predictions: (n,) and (n, M), written.
        shares: (n, m), written: the weights at each row.
    """
    m = weights.shape[0]
    logs = np.empty(m)
    for j in range(m):
        logs[j] = math.log(weights[j])
    for i in range(served_losses.shape[0]):
        for j in range(m):
            shares[i, j] = weights[j]
        for q in range(served_predictions.shape[1]):
            total = 0.0
            for j in range(m):
                total += weights[j] * predictions[j, i, q]
            served_predictions[i, q] = total
        if math.isnan(losses[0, i]):
            served_losses[i] = np.nan
            continue
        # Of sums of exponentials the largest term is 1, so that no density that vanishes makes 0/0.
        largest = logs[0] - losses[0, i]
        for j in range(1, m):
            largest = max(largest, logs[j] - losses[j, i])
        total = 0.0
        for j in range(m):
            total += math.exp(logs[j] - losses[j, i] - largest)
        served_losses[i] = -largest - math.log(total)
        if counts.shape[0] == 0:
            continue
        largest = -np.inf
        for j in range(m):
            logs[j] = DISCOUNT * logs[j] - counts[i] * losses[j, i]
            largest = max(largest, logs[j])
        total = 0.0
        for j in range(m):
            weights[j] = math.exp(logs[j] - largest)
            total += weights[j]
        floored = 0.0
        for j in range(m):
            weights[j] = max(weights[j] / total, LEAST_WEIGHT)
            floored += weights[j]
        for j in range(m):
            weights[j] /= floored
            logs[j] = math.log(weights[j])
