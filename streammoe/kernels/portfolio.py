"""The prediction of several members, each trusted by how well it has predicted of late.

The served density is Σ_i w_i s_i(y|x). After each event w_i ← w_i^λ s_i(y|x), normalised: Bayes' rule with a memory of
1/(1 − λ) events, by which a member that was wrong for long can come back at once.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import jit
from streammoe.types import FloatArray, IntArray

DISCOUNT = 0.998
"""The power λ to which weights are raised at each event."""
LEAST_WEIGHT = 1e-8
"""No weight is smaller, but for rounding."""
CREDENCE = 0.5
"""Share of the log-likelihood of an error that counts for the weights of means: where the noise of events differs, few
of them decide."""
ADVANTAGE = 6.0
"""Nats that the mean of the served density is ahead of those of members: what errors say of them is mostly noise, and
where densities are right they tell members apart much better."""
CERTAIN = 6.0
"""Errors beyond so many times their scale count less and less for the weights of means."""
FINITE = 1e300
"""Larger squares are taken for this."""


@jit
def _normalise(logs: FloatArray, largest: float, weights: FloatArray) -> None:
    """Write weights that add up to 1, none of them vanishing, given their logarithms up to a constant."""
    m = weights.shape[0]
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
        _normalise(logs, largest, weights)
        for j in range(m):
            logs[j] = math.log(weights[j])


@jit
def combine_means(
    weights: FloatArray,
    squares: FloatArray,
    number: IntArray,
    counts: FloatArray,
    predictions: FloatArray,
    targets: FloatArray,
    served: FloatArray,
) -> None:
    """Mix the mean of the served density with the members' own, and after each row trust those more that were near.

    The update is that of `combine`, with normal densities around the means, all of the same variance: the running mean
    of the squared errors of what was served. Their tails are logarithmic, like those of experts.

    Args:
        weights: (1 + m,) above 0 that add up to 1, of the mean of the served density and of the members'; changed in
            place, like `squares` and `number`.
        squares: (Q,) running mean of the squared errors.
        number: (1,) number of rows behind it.
        counts: (n,) how much each row counts; if empty, nothing is learned from the rows.
        predictions: (m, n, Q) means of the members.
        targets: (n, Q), NaN where there is none.
        served: (n, Q) means of the served densities; replaced by what is predicted.
    """
    m = predictions.shape[0]
    n_outputs = served.shape[1]
    logs = np.empty(1 + m)
    costs = np.empty(1 + m)
    limit = CERTAIN * CERTAIN
    for i in range(served.shape[0]):
        learns = counts.shape[0] > 0 and not math.isnan(targets[i, 0])
        if learns:
            number[0] += 1
        costs[:] = 0.0
        for q in range(n_outputs):
            own = served[i, q]
            total = weights[0] * own
            for j in range(m):
                total += weights[1 + j] * predictions[j, i, q]
            served[i, q] = total
            if not learns:
                continue
            error = min((targets[i, q] - total) ** 2, FINITE)
            scale = squares[q] if squares[q] > 0.0 else error
            if scale > 0.0:
                for j in range(1 + m):
                    mean = own if j == 0 else predictions[j - 1, i, q]
                    ratio = min((targets[i, q] - mean) ** 2 / scale, FINITE)
                    costs[j] += 0.5 * CREDENCE * (ratio if ratio <= limit else limit * (1.0 + math.log(ratio / limit)))
            step = max(1.0 / number[0], 1.0 - DISCOUNT) * min(counts[i], 1.0)
            squares[q] += step * (min(error, limit * scale) - squares[q])
        if not learns:
            continue
        largest = -np.inf
        for j in range(1 + m):
            behind = ADVANTAGE if j > 0 else 0.0
            logs[j] = DISCOUNT * math.log(weights[j]) - (1.0 - DISCOUNT) * behind - counts[i] * costs[j]
            largest = max(largest, logs[j])
        _normalise(logs, largest, weights)
