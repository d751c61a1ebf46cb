"""The prediction of several members, each trusted by how well it has predicted of late.

The served density is Σ_i w_i s_i(y|x). After each event w_i ← w_i^λ s_i(y|x), normalised: Bayes' rule with a memory of
1/(1 − λ) events, by which a member that was wrong for long can come back at once.
"""

from __future__ import annotations

import math

import numpy as np

from streammoe.kernels.compile import jit, part
from streammoe.types import FloatArray, IntArray

DISCOUNT = 0.998
"""The power λ to which weights are raised at each event."""
LEAST_WEIGHT = 1e-8
"""No weight is smaller, but for rounding."""
MOST = 3.0
"""Nats between members that one event counts for at most: a single wrong label or target says nothing about them."""
REMEMBERED = 0.95
"""Share that remains, from event to event, of the nats beyond `MOST`, for which further events count more: where such
events come again within some twenty, they are no accident."""
MOST_REMEMBERED = 100.0
"""Those nats are no more than this, or many quiet events would not outlast them."""
CREDENCE = 0.5
"""Share of the log-likelihood of an error that counts for the weights of means: where the noise of events differs, few
of them decide."""
CERTAIN = 4.0
"""Errors beyond so many times their scale count less and less for the weights of means."""
FINITE = 1e300
"""Larger squares are taken for this."""


@part
def _update(logs: FloatArray, costs: FloatArray, count: float, surprise: FloatArray, weights: FloatArray) -> None:
    """Write the weights after an event: they add up to 1, and none of them vanishes.

    Args:
        logs: (m,) logarithms of the weights before it, up to a constant; changed in place.
        costs: (m,) what the event costs each member, in nats.
        count: how much it counts.
        surprise: (1,) nats beyond `MOST` by which those that are trusted were behind of late; changed in place.
        weights: (m,) those before it, replaced.
    """
    m = weights.shape[0]
    least = costs[0]
    for j in range(1, m):
        least = min(least, costs[j])
    largest = -np.inf
    behind = 0.0
    for j in range(m):
        cost = count * (costs[j] - least)
        behind += weights[j] * min(cost, FINITE)
        logs[j] -= min(cost, MOST + surprise[0])
        largest = max(largest, logs[j])
    surprise[0] = min(REMEMBERED * surprise[0] + max(behind - MOST, 0.0), MOST_REMEMBERED)
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
    surprise: FloatArray,
    counts: FloatArray,
    losses: FloatArray,
    predictions: FloatArray,
    served_losses: FloatArray,
    served_predictions: FloatArray,
    shares: FloatArray,
    scratch: FloatArray,
) -> None:
    """Combine what members say of rows, in order, and after each row trust those more that have predicted it.

    Args:
        weights: (m,) above 0 that add up to 1; changed in place.
        surprise: (1,) see `_update`; changed in place.
        counts: (n,) how much each row counts; if empty, nothing is learned from the rows.
        losses: (m, n) −log s_i(y|x) of each member, NaN where there is no target.
        predictions: (m, n, M), likewise.
        served_losses, served_predictions: (n,) and (n, M), written.
        shares: (n, m), written: the weights at each row.
        scratch: (2, m).
    """
    m = weights.shape[0]
    logs, costs = scratch[0], scratch[1]
    for i in range(served_losses.shape[0]):
        for j in range(m):
            shares[i, j] = weights[j]
            logs[j] = math.log(weights[j])
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
        for j in range(m):
            logs[j] *= DISCOUNT
            costs[j] = losses[j, i]
        _update(logs, costs, counts[i], surprise, weights)


@jit
def combine_means(
    weights: FloatArray,
    surprise: FloatArray,
    squares: FloatArray,
    number: IntArray,
    counts: FloatArray,
    predictions: FloatArray,
    targets: FloatArray,
    served: FloatArray,
    scratch: FloatArray,
) -> None:
    """Mix the mean of the served density with the members' own, and after each row trust those more that were near.

    The update is that of `combine`, with normal densities around the means, all of the same variance: the running mean
    of the squared errors of what was served. Their tails are logarithmic, like those of experts.

    Args:
        weights: (1 + m,) above 0 that add up to 1, of the mean of the served density and of the members'; changed in
            place, like `surprise`, `squares` and `number`.
        surprise: (1,) see `_update`.
        squares: (Q,) running mean of the squared errors.
        number: (1,) number of rows behind it.
        counts: (n,) how much each row counts; if empty, nothing is learned from the rows.
        predictions: (m, n, Q) means of the members.
        targets: (n, Q), NaN where there is none.
        served: (n, Q) means of the served densities; replaced by what is predicted.
        scratch: (2, 1 + m).
    """
    m = predictions.shape[0]
    n_outputs = served.shape[1]
    logs, costs = scratch[0], scratch[1]
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
        for j in range(1 + m):
            logs[j] = DISCOUNT * math.log(weights[j])
        _update(logs, costs, counts[i], surprise, weights)
